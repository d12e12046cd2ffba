"""What the store tier adds to a forecast: loads, puts, keys and pins that an observation must agree with."""

from __future__ import annotations

from dataclasses import dataclass, field

from spec.observation import Entry, Pin

Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Owed:
    """A key that the store must hold once the saves of `request` have ended. `tail` tells that only the tail
    save brings it, `resumed` that the request had been preempted, `state` that its last chunk came with a
    Mamba state of its own."""

    key: Key
    entry: Entry
    request: str
    tail: bool
    resumed: bool
    state: bool


@dataclass(frozen=True, slots=True)
class BadPut:
    """An entry that was put as it must not be: `what` is uncomputed (its prefix was not computed), wrong
    (other content), unpinned, again (it was there already), stray (no save puts a key there), horizon (a tail
    of `request` would have its key there if C were that of more than the prompt) or junction (the same for a
    tail of its junction)."""

    what: str
    entry: Entry
    request: str = ""


@dataclass(frozen=True, slots=True)
class StoreForecast:
    """What an observation of a step must show of the store.

    `external` is the hit that the store owes each request that left the queue (tokens), `widest` the one that
    it may give where a block that ends with the request counts as proof, `unknown` those whose lookup got no
    answer. `bad` are puts as they must not be, `spoiled` entries whose load brought other bytes. `unexpected`
    keys are in the store though nothing put them, `vanished` gone though nothing removed them, `missing` owed
    and not there, `owed` owed once the saves have ended, `wiped` lost, also those that came and went within
    the step. `kept` are the pins that must still be there, `freed` the jobs whose pins must be gone,
    `overdue` the jobs that ended before the step and were not reported in it, `foreign` the jobs that began
    for a request that did nothing in the step. `unreported` are loads that ended before the step and were not
    reported in it, `refused` the requests that a failed load ends, `away` those that load or wait for an
    answer, so that nothing of them can be scheduled, `misused` those that computed on from a load that
    failed. `at_rest` tells that neither a load nor a save holds a block."""

    external: dict[str, int] = field(default_factory=dict)
    widest: dict[str, int] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()
    bad: tuple[BadPut, ...] = ()
    spoiled: tuple[Entry, ...] = ()
    unexpected: tuple[Entry, ...] = ()
    vanished: tuple[Entry, ...] = ()
    missing: tuple[Owed, ...] = ()
    owed: tuple[Owed, ...] = ()
    kept: tuple[Pin, ...] = ()
    freed: frozenset[int] = frozenset()
    overdue: tuple[Pin, ...] = ()
    foreign: tuple[Pin, ...] = ()
    unreported: tuple[str, ...] = ()
    refused: frozenset[str] = frozenset()
    away: frozenset[str] = frozenset()
    misused: frozenset[str] = frozenset()
    at_rest: bool = True
    wiped: frozenset[Key] = frozenset()
