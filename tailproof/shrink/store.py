"""Edits of a trace with a store that make it plainer, in engines, faults and gates; nothing is run here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from spec.trace import (
    STORE_STEPS,
    DropKeys,
    Gate,
    KillMaster,
    ResetLocal,
    ResetStore,
    RestartMaster,
    Run,
    Settle,
    Step,
    Submit,
    Trace,
)
from tailproof.shrink.requests import with_step, without_requests
from tailproof.shrink.settings import without_store

_Engined = Submit | Run | ResetLocal | ResetStore | Gate | Settle
_PLAIN_ACTIONS = ("hold", "release", "fail")


def oddity(step: Step) -> int:
    """How far a step is from plain, as to engines and store."""
    odd_action = isinstance(step, Gate) and step.action not in _PLAIN_ACTIONS
    return odd_action + (getattr(step, "engine", 0) > 0) + 2 * isinstance(step, KillMaster)


def plainer_store(trace: Trace) -> Iterator[Trace]:
    """Fewer and plainer dealings with the store, many at once first; nothing when there is no store."""
    now, steps = trace.configuration, trace.steps
    if now.store == "off":
        return
    kept = tuple(step for step in steps if not isinstance(step, STORE_STEPS))
    yield on_one_engine(replace(trace, configuration=without_store(now), steps=kept))
    yield replace(trace, steps=kept)
    for kind in (Gate, DropKeys, ResetStore, (KillMaster, RestartMaster)):
        yield replace(trace, steps=tuple(step for step in steps if not isinstance(step, kind)))
    if now.second != "off":
        for engine in range(2):
            yield of_engine(trace, engine)
        yield on_one_engine(trace)
        yield _exchanged(trace)
        for index, step in enumerate(steps):
            if getattr(step, "engine", 0):
                yield with_step(trace, index, _at_first(step))
    yield from _without_pairs(trace)
    for index, step in enumerate(steps):
        if isinstance(step, Gate):
            yield from (with_step(trace, index, replace(step, action=action)) for action in ("hold", "fail"))
            yield with_step(trace, index, Settle(engine=step.engine))
        elif isinstance(step, DropKeys):
            yield with_step(trace, index, ResetStore())


def of_engine(trace: Trace, engine: int) -> Trace:
    """What happens at one engine, without the other one and its requests."""
    gone = frozenset(submit.id for submit in trace.submits() if submit.engine != engine)
    left = tuple(
        step for step in trace.steps if isinstance(step, Submit) or getattr(step, "engine", engine) == engine
    )
    role = trace.configuration.roles[engine]
    configuration = replace(trace.configuration, store=role, second="off")
    return on_one_engine(without_requests(replace(trace, configuration=configuration, steps=left), gone))


def on_one_engine(trace: Trace) -> Trace:
    """All steps at the first engine, and no second one."""
    configuration = replace(trace.configuration, second="off")
    return replace(trace, configuration=configuration, steps=tuple(map(_at_first, trace.steps)))


def _at_first(step: Step) -> Step:
    return replace(step, engine=0) if isinstance(step, _Engined) and step.engine else step


def _exchanged(trace: Trace) -> Trace:
    """The engines in each other's place."""
    now = trace.configuration
    configuration = replace(now, store=now.second, second=now.store)

    def other(step: Step) -> Step:
        return replace(step, engine=1 - step.engine) if isinstance(step, _Engined) else step

    return replace(trace, configuration=configuration, steps=tuple(map(other, trace.steps)))


def _without_pairs(trace: Trace) -> Iterator[Trace]:
    """Without a gate and what opens it again, or without a death of the master and its return, each also
    without what lies between."""
    steps = trace.steps
    for first, step in enumerate(steps):
        opens = _ends(step)
        if opens is None:
            continue
        last = next((at for at in range(first + 1, len(steps)) if opens(steps[at])), None)
        if last is not None:
            yield replace(trace, steps=(*steps[:first], *steps[first + 1 : last], *steps[last + 1 :]))


def _ends(step: Step) -> Callable[[Step], bool] | None:
    """What ends the state that a step begins; None for steps that begin none."""
    if isinstance(step, KillMaster):
        return lambda later: isinstance(later, RestartMaster)
    if isinstance(step, Gate) and step.action not in ("release", "newest"):
        released = Gate(step.kind, "release", step.engine)
        return lambda later: later == released
    return None


def repaired(trace: Trace) -> Trace:
    """Leaves out what a configuration has no room for: steps of a store that is off, lookups held within the
    schedule; steps of a second engine that is not there go to the first."""
    now = trace.configuration
    steps: list[Step] = []
    for step in trace.steps:
        if isinstance(step, STORE_STEPS) and now.store == "off":
            continue
        held = isinstance(step, Gate) and step.kind == "lookup" and step.action in ("hold", "newest")
        if held and not now.lookup_async:
            continue
        steps.append(_at_first(step) if now.second == "off" else step)
    return replace(trace, steps=tuple(steps) or trace.steps[-1:])
