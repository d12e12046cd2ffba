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

    `position` is the first wrong token (KV) or the length whose state was wanted; `what` is kv, state or
    null (the read went to the null block).
    """

    request: str
    group: int
    position: int
    what: str


@dataclass(frozen=True, slots=True)
class Failure:
    """The system under test broke off: `kind` is exception, crash, hang or stuck; `message` one line,
    `detail` the traceback, stack or error output, `place` the function it happened in, where known."""

    kind: str
    message: str
    detail: str = ""
    place: str = ""


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
    kept); `verified` how many tokens and states the content check has read.
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """All observations of one trace, with the worker's own clock: `seconds` in all for the case, of
    which `target_seconds` inside the system under test. `units` are the hash unit and the grid of hits, in
    tokens, that the system's workers use (None where it has none)."""

    observations: tuple[Observation, ...]
    seconds: float = 0.0
    target_seconds: float = 0.0
    units: tuple[int, int] | None = None
