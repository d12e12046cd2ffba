"""What an oracle forecasts of one step: what must be, what may be, and what is owed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reference.cache import Key, Lookup
from reference.events import Told
from reference.history import History
from reference.publish import Publications
from spec.observation import Admitted, Counters, Entry, Pin, Scheduled


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


@dataclass(frozen=True, slots=True)
class AdmissionForecast:
    """What an admitted request is due: `lookup` over the entries `visible` at the moment of its lookup;
    `fresh` are Mamba positions of its prefix that were published earlier in the same step."""

    admitted: Admitted
    history: History
    lookup: Lookup
    visible: frozenset[Key]
    fresh: frozenset[int]


@dataclass(frozen=True, slots=True)
class ChunkForecast:
    """One scheduled chunk. `expected_start` is where it must begin, None for a request that has no business
    running; `stops` the required stops by name; `publications` what it leaves; `prefill` whether it still
    reads the prompt."""

    scheduled: Scheduled
    history: History
    expected_start: int | None
    stops: dict[str, int]
    publications: Publications
    prefill: bool


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one observation must agree with. Keys are (group, identity of a prefix).

    `must` has to be visible after the step, `may` may be, beside what was computed before (`computed`).
    `required` had to be visible before it and must stay so unless its space is needed; `held` are entries in
    blocks of running requests, which must stay in any case. `told` is what KV events say after the step
    (None: no events); `counters` and `verified` what the counters and the content check must show, `owed`
    what has to be visible a step later, `complete` the requests that only wait to be told so. `live_before`
    are the requests not ended before the step, `waiting` those of them not running. `roomy` tells that the
    pool can hold everything, so nothing may be evicted or stall, `fits` that each live request fits alone;
    `ends` the requests that must end in this step with their outputs. `loadings` are requests that left the
    queue to load, and `store` is what else the store tier adds.
    """

    admissions: tuple[AdmissionForecast, ...] = ()
    chunks: tuple[ChunkForecast, ...] = ()
    must: dict[Key, Entry] = field(default_factory=dict)
    may: frozenset[Key] = frozenset()
    computed: frozenset[Key] | set[Key] = frozenset()
    required: Mapping[Key, Entry] = field(default_factory=dict)
    held: Mapping[Key, Entry] = field(default_factory=dict)
    told: Told | None = None
    counters: Counters = field(default_factory=Counters)
    owed: dict[Key, Entry] = field(default_factory=dict)
    complete: frozenset[str] = frozenset()
    verified: int = 0
    ends: dict[str, tuple[int, ...]] = field(default_factory=dict)
    live_before: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    roomy: bool = True
    fits: bool = True
    reset_succeeds: bool | None = None
    loadings: tuple[AdmissionForecast, ...] = ()
    store: StoreForecast = field(default_factory=StoreForecast)
