"""The Observation: what a system under test was seen to do in one atomic step of a trace.

A `submit`, `abort` or reset gives one observation; `run` and `settle` give one per engine step. Block
ids never appear: they are handles, and only logical content is compared. Positions and lengths are in
tokens, block counts in blocks, times in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Tokens [start, end) of `request` were computed; the last `drafts` of them are speculative."""

    request: str
    start: int
    end: int
    drafts: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A prefix-cache entry of `group`: it is found under the first `position` tokens of `request`."""

    group: int
    position: int
    request: str


@dataclass(frozen=True, slots=True)
class Event:
    """One published KV event of `kind` stored, removed or cleared, for `entries` of one group.

    A stored event lists `tokens` token ids that follow the prefix of `start` tokens (its parent); `matches`
    tells whether they are the tokens that the prefix of its last entry really has there.
    """

    kind: str
    entries: tuple[Entry, ...] = ()
    start: int = 0
    tokens: int = 0
    matches: bool = True


@dataclass(frozen=True, slots=True)
class Counters:
    """What the prefix-cache counters moved by in a step: lookups of new requests and of preempted ones, the
    tokens that they asked for (`queries`) and reused (`hits`)."""

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0


@dataclass(frozen=True, slots=True)
class Admitted:
    """`request` left the queue with so many tokens reused: `local` from the engine's own cache,
    `external` from a store; `junction` is where it learned that a longer prefix is shared (0: nowhere).

    `appeared` and `gone` are the entries by which the cache, at the moment of its lookup, differed from the
    end of the previous step: what earlier requests of the same step published and threw out.
    """

    request: str
    local: int
    external: int
    junction: int
    appeared: tuple[Entry, ...] = ()
    gone: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """`request` ended. `outputs` are its sampled tokens, `cached` the tokens it reported as reused
    (None where it never reported)."""

    request: str
    reason: str
    outputs: tuple[int, ...]
    cached: int | None


@dataclass(frozen=True, slots=True)
class FailedRead:
    """A read of `group` for `request` found other content than its prefix has.

    `position` is the first wrong token (KV), the length whose state was wanted, or the end of the chunk
    (stale). `what` is kv, state, null (the read went to the null block) or stale (an attention block holds
    bytes of a state past the end of the chunk).
    """

    request: str
    group: int
    position: int
    what: str


@dataclass(frozen=True, slots=True)
class Failure:
    """The system under test broke off: `kind` is exception, crash, hang or stuck, or store, where a server of
    the store ended that no trace had killed, which says nothing of the system; `message` one line,
    `detail` the traceback, stack or error output, `place` the function it happened in, where known."""

    kind: str
    message: str
    detail: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A put or get of `entries` that ended. `failed` are those that got an error, `wrong` those whose block
    did not hold the content of their prefix: before a put, after a successful get. `unpinned` are those put
    from a block that no store job held at that moment. `error` tells what became of the call as a whole ("":
    it came back with results)."""

    kind: str
    entries: tuple[Entry, ...]
    failed: tuple[Entry, ...] = ()
    wrong: tuple[Entry, ...] = ()
    unpinned: tuple[Entry, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The store was asked for the prefix of a request; `known` tells whether it answered at all."""

    request: str
    known: bool = True


@dataclass(frozen=True, slots=True)
class Pin:
    """Store job `job` of `request` holds so many `blocks`; `told` tells whether the worker knows of the job,
    which it does a step later where the job began with the end of its request."""

    job: int
    request: str
    blocks: int
    told: bool = True


@dataclass(frozen=True, slots=True)
class StoreView:
    """What one step shows of the external store and of what an engine does with it.

    `loading` are requests that left the queue to load; their blocks are taken, nothing is computed. `loaded`
    and `failed` are requests whose load was reported in this step. `answers` are lookups that the store
    answered, `transfers` puts and gets that ended, both in order; `stored` and `dropped` are keys that the
    store gained and lost since the observation before, whichever engine that was of, read from the master
    itself. `pins` are the store jobs that hold blocks after the step, `reported` those whose end the worker
    told in it. `miscounted` is the number of blocks whose reference count is not that of their owners and
    pins. `held_puts`, `held_gets` and `held_lookups` are calls that wait at a gate after the step; `alive`
    tells whether the master runs.
    """

    loading: tuple[Admitted, ...] = ()
    loaded: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    stored: tuple[Entry, ...] = ()
    dropped: tuple[Entry, ...] = ()
    pins: tuple[Pin, ...] = ()
    reported: tuple[int, ...] = ()
    miscounted: int = 0
    held_puts: int = 0
    held_gets: int = 0
    held_lookups: int = 0
    alive: bool = True


@dataclass(frozen=True, slots=True)
class Observation:
    """One atomic step. `at` is the index of its step in the trace, `do` the step's name.

    `scheduled` and `admitted` keep the order in which the scheduler decided; `published` and `withdrawn`
    are the prefix-cache entries that appeared and vanished; `running` and `waiting` the requests left
    after the step; `free` the blocks that can be handed out, cached ones included; `reset` whether a reset
    took effect; `seconds` the time spent inside the target.

    `evicted` counts the blocks that were taken with entries in them, thrown out for it, and `wasted` those
    of them that were taken while others held none (None where the system does not tell); `events` the KV
    events, in order (None: not published); `counters` what the prefix-cache counters moved by (None: not
    kept); `verified` how many tokens and states the content check has read. `engine` is the engine that made
    the step, `store` what it showed of the external store (None: there is none).
    """

    at: int
    do: str
    scheduled: tuple[Scheduled, ...] = ()
    admitted: tuple[Admitted, ...] = ()
    preempted: tuple[str, ...] = ()
    finished: tuple[Finished, ...] = ()
    published: tuple[Entry, ...] = ()
    withdrawn: tuple[Entry, ...] = ()
    failed_reads: tuple[FailedRead, ...] = ()
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    free: int = 0
    reset: bool | None = None
    evicted: int | None = None
    wasted: int | None = None
    events: tuple[Event, ...] | None = None
    counters: Counters | None = None
    verified: int | None = None
    failure: Failure | None = None
    seconds: float = 0.0
    engine: int = 0
    store: StoreView | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """All observations of one trace, with the worker's own clock: `seconds` in all for the case, of
    which `target_seconds` inside the system under test. `units` are the hash unit and the grid of hits, in
    tokens, that the system's workers use (None where it has none)."""

    observations: tuple[Observation, ...]
    seconds: float = 0.0
    target_seconds: float = 0.0
    units: tuple[int, int] | None = None
