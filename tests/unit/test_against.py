"""A target beside a base: only what the base does not show on the same cases counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec.observation import Outcome
from spec.trace import Configuration, Group, Settle, Submit, Trace, TraceError
from tailproof.cli import text
from tailproof.jobs.against import AS_THE_BASE, Base, Beside, sign
from tailproof.jobs.fuzz import FuzzReport, fuzz
from tailproof.jobs.replay import read
from tailproof.judge.findings import Finding
from tailproof.judge.lockstep import divergences
from tailproof.known.explain import NOTHING, Known
from tailproof.known.model import load
from tailproof.planted.reference import BoundedByFirstLayout, StaleKv
from tailproof.targets import opening as targets
from tailproof.targets.opening import OpenTarget, ReferenceTarget, Target, open_target

Command = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("own_folder")

PLANTED = "reference+bounded-by-first-layout"
QUIRK = "second-layout-bounded"
EAGLE = Configuration((Group("full", 8), Group("mamba", 8)), unit=4, eagle=True, speculative=1)
FUZZ = ("fuzz", "--seed", "1", "--cases", "60", "--json", "f.json", "--target")
CHECK = ("check", "--no-proofs", "--seconds", "1", "--seed", "1", "--json", "c.json", "--target")


class Both(BoundedByFirstLayout, StaleKv):
    """Two planted faults at once."""


@pytest.fixture(autouse=True)
def _both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(targets.FAULTS, "both", Both)


def document(name: str = "f.json") -> dict[str, Any]:
    """A document that was written."""
    found: dict[str, Any] = json.loads(Path(name).read_text())
    return found


# The commands


def test_a_base_that_cannot_run(tailproof: Command) -> None:
    ended = tailproof(*FUZZ, "reference", "--against", "vllm@/nowhere")
    assert ended.code == 3
    assert ended.err.splitlines()[-1] == "tailproof: vllm@/nowhere: /nowhere holds no vllm package"
    ended = tailproof(*CHECK, "reference", "--against", "vllm@/nowhere")
    assert ended.code == 3
    assert document("c.json")["problems"] == ["vllm@/nowhere: /nowhere holds no vllm package"]


def test_what_only_the_target_does_is_reported(tailproof: Command) -> None:
    ended = tailproof(*FUZZ, "reference+stale-state", "--against", "reference")
    assert ended.code == 1
    assert "] compared with reference: the reference has no known faults\n" in ended.err
    found = document()
    assert found["against"] == "reference"
    assert {one["rule"] for one in found["divergences"]} == {"SF2", "SF4"}
    assert all((one["baseline"], one["shows"]) == (None, None) for one in found["divergences"])
    assert (found["explained"], found["base_explained"]) == ({}, {})
    # It was kept and made small, and it says how to see it again.
    for one in found["divergences"]:
        assert tailproof("replay", one["trace"]).code == 1
        assert one["steps"] < 8


def test_what_the_base_does_too_is_not(tailproof: Command) -> None:
    """Negative control: the same cases, the same findings, and the base has them all."""
    alone = tailproof(*FUZZ, "reference+stale-state", "--out", "alone")
    assert alone.code == 1
    counts = {one["rule"]: one["cases"] for one in document()["divergences"]}
    ended = tailproof(*FUZZ, "reference+stale-state", "--against", "reference+stale-state")
    assert ended.code == 0
    assert not Path("divergences").exists()
    found = document()
    assert {one["rule"]: one["cases"] for one in found["divergences"]} == counts
    assert {one["baseline"] for one in found["divergences"]} == {AS_THE_BASE}
    same = [line for line in ended.out.splitlines() if line.startswith("same   ")]
    assert sorted(line.split("-")[0] for line in same) == ["same   SF2", "same   SF4"]
    assert ended.out.endswith("\n0 new divergences, 2 known\n")
    # As many findings on both.
    assert found["explained"] == found["base_explained"]
    here = found["explained"][AS_THE_BASE]
    assert "\nfindings explained, here and on reference+stale-state:\n" in ended.out
    assert f"\n{here:>8} {here:>6}  {AS_THE_BASE}\n" in ended.out
    assert "MORE HERE" not in ended.out


def test_another_fault_of_the_base_hides_nothing(tailproof: Command) -> None:
    ended = tailproof(*FUZZ, "reference+stale-state", "--against", "reference+double-drop")
    assert ended.code == 1
    assert {one["rule"] for one in document()["divergences"] if one["baseline"] is None} == {"SF2", "SF4"}


def test_a_known_fault_that_the_base_does_not_show_is_said(tailproof: Command) -> None:
    words = (*FUZZ, PLANTED, "--as", "0.32")
    assert tailproof(*words).code == 0
    ended = tailproof(*words, "--against", "reference")
    assert ended.code == 1
    (found,) = document()["divergences"]
    assert (found["baseline"], found["shows"]) == (None, QUIRK)
    assert f"\n       the known fault {QUIRK} shows here, and on the base it does not\n" in ended.out
    # Negative control: without what is known of the line, it is merely new.
    ended = tailproof(*FUZZ, PLANTED, "--against", "reference")
    assert ended.code == 1
    assert document()["divergences"][0]["shows"] is None
    assert "shows here" not in ended.out


def test_a_known_fault_that_the_base_shows_too(tailproof: Command) -> None:
    ended = tailproof(*FUZZ, PLANTED, "--as", "0.32", "--against", PLANTED)
    assert ended.code == 0
    (found,) = document()["divergences"]
    assert (found["baseline"], found["shows"]) == (QUIRK, None)
    assert "\nknown  LK2-" in ended.out


def test_a_check_against_a_base(tailproof: Command) -> None:
    check = (*CHECK, "reference+leaks-block", "--against")
    ended = tailproof(*check, "reference")
    assert ended.code == 1
    assert [one["rule"] for one in document("c.json")["verdicts"] if one["verdict"] == "broken"] == ["LT3"]
    ended = tailproof(*check, "reference+leaks-block")
    assert ended.code == 0
    found = document("c.json")
    assert {one["baseline"] for one in found["divergences"]} == {AS_THE_BASE}
    assert [one["rule"] for one in found["verdicts"] if one["verdict"] == "known"] == ["LT3"]
    assert {run["against"] for run in found["fuzz"]} == {"reference+leaks-block"}


def test_seed_cases_that_the_base_breaks_too_do_not_count(
    tailproof: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailproof.jobs.check.GENERATORS", ())
    check = (*CHECK, "reference+scan-capped", "--seconds", "0.2", "--against")
    ended = tailproof(*check, "reference")
    assert ended.code == 1
    reasons = {one["rule"]: one["reason"] for one in document("c.json")["verdicts"]}
    assert reasons["PM1"].startswith("seed case ")
    ended = tailproof(*check, "reference+scan-capped")
    assert ended.code == 0
    assert "reference+scan-capped  reference+scan-capped" not in ended.out


def test_a_known_trace_that_the_base_does_not_show_is_broken(tailproof: Command) -> None:
    """The shipped traces of the fault, run again on both."""
    file = next(fault for fault in load().faults if fault.id == QUIRK).traces
    check = (*CHECK, PLANTED, "--as", "0.32", "--seconds", "0.2", "--against")

    def verdicts() -> set[str]:
        names = {trace.file for trace in file}
        return {one["verdict"] for one in document("c.json")["known"] if one["trace"] in names}

    ended = tailproof(*check, "reference")
    assert ended.code == 1
    assert "broken" in verdicts()
    ended = tailproof(*check, PLANTED)
    assert ended.code == 0
    assert "known" in verdicts()
    assert "broken" not in verdicts()


def test_a_known_trace_that_the_base_refuses_is_not_run(
    tailproof: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base that lacks what a trace asks for says nothing about the target."""
    run = ReferenceTarget.run
    asked = {read(load().folder / trace.file).trace for fault in load().of("0.32") for trace in fault.traces}

    def refused(self: ReferenceTarget, trace: Trace, omit: str = "") -> Outcome:
        if self.name == "reference+no-drop" and trace in asked:
            raise TraceError("configuration: it has no such thing")
        return run(self, trace, omit)

    monkeypatch.setattr(ReferenceTarget, "run", refused)
    check = (*CHECK, "reference", "--as", "0.32", "--seconds", "0.2", "--against")
    assert tailproof(*check, "reference+no-drop").code == 0
    said = {(one["verdict"], one["detail"]) for one in document("c.json")["known"]}
    assert said == {("NOT-RUN", "reference+no-drop: configuration: it has no such thing")}
    assert tailproof(*check, "reference").code == 0
    assert {one["verdict"] for one in document("c.json")["known"]} == {"gone"}


def test_a_tier_that_the_base_cannot_run_is_left_out(
    tailproof: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def states(target: Target) -> dict[str, str]:
        return {"core": "ready", "store": "it is old" if target.argument == "no-drop" else "ready"}

    monkeypatch.setattr("tailproof.jobs.check.tier_states", states)
    check = (*CHECK, "reference", "--seconds", "0.2", "--against")
    assert tailproof(*check, "reference+no-drop").code == 0
    assert document("c.json")["skipped"] == [
        {"target": "reference", "tier": "store", "reason": "reference+no-drop: it is old"}
    ]
    assert [run["tier"] for run in document("c.json")["fuzz"]] == ["core"]
    assert tailproof(*check, "reference").code == 0
    assert document("c.json")["skipped"] == []


# More often here


def opened(name: str) -> OpenTarget:
    """A target in this process."""
    return open_target(Target.parse(name), print)


KNOWN = Known(load(), "0.32")


def compared(target: str, base: str, known: Known = KNOWN) -> FuzzReport:
    """A fuzz run beside a base, of which the same is known."""
    beside = Base(base, [opened(base)], known)
    return fuzz([opened(target)], target, seed=1, cases=60, known=known, base=beside)


def test_a_known_fault_that_shows_more_often_is_said() -> None:
    """The base's other fault ends the judgement of its runs early, so it shows the known one less often."""
    found = compared(PLANTED, "reference+both")
    here, there = found.explained[QUIRK], found.base_explained[QUIRK]
    assert here > there
    assert found.broken == []
    lines = list(text.explained_lines(found))
    assert f"  {here:>6} {there:>6}  {QUIRK}  MORE HERE" in lines
    # Negative control: the same on both.
    found = compared(PLANTED, PLANTED)
    assert found.explained == found.base_explained == {QUIRK: here}
    assert f"  {here:>6} {here:>6}  {QUIRK}" in text.explained_lines(found)
    # And less often.
    found = compared("reference+both", PLANTED)
    assert found.explained[QUIRK] == there
    assert not [line for line in text.explained_lines(found) if "MORE HERE" in line]


def test_the_other_fault_of_two_is_new() -> None:
    found = compared("reference+both", PLANTED)
    assert {one.finding.rule for one in found.broken} == {"SF1"}
    assert {one.shows for one in found.broken} == {""}
    assert {one.fault for one in found.found if one.fault} == {QUIRK}


def test_nothing_is_the_same_on_a_base_without_faults() -> None:
    found = compared("reference", "reference")
    assert found.found == []
    assert found.explained == found.base_explained == {}
    assert list(text.explained_lines(found)) == []


class Interrupted(ReferenceTarget):
    """Is interrupted in its fifth case, and knows whether it was cancelled."""

    cases = 0
    cancelled = False

    def finish(self) -> Outcome:
        """The outcome, four times."""
        self.cases += 1
        if self.cases > 4:
            raise KeyboardInterrupt
        return super().finish()

    def cancel(self) -> None:
        """Remember it."""
        self.cancelled = True
        super().cancel()


def test_an_interrupt_ends_both() -> None:
    base = Interrupted(Target.parse("reference"))
    target = ReferenceTarget(Target.parse("reference+stale-state"))
    beside, folder = Base("base", [base], NOTHING), Path("kept")
    found = fuzz([target], target.name, seed=1, cases=60, base=beside, folder=folder)
    assert (found.interrupted, found.cases, base.cancelled) == (True, 4, True)
    assert not target._pending
    assert {one.explanation[-1] for one in found.found} == {"not made small: the run was interrupted"}
    assert len(list(folder.iterdir())) == len(found.found) > 0


# One run


def shown() -> tuple[Trace, OpenTarget]:
    """A trace on which the planted fault shows, and what shows it."""
    file = next(fault for fault in load().faults if fault.id == QUIRK).traces
    for trace in file:
        kept = read(load().folder / trace.file).trace
        if list(divergences(kept, opened(PLANTED).run(kept))):
            return kept, opened(PLANTED)
    raise AssertionError("no kept trace shows it")


def test_a_finding_is_the_same_by_its_place_not_by_its_words() -> None:
    one = Finding("LK1", "hit-too-short", "so", "A", 8)
    assert sign(one) == sign(Finding("LK1", "hit-too-short", "or so", "A", 8))
    for other in (
        Finding("LK2", "hit-too-short", "so", "A", 8),
        Finding("LK1", "hit-too-long", "so", "A", 8),
        Finding("LK1", "hit-too-short", "so", "B", 8),
        Finding("LK1", "hit-too-short", "so", "A", 12),
    ):
        assert sign(one) != sign(other)


def test_what_the_base_shows_passes_whatever_is_known() -> None:
    trace, target = shown()
    outcome = target.run(trace)
    for known, name in ((NOTHING, AS_THE_BASE), (KNOWN, QUIRK)):
        beside = Base("base", [target], known).beside(trace, outcome, known.explainer())
        assert {one.fault for one in divergences(trace, outcome, explainer=beside)} == {name}
    healthy = Base("base", [], KNOWN).beside(trace, opened("reference").run(trace), KNOWN.explainer())
    assert {one.fault for one in divergences(trace, outcome, explainer=healthy)} == {""}
    assert set(healthy.shown.values()) == {QUIRK}


def test_what_is_known_passes_where_the_base_could_not_be_judged() -> None:
    """The base broke off before that place: it cannot show what it did not come to."""
    trace, target = shown()
    outcome = target.run(trace)
    first = next(divergences(trace, outcome)).index
    assert first > 0

    def faults(last: int | None, known: Known) -> set[str]:
        beside = Beside(set(), last, known.explainer())
        return {one.fault for one in divergences(trace, outcome, explainer=beside)}

    assert faults(first - 1, KNOWN) == {QUIRK}
    assert faults(first, KNOWN) == faults(None, KNOWN) == {""}
    assert faults(first - 1, NOTHING) == {""}


def test_the_base_is_judged_as_far_as_the_target_is() -> None:
    """A finding that leaves the content right ends neither run, so that a later one is compared too."""
    target = opened("reference+scan-capped")
    prompts = [Submit(name, ((name[0], 32),)) for name in ("a1", "a2", "b1", "b2")]
    trace = Trace(EAGLE, tuple(step for submit in prompts for step in (submit, Settle())))
    base = Base("base", [target], NOTHING)
    beside = base.beside(trace, target.run(trace), NOTHING.explainer(), count=True)
    found = [one.finding for one in divergences(trace, target.run(trace), explainer=beside)]
    assert [(one.rule, one.request) for one in found if one.rule == "PM1"] == [("PM1", "a2"), ("PM1", "b2")]
    assert base.explained == {AS_THE_BASE: len(found)}
    healthy = Base("base", [], NOTHING).beside(trace, opened("reference").run(trace), NOTHING.explainer())
    found = [one.finding for one in divergences(trace, target.run(trace), explainer=healthy)]
    assert {one.request for one in found} == {"a2"}
