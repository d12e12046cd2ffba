"""The planted faults of the real vLLM: each fits its source, nothing of it stands here, and they are seen."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from functools import lru_cache
from pathlib import Path

import pytest

from spec.observation import Outcome
from spec.trace import Trace
from tailproof.generate.core import case
from tailproof.jobs.search import hunt
from tailproof.judge.findings import Finding
from tailproof.judge.lockstep import compare
from tailproof.known.explain import Known
from tailproof.known.model import load
from tailproof.planted.vllm.catalogue import MUTANTS
from tailproof.planted.vllm.edits import span
from tailproof.planted.vllm.shape import function_of
from tailproof.targets import overlay
from tailproof.targets.environments import EnvironmentProblem, locate
from tailproof.targets.opening import DEFAULT
from tailproof.targets.worker import Worker

ROOT = Path(__file__).resolve().parents[2]
KNOWN = Known(load(), "0.32")
# A line of the target's that says less than this is a name or a keyword.
_SHORT = 25
_CASES = 300
# Faults of different kinds that a few hundred cases are sure to meet, and the rule that must be named.
FAST = {
    "proof-scan-capped": "PM1",
    "split-passes-checkpoint": "CP7",
    "copy-forgotten": "SF1",
    "release-not-counted": "LT3",
}


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of the default target's environment, where it is built."""
    try:
        environment = locate(DEFAULT)
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))
    if not environment.ready:
        pytest.skip(f"{DEFAULT} is not installed: make setup")
    return environment.python


@pytest.fixture(scope="module")
def control(python: Path) -> Iterator[Worker]:
    """The target on an overlay in which every mutated module is written anew, and nothing changed."""
    with closing(Worker("control", python, "vllm", (overlay.control_overlay(python),))) as worker:
        yield worker


@lru_cache
def _module(path: Path) -> tuple[list[str], ast.Module]:
    text = path.read_text(encoding="utf-8")
    return text.splitlines(), ast.parse(text)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_changes_its_one_function(python: Path, name: str) -> None:
    one = MUTANTS[name]
    package = overlay.installed_package(python)
    lines, tree = _module(package / one.file)
    after = overlay.mutated_source(one, package)
    first, last = span(function_of(tree, one.function))
    grown = len(after.splitlines()) - len(lines)
    assert after.splitlines()[:first] == lines[:first]
    assert after.splitlines()[last + grown :] == lines[last:]
    changed = function_of(ast.parse(after), one.function)
    assert ast.dump(changed) != ast.dump(function_of(tree, one.function))


def test_no_line_of_the_target_stands_here(python: Path) -> None:
    package = overlay.installed_package(python)
    theirs = {
        _plain(line)
        for file in {one.file for one in MUTANTS.values()}
        for line in _lines((package / file).read_text(encoding="utf-8"))
    }
    ours = [
        (path.name, line)
        for path in sorted((ROOT / "tailproof" / "system_mutants").glob("*.py"))
        for line in _lines(path.read_text(encoding="utf-8"))
        # A dotted name is an address, and Python's own modules are nobody's.
        if not re.fullmatch(r"[\w.]*|from (__future__|dataclasses) import \w+", line.strip())
    ]
    assert len(theirs) > 1000
    assert [item for item in ours if len(_plain(item[1])) >= _SHORT and _plain(item[1]) in theirs] == []


def _lines(text: str) -> Iterator[str]:
    """The lines of a file as they stand, the same written anew, and those in its texts."""
    yield from text.splitlines()
    tree = ast.parse(text)
    yield from ast.unparse(tree).splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from node.value.splitlines()


def _plain(line: str) -> str:
    return re.sub(r"\s+", "", line).rstrip(",:")


def test_the_overlay_is_imported_and_compiled_parts_are_found(python: Path) -> None:
    folder = overlay.mutant_overlay("proof-scan-capped", python)
    code = (
        "import vllm, vllm.v1.core.kv_cache_coordinator as one, vllm.v1.core.block_pool as two, sys\n"
        "print(vllm.__file__); print(one.__file__); print(two.__file__)\n"
        "import importlib.util as look\n"
        "print(all(look.find_spec(name) for name in sys.argv[1:]))"
    )
    compiled = [
        f"vllm.{path.name.partition('.')[0]}" for path in overlay.installed_package(python).glob("*.so")
    ]
    done = subprocess.run(
        [str(python), "-P", "-c", code, *compiled],
        env={"PYTHONPATH": str(folder), "VLLM_LOGGING_LEVEL": "ERROR", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split()[-4:] == [
        str(folder / "vllm" / "__init__.py"),
        str(folder / "vllm" / "v1" / "core" / "kv_cache_coordinator.py"),
        str(folder / "vllm" / "v1" / "core" / "block_pool.py"),
        "True",
    ]


def test_the_unmutated_overlay_runs_clean_and_as_the_original(control: Worker, vllm: Worker) -> None:
    hunted = hunt(control, KNOWN, seed=11, seconds=120, cases=60)
    assert (hunted.seen, hunted.cases) == (False, 60), hunted
    for index in range(60, 90):
        trace = case(11, index)
        one, other = control.run(trace), vllm.run(trace)
        assert _finding(trace, one) == _finding(trace, other)
        assert len(one.observations) == len(other.observations)


def _finding(trace: Trace, outcome: Outcome) -> Finding | None:
    found = compare(trace, outcome)
    return found and found.finding


@pytest.mark.parametrize("name", FAST)
def test_a_mutant_is_seen_by_the_rule_that_it_breaks(python: Path, name: str) -> None:
    with closing(Worker(name, python, "vllm", (overlay.mutant_overlay(name, python),))) as worker:
        hunted = hunt(worker, KNOWN, seed=1, seconds=120, cases=_CASES)
    assert hunted.finding is not None, hunted
    assert hunted.finding.rule == FAST[name]
    assert hunted.finding.rule in MUTANTS[name].rules
