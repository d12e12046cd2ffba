"""Finds the source of a target, and fetches that of a published version without installing anything.

A fetched version is the wheel's Python files, unpacked into Tailproof's cache folder: whole or not at all,
since they are renamed into place last. The wheel is deleted again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from tailproof.environments import EnvironmentProblem, cache_folder, known_targets, locate
from tailproof.targets import Target, TargetNameError

PACKAGE = "vllm"
# Only these are read; the rest of a wheel is models and kernels.
FOLDERS = (
    "distributed/kv_transfer",
    "model_executor/layers/mamba",
    "utils",
    "v1",
)
FETCH_SECONDS = 600
_PLATFORMS = ("manylinux_2_31", "manylinux_2_28", "manylinux_2_35", "manylinux2014", "manylinux1")
_LOOK_UP = "import importlib.util as u; s = u.find_spec('vllm'); print(s.origin if s and s.origin else '')"


class SourceProblem(Exception):
    """The source of a target cannot be had; one line says why."""


def source_of(target: Target, progress: Callable[[str], None] = lambda line: None) -> Path:
    """The package folder of a target's source; nothing of it is imported.

    An installed version is read where it is installed, else its wheel is fetched.

    Raises:
        TargetNameError: for a target that has no vLLM source.
        SourceProblem: when there is none where the name points, or it cannot be fetched.
    """
    if target.kind == "reference":
        raise TargetNameError(
            f"{target.name} has no source of vLLM: use vllm==VERSION, vllm@PATH or python:PATH"
        )
    if target.kind == "installed":
        installed = _installed(target)
        return installed if installed is not None else fetched(target.argument, progress)
    path = Path(target.argument).expanduser().absolute()
    if target.kind == "interpreter":
        return _of_interpreter(target, path)
    if (path / PACKAGE / "__init__.py").is_file():
        return path / PACKAGE
    raise SourceProblem(f"{target.name}: {path} holds no vllm package")


def _installed(target: Target) -> Path | None:
    if target.name not in known_targets():
        return None
    environment = locate(target.name)
    if not environment.ready:
        return None
    found = sorted(environment.python.parent.parent.glob(f"lib/python*/site-packages/{PACKAGE}"))
    return found[0] if found else None


def _of_interpreter(target: Target, python: Path) -> Path:
    if not python.is_file():
        raise SourceProblem(f"{target.name}: there is no interpreter at {python}")
    try:
        said = subprocess.run(
            [str(python), "-I", "-c", _LOOK_UP], capture_output=True, text=True, timeout=60, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError) as problem:
        raise SourceProblem(f"{target.name}: {python} cannot say where vllm is: {problem}") from problem
    if not said:
        raise SourceProblem(f"{target.name}: {python} has no vllm package")
    return Path(said).parent


def fetched(version: str, progress: Callable[[str], None] = lambda line: None) -> Path:
    """The package folder of a published version, fetched when it is not there yet.

    Raises:
        SourceProblem: when it cannot be fetched.
    """
    if not all(part.isalnum() for part in version.replace("+", ".").split(".")):
        raise SourceProblem(f"vllm=={version}: that is no version")
    parent = cache_folder() / "sources"
    whole = parent / f"{PACKAGE}-{version}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with _alone(parent / f"{PACKAGE}-{version}.lock", progress):
            if not whole.is_dir():
                _fetch(version, parent, whole, progress)
    except (OSError, EnvironmentProblem, zipfile.BadZipFile) as problem:
        raise SourceProblem(f"vllm=={version}: its source cannot be kept in {parent}: {problem}") from problem
    return whole / PACKAGE


@contextlib.contextmanager
def _alone(lock: Path, progress: Callable[[str], None]) -> Iterator[None]:
    guard = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that fetches {lock.stem}")
            fcntl.flock(guard, fcntl.LOCK_EX)
        yield
    finally:
        os.close(guard)


def _fetch(version: str, parent: Path, whole: Path, progress: Callable[[str], None]) -> None:
    # Everything of an attempt lies in one folder, which goes whatever happens.
    with tempfile.TemporaryDirectory(dir=parent, prefix=f".{PACKAGE}-{version}-") as attempt:
        progress(f"vllm=={version}: fetching the wheel for its source")
        wheel = _download(version, Path(attempt))
        unpacked = Path(attempt) / "unpacked"
        unpacked.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked, [name for name in archive.namelist() if _wanted(name)])
        wheel.unlink()
        if not (unpacked / PACKAGE / "__init__.py").is_file():
            raise SourceProblem(f"vllm=={version}: its wheel holds no vllm package")
        os.replace(unpacked, whole)


def _wanted(name: str) -> bool:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or path.suffix != ".py" or path.parts[:1] != (PACKAGE,):
        return False
    inside = PurePosixPath(*path.parts[1:])
    return len(path.parts) == 2 or any(inside.is_relative_to(folder) for folder in FOLDERS)


def _download(version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    command += ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder), "--no-cache-dir"]
    command += ["--implementation", "cp", "--abi", "abi3", "--abi", "none", "--python-version", "3.11"]
    for name in _PLATFORMS:
        command += ["--platform", f"{name}_x86_64"]
    try:
        done = subprocess.run(
            [*command, f"{PACKAGE}=={version}"], capture_output=True, text=True, timeout=FETCH_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise SourceProblem(f"vllm=={version}: fetching took longer than {FETCH_SECONDS} s") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        shown = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in shown if line.startswith("ERROR")]
        reason = (errors or shown or ["no wheel was found"])[-1].removeprefix("ERROR: ")
        raise SourceProblem(f"vllm=={version}: its source cannot be fetched: {reason}")
    return wheels[0]


def forget(version: str) -> None:
    """Delete a fetched version."""
    shutil.rmtree(cache_folder() / "sources" / f"{PACKAGE}-{version}", ignore_errors=True)
