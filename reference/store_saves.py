"""A slow engine's saves: what a step puts into the store, and how long it holds the blocks for it."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

from reference.engine import SlowEngine
from reference.history import History
from reference.plan import Plan
from reference.side import SlowSide
from reference.store import Line, SlowStore
from reference.store_jobs import Block, Job, Load, Place, Pool, Put, Shown, Tracker
from spec.observation import Entry, FailedRead, Scheduled, Transfer
from spec.tail import tail_blocks, tail_key, tail_span


class StoreSaves(SlowSide):
    """Blocks that are counted, and jobs that save them.

    `number` is the engine's, `role` what it does with the store. `tables` are the blocks that each request
    holds, `generations` how often it gave all of them back; `filled` is what they hold, by position: the
    state after so many tokens, which stands for the KV of the tokens up to it too.
    """

    engine: SlowEngine

    def __init__(self, engine: SlowEngine, number: int, store: SlowStore) -> None:
        super().__init__(engine)
        self.number = number
        self.role = engine.configuration.roles[number]
        self.store = store
        self.lines = {"put": Line(), "get": Line(engine.configuration.receivers), "lookup": Line()}
        self.pool = Pool()
        self.tables: dict[str, list[Block]] = {}
        self.generations: dict[str, int] = {}
        self.filled: dict[tuple[str, int], dict[int, int]] = {}
        self.trackers: dict[str, Tracker] = {}
        self.jobs: dict[int, Job] = {}
        self.made = 0
        self.refused: set[str] = set()
        self.done: list[Job | Load] = []
        self.shown = Shown()

    # The rules, one method each.

    def saves(self, history: History, item: Scheduled, tracker: Tracker) -> bool:
        """Whether a chunk is saved at all: prefill by producers, decode only where asked for."""
        if item.start >= tracker.horizon:
            return self.configuration.decode_saves
        return self.role != "consumer"

    def covered(self, item: Scheduled) -> int:
        """TS2: up to where a request's tokens are computed, and no drafts, once the chunk is."""
        return item.end - item.drafts

    def normal_reach(self, computed: int) -> int:
        """Up to where the blocks of `computed` tokens are saved, tail apart."""
        return computed // self.geometry.align * self.geometry.align

    def tail_due(self, history: History, item: Scheduled, tracker: Tracker, states: Sequence[Place]) -> bool:
        """TS7: the tail is saved in the step that first covers the whole prompt; `states` has no say."""
        return (
            self.geometry.fine
            and self.role != "consumer"
            and not tracker.tail_sent
            and self.covered(item) >= history.prompt
        )

    def tail_length(self, history: History, tracker: Tracker) -> int:
        """TS6: the length whose resend the tail is for."""
        return history.prompt

    def tail_margin(self, group: int) -> int:
        """TS1: how far past the resend checkpoint a group's tail reaches."""
        return self.geometry.groups[group].margin

    def tail_places(self, history: History, tracker: Tracker) -> list[Place]:
        """TS1: the blocks of the tail as (group, position of the key)."""
        geometry, places = self.geometry, []
        length = self.tail_length(history, tracker)
        for group in (*geometry.attention, *geometry.windows):
            margin = self.tail_margin(group.index)
            span = tail_span(length, tracker.horizon, geometry.unit, geometry.align, margin, geometry.eagle)
            blocks = tail_blocks(span, group.block)
            for index in range(blocks.start, blocks.end):
                places.append((group.index, tail_key(index, span, group.block)))
        return places

    def junction_places(self, history: History, item: Scheduled) -> list[Place]:
        """TS5: the blocks that a junction adds: none."""
        return []

    def state_places(self, history: History, item: Scheduled, tracker: Tracker) -> list[Place]:
        """The states that are kept of those that the chunk computes, up to the end of the prefill."""
        if self.role == "consumer":
            return []
        left = self.engine.publications(history, item.start, item.end, item.drafts)
        kinds = self.geometry.groups
        return sorted(
            (group, at) for group, at in left.must if kinds[group].kind == "mamba" and at <= tracker.horizon
        )

    def normal_places(self, start: int, reach: int) -> list[Place]:
        """The blocks of (start, reach] as (group, position of the key): full ones of all but Mamba groups."""
        return [
            (group.index, end)
            for group in (*self.geometry.attention, *self.geometry.windows)
            for end in range(group.block, reach + 1, group.block)
            if end > start
        ]

    def is_wanted(self, put: Put) -> bool:
        """TS3: whether a put is made: not for what the store holds already."""
        return not self.store.holds(put.key)

    def pinned(self, job: Job) -> list[Block]:
        """TS4: the blocks that a job holds from its schedule on: those that it puts from, each once."""
        normal = self.normal_puts(job)
        return list(dict.fromkeys(put.block for put in (*job.boundary, *normal)))

    def released_by_end(self, job: Job) -> list[Block]:
        """LT2: the pins given back when a job's end is told: all of them, whether it succeeded or not."""
        return list(job.pins)

    def still_saves(self, job: Job) -> bool:
        """Whether a job puts anything: not after its request's preemption, nor while the store refused it."""
        return job.live and job.history.id not in self.refused

    def given_back(self, history: History) -> list[Block]:
        """The blocks that a request gives back when it holds none any more."""
        return self.tables.get(history.id, [])

    # Blocks.

    def hold(self, history: History, tokens: int) -> None:
        """Let a request hold blocks for so many tokens."""
        table, generation = self.tables.setdefault(history.id, []), self.generation(history)
        needed = [
            Block(history.id, generation, group.index, column)
            for group in self.geometry.groups
            for column in range(-(-tokens // group.block))
        ]
        more = [block for block in needed if block not in set(table)]
        self.pool.take(more)
        table.extend(more)

    def give_back(self, history: History) -> None:
        """Let a request hold no blocks any more; what it writes later goes to other ones."""
        self.pool.give(self.given_back(history))
        self.tables.pop(history.id, None)
        self.trackers.pop(history.id, None)
        self.generations[history.id] = self.generation(history) + 1

    def generation(self, history: History) -> int:
        """How often a request has given its blocks back."""
        return self.generations.get(history.id, 0)

    def blocks_held(self) -> int:
        """How many blocks have a reference."""
        return len(self.pool.counts)

    def holds_blocks(self) -> bool:
        """Whether any block has a reference, so that a reset is refused."""
        return bool(self.pool.counts)

    def preempted(self, history: History) -> None:
        """The request's jobs put nothing any more, and its blocks go back."""
        for job in self.jobs.values():
            job.live = job.live and job.history is not history
        self.give_back(history)

    def adopted(self, history: History, hit: int, failed: list[FailedRead]) -> list[FailedRead]:
        """The request's blocks hold what its hit brought."""
        expected = self.expected[history.id]
        filled = {position: expected[position] for position in range(1, min(hit + 1, len(expected)))}
        for read in failed:
            filled[read.position] = self.read(read.group, history, read.position) or 0
        self.filled[history.id, self.generation(history)] = filled
        return failed

    def computed(self, history: History, position: int, state: int) -> None:
        """The request's blocks hold one token more."""
        self.filled[history.id, self.generation(history)][position] = state

    # Jobs.

    def decided(self, plan: Plan) -> None:
        """Blocks are held for what is scheduled, and saves are made of it."""
        for item in plan.scheduled:
            history = self.histories[item.request]
            self.hold(history, item.end)
            tracker = self.trackers.setdefault(history.id, Tracker(history.known))
            if self.saves(history, item, tracker):
                self._save(history, item, tracker)

    def _save(self, history: History, item: Scheduled, tracker: Tracker) -> None:
        """Make a job of what is new in a chunk, if anything is."""
        states = self.state_places(history, item, tracker)
        tail = self.tail_due(history, item, tracker, states)
        places = [*self.junction_places(history, item), *states]
        if tail:
            tracker.tail_sent = True
            places = [*self.tail_places(history, tracker), *places]
        reach = self.normal_reach(self.covered(item))
        if reach <= tracker.noted and not tail:
            # States alone came: what failed earlier is not tried again by this job.
            reach = 0
        if not places and reach <= tracker.saved:
            return
        tracker.noted = max(reach, tracker.noted)
        puts = tuple(self._put_at(history, self.generation(history), place) for place in places)
        job = Job(self.made, history, self.generation(history), tracker, puts, reach)
        self.made += 1
        job.pins = self.pinned(job)
        self.jobs[job.number] = job
        self.pool.take(job.pins)
        self.lines["put"].add(self._work(job))

    def _put_at(self, history: History, generation: int, place: Place) -> Put:
        group, position = place
        geometry = self.geometry.groups[group]
        column = -position if geometry.kind == "mamba" else -(-position // geometry.block) - 1
        block = Block(history.id, generation, group, column)
        return Put(Entry(group, position, history.id), self.cache.key(group, history, position), block)

    def normal_puts(self, job: Job) -> list[Put]:
        """The normal saves that a job still has to make."""
        places = self.normal_places(job.tracker.saved, job.reach)
        return [self._put_at(job.history, job.generation, place) for place in places]

    def _work(self, job: Job) -> Generator[None, str, None]:
        """What the saving thread does with a job: boundary puts, and if they succeed the normal ones."""
        if self.still_saves(job):
            yield from self._calls(job)
        self.done.append(job)

    def _calls(self, job: Job) -> Generator[None, str, None]:
        if job.boundary and not (yield from self._call(job, job.boundary)):
            return
        if not job.reach:
            return
        normal = self.normal_puts(job)
        if normal and not (yield from self._call(job, normal)):
            return
        if job.live:
            job.tracker.saved = job.reach

    def _call(self, job: Job, puts: Iterable[Put]) -> Generator[None, str, bool]:
        """Ask which keys are there, which never fails at the gate, and put the others; whether all went
        well."""
        yield
        wanted = [put for put in puts if self.is_wanted(put)]
        if not wanted:
            return True
        fate = yield
        return self._put(job, wanted, fate)

    def _put(self, job: Job, puts: list[Put], fate: str) -> bool:
        pins = {block for other in self.jobs.values() for block in other.pins}
        wrong = tuple(put.entry for put in puts if self._content(put) != self._due(put.entry))
        unpinned = tuple(put.entry for put in puts if put.block not in pins)
        failed = []
        for index, put in enumerate(puts):
            spoiled = fate and (fate != "part" or index == len(puts) - 1)
            if spoiled or not self.store.put(put.key, put.entry, self._content(put) or 0):
                failed.append(put.entry)
        entries = tuple(put.entry for put in puts)
        error = "RefusedError" if fate == "raise" else ""
        self.shown.transfers.append(Transfer("put", entries, tuple(failed), wrong, unpinned, error))
        job.failed = bool(failed)
        if not failed:
            self.refused.clear()
        elif fate == "full" and job.live:
            self.refused.add(job.history.id)
        return not failed

    def _content(self, put: Put) -> int | None:
        """What the block of a put holds, None for nothing of its request's."""
        group, position, request = put.entry.group, put.entry.position, put.entry.request
        held = self.filled.get((request, put.block.generation), {}).get(position)
        if held is None:
            return None
        return self.engine.stored(self.geometry.groups[group].kind, self.histories[request], position, held)

    def _due(self, entry: Entry) -> int:
        """The content that an entry must have."""
        return self.expected[entry.request][entry.position]

    def told_saved(self, job: Job) -> None:
        """The worker tells that a job has ended."""
        self.shown.reported.append(job.number)
        released = self.released_by_end(job)
        self.pool.give(released)
        job.pins = [block for block in job.pins if block not in released]
        if not job.pins:
            del self.jobs[job.number]
