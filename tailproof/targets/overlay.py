"""Makes a folder with a `vllm` package in which one module is changed and all else is the installed one.

The folder is a tree of links in Tailproof's cache. Its name holds a digest of what decides what is in it, and
it is renamed into place last: whole or not at all. A worker that has it on its path before what is installed
imports the changed system.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from tailproof.planted.vllm.catalogue import MutantError, functions, mutant
from tailproof.targets.cache import cache_folder, placed

PACKAGE = "vllm"
_FORMAT = b"2"


def installed_package(python: Path) -> Path:
    """The folder of the vllm package that the environment of an interpreter holds.

    Raises:
        MutantError: when it holds none.
    """
    # Not resolved: an environment's interpreter is a link out of it.
    found = sorted(python.parent.parent.glob(f"lib/python*/site-packages/{PACKAGE}/__init__.py"))
    if len(found) != 1:
        raise MutantError(f"{python} is not the interpreter of an environment with one {PACKAGE} package")
    return found[0].parent


def mutant_overlay(name: str, python: Path) -> Path:
    """The folder that holds the `vllm` package of an interpreter's environment with the mutant of
    that name, for `Worker(overlay=…)`.

    Raises:
        MutantError: when there is no such mutant, it is not in this source, or the folder cannot be written.
    """
    package = installed_package(python)
    one = mutant(package, name)
    return overlay(package, one.name, {one.file: one.source()})


def control_overlay(python: Path) -> Path:
    """As `mutant_overlay`, with every module that any mutant touches written out again and nothing changed:
    what is found on it is a fault of the overlay, not of vLLM.

    Raises:
        MutantError: when it cannot be made.
    """
    package = installed_package(python)
    files = sorted({one.file for one in functions().values()})
    try:
        trees = {file: ast.parse((package / file).read_text(encoding="utf-8")) for file in files}
    except OSError as problem:
        raise MutantError(f"{package}: {problem.strerror}") from None
    return overlay(package, "none", {file: ast.unparse(tree) + "\n" for file, tree in trees.items()})


def overlay(package: Path, name: str, texts: Mapping[str, str]) -> Path:
    """A folder whose `vllm` is `package` but for some files, keyed by content.

    `texts` gives the files, relative to the package, and what they hold.

    Raises:
        MutantError: when it cannot be written.
    """
    key = hashlib.sha256(_FORMAT + b"\0" + str(package).encode())
    for file, text in sorted(texts.items()):
        key.update(f"\0{file}\0{text}".encode())
    # A colon would end the folder's name on a worker's path.
    folder = cache_folder() / "mutants" / f"{re.sub('[^A-Za-z0-9_.-]', '-', name)}-{key.hexdigest()[:16]}"

    def make(draft: Path) -> Path:
        whole = draft / "whole"
        whole.mkdir()
        _link(package, whole / PACKAGE, {Path(file).parts: text for file, text in texts.items()})
        return whole

    try:
        return placed(folder, make)
    except OSError as problem:
        raise MutantError(f"{folder}: {problem.strerror}") from None


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
        raise MutantError(f"{source} holds no {sorted(below)[0]}")
