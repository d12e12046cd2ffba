"""The source tier on the real vLLM: what is proved, what is refuted, and that each theorem can be refuted."""

from __future__ import annotations

import ast
import json
import sys
from functools import partial
from pathlib import Path

import pytest

from proofs import pool
from proofs.source import run, worlds
from proofs.source.catalogue import CASES, Case, cases
from proofs.source.lift import Site, SourceTree
from tailproof.cli import main as cli
from tailproof.jobs import prove
from tailproof.targets import sources
from tailproof.targets.opening import DEFAULT, Target

_TURNED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Mult: ast.Add,
}

# Which sign of which lifted function is turned so that the theorem must be refuted: the sign's place among
# those of the function, in the order of ast.walk.
PLANTS: dict[str, tuple[str, int]] = {
    "checkpoint_cp1_on_the_grid": ("checkpoint", 0),
    "checkpoint_cp2_leaves_tokens": ("checkpoint", 0),
    "checkpoint_cp3_proof_fits": ("checkpoint", 0),
    "checkpoint_cp4_maximal": ("checkpoint", 0),
    "checkpoint_cp5_safe_for_extension": ("checkpoint", 0),
    "checkpoint_is_the_specs": ("checkpoint", 0),
    "validity_is_the_specs": ("valid", 1),
    "valid_export_is_inside": ("valid", 1),
    "margin_is_the_specs": ("margin", 0),
    "dcp_scales_attention_only": ("dcp_block", 0),
    "fine_hits_need_every_manager": ("partial_hits", 1),
    "fine_hits_need_a_smaller_unit": ("partial_hits", 4),
    "coarser_checkpoint_is_lower[plain]": ("checkpoint", 0),
    "coarser_checkpoint_is_lower[eagle]": ("checkpoint", 1),
    "split_passes_no_checkpoint[plain]": ("split", 1),
    "split_passes_no_checkpoint[exports]": ("split", 1),
    "split_passes_no_checkpoint[eagle]": ("split", 1),
    "split_advances[plain]": ("split", 1),
    "split_passes_no_checkpoint[eagle, exports]": ("split", 1),
    "split_advances[exports]": ("split", 1),
    "split_advances[eagle]": ("split", 1),
    "split_advances[eagle, exports]": ("split", 1),
    "split_stops[plain]": ("split", 1),
    "split_stops[exports]": ("split", 1),
    "split_stops[eagle]": ("split", 1),
    "split_stops_below_the_junction[plain]": ("split", 1),
    "split_stops[eagle, exports]": ("split", 1),
    "split_stops_below_the_junction[inside]": ("split", 1),
    "split_stops_below_the_junction[eagle]": ("split", 1),
    "split_stops_below_the_junction[eagle, inside]": ("split", 1),
    "split_stops_below_the_junction[exports]": ("split", 1),
    "split_stops_on_the_grid_of_hits[single]": ("split", 1),
    "split_stops_on_the_grid_of_hits[eagle, single]": ("split", 1),
    "worker_exports_the_specs[plain]": ("worker", 0),
    "worker_exports_the_specs[eagle]": ("worker", 0),
    "split_stops_below_the_junction[eagle, exports]": ("split", 1),
    "split_and_worker_agree[plain]": ("split", 1),
    "reservation_leaves_the_lookahead": ("reserve", 0),
    "split_and_worker_agree[eagle]": ("split", 1),
    "reservation_keeps_the_split_advancing[plain]": ("split", 2),
    "cacheable_is_the_specs": ("published", 0),
    "mamba_publishes_what_is_computed[plain]": ("published", 3),
    "mask_keeps_the_interval[dense]": ("mask", 0),
    "mask_keeps_the_interval[boundaries]": ("mask", 3),
    "mask_keeps_the_interval[block]": ("mask", 2),
    "reservation_keeps_the_split_advancing[eagle]": ("split", 2),
    "mask_keeps_the_interval[interval]": ("mask", 2),
    "mask_keeps_replay_boundaries[plain]": ("mask", 9),
    "attention_tail_is_the_specs": ("register", 0),
    "state_is_registered_at_the_checkpoint[plain]": ("register", 2),
    "state_is_registered_at_the_checkpoint[fits]": ("register", 2),
    "state_is_registered_at_the_checkpoint[eagle]": ("register", 2),
    "state_is_registered_at_the_checkpoint[eagle, fits]": ("register", 2),
    "reservation_is_the_specs": ("needs", 1),
    "lookup_length_is_on_the_grid": ("lookup", 0),
    "tail_puts_are_the_specs[plain]": ("puts", 0),
    "tail_puts_are_the_specs[eagle]": ("puts", 0),
    "tail_belongs_to_the_prompt[plain]": ("puts", 0),
    "tail_belongs_to_the_prompt[eagle]": ("puts", 0),
    "one_save_publishes_the_tail": ("save", 3),
    "mask_keeps_replay_boundaries[eagle]": ("mask", 9),
}


@pytest.fixture(scope="session")
def root() -> Path:
    """The package folder of the installed default target."""
    return sources.source_of(Target.parse(DEFAULT), lambda line: print(line, file=sys.stderr))


class Turned(SourceTree):
    """A source tree with one sign of one function turned."""

    def __init__(self, root: Path, site: Site, number: int) -> None:
        super().__init__(root, f"turned {number}")
        self.turned = turn(self.find(site), number)


def turn(tree: ast.FunctionDef, number: int) -> bool:
    """Turn the sign of that number in a function; False when there are not so many."""
    for node in ast.walk(tree):
        signs = node.ops if isinstance(node, ast.Compare) else [getattr(node, "op", None)]
        for index, sign in enumerate(signs):
            if type(sign) not in _TURNED:
                continue
            if number == 0:
                other = _TURNED[type(sign)]()
                if isinstance(node, ast.Compare):
                    node.ops[index] = other  # type: ignore[call-overload]
                else:
                    node.op = other  # type: ignore[attr-defined]
                return True
            number -= 1
    return False


def case_of(name: str) -> Case:
    return next(case for case in CASES if case.id == name)


def refute(root: Path, name: str) -> run.Finding:
    """What becomes of a theorem when its sign is turned."""
    case = case_of(name)
    parameter, number = PLANTS[name]
    tree = Turned(root, case.lifts[parameter], number)
    assert tree.turned
    return run.prove(case, tree)


def test_every_theorem_has_a_plant_or_is_refuted_as_it_is() -> None:
    assert {case.id for case in CASES} == set(PLANTS) | set(prove.known_refutations("0.32.0"))


@pytest.mark.timeout(120)
def test_every_plant_is_refuted(root: Path) -> None:
    names = list(PLANTS)
    jobs = [partial(refute, root, name) for name in names]
    wrong = []
    for outcome in pool.run(jobs, workers=2, seconds=100.0, reuse=False):
        if outcome.value is None or outcome.value.verdict != "refuted":
            wrong.append((names[outcome.index], outcome.problem, outcome.value))
    assert wrong == []


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tailproof", "prove", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


@pytest.mark.timeout(240)
def test_the_present_version_is_proved_but_for_known_findings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], root: Path
) -> None:
    out = tmp_path / "out.json"
    assert _run(monkeypatch, "--source", DEFAULT, "--json", str(out)) == 0
    document = json.loads(out.read_text(encoding="utf-8"))
    by_id = {item["id"]: item for item in document["theorems"]}
    known = prove.known_refutations("0.32.0")
    for name, item in by_id.items():
        assert item["subject"] == DEFAULT
        assert item["verdict"] == ("refuted" if name in known else "proved"), item
        assert item["known"] == known.get(name)
    proved = {item["function"] for item in by_id.values() if item["verdict"] == "proved"}
    refuted = {item["function"] for item in by_id.values() if item["verdict"] == "refuted"}
    assert len(proved - refuted) >= 6
    said = capsys.readouterr().out
    assert "eagle_proof_margin                                 proved" in said


def test_a_refutation_fails_in_plain_python_and_shows_both_values(root: Path) -> None:
    tree = SourceTree(root, DEFAULT)
    for name in prove.known_refutations("0.32.0"):
        case = case_of(name)
        found = run.prove(case, tree)
        assert found.verdict == "refuted"
        assert found.counterexample is not None
        values = {key: ast.literal_eval(text) for key, text in found.counterexample.items()}
        planted = {key: tree.lift(site, worlds.SCOPE) for key, site in case.lifts.items()}
        with pytest.raises(AssertionError):
            case.theorem(**values, **planted, **case.fixed)
        assert found.values["source"] != found.values["spec"]
        assert max(abs(int(value)) for value in values.values()) <= 100


def test_the_version_before_is_refuted_and_what_it_lacks_has_moved() -> None:
    try:
        old = sources.source_of(Target.parse("vllm==0.31.0"))
    except sources.SourceProblem as problem:
        pytest.skip(str(problem))
    report = prove.prove_source("vllm==0.31.0", old, ("CP4", "PM1", "CP2"))
    assert report.exit_code == 1
    found = {proved.theorem.id: proved for proved in report.theorems}
    maximal = found["checkpoint_cp4_maximal"]
    assert maximal.verdict == "refuted"
    assert maximal.counterexample is not None
    assert (maximal.counterexample["prompt"], maximal.counterexample["unit"]) == ("2", "1")
    assert (maximal.values["source"], maximal.values["spec"]) == ("0", "1")
    assert found["margin_is_the_specs"].verdict == "moved"
    assert "eagle_proof_margin" in found["margin_is_the_specs"].reason
    assert len(cases()) == len(CASES)
