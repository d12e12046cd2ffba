"""Compares what a system tells about itself with what was seen: units, counters, KV events."""

from __future__ import annotations

from collections.abc import Iterator

from reference.oracle import Forecast, Oracle
from spec.observation import Observation, Outcome
from tailproof.findings import Finding

_COUNTERS = {
    "requests": "new requests",
    "queries": "tokens of new requests",
    "hits": "reused tokens of new requests",
    "preempted_requests": "resumed requests",
    "preempted_queries": "tokens of resumed requests",
    "preempted_hits": "reused tokens of resumed requests",
}


def units(oracle: Oracle, outcome: Outcome) -> Finding | None:
    """Mode "units": the workers use the hash unit and the grid of hits of the scheduler."""
    due = (oracle.geometry.unit, oracle.geometry.grid)
    if outcome.units is None or outcome.units == due:
        return None
    seen = "hash unit {} and grid {}".format(*outcome.units)
    return Finding("EL2", "worker-units", f"the workers use {seen}, due were {due[0]} and {due[1]}")


def accounting(oracle: Oracle, observation: Observation, forecast: Forecast) -> Iterator[Finding]:
    """Modes "counters" and "events"."""
    if observation.counters is not None:
        for name, words in _COUNTERS.items():
            seen, due = getattr(observation.counters, name), getattr(forecast.counters, name)
            if seen != due:
                yield Finding(
                    "AC2", f"counted-{name}", f"the counters moved by {seen} {words}, due was {due}"
                )
    if forecast.told is not None:
        yield from _events(oracle, observation, forecast)


def _events(oracle: Oracle, observation: Observation, forecast: Forecast) -> Iterator[Finding]:
    """A reader of the events must end up with what is visible. One-sided where one prefix lies in two
    blocks: upstream does not say whether the first removal ends it, so only what no reader could believe is
    judged."""
    told = forecast.told
    assert told is not None
    for event in told.broken:
        where = ", ".join(f"{entry.position} of {entry.request!r}" for entry in event.entries) or "nothing"
        text = f"a stored event for {where} lists {event.tokens} tokens after {event.start}"
        sparse = event.entries and oracle.geometry.groups[event.entries[0].group].kind != "full"
        kind = "event-skips-blocks" if sparse and event.matches else "event-tokens"
        yield Finding("AC3", kind if event.entries else "event-without-entries", text)
    withdrawn = {oracle.cache.key_of(entry, oracle.histories) for entry in observation.withdrawn}
    published = {oracle.cache.key_of(entry, oracle.histories) for entry in observation.published}
    visible = (oracle.cache.visible - withdrawn) | published
    if untold := visible - told.perhaps:
        yield Finding("AC3", "event-missing", f"{len(untold)} visible entries were never told by an event")
    if vain := told.surely - visible:
        yield Finding("AC3", "event-in-vain", f"{len(vain)} entries that events told of are not visible")
