"""The engines that scenarios run on: the reference, its planted faults, and others that err in another way.

Most of these do wrong in the circumstances of a known fault: what it does, or something else.
"""

from __future__ import annotations

import re
from dataclasses import replace

from reference.cache import Key, Lookup
from reference.engine import SlowEngine
from reference.history import History
from reference.plan import Plan
from reference.publish import Publications
from reference.session import Fault
from reference.store_jobs import Place, Tracker
from reference.store_side import StoreSide
from reference.wrong_lookups import bounded_by_the_one_before
from spec.lookup import window_blocks
from spec.observation import Entry, Event, FailedRead, Observation, Scheduled
from spec.trace import Configuration
from tailproof.known.quirks.lookup import short_window_run
from tailproof.known.quirks.split import Prefill, smallest_block, split_end
from tailproof.targets.opening import FAULTS, Target


def engine_of(name: str) -> Fault:
    """The engine of a target `reference`, `reference+FAULT`, `reference+NAME` of an engine of this module, or
    mistakes of the split as known quirks name them (`reference+split.block_grid`), one or more.
    """
    reference, *faults = name.split("+")
    assert reference == "reference", name
    if not faults:
        return SlowEngine
    if "." in faults[0]:
        return type("Mistaken", (Split,), {"wrong": frozenset(faults)})
    return OWN[faults[0]] if faults[0] in OWN else FAULTS[Target.parse(name).argument]


# The split.


class Split(SlowEngine):
    """Cuts prefills as the room of the split does, with its mistakes."""

    wrong: frozenset[str] = frozenset()

    def chunk_end(self, history: History, start: int, budget: int) -> int:
        prefill = Prefill(start, history.prompt, history.known, history.junction)
        asked = min(history.known - start, budget)
        return split_end(self.geometry, self.configuration, prefill, asked, self.wrong)


class NoStops(SlowEngine):
    """Where `here` says so, prefill ignores every stop."""

    def here(self, history: History, start: int) -> bool:
        """Whether stops are ignored."""
        return True

    def chunk_end(self, history: History, start: int, budget: int) -> int:
        if self.here(history, start):
            return min(history.known, start + budget)
        return super().chunk_end(history, start, budget)


class NoStopsWhenCoarse(NoStops):
    """Prefill ignores every stop where hits land on a grid above the Mamba block."""

    def here(self, history: History, start: int) -> bool:
        return not self.geometry.fine and self.geometry.align > self.geometry.mamba_block


class NoStopsOverSmallBlocks(NoStops):
    """Prefill ignores every stop where a group has smaller blocks than Mamba."""

    def here(self, history: History, start: int) -> bool:
        return smallest_block(self.configuration) < self.geometry.mamba_block


class NoJunctionFromInside(SlowEngine):
    """A chunk that begins inside a block ignores junctions altogether."""

    def stops(self, history: History, start: int, export: int) -> dict[str, int]:
        stops = super().stops(history, start, export)
        inside = start % self.geometry.mamba_block != 0
        return {name: at for name, at in stops.items() if name != "junction" or not inside}


class StopsPastTheJunction(SlowEngine):
    """Prefill stops for a junction a unit late."""

    def chunk_end(self, history: History, start: int, budget: int) -> int:
        end = super().chunk_end(history, start, budget)
        late = end == self.stops(history, start, 0).get("junction")
        return end + self.geometry.unit if late else end


class NoCheckpointWhenResumed(SlowEngine):
    """A request that prefills its outputs too ignores the checkpoint of its prompt."""

    def stops(self, history: History, start: int, export: int) -> dict[str, int]:
        stops = super().stops(history, start, export)
        resumed = history.known > history.prompt
        return {name: at for name, at in stops.items() if name != "checkpoint" or not resumed}


class CutAtJunction(Split):
    """Junctions are the highest that any layout allows, and whether a chunk exports is decided before one
    cuts it."""

    wrong = frozenset({"split.export_before_cut", "endings.reserve_after"})

    def lookup(self, history: History) -> Lookup:
        found = super().lookup(history)
        return replace(found, junction=found.highest)


class CutShorter(CutAtJunction):
    """A chunk that was to export, and was cut, ends a token before the cut."""

    def chunk_end(self, history: History, start: int, budget: int) -> int:
        end = super().chunk_end(history, start, budget)
        asked = min(history.known, start + budget)
        return end - 1 if self.export(history, start, asked) and end < asked else end


class StallsInside(SlowEngine):
    """With several draft modules a chunk that begins inside a block gets no token."""

    def chunk_end(self, history: History, start: int, budget: int) -> int:
        inside = self.geometry.lookahead > 1 and start % self.geometry.mamba_block
        return start if inside else super().chunk_end(history, start, budget)


class StallsBetweenMedia(SlowEngine):
    """A chunk ends a token before the second item of media, and the next one has no token."""

    def chunk_end(self, history: History, start: int, budget: int) -> int:
        before = history.submit.media[1][1] - 1
        return before if start < before else start


class ShortAtFirst(SlowEngine):
    """The first chunk of B has 4 tokens, as any engine may choose."""

    def chunk_end(self, history: History, start: int, budget: int) -> int:
        first = history.id == "B" and history.hit is None
        return start + 4 if first else super().chunk_end(history, start, budget)


# What is registered.


class NoStateWithModules(SlowEngine):
    """With several draft modules no Mamba state is ever registered."""

    def published(self, history: History, left: Publications) -> set[Place]:
        places = set(left.must)
        if self.geometry.unfinished:
            places = {place for place in places if self.geometry.groups[place[0]].kind != "mamba"}
        return places


class WithoutExport(SlowEngine):
    """A chunk that exports, and ends at a state that is kept, registers its end alone."""

    def published(self, history: History, left: Publications) -> set[Place]:
        states = [group.index for group in self.geometry.mamba if (group.index, left.sure) in left.must]
        lost = {(group, left.export) for group in states if left.export != left.sure}
        return set(left.must) - lost


class NeitherState(SlowEngine):
    """A chunk that exports registers no state."""

    def published(self, history: History, left: Publications) -> set[Place]:
        states = {group.index for group in self.geometry.mamba}
        return {place for place in left.must if not (left.export and place[0] in states)}


class ExportAlone(SlowEngine):
    """A chunk that exports registers that state alone."""

    def published(self, history: History, left: Publications) -> set[Place]:
        lost = {(group.index, left.sure) for group in self.geometry.mamba}
        return set(left.must) - lost if left.export and left.export != left.sure else set(left.must)


class RegistersAt(SlowEngine):
    """A state is registered at `place` of a chunk, if there is any, whatever it is."""

    def place(self, history: History, left: Publications) -> int:
        """Where."""
        raise NotImplementedError

    def published(self, history: History, left: Publications) -> set[Place]:
        at = self.place(history, left)
        inside = history.computed < at < left.sure and at <= len(history.numbers) * self.geometry.unit
        extra = {(group.index, at) for group in self.geometry.mamba} if inside else set()
        return set(left.must) | extra


class RegistersHashBoundary(RegistersAt):
    """With coarse hits a state is registered at the last boundary of the hash unit."""

    def place(self, history: History, left: Publications) -> int:
        return self.geometry.checkpoint_on(history.prompt, self.geometry.unit)


class RegistersBeforeHashBoundary(RegistersAt):
    """With coarse hits a state is registered a unit before the last boundary of the hash unit."""

    def place(self, history: History, left: Publications) -> int:
        return self.geometry.checkpoint_on(history.prompt, self.geometry.unit) - self.geometry.unit


class Extending(RegistersAt):
    """Registers the end of a block that a chunk which begins inside one runs past, with the state that the
    chunk began with; `ahead` blocks further on."""

    ahead = 0

    def start_of(self, history: History) -> int:
        """Where the chunk that is registered begins."""
        return history.computed

    def begin(self, history: History, found: Lookup, plan: Plan) -> bool:
        history.computed = found.hit
        return super().begin(history, found, plan)

    def place(self, history: History, left: Publications) -> int:
        block, start = self.geometry.mamba_block, history.computed
        end = -(-start // block) * block
        at = end + self.ahead * block
        if start % block == 0 or at == left.overwritten or not start < at < left.sure:
            return 0
        self.wrong[history.id, at] = start
        return at

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.wrong: dict[tuple[str, int], int] = {}
        self.spoiled: set[Key] = set()

    def _register(self, item: Scheduled, fresh: set[Key]) -> dict[Key, Entry]:
        entries = super()._register(item, fresh)
        for key, entry in entries.items():
            start = self.wrong.get((entry.request, entry.position), -1)
            if start >= 0 and self.geometry.groups[entry.group].kind == "mamba":
                self.content[key] = self.expected[entry.request][start]
                self.spoiled.add(key)
        return entries

    def stored(self, kind: str, history: History, position: int, state: int) -> int:
        key = self.cache.key(self.geometry.mamba[0].index, history, position)
        return self.content[key] if kind == "mamba" and key in self.spoiled else state


class ExtendingNext(Extending):
    """The end of the next block is registered, with the state that the chunk began with."""

    ahead = 1


class ExtendingNull(Extending):
    """Who hits at such an end reads the null block."""

    def _adopt(self, history: History, hit: int) -> list[FailedRead]:
        return [replace(one, what="null") for one in super()._adopt(history, hit)]


class StaleAtBlockEnd(SlowEngine):
    """The state at a block end where a chunk ended is that of a token before."""

    def stored(self, kind: str, history: History, position: int, state: int) -> int:
        stale = kind == "mamba" and position % self.geometry.mamba_block == 0
        return self.expected[history.id][position - 1] if stale else state


class StaleAtEndOfC(SlowEngine):
    """The state at the first block end, where a chunk of C ends, is that of a token before."""

    def stored(self, kind: str, history: History, position: int, state: int) -> int:
        stale = kind == "mamba" and position == self.geometry.mamba_block and history.id == "C"
        return self.expected[history.id][position - 1] if stale else state


class LosesAnother(RegistersHashBoundary):
    """With coarse hits A has a state at the last boundary of the hash unit, and B loses an entry with it."""

    def place(self, history: History, left: Publications) -> int:
        return super().place(history, left) if history.id == "A" else 0

    def _engine_step(self, at: int, do: str, accept: int) -> Observation:
        seen = super()._engine_step(at, do, accept)
        states = {group.index for group in self.geometry.mamba}
        stray = any(one.group in states and one.position % self.geometry.grid for one in seen.published)
        return replace(seen, withdrawn=(Entry(0, self.geometry.grid, "B"),)) if stray else seen


class NoWindowOfBoundaries(SlowEngine):
    """The windows that the replay boundaries need are not registered."""

    def published(self, history: History, left: Publications) -> set[Place]:
        lost = {
            (group.index, end)
            for group in self.geometry.windows
            for length in self.geometry.replay_boundaries(history.prompt, self.geometry.grid)
            for end in window_blocks(length, group.block, group.window, group.margin)
        }
        return set(left.must) - lost


class NoWindowOfCheckpoint(SlowEngine):
    """The window of the resend checkpoint is registered only as far as replay boundaries need it."""

    def published(self, history: History, left: Publications) -> set[Place]:
        geometry = self.geometry
        places = set(left.must)
        for group in geometry.windows:
            lengths = geometry.replay_boundaries(history.prompt, geometry.grid)
            needed = {
                end
                for length in lengths
                for end in window_blocks(length, group.block, group.window, group.margin)
            }
            places = {place for place in places if place[0] != group.index or place[1] in needed}
        return places


class NoState(SlowEngine):
    """No Mamba state is registered at the checkpoint."""

    def published(self, history: History, left: Publications) -> set[Place]:
        lost = self.geometry.checkpoint(history.prompt)
        return set(left.must) - {(group.index, lost) for group in self.geometry.mamba}


# Lookups.


class TwoAlignmentsShort(SlowEngine):
    """A hit of groups with a sliding window is two steps of its grid too short."""

    def lookup(self, history: History) -> Lookup:
        found = self.cache.lookup(history)
        return replace(found, hit=max(found.hit - 2 * self.geometry.grid, 0))


class ShortRun(SlowEngine):
    """A cached run shorter than its window is aligned twice."""

    def lookup(self, history: History) -> Lookup:
        found = self.cache.lookup(history)
        return replace(found, hit=short_window_run(self.geometry, history, self.cache.visible))


class BelowTheBound(SlowEngine):
    """Hits end at the last state below what the bounded lookup gives."""

    def lookup(self, history: History) -> Lookup:
        found = self.cache.lookup(history)
        bounded = bounded_by_the_one_before(self.geometry, history, self.cache.visible)
        return replace(found, hit=below(self, history, bounded, self.cache.visible))


class Bounded(SlowEngine):
    """Each attention layout is scanned only to its margin past the one before it."""

    def lookup(self, history: History) -> Lookup:
        found = self.cache.lookup(history)
        return replace(found, hit=bounded_by_the_one_before(self.geometry, history, self.cache.visible))


def below(engine: SlowEngine | StoreSide, history: History, hit: int, keys: set[Key]) -> int:
    """The greatest length below a hit that has a state, 0 for none."""
    serves = [engine.cache.states(history, group, keys) for group in engine.geometry.mamba]
    grid = engine.geometry.grid
    return next((at for at in range(hit - grid, 0, -grid) if all(one(at) for one in serves)), 0)


class StoreBounded(StoreSide):
    """The lookup in the store scans each layout only to its margin past the one before it."""

    def external_lookup(self, history: History, keys: set[Key]) -> Lookup:
        found = super().external_lookup(history, keys)
        return replace(found, hit=bounded_by_the_one_before(self.geometry, history, keys))


class StoreBelowTheBound(StoreSide):
    """The lookup in the store ends at the last state below what the bounded one gives."""

    def external_lookup(self, history: History, keys: set[Key]) -> Lookup:
        found = super().external_lookup(history, keys)
        bounded = bounded_by_the_one_before(self.geometry, history, keys)
        return replace(found, hit=below(self, history, bounded, keys))


class StoreAskedShort(StoreSide):
    """The store is asked for keys up to the last alignment, less `short` alignments."""

    short = 0

    def external_lookup(self, history: History, keys: set[Key]) -> Lookup:
        unit, align = self.geometry.unit, self.geometry.align
        end = (history.known // align - self.short) * align
        named = {
            self.cache.key(group.index, history, at)
            for group in self.geometry.groups
            for at in range(unit, end + 1, unit)
        }
        return super().external_lookup(history, keys & named)


class StoreAskedShorter(StoreAskedShort):
    """The store is asked for keys up to the last alignment but one."""

    short = 1


# Saves.


class SavesNoStates(StoreSide):
    """No state is saved."""

    def state_places(self, history: History, item: Scheduled, tracker: Tracker) -> list[Place]:
        return []


class SavesNoExports(StoreSide):
    """Exported states are not saved."""

    def state_places(self, history: History, item: Scheduled, tracker: Tracker) -> list[Place]:
        left = self.engine.publications(history, item.start, item.end, item.drafts)
        places = super().state_places(history, item, tracker)
        return [place for place in places if place[1] != left.export]


# Events.


class TellsOtherTokens(SlowEngine):
    """Events of Mamba groups list tokens that the prefix does not have."""

    def told(self, entry: Entry) -> Event | None:
        event = super().told(entry)
        mamba = self.geometry.groups[entry.group].kind == "mamba"
        return replace(event, matches=False) if event and mamba else event


class TellsNextBlock(SlowEngine):
    """Events of groups of one `kind` list the tokens of the block behind the one that they tell of, too."""

    kind = "mamba"

    def told(self, entry: Entry) -> Event | None:
        event = super().told(entry)
        group = self.geometry.groups[entry.group]
        if event is None or group.kind != self.kind:
            return event
        return replace(event, tokens=event.tokens + group.block)


class TellsNextBlockOfAttention(TellsNextBlock):
    """Events of full attention list the tokens of the block behind the one that they tell of, too."""

    kind = "full"


class TellsOfNothing(SlowEngine):
    """An event names no entry and lists tokens that are no whole block."""

    def _events(self, new: tuple[Entry, ...]) -> tuple[Event, ...] | None:
        events = super()._events(new)
        tokens = self.geometry.mamba_block - 1
        return (*(events or ()), Event("stored", (), 0, tokens)) if new else events


class KeepsLocal(StoreSide):
    """A shorter local hit stays whole, off the alignment or not."""

    def kept_of_local(self, hit: int) -> int:
        return hit


OWN: dict[str, Fault] = {
    re.sub(r"(?<!^)([A-Z])", r"-\1", name).lower(): one
    for name, one in list(globals().items())
    if isinstance(one, type) and issubclass(one, SlowEngine | StoreSide) and one.__module__ == __name__
}
