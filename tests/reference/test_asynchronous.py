"""Asynchronous scheduling: a step is scheduled before the outputs of the one before it are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from reference.oracle import Oracle
from spec.observation import Counters, Entry, Observation, Outcome
from spec.trace import Abort, Configuration, Group, ResetLocal, Run, Settle, Step, Submit, Trace
from tailproof.generate.core import case
from tailproof.generate.drawing import Axes
from tailproof.judge.lockstep import compare, judge
from tailproof.judge.step import Step as Judged
from tailproof.targets.opening import Target, open_target

Kinds = list[tuple[str, str]]
GROUPS = Group("full", 4), Group("mamba", 4)
# A computes [0, 8), [8, 10), [10, 12) and its first output, then decodes.
LONE: tuple[Step, ...] = (Submit("A", (("a", 12),), outputs=3), Settle())


def traced(*steps: Step, asynchronous: bool = True, **options: object) -> Trace:
    configuration = replace(
        Configuration(GROUPS, 2, asynchronous=asynchronous),
        **options,  # type: ignore[arg-type]
    )
    return Trace(configuration, steps or LONE)


def clean(trace: Trace) -> list[Observation]:
    """What the reference does; nothing may be found."""
    outcome = open_target(Target.parse("reference"), print).run(trace)
    assert compare(trace, outcome) is None
    return list(outcome.observations)


def found(trace: Trace, seen: Sequence[Observation]) -> Kinds:
    """Rule and kind of all findings of the first step that has any."""
    oracle = Oracle(trace)
    for observation in seen:
        forecast = oracle.forecast(observation)
        findings = [(one.rule, one.kind) for one in judge(Judged(observation, forecast, oracle))]
        if findings:
            return findings
        oracle.adopt(observation, forecast)
    return []


def ends(seen: Sequence[Observation]) -> dict[str, int]:
    """The index of the observation in which each request ends."""
    return {item.request: index for index, one in enumerate(seen) for item in one.finished}


def last_chunk(seen: Sequence[Observation], request: str) -> int:
    """The index of the last observation that computes something of a request."""
    return max(i for i, one in enumerate(seen) if any(item.request == request for item in one.scheduled))


# Ends.


@pytest.mark.rule("LV1")
def test_a_request_ends_an_observation_after_its_last_output_was_computed() -> None:
    for asynchronous in (False, True):
        seen = clean(traced(asynchronous=asynchronous))
        assert ends(seen)["A"] - last_chunk(seen, "A") == asynchronous
        assert seen[-1].running == ()
        chunks = [(item.start, item.end) for one in seen for item in one.scheduled]
        assert chunks == [(0, 8), (8, 10), (10, 12), (12, 13), (13, 14)]
    seen = clean(traced())
    assert seen[-2].running == ("A",)
    assert seen[-1].scheduled == ()


@pytest.mark.rule("LV1")
def test_an_end_in_the_step_that_computes_the_last_output_is_early_and_two_steps_later_is_late() -> None:
    trace = traced()
    seen = clean(trace)
    end, last = seen[-1], len(seen) - 1
    early = replace(seen[last - 1], finished=end.finished, running=(), free=end.free)
    assert found(trace, [*seen[: last - 1], early]) == [("LV1", "ended-early")]
    late = replace(end, finished=(), running=("A",), free=seen[last - 1].free)
    assert found(trace, [*seen[:last], late]) == [("LV1", "not-ended")]
    assert found(traced(asynchronous=False), seen) == [("LV1", "not-ended")]
    synchronous = clean(traced(asynchronous=False))
    assert found(trace, synchronous) == [("LV1", "ended-early")]


@pytest.mark.rule("CH2")
def test_a_step_that_only_waits_for_the_end_is_no_stall_and_one_before_it_is() -> None:
    trace = traced()
    seen = clean(trace)
    idle = replace(seen[4], scheduled=(), published=())
    assert found(trace, [*seen[:4], idle]) == [("CH2", "stalled")]


@pytest.mark.rule("LV1")
def test_a_request_that_only_waits_to_be_told_of_its_end_holds_its_slot() -> None:
    trace = traced(
        Submit("A", (("a", 12),), outputs=1), Submit("B", (("b", 12),), outputs=1), Settle(), live=1
    )
    seen = clean(trace)
    first = next(i for i, one in enumerate(seen) if any(item.request == "B" for item in one.scheduled))
    assert first == ends(seen)["A"] + 1
    assert seen[ends(seen)["A"]].scheduled == ()


@pytest.mark.rule("SF4")
def test_an_abort_reports_the_outputs_that_were_known() -> None:
    for steps in range(1, 6):
        for asynchronous in (False, True):
            trace = traced(LONE[0], Run(steps), Abort("A"), Settle(), asynchronous=asynchronous)
            clean(trace)


# A reset.


@pytest.mark.rule("LT4")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_reset_of_running_requests_drops_the_outputs_not_told_of(asynchronous: bool) -> None:
    """After four steps the first two outputs are sampled; asynchronously one of them is not known yet."""
    trace = traced(LONE[0], Run(4), ResetLocal(running=True), Settle(), asynchronous=asynchronous)
    seen = clean(trace)
    again = next(i for i, one in enumerate(seen) if one.do == "settle" and one.admitted)
    counters = seen[again].counters
    assert counters is not None
    assert counters.preempted_queries == 12 + (1 if asynchronous else 2)
    (finished,) = seen[-1].finished
    assert len(finished.outputs) == 3
    assert finished.outputs == clean(traced())[-1].finished[0].outputs


@pytest.mark.rule("AC2")
def test_a_resumed_request_that_kept_an_output_it_was_not_told_of_is_found() -> None:
    trace = traced(LONE[0], Run(4), ResetLocal(running=True), Settle())
    seen = clean(trace)
    at = next(i for i, one in enumerate(seen) if one.do == "settle" and one.admitted)
    counters = seen[at].counters
    assert counters is not None
    seen[at] = replace(seen[at], counters=replace(counters, preempted_queries=14))
    assert found(trace, seen) == [("AC2", "counted-preempted_queries")]


# Entries whose tokens are not known yet.


def owing(retention: int | None = None) -> tuple[Trace, list[Observation], int, Entry]:
    """A decode that fills the block that ends at 16, whose last token is sampled in the step before."""
    trace = traced(Submit("A", (("a", 12),), outputs=8), Settle(), retention=retention)
    seen = clean(trace)
    entry = Entry(0, 16, "A")
    return trace, seen, next(i for i, one in enumerate(seen) if entry in one.published), entry


@pytest.mark.rule("RT1")
def test_an_entry_whose_tokens_are_not_known_may_come_a_step_later_and_no_later() -> None:
    trace, seen, at, entry = owing()
    assert [(item.start, item.end) for item in seen[at].scheduled] == [(15, 16)]
    with_later, without = list(seen), list(seen)
    for run in (with_later, without):
        run[at] = replace(run[at], published=tuple(one for one in run[at].published if one != entry))
    with_later[at + 1] = replace(seen[at + 1], published=(*seen[at + 1].published, entry))
    assert found(trace, with_later) == []
    assert found(trace, without) == [("RT1", "missing-full")]
    oracle = Oracle(trace)
    for observation in without[: at + 1]:
        forecast = oracle.forecast(observation)
        assert judge(Judged(observation, forecast, oracle)) == []
        oracle.adopt(observation, forecast)
    assert entry in oracle.owed.values()


@pytest.mark.rule("RT1")
def test_an_entry_of_the_prompt_may_not_come_a_step_later() -> None:
    trace, seen, _, _ = owing()
    entry = Entry(0, 8, "A")
    seen[1] = replace(seen[1], published=tuple(one for one in seen[1].published if one != entry))
    seen[2] = replace(seen[2], published=(*seen[2].published, entry))
    assert found(trace, seen) == [("RT1", "missing-full")]


@pytest.mark.rule("RT1")
def test_without_asynchronous_scheduling_nothing_may_come_later() -> None:
    _, _, at, entry = owing()
    trace = traced(Submit("A", (("a", 12),), outputs=8), Settle(), asynchronous=False, retention=None)
    plain = clean(trace)
    assert entry in plain[at].published
    plain[at] = replace(plain[at], published=tuple(one for one in plain[at].published if one != entry))
    assert found(trace, plain) == [("RT1", "missing-full")]


# Steps without an update.


def lagging(seen: Sequence[Observation]) -> list[Observation]:
    """The same as vLLM shows it: the first step after a rest has no update, its events and counters come with
    the next one."""
    late = list(seen)
    resting = True
    for index, one in enumerate(seen):
        if one.do not in ("run", "settle"):
            continue
        if resting and one.scheduled:
            following = late[index + 1]
            assert one.counters is not None
            assert following.counters is not None
            both = Counters(
                *(getattr(one.counters, n) + getattr(following.counters, n) for n in Counters.__slots__)
            )
            events = None if one.events is None else (*one.events, *(following.events or ()))
            late[index] = replace(one, counters=None, events=None)
            late[index + 1] = replace(following, counters=both, events=events)
        resting = not one.running
    return late


TWO: tuple[Step, ...] = (*LONE, Submit("B", (("a", 12),), outputs=2), Settle())


@pytest.mark.rule("AC2")
@pytest.mark.rule("AC3")
@pytest.mark.parametrize("events", [False, True])
def test_counters_and_events_of_a_step_without_an_update_count_for_the_next(events: bool) -> None:
    trace = traced(*TWO, events=events)
    seen = lagging(clean(trace))
    assert sum(one.counters is None and one.do == "settle" for one in seen) == 2
    assert found(trace, seen) == []


@pytest.mark.rule("AC2")
def test_counters_that_a_step_without_an_update_swallowed_are_missed() -> None:
    trace = traced(*TWO)
    seen = lagging(clean(trace))
    late = clean(trace)
    at = next(i for i, one in enumerate(seen) if one.counters is None and one.do == "settle")
    seen[at + 1] = replace(seen[at + 1], counters=late[at + 1].counters)
    assert found(trace, seen) == [("AC2", "counted-requests"), ("AC2", "counted-queries")]


@pytest.mark.rule("AC3")
def test_events_that_a_step_without_an_update_swallowed_are_missed() -> None:
    trace = traced(*TWO, events=True)
    seen = lagging(clean(trace))
    late = clean(trace)
    at = next(i for i, one in enumerate(seen) if one.events is None and one.do == "settle")
    seen[at + 1] = replace(seen[at + 1], events=late[at + 1].events)
    assert found(trace, seen) == [("AC3", "event-missing")]


def test_generated_cases_hold_also_when_told_late() -> None:
    """As vLLM reports them, over random histories; the outputs are those of synchronous scheduling."""
    opened = open_target(Target.parse("reference"), print)
    late = 0
    for index in range(240):
        trace = case(31, index, Axes(asynchronous=1.0, events=0.5, pressure=0.0))
        outcome = opened.run(trace)
        assert compare(trace, outcome) is None
        if not any(isinstance(step, Run | Abort | ResetLocal) for step in trace.steps):
            seen = lagging(outcome.observations)
            late += seen != list(outcome.observations)
            assert compare(trace, Outcome(tuple(seen))) is None
            plain = replace(trace, configuration=replace(trace.configuration, asynchronous=False))
            given = [
                {item.request: item.outputs for one in run.observations for item in one.finished}
                for run in (outcome, opened.run(plain))
            ]
            assert given[0] == given[1]
    assert late > 10
