"""What is under way between an engine and the store: saves and their pins, loads, lookups, blocks held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from reference.cache import Key
from reference.history import History
from reference.store import Work
from spec.observation import Admitted, Answer, Entry, Transfer

Place = tuple[int, int]


class Block(NamedTuple):
    """A block in memory, as a handle: `column` of a group in the table that a request has for the
    `generation`-th time; a state that is kept at a position stands at minus that position."""

    request: str
    generation: int
    group: int
    column: int


class Pool:
    """Reference counts of blocks; a block without references is free."""

    def __init__(self) -> None:
        self.counts: Counter[Block] = Counter()

    def take(self, blocks: Iterable[Block]) -> None:
        """One reference more for each block."""
        self.counts.update(blocks)

    def give(self, blocks: Iterable[Block]) -> None:
        """One reference less for each block."""
        self.counts.subtract(blocks)
        self.counts = +self.counts

    def miscounted(self, holders: Iterable[Block]) -> int:
        """How many blocks have another count than `holders`, one for each owner and pin, say."""
        due = Counter(holders)
        return sum(self.counts[block] != due[block] for block in self.counts | due)


@dataclass(slots=True)
class Tracker:
    """How far a request's saves are, since it got its present blocks. `horizon` is where its prefill ends,
    `noted` up to where jobs were made and `saved` up to where they succeeded, all in tokens; `tail_sent`
    tells whether the tail was part of a job."""

    horizon: int
    noted: int = 0
    saved: int = 0
    tail_sent: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """One block that is to be stored: the entry it is for, its key, and where its bytes are."""

    entry: Entry
    key: Key
    block: Block


@dataclass(slots=True)
class Job:
    """A save. `boundary` are the puts of tail and states; `reach` is the end in tokens of the normal saves
    (0: none). `pins` are the blocks that it holds. A job whose request was preempted is not `live`: it puts
    nothing any more."""

    number: int
    history: History
    generation: int
    tracker: Tracker
    boundary: tuple[Put, ...]
    reach: int
    pins: list[Block] = field(default_factory=list)
    live: bool = True
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The store's answer to a lookup: the `hit` in tokens, and for each attention group the position of the
    key that its last block is `found_by`."""

    hit: int
    found_by: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Asked:
    """A lookup beside the schedule; `found` is None until it is answered."""

    work: Work | None = None
    found: Found | None = None


@dataclass(slots=True)
class Load:
    """A load of the tokens [`local`, `hit`) of a request; `entries` are what it gets and `content` what came,
    by (group, position). `good` tells whether it succeeded, `told` whether the scheduler knows of its end,
    `arrived` whether its entries are visible; the request of an `abandoned` load has ended meanwhile."""

    history: History
    local: int
    hit: int
    entries: tuple[Entry, ...]
    content: dict[Place, int] = field(default_factory=dict)
    good: bool = False
    told: bool = False
    arrived: bool = False
    abandoned: bool = False

    def last(self, group: int) -> int:
        """The position of the last key that it gets of a group."""
        return max(entry.position for entry in self.entries if entry.group == group)


@dataclass(slots=True)
class Shown:
    """What has happened since the last observation."""

    loading: list[Admitted] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    reported: list[int] = field(default_factory=list)
