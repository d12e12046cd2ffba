"""Compares what a system tells of itself with what was seen (EL2, AC2, AC3)."""

from __future__ import annotations

from collections.abc import Iterator

from reference.oracle import Oracle
from spec.observation import Outcome
from tailproof.judge.findings import Finding
from tailproof.judge.step import Step, exercises, judges

_COUNTERS = {
    "requests": "new requests",
    "queries": "tokens of new requests",
    "hits": "reused tokens of new requests",
    "preempted_requests": "resumed requests",
    "preempted_queries": "tokens of resumed requests",
    "preempted_hits": "reused tokens of resumed requests",
}


@judges("EL2", of="run")
def units(oracle: Oracle, outcome: Outcome) -> Finding | None:
    """Mode "units": the workers use the hash unit and the grid of hits of the scheduler."""
    due = (oracle.geometry.unit, oracle.geometry.grid)
    if outcome.units is None or outcome.units == due:
        return None
    seen = "hash unit {} and grid {}".format(*outcome.units)
    return Finding("EL2", "worker-units", f"the workers use {seen}, due were {due[0]} and {due[1]}")


@judges("AC2")
def counters(step: Step) -> Iterator[Finding]:
    """Mode "counters": exact."""
    seen, due = step.observation.counters, step.expected.counters
    if seen is None:
        return
    for name, words in _COUNTERS.items():
        moved, owed = getattr(seen, name), getattr(due, name)
        if moved != owed:
            text = f"the counters moved by {moved} {words}, due was {owed}"
            yield Finding("AC2", f"counted-{name}", text, lasting=False)


@judges("AC3")
def events(step: Step) -> Iterator[Finding]:
    """Mode "events": a reader of the events must end up with what is visible. One-sided where one prefix lies
    in two blocks: upstream does not say whether the first removal ends it, so only what no reader could
    believe is judged."""
    told, unit = step.expected.told, step.geometry.unit
    if told is None:
        return
    for event in told.broken:
        where = ", ".join(f"{entry.position} of {entry.request!r}" for entry in event.entries) or "nothing"
        text = f"a stored event for {where} lists {event.tokens} tokens after {event.start}"
        if not event.entries:
            yield Finding("AC3", "event-without-entries", text, event=event, lasting=False)
        else:
            whole = event.matches and event.start % unit == 0 and event.tokens % unit == 0
            kind = "event-skips-blocks" if whole else "event-tokens"
            entry = event.entries[-1]
            yield Finding("AC3", kind, text, entry=entry, event=event, lasting=False)
    visible = (step.cache.visible - step.withdrawn().keys()) | step.published().keys()
    if untold := visible - told.perhaps:
        text = f"{len(untold)} visible entries were never told by an event"
        yield Finding("AC3", "event-missing", text, lasting=False)
    if vain := told.surely - visible:
        text = f"{len(vain)} entries that events told of are not visible"
        yield Finding("AC3", "event-in-vain", text, lasting=False)


@exercises("AC2", "AC3", "EL2")
def reported(step: Step) -> Iterator[str]:
    """Counters of lookups, events, and chunks that a worker could export on another grid."""
    if step.observation.counters is not None and step.expected.admissions:
        yield "AC2"
    if step.observation.events:
        yield "AC3"
    if step.geometry.mamba[0].checkpoint_alignment is not None and step.expected.chunks:
        yield "EL2"
