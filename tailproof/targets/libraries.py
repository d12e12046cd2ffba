"""Finds the system libraries that the Mooncake programs need, or fetches them without root into the cache.

What the machine has is used. Otherwise, on Debian and its relatives, apt-get downloads the packages from
the machine's own package sources, checks their signatures, and they are unpacked under Tailproof's cache
folder: a folder appears there whole or not at all. Nothing is installed, and only processes that are told
the folder look into it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from adapters.mooncake.installation import (
    SYSTEM_PACKAGES,
    ServerError,
    find,
    library_path,
    missing_libraries,
    remedy,
)
from tailproof.targets.environments import EnvironmentProblem, cache_folder

_DOWNLOAD_SECONDS = 120.0
_UPDATE_SECONDS = 300.0
_UNPACK_SECONDS = 60.0
_QUICK = ("-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20")


class LibraryProblem(Exception):
    """A library is missing and cannot be fetched; its text is one line that says what to install."""


class _StepError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Libraries:
    """What the programs find: in `folder` beside the system's own (None: no folder is needed), and which
    they would still miss."""

    folder: Path | None
    missing: tuple[str, ...] = ()


def store_problem(python: Path) -> str:
    """Why the store's servers cannot be started in the environment of `python`, or "" when they can.

    Nothing is built, fetched or started.
    """
    try:
        found = locate(find(python).programs())
    except (ServerError, EnvironmentProblem) as problem:
        return str(problem)
    return f"{_lack(found.missing)}, or run make setup, which can fetch it" if found.missing else ""


def prepare_store(python: Path, progress: Callable[[str], None]) -> Path | None:
    """The folder of libraries to hand to the store's servers, fetched first when the machine lacks them;
    None when it lacks none.

    Raises:
        LibraryProblem: when the servers cannot be run, with what to do.
    """
    try:
        programs = find(python).programs()
        return ensure(programs, progress)
    except (ServerError, EnvironmentProblem) as problem:
        raise LibraryProblem(str(problem)) from problem


@lru_cache
def store_environment(python: Path) -> dict[str, str]:
    """The environment in which a process of `python` finds what the store's client needs; {} where nothing
    is to be added, or where the store cannot be used anyway."""
    try:
        return library_path(locate(find(python).programs()).folder)
    except (ServerError, EnvironmentProblem):
        return {}


def locate(programs: Sequence[Path]) -> Libraries:
    """Where `programs` find their libraries on this machine or in the cache; fetches nothing.

    Raises:
        ServerError: when a program cannot be run here at all.
        EnvironmentProblem: when no cache folder is known.
    """
    missing = missing_libraries(programs)
    if not missing:
        return Libraries(None)
    folder = _folder()
    if not folder.is_dir():
        return Libraries(None, missing)
    with contextlib.suppress(ServerError):
        missing = missing_libraries(programs, folder)
    return Libraries(folder, missing)


def ensure(programs: Sequence[Path], progress: Callable[[str], None]) -> Path | None:
    """The folder in which `programs` find what the system lacks, fetched first when needed; None when it
    lacks nothing. `progress` receives a line when something is fetched.

    Raises:
        LibraryProblem: when a library is missing and cannot be fetched.
        ServerError: when a program cannot be run here at all.
        EnvironmentProblem: when no cache folder is known.
    """
    found = locate(programs)
    if not found.missing:
        return found.folder
    folder = _folder()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            found = locate(programs)
            if found.missing:
                _refuse_hopeless(found.missing)
                packages = ", ".join(_packages())
                progress(f"store tier: fetching {packages}, which this machine lacks")
                _fetch(programs, folder)
                found = locate(programs)
    except (OSError, _StepError) as problem:
        reason = " ".join(str(problem).split())
        raise LibraryProblem(_lack(found.missing, f", and fetching it failed: {reason}")) from problem
    return found.folder


def _packages() -> tuple[str, ...]:
    return tuple(sorted({package for packages in SYSTEM_PACKAGES.values() for package in packages}))


def _folder() -> Path:
    release = {}
    with contextlib.suppress(OSError):
        release = platform.freedesktop_os_release()
    system = (release.get("ID", "linux"), release.get("VERSION_ID", ""), platform.machine())
    key = hashlib.sha256("\0".join((*system, *_packages())).encode()).hexdigest()[:12]
    return cache_folder() / "system" / "-".join((*filter(None, system), key))


def _refuse_hopeless(missing: Sequence[str]) -> None:
    if any(name not in SYSTEM_PACKAGES for name in missing):
        raise LibraryProblem(_lack(missing))
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise LibraryProblem(_lack(missing, f", and without {tool} nothing can be fetched"))


def _lack(missing: Sequence[str], why: str = "") -> str:
    return f"{', '.join(missing)} not found{why}: {remedy(missing)}"


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Only one process at a time fetches; drafts of processes that were killed are removed."""
    with folder.with_name(folder.name + ".lock").open("a") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        for draft in folder.parent.glob(f"{folder.name}.draft-*"):
            shutil.rmtree(draft, ignore_errors=True)
        yield


def _fetch(programs: Sequence[Path], folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.draft-", dir=folder.parent) as place:
        draft = Path(place)
        _download(draft)
        libraries = draft / "libraries"
        libraries.mkdir()
        for archive in sorted(draft.glob("*.deb")):
            content = draft / archive.stem
            _run("unpacking", ["dpkg-deb", "--extract", str(archive), str(content)], draft, _UNPACK_SECONDS)
            for file in sorted(content.rglob("lib*.so*")):
                # Links are replaced by what they point to: each name is a file of its own.
                if file.is_file():
                    shutil.copyfile(file, libraries / file.name)
        missing = missing_libraries(programs, libraries)
        if missing:
            raise LibraryProblem(_lack(missing, f" in {', '.join(_packages())} either"))
        if folder.exists():
            # It is there, and yet the programs did not find what they need: a damaged one.
            shutil.rmtree(folder)
        _flush(libraries)
        libraries.rename(folder)


def _flush(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _download(draft: Path) -> None:
    """Puts the packages into `draft`; with lists of its own when the machine's are missing or outdated."""
    fetch = ["download", *_packages()]
    try:
        _run("downloading", ["apt-get", *_QUICK, *fetch], draft, _DOWNLOAD_SECONDS)
        return
    except _StepError:
        for archive in draft.glob("*.deb"):
            archive.unlink()
    for folder in ("lists/partial", "cache/archives/partial"):
        (draft / folder).mkdir(parents=True)
    own = ("-o", f"Dir::State::lists={draft}/lists", "-o", f"Dir::Cache={draft}/cache")
    _run("reading the package lists", ["apt-get", *_QUICK, *own, "update"], draft, _UPDATE_SECONDS)
    _run("downloading", ["apt-get", *_QUICK, *own, *fetch], draft, _DOWNLOAD_SECONDS)


def _run(step: str, command: Sequence[str], folder: Path, seconds: float) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C"},
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as problem:
        raise _StepError(f"{step} took over {seconds:.0f} s") from problem
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("E: ", "dpkg-deb: error: "))]
        raise _StepError(f"{step}: {(errors or lines or [f'exit code {done.returncode}'])[0]}")
