"""The functions that the files of the known faults name are there in the real vLLM."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence

import pytest

from tailproof.known.model import load
from tailproof.targets import sources
from tailproof.targets.opening import Target


@pytest.mark.parametrize("line", ["0.32", "0.33"])
def test_every_place_is_there(line: str) -> None:
    try:
        root = sources.source_of(Target.parse(f"vllm=={line}.0"), lambda text: print(text, file=sys.stderr))
    except sources.SourceProblem as problem:
        pytest.skip(str(problem))
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
