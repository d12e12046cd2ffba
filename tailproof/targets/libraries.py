"""Finds the system libraries that the Mooncake programs need, or fetches them without root into the cache.

What the machine has is used. Otherwise, on Debian and its relatives, apt-get downloads the packages from
the machine's own package sources, checks their signatures, and they are unpacked under Tailproof's cache
folder: a folder appears there whole or not at all. Nothing is installed, and only processes that are told
the folder look into it.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
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
from tailproof.targets import cache, process
from tailproof.targets.problems import EnvironmentProblem, LibraryProblem

_DOWNLOAD_SECONDS = 120.0
_UPDATE_SECONDS = 300.0
_UNPACK_SECONDS = 60.0
_QUICK = ("-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20")


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

    def good(_: Path) -> bool:
        return not locate(programs).missing

    try:
        return cache.placed(_folder(), lambda draft: _fetch(programs, draft, progress), good=good)
    except (OSError, _StepError) as problem:
        reason = " ".join(str(problem).split())
        raise LibraryProblem(_lack(found.missing, f", and fetching it failed: {reason}")) from problem


def _packages() -> tuple[str, ...]:
    return tuple(sorted({package for packages in SYSTEM_PACKAGES.values() for package in packages}))


def _folder() -> Path:
    release = {}
    with contextlib.suppress(OSError):
        release = platform.freedesktop_os_release()
    system = (release.get("ID", "linux"), release.get("VERSION_ID", ""), platform.machine())
    key = hashlib.sha256("\0".join((*system, *_packages())).encode()).hexdigest()[:12]
    return cache.cache_folder() / "system" / "-".join((*filter(None, system), key))


def _refuse_hopeless(missing: Sequence[str]) -> None:
    if any(name not in SYSTEM_PACKAGES for name in missing):
        raise LibraryProblem(_lack(missing))
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise LibraryProblem(_lack(missing, f", and without {tool} nothing can be fetched"))


def _lack(missing: Sequence[str], why: str = "") -> str:
    return f"{', '.join(missing)} not found{why}: {remedy(missing)}"


def _fetch(programs: Sequence[Path], draft: Path, progress: Callable[[str], None]) -> Path:
    _refuse_hopeless(locate(programs).missing)
    progress(f"store tier: fetching {', '.join(_packages())}, which this machine lacks")
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
    if missing := missing_libraries(programs, libraries):
        raise LibraryProblem(_lack(missing, f" in {', '.join(_packages())} either"))
    for path in (*libraries.iterdir(), libraries):
        cache.flush(path)
    return libraries


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
    said = folder / "said"
    with said.open("wb") as output:
        try:
            code = process.run(command, output, seconds=seconds, folder=folder, environment={"LC_ALL": "C"})
        except subprocess.TimeoutExpired as problem:
            raise _StepError(f"{step} took over {seconds:.0f} s") from problem
    if code:
        lines = [line.strip() for line in said.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("E: ", "dpkg-deb: error: "))]
        raise _StepError(f"{step}: {(errors or lines or [f'exit code {code}'])[0]}")
