"""Judging goes on past findings that are explained and do not last, and stops at all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from spec.notation import parse
from spec.observation import Outcome
from spec.rules import ORDER
from spec.trace import Trace
from tailproof.jobs.replay import ReplayFile, replay
from tailproof.judge.findings import Divergence, Finding, IncompleteError
from tailproof.judge.lockstep import Unjudged, compare, divergences, seek
from tailproof.judge.step import Step as Judged
from tailproof.targets.opening import Target, open_target
from tests.scenarios.plants import planted as changed

# 0 submit, 1 A [0, 16), 2 A [16, 18), 3 A [18, 20) and its end, 4 submit, 5 B [18, 20), 6 and 7 B decodes.
TRACE = parse("""
    groups full 4, mamba 4
    unit 2
    submit A prompt a:20
    settle
    submit B prompt a:20 outputs 3
    settle
""")
Kinds = list[tuple[int, str, str]]


def planted(*plants: str) -> Outcome:
    """A clean run with changes, as scenarios write them."""
    run = open_target(Target.parse("reference"), print).run(TRACE).observations
    return Outcome(tuple(changed(run, plants)))


def miscounts(*steps: int) -> list[str]:
    """Counters that are wrong in these steps."""
    return [f"{step} counters.requests 7" for step in steps]


MISREADS = "5 failed_reads B 0 3 kv"
MISREPORTS = "3 finished.0.cached 4"
WITHOUT = "2 published - 1 18 A"
# A chunk that jumps over its checkpoint, and so leaves no state there, after it read wrong content. It
# reaches the prompt's end, but registers and ends nothing.
JUMPS = "2 scheduled.0.end 20", WITHOUT, "2 failed_reads A 0 3 kv"


@dataclass(slots=True)
class Knows:
    """An explainer to which findings are known that a test picks; it remembers what it was shown."""

    known: Callable[[Finding], bool] = lambda finding: True
    followed: list[int] = field(default_factory=list)

    def explain(self, step: Judged, findings: Sequence[Finding]) -> list[str]:
        return ["some-fault" if self.known(finding) else "" for finding in findings]

    def follow(self, step: Judged) -> None:
        self.followed.append(step.observation.at)


def kinds(outcome: Outcome, known: Callable[[Finding], bool] = lambda finding: True) -> Kinds:
    """Index, rule and kind of all divergences."""
    found = divergences(TRACE, outcome, explainer=Knows(known))
    return [(one.index, one.rule, one.finding.kind) for one in found]


MISCOUNTED = "AC2", "counted-requests"


def test_a_clean_run_has_no_divergence() -> None:
    assert kinds(planted()) == []


def test_findings_that_are_explained_and_do_not_last_are_gone_past() -> None:
    outcome = planted(*miscounts(1, 5, 7))
    each = [(index, *MISCOUNTED) for index in (1, 5, 7)]
    assert kinds(outcome) == each
    assert kinds(outcome, lambda finding: finding.kind == "counted-requests") == each
    assert kinds(outcome, lambda finding: finding.kind == "counted-hits") == each[:1]
    assert kinds(outcome, lambda finding: finding.rule == "AC2") == each
    assert kinds(outcome, lambda finding: False) == each[:1]
    first = compare(TRACE, outcome)
    assert first is not None
    assert (first.index, first.at, first.rule, first.fault) == (1, 1, "AC2", "")
    assert [one.fault for one in divergences(TRACE, outcome, explainer=Knows())] == ["some-fault"] * 3


def test_a_finding_that_lasts_ends_the_run_although_it_is_explained() -> None:
    assert kinds(planted(*miscounts(1, 6), MISREADS)) == [
        (1, *MISCOUNTED),
        (5, "SF1", "kv-of-hit"),
    ]
    assert kinds(planted(MISREPORTS, *miscounts(5))) == [(3, "AC1", "cached")]


def test_everything_of_a_step_is_told_in_registry_order() -> None:
    outcome = planted(*JUMPS, *miscounts(6))
    both_found = [
        (2, "CP7", "jumped-checkpoint"),
        (2, "RT1", "missing-full"),
        (2, "SF1", "kv"),
        (2, "LV1", "not-ended"),
    ]
    assert kinds(outcome, lambda finding: False) == both_found
    assert kinds(outcome) == both_found
    assert kinds(planted(MISREADS, *miscounts(5))) == [(5, "SF1", "kv-of-hit"), (5, *MISCOUNTED)]


@pytest.mark.rule("SF1")
@pytest.mark.parametrize("known", ["CH3", "SF1", "AC2", ""])
def test_of_one_step_what_nothing_explains_comes_first_and_ends_the_run(known: str) -> None:
    """A stray state that a known fault explains hides no wrong read of the same step, and none hides it."""
    outcome = planted(MISREADS, *miscounts(5, 6), "5 published + 1 12 B")
    found = list(divergences(TRACE, outcome, explainer=Knows(lambda finding: finding.rule == known)))
    named = {one.rule: one.fault for one in found}
    assert named == {rule: "some-fault" if rule == known else "" for rule in ("CH3", "SF1", "AC2")}
    assert {one.index for one in found} == {5}
    rules = [one.rule for one in found]
    new = sorted(set(rules) - {known}, key=lambda rule: ORDER[rule])
    assert rules == [*new, *([known] if known else [])]


def test_an_unexplained_finding_ends_the_run_although_it_does_not_last() -> None:
    outcome = planted(WITHOUT, *miscounts(7))
    missed = 2, "RT2", "missing-checkpoint"
    assert kinds(outcome, lambda one: one.rule != "RT2") == [missed]
    assert kinds(outcome)[0] == missed
    assert len(kinds(outcome)) > 1


def test_what_is_left_unjudged_is_counted() -> None:
    for outcome, known, left in (
        (planted(), True, 0),
        (planted(*miscounts(1, 5)), True, 0),
        (planted(*miscounts(1, 5)), False, 6),
        (planted(MISREADS), True, 2),
        (planted(MISREADS), False, 2),
        (planted(*miscounts(7)), False, 0),
    ):
        unjudged = Unjudged()
        explainer = Knows(lambda finding, known=known: known)  # type: ignore[misc]
        list(divergences(TRACE, outcome, explainer=explainer, unjudged=unjudged))
        assert unjudged.observations == left
    # It adds up over runs.
    for _ in range(2):
        list(divergences(TRACE, planted(MISREADS), unjudged=unjudged))
    assert unjudged.observations == 4


def test_an_explainer_is_shown_every_step_that_the_run_goes_past() -> None:
    for outcome, count in ((planted(), 8), (planted(*miscounts(1)), 8), (planted(MISREADS), 5)):
        explainer = Knows()
        list(divergences(TRACE, outcome, explainer=explainer))
        assert len(explainer.followed) == count


@pytest.mark.parametrize(
    ("entry", "index", "rule", "kind", "hit"),
    [
        ("0 18 A", 2, "RT1", "missing-full", 16),
        ("1 18 A", 2, "RT2", "missing-checkpoint", 16),
        ("1 16 A", 1, "RT1", "missing-mamba", 18),
    ],
)
def test_what_was_not_published_is_missed_once_and_what_follows_is_judged_without_it(
    entry: str, index: int, rule: str, kind: str, hit: int
) -> None:
    outcome = planted(f"{index} published - {entry}")
    found = kinds(outcome)
    assert found[0] == (index, rule, kind)
    # B still claims 18, which nobody could know of any more where the entry was needed for it.
    later = [one for one in found[1:] if one[0] >= 5]
    assert bool(later) is (hit < 18)
    assert all(one[1] in ("LK1", "PM4", "PM3") for one in later)


def test_a_run_that_is_not_whole_is_an_error_also_after_what_is_explained() -> None:
    outcome = planted(*miscounts(1))
    short = Outcome(tuple(one for one in outcome.observations if one.at < 2))
    found: list[Divergence] = []
    with pytest.raises(IncompleteError, match=r"steps\[2\]"):
        found.extend(divergences(TRACE, short, explainer=Knows()))
    assert compare(TRACE, short) is not None


def test_reads_left_out_are_an_error_also_in_a_step_with_a_finding_that_is_explained() -> None:
    outcome = planted(*miscounts(5), "5 verified 18")
    with pytest.raises(IncompleteError, match="read 18 tokens and states, due were 19"):
        list(divergences(TRACE, outcome, explainer=Knows()))
    good = planted(*miscounts(5), "5 verified 19")
    assert kinds(good) == [(5, *MISCOUNTED)]
    # A finding that stops says more than a check that did not run to its end.
    assert kinds(planted(MISREADS, "5 verified 18")) == [(5, "SF1", "kv-of-hit")]


def test_every_observation_is_visited_up_to_where_judging_stops() -> None:
    for outcome, count in (
        (planted(), 8),
        (planted(*miscounts(1, 5)), 8),
        (planted(*miscounts(1), MISREADS), 6),
    ):
        visited: list[Judged] = []
        list(divergences(TRACE, outcome, visited.append, Knows()))
        assert [step.observation for step in visited] == list(outcome.observations[:count])


# Seeking a recorded divergence.

MIXED = *miscounts(1), WITHOUT, MISREPORTS


def test_the_recorded_divergence_is_sought_past_others() -> None:
    outcome = planted(*MIXED)
    for rule, kind, index in (
        ("AC2", "counted-requests", 1),
        ("RT2", "missing-checkpoint", 2),
        ("AC1", "cached", 3),
    ):
        found = seek(TRACE, outcome, rule, kind)
        assert found is not None
        assert (found.rule, found.finding.kind, found.index, found.fault) == (rule, kind, index, "")


def test_the_sought_divergence_has_the_name_of_the_fault_that_explains_it() -> None:
    for explained, name in (("AC1", "some-fault"), ("AC2", "")):
        explainer = Knows(lambda finding, rule=explained: finding.rule == rule)  # type: ignore[misc]
        found = seek(TRACE, planted(*MIXED), "AC1", "cached", explainer)
        assert (found and (found.rule, found.fault)) == ("AC1", name)


def test_what_is_sought_past_is_not_said_to_be_known() -> None:
    found = seek(TRACE, planted(*miscounts(1)), "AC1", "cached")
    assert found is not None
    assert (found.rule, found.fault) == ("AC2", "")


def test_what_is_not_found_gives_the_first_divergence_and_nothing_gives_none() -> None:
    found = seek(TRACE, planted(*MIXED), "SF1", "kv")
    assert (found and (found.index, found.rule)) == (1, "AC2")
    # The right rule in another way is not what was recorded.
    found = seek(TRACE, planted(*MIXED), "AC1", "other")
    assert (found and (found.index, found.rule)) == (1, "AC2")
    assert seek(TRACE, planted(), "AC2", "counted-requests") is None


def test_a_divergence_behind_one_that_stops_is_not_found() -> None:
    outcome = planted(MISREPORTS, *miscounts(5))
    found = seek(TRACE, outcome, "AC2", "counted-requests")
    assert (found and (found.index, found.rule)) == (3, "AC1")


class _Recorded:
    """A target that answers with a planted run."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome

    def run(self, trace: Trace, omit: str = "") -> Outcome:
        return self.outcome


def test_a_replay_says_failed_for_the_recorded_divergence_behind_others() -> None:
    kept = ReplayFile(TRACE, "reference", "AC1", "cached")
    result = replay(_Recorded(planted(*MIXED)), kept)  # type: ignore[arg-type]
    assert result.verdict == "FAILED"
    assert "recorded was" not in result.detail
    other = replay(_Recorded(planted(*miscounts(1))), kept)  # type: ignore[arg-type]
    assert other.verdict == "FAILED"
    assert other.detail.endswith("(recorded was AC1 cached)")
    assert replay(_Recorded(planted()), kept).verdict == "FIXED"  # type: ignore[arg-type]
