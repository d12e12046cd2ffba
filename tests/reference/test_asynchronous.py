"""Asynchronous scheduling, told as vLLM tells it, with the outputs of synchronous scheduling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spec.observation import Counters, Observation, Outcome
from spec.trace import Abort, ResetLocal, Run
from tailproof.generate.core import case
from tailproof.generate.drawing import Axes
from tailproof.judge.lockstep import compare
from tailproof.targets.opening import Target, open_target


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
