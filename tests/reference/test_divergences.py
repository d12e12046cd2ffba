"""Judging goes on past findings that may pass and do no harm, and stops at all others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from spec.observation import Entry, FailedRead, Observation, Outcome
from spec.rules import RULES
from spec.trace import Configuration, Group, Settle, Submit, Trace
from tailproof.judge.findings import Divergence, Finding, IncompleteError
from tailproof.judge.lockstep import compare, divergences, seek
from tailproof.judge.lockstep import harmless as is_harmless
from tailproof.replay import ReplayFile, replay
from tailproof.targets import Target, open_target

TRACE = Trace(
    Configuration((Group("full", 4), Group("mamba", 4)), 2),
    (Submit("A", (("a", 20),)), Settle(), Submit("B", (("a", 20),), outputs=3), Settle()),
)
# 0 submit, 1 A [0, 16), 2 A [16, 18), 3 A [18, 20) and its end, 4 submit, 5 B [18, 20), 6 and 7 B decodes.
Change = Callable[[Observation], Observation]
Kinds = list[tuple[int, str, str]]


def clean() -> list[Observation]:
    """What the reference does."""
    return list(open_target(Target.parse("reference"), print).run(TRACE).observations)


def planted(**changes: Change) -> Outcome:
    """A clean run with changes at the steps `at1` and so on."""
    seen = clean()
    for name, change in changes.items():
        seen[int(name.removeprefix("at"))] = change(seen[int(name.removeprefix("at"))])
    return Outcome(tuple(seen))


def miscounts(seen: Observation) -> Observation:
    assert seen.counters is not None
    return replace(seen, counters=replace(seen.counters, requests=7))


def misreports(seen: Observation) -> Observation:
    return replace(seen, finished=(replace(seen.finished[0], cached=4),))


def misreads(seen: Observation) -> Observation:
    return replace(seen, failed_reads=(FailedRead("B", 0, 3, "kv"),))


def without(*entries: Entry) -> Change:
    return lambda seen: replace(seen, published=tuple(e for e in seen.published if e not in entries))


def both(seen: Observation) -> Observation:
    return misreads(miscounts(seen))


def kinds(outcome: Outcome, passes: Callable[[Finding], bool] = lambda finding: True) -> Kinds:
    """Index, rule and kind of all divergences."""
    return [(one.index, one.rule, one.finding.kind) for one in divergences(TRACE, outcome, passes=passes)]


MISCOUNTED = "AC2", "counted-requests"


def test_a_clean_run_has_no_divergence() -> None:
    assert kinds(planted()) == []


def test_findings_that_pass_and_do_no_harm_are_gone_past() -> None:
    outcome = planted(at1=miscounts, at5=miscounts, at7=miscounts)
    each = [(index, *MISCOUNTED) for index in (1, 5, 7)]
    assert kinds(outcome) == each
    assert kinds(outcome, lambda finding: finding.kind == "counted-requests") == each
    assert kinds(outcome, lambda finding: finding.kind == "counted-hits") == each[:1]
    assert kinds(outcome, lambda finding: finding.rule == "AC2") == each
    assert kinds(outcome, lambda finding: False) == each[:1]
    assert kinds(outcome, lambda finding: finding.rule == "AC3") == each[:1]
    first = compare(TRACE, outcome)
    assert first is not None
    assert (first.index, first.at, first.rule) == (1, 1, "AC2")


def test_a_finding_that_harms_stops_although_it_may_pass() -> None:
    assert kinds(planted(at1=miscounts, at5=misreads, at6=miscounts)) == [
        (1, *MISCOUNTED),
        (5, "SF1", "kv-of-hit"),
    ]
    assert kinds(planted(at3=misreports, at5=miscounts)) == [(3, "AC1", "cached")]


def test_of_one_step_what_stops_is_named_before_what_passes() -> None:
    """Without passing, it is the first in registry order."""
    outcome = planted(at2=jumps_and_misreads, at6=miscounts)
    assert kinds(outcome, lambda finding: False) == [(2, "CP7", "jumped-checkpoint")]
    assert kinds(outcome) == [(2, "SF1", "kv")]
    assert kinds(planted(at5=both)) == [(5, "SF1", "kv-of-hit")]


def jumps_and_misreads(seen: Observation) -> Observation:
    """A chunk that jumps over its checkpoint, and so leaves no state there, after it read wrong content."""
    chunk = replace(seen.scheduled[0], end=20)
    read = FailedRead("A", 0, 3, "kv")
    return replace(without(Entry(1, 18, "A"))(seen), scheduled=(chunk,), failed_reads=(read,))


@pytest.mark.parametrize(
    ("entry", "index", "rule", "kind", "hit"),
    [
        (Entry(0, 18, "A"), 2, "RT1", "missing-full", 16),
        (Entry(1, 18, "A"), 2, "RT2", "missing-checkpoint", 16),
        (Entry(1, 16, "A"), 1, "RT1", "missing-mamba", 18),
    ],
)
def test_what_was_not_published_is_missed_once_and_what_follows_is_judged_without_it(
    entry: Entry, index: int, rule: str, kind: str, hit: int
) -> None:
    outcome = planted(**{f"at{index}": without(entry)})
    found = kinds(outcome)
    assert found[0] == (index, rule, kind)
    # B still claims 18, which nobody could know of any more where the entry was needed for it.
    later = [one for one in found[1:] if one[0] >= 5]
    assert bool(later) is (hit < 18)
    assert all(one[1] in ("LK1", "PM4", "PM3") for one in later)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_only_rules_whose_breach_leaves_the_cache_right_can_pass(rule: str) -> None:
    """What may pass is what costs a hit or tells something wrong."""
    harmless = {"CP7", "PM1", "LK1", "LK2", "LK4", "RT2", "CH1", "CH2", "AC2", "AC3"}
    harmless |= {"TS1", "TS3", "TS5", "TS6", "TS7"}
    assert is_harmless(Finding(rule, "any", "")) is (rule in harmless)
    assert is_harmless(Finding(rule, "missing-full", "")) is (rule in harmless or rule == "RT1")


def test_a_run_that_is_not_whole_is_an_error_also_after_what_passes() -> None:
    outcome = planted(at1=miscounts)
    short = Outcome(tuple(one for one in outcome.observations if one.at < 2))
    found: list[Divergence] = []
    with pytest.raises(IncompleteError, match=r"steps\[2\]"):
        found.extend(divergences(TRACE, short, passes=lambda finding: True))
    assert compare(TRACE, short) is not None


def test_reads_left_out_are_an_error_also_in_a_step_with_a_finding_that_passes() -> None:
    outcome = planted(at5=lambda seen: replace(miscounts(seen), verified=18))
    with pytest.raises(IncompleteError, match="read 18 tokens and states, due were 19"):
        list(divergences(TRACE, outcome, passes=lambda finding: True))
    good = planted(at5=lambda seen: replace(miscounts(seen), verified=19))
    assert kinds(good) == [(5, *MISCOUNTED)]
    # A finding that stops says more than a check that did not run to its end.
    assert kinds(planted(at5=lambda seen: replace(misreads(seen), verified=18))) == [(5, "SF1", "kv-of-hit")]


def test_every_observation_is_visited_up_to_where_judging_stops() -> None:
    for outcome, count in (
        (planted(), 8),
        (planted(at1=miscounts, at5=miscounts), 8),
        (planted(at1=miscounts, at5=misreads), 6),
    ):
        visited: list[int] = []
        list(
            divergences(
                TRACE,
                outcome,
                lambda seen, due, visited=visited: visited.append(seen.at),  # type: ignore[misc]
                lambda finding: True,
            )
        )
        assert len(visited) == count


# Seeking a recorded divergence.

MIXED = {"at1": miscounts, "at2": without(Entry(1, 18, "A")), "at3": misreports}


def test_the_recorded_divergence_is_sought_past_others() -> None:
    outcome = planted(**MIXED)
    for rule, kind, index in (
        ("AC2", "counted-requests", 1),
        ("RT2", "missing-checkpoint", 2),
        ("AC1", "cached", 3),
    ):
        found = seek(TRACE, outcome, rule, kind)
        assert found is not None
        assert (found.rule, found.finding.kind, found.index) == (rule, kind, index)


def test_what_is_not_found_gives_the_first_divergence_and_nothing_gives_none() -> None:
    found = seek(TRACE, planted(**MIXED), "SF1", "kv")
    assert (found and (found.index, found.rule)) == (1, "AC2")
    # The right rule in another way is not what was recorded.
    found = seek(TRACE, planted(**MIXED), "AC1", "other")
    assert (found and (found.index, found.rule)) == (1, "AC2")
    assert seek(TRACE, planted(), "AC2", "counted-requests") is None


def test_a_divergence_behind_one_that_stops_is_not_found() -> None:
    outcome = planted(at3=misreports, at5=miscounts)
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
    result = replay(_Recorded(planted(**MIXED)), kept)  # type: ignore[arg-type]
    assert result.verdict == "FAILED"
    assert "recorded was" not in result.detail
    other = replay(_Recorded(planted(at1=miscounts)), kept)  # type: ignore[arg-type]
    assert other.verdict == "FAILED"
    assert other.detail.endswith("(recorded was AC1 cached)")
    assert replay(_Recorded(planted()), kept).verdict == "FIXED"  # type: ignore[arg-type]
