"""Planted faults of the reference with a store: `reference+NAME` is the slow engine with one rule broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reference.cache import Key, Lookup
from reference.engine import SlowEngine
from reference.history import History
from reference.plan import Plan
from reference.store import SlowStore
from reference.store_jobs import Block, Found, Job, Load, Place, Put, Tracker
from reference.store_side import StoreSide
from spec.geometry import Geometry
from spec.observation import Entry, Scheduled
from spec.proof import capped_scan_bound
from tailproof.planted import named


class TailWithoutMargin(StoreSide):
    """The tail ends at the resend checkpoint, without the proof of it."""

    def tail_margin(self, group: int) -> int:
        return 0


class TailAtLowerKey(StoreSide):
    """The last block of a tail is keyed one unit below its end."""

    def tail_places(self, history: History, tracker: Tracker) -> list[Place]:
        unit, groups = self.geometry.unit, self.geometry.groups
        return [
            (group, at - unit if at % groups[group].block and at > unit else at)
            for group, at in super().tail_places(history, tracker)
        ]


class ForgetsSpanBelowTail(StoreSide):
    """Of the tail only the last block is saved, which leaves a gap to the normal saves."""

    def tail_places(self, history: History, tracker: Tracker) -> list[Place]:
        places = super().tail_places(history, tracker)
        last = dict(places)
        return sorted(last.items())


class ForgetsBoundaryState(StoreSide):
    """States in the middle of a block are not saved."""

    def state_places(self, history: History, item: Scheduled, tracker: Tracker) -> list[Place]:
        block = self.geometry.mamba_block
        return [place for place in super().state_places(history, item, tracker) if place[1] % block == 0]


class TailBeforeComputed(StoreSide):
    """The tail is saved in the first step of a request, whether its tokens are computed or not."""

    def tail_due(self, history: History, item: Scheduled, tracker: Tracker, states: Sequence[Place]) -> bool:
        return self.geometry.fine and self.role != "consumer" and not tracker.tail_sent


class SavesDrafts(StoreSide):
    """Draft tokens count as computed when it is decided what to save."""

    def covered(self, item: Scheduled) -> int:
        named = len(self.histories[item.request].final_numbers) * self.geometry.unit
        return max(super().covered(item), min(item.end, named))


class TailTwice(StoreSide):
    """Keys inside a block are put again though the store holds them."""

    def is_wanted(self, put: Put) -> bool:
        inside = put.entry.position % self.geometry.groups[put.entry.group].block
        return super().is_wanted(put) or inside != 0


class PinsNothing(StoreSide):
    """The pins of a job are given back before it has put anything."""

    def decided(self, plan: Plan) -> None:
        super().decided(plan)
        for job in self.jobs.values():
            self.pool.give(job.pins)
            job.pins = []


class PinsOtherBlocks(StoreSide):
    """A job pins the blocks behind those that it puts from."""

    def pinned(self, job: Job) -> list[Block]:
        return [block._replace(column=block.column + 1) for block in super().pinned(job)]


class JunctionTail(StoreSide):
    """A junction adds a tail of its own."""

    def junction_places(self, history: History, item: Scheduled) -> list[Place]:
        return [
            (group.index, history.junction + group.margin)
            for group in self.geometry.attention
            if history.junction and item.start < history.junction + group.margin <= self.covered(item)
        ]


class TailOfHorizon(StoreSide):
    """The end of the present prefill decides the tail: after a preemption that of prompt and outputs."""

    def tail_length(self, history: History, tracker: Tracker) -> int:
        return tracker.horizon


class TailNeedsState(StoreSide):
    """The tail is saved only in a step that brings a Mamba state."""

    def tail_due(self, history: History, item: Scheduled, tracker: Tracker, states: Sequence[Place]) -> bool:
        return super().tail_due(history, item, tracker, states) and bool(states)


class PinKeptOnFailure(StoreSide):
    """The pins of a job that failed are never given back."""

    def released_by_end(self, job: Job) -> list[Block]:
        return [] if job.failed else super().released_by_end(job)


class PinsEndWithRequest(StoreSide):
    """The blocks of an aborted request are given back although store jobs read them."""

    def ended(self, history: History, reason: str) -> None:
        for job in self.jobs.values():
            if job.history is history and reason == "abort":
                self.pool.give(job.pins)
                job.pins = []
        super().ended(history, reason)


class PinReleasedTwice(StoreSide):
    """The end of a job takes two references from each of its blocks."""

    def told_saved(self, job: Job) -> None:
        self.pool.give(job.pins)
        super().told_saved(job)


class ResetIgnoresPins(StoreSide):
    """A reset takes effect though store jobs hold blocks."""

    def holds_blocks(self) -> bool:
        return bool(self.engine.running or self.loads)


class AbandonedLoadLeaks(StoreSide):
    """The blocks of a load whose request was aborted are never given back."""

    def gives_back_abandoned(self, load: Load) -> bool:
        return False


class LoadWithoutBytes(StoreSide):
    """A load is told as done although nothing came."""

    def succeeds(self, load: Load, failed: list[Entry]) -> bool:
        if not failed:
            load.content.clear()
        return super().succeeds(load, failed)


class LoadsOtherState(StoreSide):
    """A load brings the state of another prefix."""

    def fetched(self, load: Load, entry: Entry) -> int | None:
        content = super().fetched(load, entry)
        if content is not None and self.geometry.groups[entry.group].kind == "mamba":
            return content + 1
        return content


class FailedLoadUsed(StoreSide):
    """A load with failed keys counts as done."""

    def succeeds(self, load: Load, failed: list[Entry]) -> bool:
        return True


class FailedLoadRetried(StoreSide):
    """A failed load is made again and again."""

    def retries(self, load: Load) -> bool:
        return True


class FailureMisnamed(StoreSide):
    """A request whose load failed ends as if all were well."""

    def failure_reason(self) -> str:
        return "length"


class ExternalDoubleDrop(StoreSide):
    """The lookup in the store drops twice."""

    def external_lookup(self, history: History, keys: set[Key]) -> Lookup:
        groups = tuple(replace(group, margin=2 * group.margin) for group in self.geometry.groups)
        return _looked_up(self, replace(self.geometry, groups=groups), history, keys)


class ExternalScanCapped(StoreSide):
    """The lookup in the store stops its scan at P − 1."""

    def external_lookup(self, history: History, keys: set[Key]) -> Lookup:
        profile = replace(self.geometry.profile, bound=capped_scan_bound)
        return _looked_up(self, replace(self.geometry, profile=profile), history, keys)


class ExternalCoarse(StoreSide):
    """The lookup in the store lands on the alignment although everything else works in units."""

    def external_lookup(self, history: History, keys: set[Key]) -> Lookup:
        return _looked_up(self, replace(self.geometry, fine=False), history, keys)


class ReportsLocalHit(StoreSide):
    """What the store served is not reported as reused."""

    def __init__(self, engine: SlowEngine, number: int, store: SlowStore) -> None:
        super().__init__(engine, number, store)
        self.brought: dict[str, int] = {}

    def _load(self, history: History, local: Lookup, found: Found, plan: Plan) -> None:
        self.brought[history.id] = found.hit - self.kept_of_local(local.hit)
        super()._load(history, local, found, plan)

    def reported(self, history: History, hit: int) -> int:
        return max(hit - self.brought.get(history.id, 0), 0)


def _looked_up(side: StoreSide, geometry: Geometry, history: History, keys: set[Key]) -> Lookup:
    """What a lookup finds when it works with another geometry."""
    kept = side.cache.geometry
    side.cache.geometry = geometry
    try:
        return side.cache.lookup(history, keys)
    finally:
        side.cache.geometry = kept


STORE_MUTANTS = named(globals(), StoreSide)
