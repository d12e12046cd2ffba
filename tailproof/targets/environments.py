"""Builds and finds the environments that targets run in, so that all clones share one pinned build.

An environment is a virtual environment in the user's cache folder. Its name holds a key of everything
that decides what is in it, so a changed lock never meets an old build. It counts as built only when its
marker file exists, and that file is written last: whatever interrupts a build leaves nothing that is
used.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tailproof.targets import cache, process
from tailproof.targets.problems import EnvironmentProblem

LOCKS = Path(__file__).with_name("locks")

_GIB = 1 << 30
_MARKER = ".tailproof-complete"


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a target's environment is, or would be.

    `target` is the name the user gave, `python` the absolute path of the interpreter inside the
    environment, and `ready` whether that interpreter may be used now.
    """

    target: str
    python: Path
    ready: bool


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what an environment contains.

    `target` is its name (`vllm==0.32.0`). `lock` is the text of a pip requirements file in which every
    requirement is hashed; it is installed without dependencies. `first` are requirements installed before
    it together with their dependencies: builds of torch differ from machine to machine, and so do the
    packages they need. `checks` are modules that must import before the environment counts as built.
    `pythons` are the Python versions the lock is good for ("3.11"), empty for any. `disk` is the free
    space that a build asks for, in bytes.
    """

    target: str
    lock: str
    first: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    disk: int = 3 * _GIB


def known_targets() -> tuple[str, ...]:
    """Names of the targets that can be built here (`vllm==0.32.0`), in alphabetical order."""
    return tuple(sorted("==".join(path.stem.rsplit("-", 1)) for path in LOCKS.glob("*-*.txt")))


def locate(target: str | Recipe) -> Environment:
    """Where the environment of a target is or would be; builds nothing.

    Raises EnvironmentProblem for a target that has no lock.
    """
    recipe = _recipe(target)
    folder = _folder(recipe)
    return Environment(recipe.target, _python(folder), _is_ready(folder))


def ensure(target: str | Recipe, progress: Callable[[str], None]) -> Environment:
    """The environment of a target, built first when it is missing.

    `progress` receives one line at a time: what is being done and for how many seconds already. Callers
    in other processes wait for the first one and use its result. Raises EnvironmentProblem when the
    target has no lock, or when the environment cannot be built; an interrupt ends the build and passes
    through.
    """
    recipe = _recipe(target)
    folder = _folder(recipe)
    if not _is_ready(folder):
        _refuse_python(recipe)
        waiting = f"waiting for another process that builds {folder.name}"
        with _storage(folder), cache.alone(folder, lambda: progress(waiting)) as guard:
            # The process that was waited for may have finished the build.
            if not _is_ready(folder):
                _build(recipe, folder, guard, progress)
    return Environment(recipe.target, _python(folder), True)


def remove(target: str | Recipe) -> bool:
    """Deletes the environment of a target, finished or not; False when there was none.

    Raises EnvironmentProblem for a target that has no lock, or when the files cannot be deleted.
    """
    folder = _folder(_recipe(target))
    with _storage(folder):
        _log(folder).unlink(missing_ok=True)
        return cache.discarded(folder)


def _recipe(target: str | Recipe) -> Recipe:
    return target if isinstance(target, Recipe) else shipped_recipe(target)


def shipped_recipe(target: str) -> Recipe:
    """The recipe that Tailproof ships for a target; raises EnvironmentProblem when there is none."""
    known = known_targets()
    if target not in known:
        raise EnvironmentProblem(f"no environment is known for {target!r}: use one of {', '.join(known)}")
    lock = (LOCKS / f"{_file_name(target)}.txt").read_text(encoding="utf-8")
    first, checks, pythons = (_header(lock, word) for word in ("first", "check", "python"))
    return Recipe(target, lock, first, checks, pythons)


def _file_name(target: str) -> str:
    return target.replace("==", "-")


def _header(lock: str, word: str) -> tuple[str, ...]:
    prefix = f"# {word}: "
    return tuple(
        item for line in lock.splitlines() if line.startswith(prefix) for item in line[len(prefix) :].split()
    )


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _folder(recipe: Recipe) -> Path:
    parts = (recipe.lock, *recipe.first, _python_version(), platform.machine())
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    return cache.cache_folder() / "environments" / f"{_file_name(recipe.target)}-{key}"


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _is_ready(folder: Path) -> bool:
    return (folder / _MARKER).is_file() and _python(folder).exists()


def _log(folder: Path) -> Path:
    return folder.with_name(folder.name + ".log")


def _refuse_python(recipe: Recipe) -> None:
    if recipe.pythons and _python_version() not in recipe.pythons:
        raise EnvironmentProblem(
            f"{recipe.target} is locked for Python {', '.join(recipe.pythons)}, this is {_python_version()}:"
            " run Tailproof with one of these"
        )


@contextlib.contextmanager
def _storage(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = " ".join(str(error).split())
        raise EnvironmentProblem(
            f"cannot use {folder.parent}: {reason}; set TAILPROOF_CACHE to a folder that can be written"
        ) from error


def _build(recipe: Recipe, folder: Path, guard: int, progress: Callable[[str], None]) -> None:
    _delete(folder)
    free = shutil.disk_usage(folder.parent).free
    if free < recipe.disk:
        raise EnvironmentProblem(
            f"{recipe.target} needs {recipe.disk / _GIB:.1f} GiB in {folder.parent},"
            f" {free / _GIB:.1f} GiB are free: make room or set TAILPROOF_CACHE to another folder"
        )
    started = time.monotonic()

    def say(what: str) -> None:
        progress(f"{recipe.target}: {what} ({time.monotonic() - started:.0f} s)")

    requirements = folder.with_name(folder.name + ".txt")
    try:
        requirements.write_text(recipe.lock, encoding="utf-8")
        _log(folder).write_bytes(b"")
        for step, command in _steps(recipe, folder, requirements):
            _run(recipe.target, folder, step, command, guard, say)
        cache.write(folder / _MARKER, f"{folder.name}\n".encode())
    finally:
        requirements.unlink(missing_ok=True)
        if not _is_ready(folder):
            _delete(folder)
    say("ready")


def _steps(recipe: Recipe, folder: Path, requirements: Path) -> Iterator[tuple[str, list[str]]]:
    # -I: the caller's PYTHONPATH and user packages must neither satisfy a requirement nor shadow a module.
    isolated = [str(_python(folder)), "-I"]
    pip = ["-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--progress-bar", "off"]
    install = [*isolated, *pip]
    yield "creating the virtual environment", [sys.executable, "-I", "-m", "venv", "--clear", str(folder)]
    if recipe.first:
        yield f"installing {recipe.first[0]}", [*install, *recipe.first]
    if any(line.strip() and not line.startswith("#") for line in recipe.lock.splitlines()):
        hashed = ["--no-deps", "--require-hashes", "--requirement", str(requirements)]
        yield "installing the locked packages", [*install, *hashed]
    if recipe.checks:
        yield "importing what was installed", [*isolated, "-c", f"import {', '.join(recipe.checks)}"]


def _run(
    target: str, folder: Path, step: str, command: list[str], guard: int, say: Callable[[str], None]
) -> None:
    say(step)
    with _log(folder).open("ab+") as log:
        log.write(f"== {step}\n".encode())
        log.flush()
        begin = log.tell()
        # The step inherits the lock: when this process is killed, the next build waits for the orphan instead
        # of sharing the folder with it.
        code = process.run(command, log, tick=lambda passed: say(step), holding=(guard,))
        if code:
            log.seek(begin)
            reason = process.last_error(log.read().decode(errors="replace"), ("ERROR:",))
            raise EnvironmentProblem(
                f"{target}: {step} failed (exit code {code}): {reason}; see {_log(folder)}"
            )


def _delete(folder: Path) -> None:
    # The marker goes first, so that a deletion cut short leaves nothing that counts as built.
    (folder / _MARKER).unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)
