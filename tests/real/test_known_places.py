"""What known faults and the vocabulary name is there in the real vLLM."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tailproof.known.model import load
from tailproof.targets import sources
from tailproof.targets.opening import Target

VOCABULARY = Path(__file__).resolve().parents[2] / "docs" / "vocabulary.md"


def source(line: str) -> Path:
    """The package of a release line, skipped where it cannot be had."""
    try:
        return sources.source_of(Target.parse(f"vllm=={line}.0"), lambda text: print(text, file=sys.stderr))
    except sources.SourceProblem as problem:
        pytest.skip(str(problem))


def absent(names: set[str], root: Path) -> set[str]:
    """The names that stand nowhere in the Python files of a folder."""
    for path in root.rglob("*.py"):
        names = names - set(re.findall(r"\w+", path.read_text(encoding="utf-8", errors="replace")))
    return names


def test_every_name_of_the_vocabulary_is_there() -> None:
    rows = [line for line in VOCABULARY.read_text(encoding="utf-8").splitlines() if line.count("|") == 4]
    names = set(re.findall(r"`(\w+)`", " ".join(row.split("|")[3] for row in rows)))
    assert len(names) > 20
    assert absent({*names, "no_such_name_in_vllm"}, source("0.32")) == {"no_such_name_in_vllm"}


@pytest.mark.parametrize("line", ["0.32", "0.33"])
def test_every_place_is_there(line: str) -> None:
    root = source(line)
    missing = []
    for fault in load().of(line):
        for place in fault.where:
            file, _, name = place.partition(": ")
            path = root.parent / file
            if not path.is_file() or not _defines(ast.parse(path.read_text(encoding="utf-8")).body, name):
                missing.append((fault.id, place))
    assert missing == []


def _defines(body: Sequence[ast.stmt], name: str) -> bool:
    first, _, rest = name.partition(".")
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == first:
            return not rest or _defines(node.body, rest)
    return False
