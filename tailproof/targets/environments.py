"""Builds and finds the environments that targets run in, so that all clones share one pinned build.

An environment is a virtual environment in the user's cache folder. Its name holds a key of everything
that decides what is in it, so a changed lock never meets an old build. It counts as built only when its
marker file exists, and that file is written last: whatever interrupts a build leaves nothing that is
used.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LOCKS = Path(__file__).with_name("locks")

_GIB = 1 << 30
_MINIMUM_PYTHON = (3, 10)
_MARKER = ".tailproof-complete"
_PROGRESS_SECONDS = 10.0
_PATIENCE_SECONDS = 5.0


class EnvironmentProblem(Exception):
    """An environment cannot be named, built or removed; its text is one line that says what to do."""


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


@dataclass(frozen=True, slots=True)
class _Layout:
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def marker(self) -> Path:
        return self.folder / _MARKER

    @property
    def log(self) -> Path:
        return self.folder.with_name(self.folder.name + ".log")

    @property
    def requirements(self) -> Path:
        return self.folder.with_name(self.folder.name + ".txt")

    @property
    def guard(self) -> Path:
        return self.folder.with_name(self.folder.name + ".lock")

    @property
    def ready(self) -> bool:
        return self.marker.is_file() and self.python.exists()


def known_targets() -> tuple[str, ...]:
    """Names of the targets that can be built here (`vllm==0.32.0`), in alphabetical order."""
    return tuple(sorted("==".join(path.stem.rsplit("-", 1)) for path in LOCKS.glob("*-*.txt")))


def locate(target: str) -> Environment:
    """Where the environment of `target` is or would be; builds nothing.

    Raises EnvironmentProblem for a target that has no lock.
    """
    return located(shipped_recipe(target))


def ensure(target: str, progress: Callable[[str], None]) -> Environment:
    """The environment of `target`, built first when it is missing.

    `progress` receives one line at a time: what is being done and for how many seconds already. Callers
    in other processes wait for the first one and use its result. Raises EnvironmentProblem when the
    target has no lock, or when the environment cannot be built; an interrupt ends the build and passes
    through.
    """
    return built(shipped_recipe(target), progress)


def remove(target: str) -> bool:
    """Deletes the environment of `target`, finished or not; False when there was none.

    Raises EnvironmentProblem for a target that has no lock, or when the files cannot be deleted.
    """
    return removed(shipped_recipe(target))


def shipped_recipe(target: str) -> Recipe:
    """The recipe that Tailproof ships for `target`; raises EnvironmentProblem when there is none."""
    known = known_targets()
    if target not in known:
        raise EnvironmentProblem(f"no environment is known for {target!r}: use one of {', '.join(known)}")
    lock = (LOCKS / f"{_file_name(target)}.txt").read_text(encoding="utf-8")
    return Recipe(
        target=target,
        lock=lock,
        first=_header(lock, "first"),
        checks=_header(lock, "check"),
        pythons=_header(lock, "python"),
    )


def located(recipe: Recipe) -> Environment:
    """Where the environment of `recipe` is or would be; builds nothing."""
    layout = _layout(recipe)
    return Environment(recipe.target, layout.python, layout.ready)


def built(recipe: Recipe, progress: Callable[[str], None]) -> Environment:
    """The environment of `recipe`, built first when it is missing; otherwise as `ensure`."""
    layout = _layout(recipe)
    if not layout.ready:
        _refuse_python(recipe)
        with _storage(layout), _alone(layout, progress) as guard:
            # The process that was waited for may have finished the build.
            if not layout.ready:
                _build(recipe, layout, guard, progress)
    return Environment(recipe.target, layout.python, True)


def removed(recipe: Recipe) -> bool:
    """Deletes the environment of `recipe`, finished or not; False when there was none."""
    layout = _layout(recipe)
    if not layout.folder.exists():
        return False
    with _storage(layout), _alone(layout, _silent):
        _delete(layout)
        layout.log.unlink(missing_ok=True)
    return True


def cache_folder() -> Path:
    """Tailproof's cache folder: $TAILPROOF_CACHE, else tailproof in $XDG_CACHE_HOME or in ~/.cache.

    Raises EnvironmentProblem when no home folder is known.
    """
    own = os.environ.get("TAILPROOF_CACHE")
    if own:
        return Path(own).absolute()
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if shared.is_absolute():
        return shared / "tailproof"
    try:
        return Path.home() / ".cache" / "tailproof"
    except RuntimeError as error:
        raise EnvironmentProblem(f"{error}: set TAILPROOF_CACHE to a folder for environments") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m tailproof.targets.environments ensure TARGET` prints the interpreter.

    It also prepares what the store tier needs from the system. When that fails it says so, and the core
    tier is ready all the same.

    Exit codes: 0 ready, 2 wrong usage, 3 the environment cannot be built, 130 interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if len(words) != 2 or words[0] != "ensure":
        print("usage: python -m tailproof.targets.environments ensure TARGET", file=sys.stderr)
        return 2
    try:
        environment = ensure(words[1], _say)
        _prepare_store(environment)
    except EnvironmentProblem as problem:
        print(problem, file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("interrupted: nothing was built; the same command starts again", file=sys.stderr)
        return 130
    print(environment.python)
    return 0


def _prepare_store(environment: Environment) -> None:
    # Not at the top: that module needs this one.
    from tailproof.targets.libraries import LibraryProblem, prepare_store

    try:
        prepare_store(environment.python, _say)
    except LibraryProblem as problem:
        _say(f"the store tier cannot run, all else can: {problem}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _silent(_line: str) -> None:
    pass


def _file_name(target: str) -> str:
    return target.replace("==", "-")


def _header(lock: str, word: str) -> tuple[str, ...]:
    prefix = f"# {word}: "
    return tuple(
        item for line in lock.splitlines() if line.startswith(prefix) for item in line[len(prefix) :].split()
    )


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _layout(recipe: Recipe) -> _Layout:
    parts = (recipe.lock, *recipe.first, _python_version(), platform.machine())
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    return _Layout(cache_folder() / "environments" / f"{_file_name(recipe.target)}-{key}")


def _refuse_python(recipe: Recipe) -> None:
    if sys.version_info < _MINIMUM_PYTHON:
        least = ".".join(map(str, _MINIMUM_PYTHON))
        raise EnvironmentProblem(
            f"{recipe.target} needs Python {least} or newer, this is {_python_version()}:"
            " run Tailproof with a newer one"
        )
    if recipe.pythons and _python_version() not in recipe.pythons:
        raise EnvironmentProblem(
            f"{recipe.target} is locked for Python {', '.join(recipe.pythons)}, this is {_python_version()}:"
            " run Tailproof with one of these"
        )


@contextlib.contextmanager
def _storage(layout: _Layout) -> Iterator[None]:
    parent = layout.folder.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = " ".join(str(error).split())
        raise EnvironmentProblem(
            f"cannot use {parent}: {reason}; set TAILPROOF_CACHE to a folder that can be written"
        ) from error


@contextlib.contextmanager
def _alone(layout: _Layout, progress: Callable[[str], None]) -> Iterator[int]:
    """Holds the lock of one environment; yields its file descriptor."""
    guard = os.open(layout.guard, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that builds {layout.folder.name}")
            fcntl.flock(guard, fcntl.LOCK_EX)
        yield guard
    finally:
        os.close(guard)


def _build(recipe: Recipe, layout: _Layout, guard: int, progress: Callable[[str], None]) -> None:
    _delete(layout)
    free = shutil.disk_usage(layout.folder.parent).free
    if free < recipe.disk:
        raise EnvironmentProblem(
            f"{recipe.target} needs {recipe.disk / _GIB:.1f} GiB in {layout.folder.parent},"
            f" {free / _GIB:.1f} GiB are free: make room or set TAILPROOF_CACHE to another folder"
        )
    started = time.monotonic()
    try:
        layout.requirements.write_text(recipe.lock, encoding="utf-8")
        with layout.log.open("wb") as log:
            for step, command in _steps(recipe, layout):
                _run(recipe, layout, step, command, log, guard, started, progress)
        _mark(layout)
    finally:
        layout.requirements.unlink(missing_ok=True)
        if not layout.ready:
            _delete(layout)
    progress(f"{recipe.target}: ready ({time.monotonic() - started:.0f} s)")


def _steps(recipe: Recipe, layout: _Layout) -> Iterator[tuple[str, list[str]]]:
    # -I: the caller's PYTHONPATH and user packages must neither satisfy a requirement nor shadow a module.
    isolated = [str(layout.python), "-I"]
    install = [
        *isolated,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--no-input",
        "install",
        "--progress-bar",
        "off",
    ]
    yield (
        "creating the virtual environment",
        [sys.executable, "-I", "-m", "venv", "--clear", str(layout.folder)],
    )
    if recipe.first:
        yield f"installing {recipe.first[0]}", [*install, *recipe.first]
    if any(line.strip() and not line.startswith("#") for line in recipe.lock.splitlines()):
        hashed = ["--no-deps", "--require-hashes", "--requirement", str(layout.requirements)]
        yield "installing the locked packages", [*install, *hashed]
    if recipe.checks:
        yield "importing what was installed", [*isolated, "-c", f"import {', '.join(recipe.checks)}"]


def _run(
    recipe: Recipe,
    layout: _Layout,
    step: str,
    command: list[str],
    log: IO[bytes],
    guard: int,
    started: float,
    progress: Callable[[str], None],
) -> None:
    progress(f"{recipe.target}: {step} ({time.monotonic() - started:.0f} s)")
    log.write(f"== {step}\n".encode())
    log.flush()
    begin = os.fstat(log.fileno()).st_size
    # The step inherits the lock: when this process is killed, the next build waits for the orphan instead of
    # sharing the folder with it.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=(guard,)
    )
    try:
        while process.poll() is None:
            try:
                process.wait(_PROGRESS_SECONDS)
            except subprocess.TimeoutExpired:
                progress(f"{recipe.target}: {step} ({time.monotonic() - started:.0f} s)")
    except BaseException:
        _end(process)
        raise
    if process.returncode:
        with layout.log.open("rb") as lines:
            lines.seek(begin)
            reason = _last_error(lines.read().decode(errors="replace"))
        raise EnvironmentProblem(
            f"{recipe.target}: {step} failed (exit code {process.returncode}): {reason}; see {layout.log}"
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_SECONDS)


def _last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip() and "[notice]" not in line]
    # pip announces a traceback with "ERROR: Exception:"; what went wrong is then in the last line.
    errors = [line for line in lines if line.startswith("ERROR:") and line != "ERROR: Exception:"]
    return (errors or lines or ["no output"])[-1]


def _mark(layout: _Layout) -> None:
    temporary = layout.marker.with_name(layout.marker.name + ".new")
    with temporary.open("w", encoding="utf-8") as marker:
        marker.write(f"{layout.folder.name}\n")
        marker.flush()
        os.fsync(marker.fileno())
    os.replace(temporary, layout.marker)
    folder = os.open(layout.folder, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _delete(layout: _Layout) -> None:
    # The marker goes first, so that a deletion cut short leaves nothing that counts as built.
    layout.marker.unlink(missing_ok=True)
    if layout.folder.exists():
        shutil.rmtree(layout.folder)


if __name__ == "__main__":
    raise SystemExit(main())
