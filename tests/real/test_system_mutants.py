"""The planted faults of the real vLLM: each fits its source, nothing of it stands here, and they are seen."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import closing
from functools import partial
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
from tailproof.planted.vllm import catalogue
from tailproof.planted.vllm.catalogue import Mutant, all_mutants, moved, mutants_of, records, semantic
from tailproof.planted.vllm.operators import OPERATORS, edits
from tailproof.targets import overlay
from tailproof.targets.environments import EnvironmentProblem, locate
from tailproof.targets.opening import DEFAULT
from tailproof.targets.worker import Worker

ROOT = Path(__file__).resolve().parents[2]
KNOWN = Known(load(), "0.32")
# Faults that people thought of before operators made them: a digest of the changed module, and the name now.
THOUGHT_OF = json.loads(Path(__file__).with_name("operators.json").read_text(encoding="utf-8"))
# A line of the target's that says less than this is a name or a keyword.
_SHORT = 25
_CASES = 300


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
def package(python: Path) -> Path:
    """The folder of its vllm package."""
    return overlay.installed_package(python)


@pytest.fixture(scope="module")
def control(python: Path) -> Iterator[Worker]:
    """The target on an overlay in which every mutated module is written anew, and nothing changed."""
    folder = overlay.control_overlay(python)
    with closing(Worker("control", python, "vllm", (folder,))) as worker:
        yield worker


def test_every_row_of_the_tables_is_of_this_source(package: Path) -> None:
    found = {one.name: one for one in all_mutants(package)}
    assert set(semantic()) <= set(found)
    assert len(found) > 8000
    assert {one.tier for one in found.values()} == {"core", "store"}
    kept = records()
    assert moved(package, [*kept.equivalent, *kept.hole, *kept.sample]) == []


def test_operators_make_what_people_thought_of(package: Path) -> None:
    made = _thought_of(package)
    assert len(made) == sum(bool(name) for _, name in THOUGHT_OF.values())
    assert _share(made) >= 0.95
    trees = {id(one.tree): one.tree for _, one in made.values()}
    try:
        for tree in trees.values():
            _without_documentation(tree)
        for digest, one in made.values():
            assert hashlib.sha256(one.source().rstrip("\n").encode()).hexdigest()[:12] == digest, one.name
    finally:
        catalogue._module.cache_clear()
        mutants_of.cache_clear()


@pytest.mark.parametrize("missing", ["drop", "operand", "branch", "shift"])
def test_without_an_operator_less_is_made(
    package: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = {name: operator for name, operator in OPERATORS.items() if name != missing}
    monkeypatch.setattr(catalogue, "edits", partial(edits, operators=some))
    mutants_of.cache_clear()
    try:
        assert _share(_thought_of(package)) < 0.95
    finally:
        mutants_of.cache_clear()


def _thought_of(package: Path) -> dict[str, tuple[str, Mutant]]:
    functions = {name.partition(":")[0] for _, name in THOUGHT_OF.values() if name}
    found = {one.name: one for function in functions for one in mutants_of(package, function)}
    return {old: (digest, found[name]) for old, (digest, name) in THOUGHT_OF.items() if name in found}


def _share(made: dict[str, tuple[str, Mutant]]) -> float:
    return len(made) / len(THOUGHT_OF)


def _without_documentation(tree: ast.Module) -> None:
    """Empties docstrings, which the digests leave out."""
    for node in ast.walk(tree):
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            first = node.body[0]
            assert isinstance(first, ast.Expr)
            assert isinstance(first.value, ast.Constant)
            first.value.value = ""


def test_no_line_of_the_target_stands_here(package: Path) -> None:
    theirs = {
        _plain(line)
        for file in {one.file for one in catalogue.functions().values()}
        for line in _lines((package / file).read_text(encoding="utf-8"))
    }
    folder = ROOT / "tailproof" / "planted" / "vllm"
    ours = [
        (path.name, line)
        for path in sorted(folder.glob("*.py"))
        for line in _lines(path.read_text(encoding="utf-8"))
    ]
    for row in tomllib.loads((folder / "semantic.toml").read_text(encoding="utf-8"))["mutant"]:
        ours += [(row["name"], line) for line in f"{row['find']}\n{row['becomes']}".splitlines()]
    # A dotted name is an address, and Python's own modules are nobody's.
    address = re.compile(r"[\w.]*|from (__future__|collections|dataclasses) import \w+")
    ours = [item for item in ours if not address.fullmatch(item[1].strip())]
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


def test_the_overlay_is_imported_and_compiled_parts_are_found(python: Path, package: Path) -> None:
    folder = overlay.mutant_overlay("proof-scan-capped", python)
    code = (
        "import vllm, vllm.v1.core.kv_cache_coordinator as one, vllm.v1.core.block_pool as two, sys\n"
        "print(vllm.__file__); print(one.__file__); print(two.__file__)\n"
        "import importlib.util as look\n"
        "print(all(look.find_spec(name) for name in sys.argv[1:]))"
    )
    compiled = [f"vllm.{path.name.partition('.')[0]}" for path in package.glob("*.so")]
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


@pytest.mark.parametrize("key", records().sample)
def test_the_sample_is_seen_each_by_its_rule(python: Path, key: str) -> None:
    folder = overlay.mutant_overlay(key, python)
    # What vLLM learned of the model is kept by the name before the plus.
    with closing(Worker(f"{DEFAULT}+{key}", python, "vllm", (folder,))) as worker:
        hunted = hunt(worker, KNOWN, seed=1, seconds=120, cases=_CASES)
    assert hunted.finding is not None, hunted
    assert hunted.finding.rule == records().sample[key]
