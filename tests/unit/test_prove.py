"""The prove command: rules, exit codes, documents, and the verdicts of all engines side by side.

PYTEST_DONT_REWRITE: the theorems here must fail by their own asserts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from proofs.assume import assume
from proofs.catalogue import SPEC, Theorem, planted_parameters, spec_theorems
from spec.rules import RULES
from tailproof.cli import main as cli
from tailproof.jobs import prove

WANTED = (
    *(f"CP{number}" for number in range(1, 7)),
    *("PM1", "PM2", "PM4", "PM5", "LK1", "LK2", "LK3", "CH1", "CH2", "CH3"),
    *("TS1", "TS6", "TS7", "LT1", "LT2", "LT3", "LT4"),
)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tailproof", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def _right(a: int) -> None:
    assert a * 2 % 2 == 0


def _wrong(a: int) -> None:
    assume(a > 5)
    assert a < 9


def _unsupported(a: int) -> None:
    assert a / 2 < a


def _endless(a: int) -> None:
    while True:
        pass


def theorem(run: Callable[..., object]) -> Theorem:
    return Theorem(run.__name__.strip("_"), "CP1", SPEC, ("spec.nothing",), run)


def test_every_rule_of_the_issue_has_a_theorem() -> None:
    assert {rule for rule in WANTED if not RULES[rule].theorems} == set()
    assert {found.rule for found in spec_theorems()} == set(WANTED)
    for found in spec_theorems():
        assert found.about, found.id


def test_all_theorems_are_proved_and_the_engines_agree(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert run(monkeypatch, "prove", "--json", str(out)) == 0
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["format"] == 1
    assert {item["rule"] for item in document["theorems"]} == set(WANTED)
    for item in document["theorems"]:
        assert list(item)[:5] == ["id", "rule", "subject", "function", "verdict"]
        assert item["subject"] == "spec"
        assert item["verdict"] == "proved", item
        assert item["counterexample"] is None
        assert item["paths"] >= 1
        assert item["seconds"] >= 0
        engines = item["engines"]
        assert list(engines) == list(prove.ENGINES)
        assert engines["z3"] == engines["cvc5"] == "proved", item
        assert engines["hypothesis"].startswith("no counterexample ("), item
        assert engines["crosshair"].startswith(("confirmed", "no counterexample", "not run: it takes")), item
    confirmed = [item["id"] for item in document["theorems"] if item["engines"]["crosshair"] == "confirmed"]
    assert len(confirmed) >= 10
    shown = capsys.readouterr()
    count = len(document["theorems"])
    assert f"{count} theorems: {count} proved, 0 refuted, 0 unknown, 0 unsupported" in shown.out
    assert "cp1_on_the_grid z3: proved" in shown.err


def test_one_rule_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "prove", "CP4", "--engine", "z3") == 0
    shown = capsys.readouterr().out
    assert "cp4_maximal" in shown
    assert "cp1" not in shown
    assert "1 theorems: 1 proved" in shown


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CP44", "there is no rule 'CP44'; near are CP4"),
        ("pm2", "there is no rule 'pm2'; near are PM2"),
        ("nonsense", "there is no rule 'nonsense'; near are "),
        ("CP7", "rule CP7 has no theorem; these have: CP1"),
    ],
)
def test_an_unknown_rule_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    assert run(monkeypatch, "prove", name) == 2
    assert text in capsys.readouterr().err


def test_questions_are_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, "prove", "CP3", "--engine", "z3", "--smt2", str(tmp_path / "questions")) == 0
    assert (tmp_path / "questions" / "cp3_proof_fits-0001.smt2").is_file()


def test_wrong_unsupported_and_endless_theorems_each_end(tmp_path: Path) -> None:
    began = time.monotonic()
    said: list[str] = []
    report = prove.prove(
        [theorem(run) for run in (_right, _wrong, _unsupported, _endless)],
        engines=("z3",),
        seconds=1.5,
        progress=said.append,
    )
    assert time.monotonic() - began < 30
    right, wrong, unsupported, endless = report.theorems
    assert (right.verdict, right.reason) == ("proved", "")
    assert wrong.verdict == "refuted"
    assert wrong.counterexample is not None
    assert wrong.counterexample["a"] == "9"
    assert (unsupported.verdict, unsupported.reason) == ("unsupported", "unsupported: true division")
    assert (endless.verdict, endless.reason) == ("unknown", "limit reached")
    assert report.exit_code == 1
    assert len(said) == 4
    text = "\n".join(prove.lines(report))
    assert "REFUTED wrong, about spec.nothing\n" in text
    assert "counterexample: a=9, failure=AssertionError" in text
    assert "UNSUPPORTED unsupported" in text
    assert "limit reached" in text
    item = prove.document(report)["theorems"][1]
    assert item["verdict"] == "refuted"
    assert item["counterexample"]["a"] == "9"
    assert item["engines"]["cvc5"] == "not run: not asked"


def test_exit_codes() -> None:
    def report(*verdicts: str) -> int:
        proved = [prove.Proved(theorem(_right), verdict) for verdict in verdicts]
        return prove.ProveReport(proved).exit_code

    assert report("proved", "proved") == 0
    assert report("proved", "unknown", "refuted") == 1
    assert report("proved", "unknown") == report("unsupported") == report() == 3


def test_a_contradiction_between_engines_is_shown_as_one() -> None:
    report = prove.prove([theorem(_wrong)], engines=("hypothesis",), seconds=5)
    assert report.theorems[0].engines == {"hypothesis": "not run: no values are drawn for it"}
    assert (report.theorems[0].verdict, report.theorems[0].reason) == ("unknown", "sampled only")
    proved = prove.Proved(theorem(_right), "proved", engines={"z3": "proved", "crosshair": "refuted: a=1"})
    prove._agree(proved)
    assert proved.verdict == "refuted"
    assert proved.reason == "crosshair disagrees with proved: refuted: a=1"


def test_crosshair_sees_a_wrong_theorem() -> None:
    pytest.importorskip("crosshair")
    report = prove.prove([theorem(_wrong), theorem(_right)], engines=("crosshair",), seconds=10)
    assert report.theorems[0].engines["crosshair"].startswith("refuted: ")
    assert report.theorems[1].engines["crosshair"] == "confirmed"


def test_planted_parameters_are_the_keyword_only_ones() -> None:
    for found in spec_theorems():
        assert tuple(
            f"{function.__module__}.{function.__qualname__}"
            for function in planted_parameters(found.run).values()
        ) == (found.about)
