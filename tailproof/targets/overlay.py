"""Makes a folder with a `vllm` package in which one module is mutated and all else is the installed one.

The folder is a tree of links in Tailproof's cache folder. Its name holds a key of everything that decides
what is in it, and it is renamed into place last: whole or not at all. A worker that has it on its path before
what is installed imports the mutated system.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from tailproof.planted.vllm.catalogue import MUTANTS
from tailproof.planted.vllm.edits import edited
from tailproof.planted.vllm.mutant import SystemMutant
from tailproof.planted.vllm.shape import PlaceError
from tailproof.targets.cache import cache_folder, placed

PACKAGE = "vllm"
CONTROL = "none"
_FORMAT = b"1"


class OverlayProblem(Exception):
    """An overlay cannot be made; one line that says why."""


def names() -> tuple[str, ...]:
    """The names of all mutants, in the order of the catalogue."""
    return tuple(MUTANTS)


def mutant(name: str) -> SystemMutant:
    """The mutant of that name.

    Raises:
        OverlayProblem: when there is none; the line names some that are near.
    """
    if name not in MUTANTS:
        near = difflib.get_close_matches(name, MUTANTS, 3, 0.4) or list(MUTANTS)[:3]
        raise OverlayProblem(f"no fault of vLLM is called {name!r}; near are {', '.join(near)}")
    return MUTANTS[name]


def installed_package(python: Path) -> Path:
    """The folder of the vllm package that the environment of an interpreter holds.

    Raises:
        OverlayProblem: when it holds none.
    """
    # Not resolved: an environment's interpreter is a link out of it.
    found = sorted(python.parent.parent.glob(f"lib/python*/site-packages/{PACKAGE}/__init__.py"))
    if len(found) != 1:
        raise OverlayProblem(f"{python} is not the interpreter of an environment with one {PACKAGE} package")
    return found[0].parent


def mutated_source(one: SystemMutant, package: Path) -> str:
    """The source of the mutated module.

    Raises:
        OverlayProblem: when the place is not found exactly once; the line names file, function and shape.
    """
    try:
        text = (package / one.file).read_text(encoding="utf-8")
        return edited(text, one.function, one.place, one.edit)
    except OSError as problem:
        raise OverlayProblem(f"{one.name}: {one.file}: {problem.strerror}") from None
    except (PlaceError, SyntaxError) as problem:
        raise OverlayProblem(f"{one.name}: {one.file}: {problem}") from None


def mutant_overlay(name: str, python: Path) -> Path:
    """The folder that holds the `vllm` package with the mutant of that name, for `Worker(overlay=…)`.

    `python` is the interpreter of the environment with the vLLM that is mutated.

    Raises:
        OverlayProblem: when there is no such mutant, its place is not found exactly once, or the folder
            cannot be written.
    """
    package = installed_package(python)
    one = mutant(name)
    return overlay(package, name, {one.file: mutated_source(one, package)})


def control_overlay(python: Path) -> Path:
    """As `mutant_overlay`, with every module that any mutant touches written out again and nothing changed:
    what is found on it is a fault of the overlay, not of vLLM.

    Raises:
        OverlayProblem: when it cannot be made.
    """
    package = installed_package(python)
    files = sorted({one.file for one in MUTANTS.values()})
    try:
        texts = {file: (package / file).read_text(encoding="utf-8") for file in files}
    except OSError as problem:
        raise OverlayProblem(f"{package}: {problem.strerror}") from None
    return overlay(
        package, CONTROL, {file: ast.unparse(ast.parse(text)) + "\n" for file, text in texts.items()}
    )


def overlay(package: Path, name: str, texts: Mapping[str, str]) -> Path:
    """A folder whose `vllm` is `package` but for some files, keyed by content.

    `texts` gives the files, relative to the package, and what they hold.

    Raises:
        OverlayProblem: when it cannot be written.
    """
    digest = hashlib.sha256(_FORMAT + b"\0" + str(package).encode())
    for file, text in sorted(texts.items()):
        digest.update(f"\0{file}\0{text}".encode())
    folder = cache_folder() / "mutants" / f"{name}-{digest.hexdigest()[:16]}"

    def make(draft: Path) -> Path:
        root = draft / name
        root.mkdir()
        _link(package, root / PACKAGE, {Path(file).parts: text for file, text in texts.items()})
        return root

    try:
        return placed(folder, make)
    except OSError as problem:
        raise OverlayProblem(f"{folder}: {problem.strerror}") from None


def _link(source: Path, target: Path, texts: Mapping[tuple[str, ...], str]) -> None:
    """A folder of links to everything in `source`, real only where a file of `texts` lies below."""
    target.mkdir()
    below: dict[str, dict[tuple[str, ...], str]] = {}
    for (first, *rest), text in texts.items():
        below.setdefault(first, {})[tuple(rest)] = text
    for entry in sorted(os.listdir(source)):
        # Compiled files of the originals must not be taken for, nor overwritten by, those of the mutants.
        if entry == "__pycache__":
            continue
        inner = below.pop(entry, {})
        if () in inner:
            (target / entry).write_text(inner[()], encoding="utf-8")
        elif inner:
            _link(source / entry, target / entry, inner)
        else:
            (target / entry).symlink_to(source / entry)
    if below:
        raise OverlayProblem(f"{source} holds no {sorted(below)[0]}")
