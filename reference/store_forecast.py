"""What the store tier adds to a forecast: loads, puts, keys and pins that an observation must agree with."""

from __future__ import annotations

from collections.abc import Mapping
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
class StoreForecast:
    """What an observation of a step must show of the store; the empty one where there is none.

    `external` is the hit that the store owes each request that left the queue (tokens), `widest` the one that
    it may give where a block that ends with the request counts as proof, `unknown` those whose lookup got no
    answer; these are over the keys of the `shelf`, what the store was seen to hold before. `present` are its
    keys after the puts of the step, `expected` those that it must hold after the step, `seen` those that it
    holds. `owed` are the keys that it must hold once the saves have ended, `wiped` those that were lost, also
    where they came and went within the step. `pins` are the store jobs that held blocks before the step.
    `idle_puts` and `idle_gets` tell of an engine step that nothing stood at the gate before it, so what has
    ended is reported in it. `loads` are the requests that load, `loaded` those of them whose load came in
    before, `failed_before` those whose last load failed and that were not admitted since, `failing` those
    that do not run and whose load failed, also where they load again, `refused` the requests that a failed
    load ends, `away` those that load or wait for an answer, so that nothing of them can be scheduled.
    `at_rest` tells that neither a load nor a save holds a block."""

    external: Mapping[str, int] = field(default_factory=dict)
    widest: Mapping[str, int] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()
    shelf: Mapping[Key, Entry] = field(default_factory=dict)
    present: Mapping[Key, Entry] = field(default_factory=dict)
    expected: Mapping[Key, Entry] = field(default_factory=dict)
    seen: Mapping[Key, Entry] = field(default_factory=dict)
    owed: tuple[Owed, ...] = ()
    pins: Mapping[int, Pin] = field(default_factory=dict)
    idle_puts: bool = False
    idle_gets: bool = False
    loads: tuple[str, ...] = ()
    loaded: frozenset[str] = frozenset()
    failed_before: frozenset[str] = frozenset()
    failing: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    away: frozenset[str] = frozenset()
    at_rest: bool = True
    wiped: frozenset[Key] = frozenset()
