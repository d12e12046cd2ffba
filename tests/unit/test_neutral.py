"""The spec, the reference and the judge know no defect of any system: no known fault is named in them."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailproof.known.model import load

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("spec", "reference", "tailproof/judge")
# What a quirk is called after its dot, where that is a word of the spec and says nothing of a defect.
ORDINARY = {
    "block_grid",
    # The planted fault bounded-by-first-layout, and the diagnosis of LK2, have the same wrong variant.
    "bounded_by_the_one_before",
    "hash_boundary",
    "held_back",
    "present_length",
    "window_boundaries",
}


def names() -> set[str]:
    """The ids of the known faults, and the names of their quirks, with and without the room."""
    found: set[str] = set()
    for fault in load().faults:
        found.add(fault.id)
        for quirk in fault.quirks:
            short = quirk.partition(".")[2]
            # A single word, such as "promoted", is no name of its own.
            found |= {quirk, short} if "_" in short else {quirk}
    return found


def pattern(name: str) -> re.Pattern[str]:
    """A name in any spelling."""
    return re.compile(rf"\b{'[-_ ]'.join(map(re.escape, re.split('[-_]', name)))}\b", re.IGNORECASE)


def files(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted((root / folder).rglob("*.py"))


def naming(root: Path, sought: set[str]) -> list[str]:
    """Where one of these names stands, as file, line and name."""
    patterns = {name: pattern(name) for name in sorted(sought)}
    return [
        f"{file.relative_to(root).as_posix()}:{number} {name}"
        for file in files(root)
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        for name, one in patterns.items()
        if one.search(line)
    ]


def test_no_known_fault_is_named() -> None:
    assert len(names()) > 50
    assert naming(ROOT, names() - ORDINARY) == []


def test_what_is_excepted_is_a_quirk_and_a_word_of_the_spec() -> None:
    assert names() >= ORDINARY
    assert {line.rpartition(" ")[2] for line in naming(ROOT, ORDINARY)} == ORDINARY


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('KIND = "jumped-checkpoint-split-on-smallest-block"', "split-on-smallest-block"),
        ('"""What splits on a smallest block do."""\nsmallest_block = 4', "smallest_block"),
        ("# As vLLM's promoted after export.", "promoted-after-export"),
        ('QUIRK = "registration.promoted"', "registration.promoted"),
    ],
)
def test_a_planted_name_is_found(tmp_path: Path, folder: str, line: str, name: str) -> None:
    shutil.copytree(ROOT / folder, tmp_path / folder)
    assert naming(tmp_path, names() - ORDINARY) == []
    (tmp_path / folder / "plant.py").write_text(f"{line}\n", encoding="utf-8")
    assert name in {found.rpartition(" ")[2] for found in naming(tmp_path, names() - ORDINARY)}


def imports(text: str) -> set[str]:
    """All modules of ours that a file imports from."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.partition(".")[0] in ("adapters", "proofs", "tailproof")}


def strangers(text: str) -> list[str]:
    """What a file of the judge may not import."""
    return sorted(name for name in imports(text) if not name.startswith("tailproof.judge."))


def test_the_judge_imports_nothing_but_the_spec_the_reference_and_itself() -> None:
    for file in sorted((ROOT / "tailproof/judge").rglob("*.py")):
        assert strangers(file.read_text(encoding="utf-8")) == [], file
    assert strangers("from tailproof.known.explain import explaining\nfrom tailproof.judge import step") == [
        "tailproof.known.explain.explaining"
    ]


def test_known_faults_import_no_job_that_asks_them() -> None:
    """Only the judge, the spec and the reference stand below them."""
    for file in sorted((ROOT / "tailproof/known").rglob("*.py")):
        found = strangers(file.read_text(encoding="utf-8"))
        assert [name for name in found if not name.startswith("tailproof.known.")] == [], file
    assert strangers("from tailproof.jobs.fuzz import fuzz") == ["tailproof.jobs.fuzz.fuzz"]
