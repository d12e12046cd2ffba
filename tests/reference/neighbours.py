"""Plants beside the known faults: in the circumstances of each something else goes wrong.

A neighbour must be reported as new, with all known faults in force; a twin does what the fault does, and that
fault must explain all of it. Both are the reference with one change: of a rule, or of what was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from adapters.codec import trace_document
from adapters.protocol import Job
from adapters.worker import run_job
from reference.cache import Key, Lookup
from reference.engine import SlowEngine
from reference.history import History
from reference.plan import Plan
from reference.publish import Publications
from reference.session import Fault, SlowSession
from reference.store_jobs import Place, Tracker
from reference.store_side import StoreSide
from reference.wrong_lookups import bounded_by_the_one_before
from spec.lookup import window_blocks
from spec.observation import Entry, Event, FailedRead, Failure, Observation, Outcome, Scheduled, StoreView
from spec.trace import Configuration, Gate, Group, ResetLocal, Run, Settle, Step, Submit, Trace
from tailproof.jobs import replay
from tailproof.judge.lockstep import divergences
from tailproof.known.explain import Known
from tailproof.known.model import TRACES, load
from tailproof.known.quirks.lookup import short_window_run
from tailproof.known.quirks.split import Prefill, smallest_block, split_end

Change = Callable[[list[Observation]], list[Observation]]
Seen = Callable[[Observation], object]
BASELINE = load()
LINES = ("0.32", "0.33")


@dataclass(frozen=True, slots=True)
class Plant:
    """A known fault, what goes wrong instead ("" for a twin: the same), the rule and kind that must show it,
    and where. The wrong system is `engine`, or what `change` makes of what it does."""

    fault: str
    what: str
    due: str
    trace: Trace
    engine: Fault = SlowEngine
    change: Change | None = None

    def found(self, line: str) -> list[tuple[str, str]]:
        """Rule and kind of each finding, and the known fault of a release line that explains it."""
        seen = observations(self.trace, self.engine)
        return judged(self.trace, self.change(seen) if self.change else seen, line)

    def __str__(self) -> str:
        return f"{self.fault}: {self.what or self.due}"


class _System:
    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def open(self, configuration: Configuration, omit: str) -> SlowSession:
        return SlowSession(configuration, self._fault)


def observations(trace: Trace, engine: Fault = SlowEngine) -> list[Observation]:
    """What the reference, or a wrong variant of it, does."""
    reply = run_job(_System(engine), Job(trace_document(trace)))  # type: ignore[arg-type]
    assert reply.outcome is not None, reply
    return list(reply.outcome.observations)


def judged(trace: Trace, seen: Sequence[Observation], line: str) -> list[tuple[str, str]]:
    """Rule and kind of each finding, and the known fault of a release line that explains it ("": none)."""
    found = divergences(trace, Outcome(tuple(seen)), explainer=Known(BASELINE, line).explainer())
    return [(f"{one.rule} {one.finding.kind}", one.fault) for one in found]


# Traces.


def kept(fault: str, number: int = 0) -> Trace:
    """A kept trace of a known fault."""
    (one,) = (known for known in BASELINE.faults if known.id == fault)
    return replay.read_named(TRACES / one.traces[number].file).trace


def trace(groups: Sequence[Group], unit: int, *steps: Step, **options: object) -> Trace:
    """A trace that ends settled."""
    return Trace(Configuration(tuple(groups), unit, **options), (*steps, Settle()))  # type: ignore[arg-type]


def ask(name: str, *prompt: tuple[str, int], **options: object) -> Submit:
    """A request."""
    return Submit(name, prompt, **options)  # type: ignore[arg-type]


def full(block: int, **options: object) -> Group:
    """A full attention group."""
    return Group("full", block, **options)  # type: ignore[arg-type]


def mamba(block: int, alignment: int | None = None) -> Group:
    """A Mamba group; with an alignment it exports states."""
    return Group("mamba", block, checkpoint_alignment=alignment)


EAGLE: dict[str, object] = {"eagle": True, "speculative": 1}


def modules(count: int) -> dict[str, object]:
    """Multi-module MTP."""
    return {"eagle": True, "speculative": count, "multi_module": True}


# Changes of what was seen.


def change(where: Seen, **values: object) -> Change:
    """Sets values of the first observation that fits, and ends the run there."""

    def changed(seen: list[Observation]) -> list[Observation]:
        index = next(i for i, one in enumerate(seen) if where(one))
        return [*seen[:index], replace(seen[index], **values)]  # type: ignore[arg-type]

    return changed


def breaks_off(where: Seen, kind: str, text: str, place: str = "", **values: object) -> Change:
    """Ends the run behind the first observation that fits, with a failure."""

    def changed(seen: list[Observation]) -> list[Observation]:
        index = next(i for i, one in enumerate(seen) if where(one))
        last = seen[index]
        empty = dict.fromkeys(("scheduled", "admitted", "finished", "published", "withdrawn"), ())
        store = StoreView() if last.store is not None else None
        failed = replace(last, **empty, store=store, events=None, reset=None)  # type: ignore[arg-type]
        failed = replace(failed, failure=Failure(kind, text, place=place), **values)  # type: ignore[arg-type]
        return [*seen[: index + 1], failed]

    return changed


def computes(request: str, start: int) -> Seen:
    """The step in which a request's chunk begins there."""
    return lambda seen: any((one.request, one.start) == (request, start) for one in seen.scheduled)


def misreads(request: str, start: int, position: int) -> Change:
    """The attention of group 0 is wrong from a token on when a request's chunk begins."""
    return change(computes(request, start), failed_reads=(FailedRead(request, 0, position, "kv"),))


def in_view(test: Callable[[StoreView], object]) -> Seen:
    """A step that shows something of the store."""
    return lambda seen: seen.store is not None and test(seen.store)


# The split.


class Split(SlowEngine):
    """Cuts prefills as the room of the split does, with its mistakes."""

    wrong: frozenset[str] = frozenset()

    def chunk_end(self, history: History, start: int, budget: int) -> int:
        prefill = Prefill(start, history.prompt, history.known, history.junction)
        asked = min(history.known - start, budget)
        return split_end(self.geometry, self.configuration, prefill, asked, self.wrong)


def mistaken(*names: str) -> type[SlowEngine]:
    """The engine whose split makes these mistakes."""
    return type("Mistaken", (Split,), {"wrong": frozenset(names)})


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
    """No Mamba state is registered at `lost`."""

    def lost(self, history: History) -> int:
        """Where."""
        return self.geometry.checkpoint(history.prompt)

    def published(self, history: History, left: Publications) -> set[Place]:
        return set(left.must) - {(group.index, self.lost(history)) for group in self.geometry.mamba}


class NoBoundary(NoState):
    """No state is registered at the replay boundary."""

    def lost(self, history: History) -> int:
        return max(self.geometry.replay_boundaries(history.prompt, self.geometry.mamba_block))


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


# Traces made for circumstances that the kept ones leave no room in.

# U 2, block 8 over attention blocks of 2: the stops of 30 tokens are 24 and 28.
SMALL = trace((full(2), mamba(8)), 2, ask("A", ("a", 30)))
# B begins at 4, inside its first block, and shares 20 tokens with what was computed before.
JUNCTION = trace(
    (full(8), mamba(8, 4)),
    4,
    ask("A", ("a", 7)),
    Settle(),
    ask("B", ("a", 7), ("b", 30)),
    Settle(),
    ask("C", ("a", 7), ("b", 13), ("c", 20)),
)
# C of the prompt is 5, above the last block end of the 8 tokens that A has when it starts again.
RESUMED = trace((full(4), mamba(4)), 1, ask("A", ("a", 6), outputs=6), Run(4), ResetLocal(running=True))
# A leaves the state at 1. B begins there and exports 18 in one chunk, in blocks of 4.
EXTENDED = trace(
    (full(4), mamba(4, 1)), 1, ask("A", ("a", 2)), Settle(), ask("B", ("a", 2), ("b", 18)), retention=None
)
REUSED = replace(EXTENDED, steps=(*EXTENDED.steps, ask("C", ("a", 2), ("b", 3), ("c", 9)), Settle()))
RESENT = replace(EXTENDED, steps=(*EXTENDED.steps, ask("C", ("a", 2), ("b", 18), ("c", 1)), Settle()))
# B ended at 4 without leaving a state, C ran past 4, D left the proof of 4, and F hits there.
READ_LATER = kept("partial-block-as-full", 2)
READ_LATER = replace(READ_LATER, steps=(*READ_LATER.steps, ask("F", ("a", 5), ("f", 3)), Settle()))
# B runs past 4 and leaves nothing there; C ends at 4, and D reads what C has left.
ENDED_LATER = trace(
    (full(4), mamba(4, 1)),
    1,
    ask("A", ("a", 2)),
    Settle(),
    ask("B", ("a", 2), ("b", 18)),
    Settle(),
    ask("C", ("a", 2), ("b", 3), ("c", 9)),
    Settle(),
    ask("D", ("a", 2), ("b", 3), ("d", 9)),
)
# The states of a prompt in chunks of a budget, with three modules and no group marked as draft.
HELD_BACK = trace((full(4), mamba(4)), 1, ask("A", ("a", 30)), retention=None, budget=8, **modules(2))
# The export of 14 takes the place of 16.
PROMOTED = trace(
    (mamba(4, 1), full(4, draft=True), Group("window", 4, window=2)),
    2,
    ask("A", ("a", 18), outputs=2),
    asynchronous=True,
    **EAGLE,
)
# B and C extend A, whose last block holds the tokens 4 and 5.
CHAINED = trace(
    (full(4), mamba(4)),
    2,
    ask("A", ("a", 7)),
    ask("B", ("a", 7), ("b", 1)),
    ask("C", ("a", 7), ("b", 1), ("c", 1)),
)
# Where B gets 4 tokens at first, it computes [8, 16) in the step in which C hits 12, where A left a state.
IN_PROGRESS = trace(
    (full(16), mamba(16)),
    2,
    ask("W", ("a", 5)),
    Settle(),
    ask("B", ("a", 16), ("b", 20)),
    ask("A", ("a", 13)),
    ask("C", ("a", 16), ("c", 9)),
)
# With coarse hits of 8 the states of a prompt of 40 tokens.
COARSE_WINDOW = trace(
    (full(8), mamba(8), Group("window", 4, window=60)),
    2,
    ask("A", ("a", 42)),
    Settle(),
    ask("B", ("a", 42)),
    retention=None,
    budget=8,
    **EAGLE,
)
LAYOUTS = trace(
    (full(4), full(8), mamba(4)),
    2,
    ask("A", ("a", 40)),
    Settle(),
    ask("B", ("a", 33)),
    retention=None,
    budget=8,
    **EAGLE,
)


# The dense twin of a prompt at the hash boundary: hits are coarse, on a grid of 6 above the unit of 1.
HASH_BOUNDARY = trace((full(6), mamba(6), Group("window", 6, window=2)), 1, ask("A", ("a", 17)), **modules(2))
HASH_BOUNDARIES = replace(HASH_BOUNDARY, steps=(ask("B", ("b", 15)), Settle(), *HASH_BOUNDARY.steps))
# A prefills its 12 tokens and an output again, in a step of 12: what draft modules need takes a token off.
RESERVED = trace(
    (full(4, draft=True), mamba(4, 1)),
    2,
    ask("A", ("a", 12), outputs=4),
    Run(),
    ResetLocal(running=True),
    budget=12,
    **modules(2),
)
# The export of 4 and the end at 5, which is C.
BOTH_STATES = kept("export-displaces-checkpoint")
# P − 1 and the last hash of the prompt lie above the same block end, 6.
SAME_BOUNDARY = trace(
    (full(3), mamba(3), Group("window", 3, window=2)),
    1,
    ask("A", ("a", 9)),
    profile="lookahead",
    **modules(2),
)
PAST_HASHES = replace(kept("boundaries-past-hashes"), steps=kept("boundaries-past-hashes").steps[:2])
WINDOWS = trace((mamba(2), full(1), Group("window", 1, window=2)), 1, ask("A", ("a", 9)), **EAGLE)
LOOKAHEAD = trace((full(8), mamba(8)), 2, ask("A", ("a", 30)), **modules(2))
EVENTS = trace((full(4), mamba(4)), 2, ask("A", ("a", 30)), events=True)
# An encoder that keeps both items of media, and one that keeps one of them.
MEDIA = kept("items-side-by-side")
BOTH_ITEMS = replace(MEDIA, configuration=replace(MEDIA.configuration, encoder=12))
# A reset of the engine's own cache between a prompt and the same again, over a store.
TALKS = ask("A", ("a", 11), outputs=2), Settle(), ResetLocal(), ask("B", ("a", 11))
PROOF = trace(
    (full(2, draft=True), mamba(2), full(4)),
    2,
    *TALKS,
    store="both",
    decode_saves=True,
    retention=None,
    **EAGLE,
)
STORE_LAYOUTS = trace(
    (full(2), mamba(2), full(2, draft=True, replicated=True)),
    1,
    ask("A", ("a", 21)),
    ask("B", ("a", 21)),
    Settle(),
    ResetLocal(),
    ask("C", ("a", 18)),
    dcp=2,
    store="both",
    retention=None,
    budget=4,
    **EAGLE,
)
# The state at 8 is the end of a chunk, the one at 12 an export.
NO_EXPORT = trace((mamba(2, 1), full(4)), 2, ask("A", ("a", 13)), store="both", budget=8, retention=None)
EXPORT = kept("coarse-export-not-offered")
FAILING = kept("failed-load-reserves-for-itself")
AMPLE = replace(FAILING, configuration=replace(FAILING.configuration, blocks=64))
RETRIED = kept("failed-load-retried-forever")
# B runs when C arrives, whose load fails as that of B did.
RETRIED_OTHER = replace(
    RETRIED,
    steps=(
        ask("A", ("a", 2)),
        ask("Z", ("z", 2)),
        Settle(),
        ResetLocal(),
        Gate("get", "fail"),
        ask("B", ("a", 2), outputs=9),
        Run(4),
        ask("C", ("z", 2)),
        Settle(),
    ),
)
LOADS = kept("loads-fill-the-pool")
RESET = kept("preempted-by-reset-then-told")
RESET_LOAD = kept("preempted-by-reset-then-told", 1)
# The same without the reset that preempts: A, then the same again once it has ended.
NO_RESET = replace(RESET, steps=tuple(one for one in RESET.steps if not isinstance(one, ResetLocal)))
ENDED_BEFORE = replace(
    RESET_LOAD, steps=(ask("A", ("a", 2)), Settle(), ResetLocal(), ask("B", ("a", 2)), Settle())
)
STORED = kept("partial-block-as-full", 3)
PREEMPTED = kept("scheduled-then-preempted")
TAIL = replace(kept("tail-past-hashes"), steps=kept("tail-past-hashes").steps[:2])


# What is seen when something else goes wrong.


def with_transfer(**values: object) -> Change:
    """Sets values of the first put of the run."""

    def changed(seen: list[Observation]) -> list[Observation]:
        index = next(i for i, one in enumerate(seen) if one.store and one.store.transfers)
        store = seen[index].store
        assert store is not None
        first, *others = store.transfers
        put = replace(first, **values)  # type: ignore[arg-type]
        return [*seen[:index], replace(seen[index], store=replace(store, transfers=(put, *others)))]

    return changed


def without_answer(seen: list[Observation]) -> list[Observation]:
    """A load that has ended is never reported."""
    index = next(i for i, one in enumerate(seen) if one.store and one.store.loaded)
    store = seen[index].store
    assert store is not None
    return [*seen[:index], replace(seen[index], store=replace(store, loaded=()))]


def taken_back(*left: Entry) -> Change:
    """The chunk of A is taken back in the step that B begins in, and leaves these entries."""

    def changed(seen: list[Observation]) -> list[Observation]:
        index = next(i for i, one in enumerate(seen) if computes("B", 0)(one))
        last = seen[index]
        others = tuple(one for one in last.scheduled if one.request != "A")
        published = tuple(one for one in last.published if one.request != "A")
        changed = replace(last, scheduled=others, published=(*published, *left), preempted=("A",))
        running = tuple(one for one in last.running if one != "A")
        return [*seen[:index], replace(changed, running=running, waiting=("A",))]

    return changed


def after_loads(free: int) -> Change:
    """The engine is stuck once its loads are in."""
    return breaks_off(in_view(lambda view: view.loaded), "stuck", "nothing moves", free=free)


def after_failures(**values: object) -> Change:
    """The engine is stuck once loads have failed."""
    return breaks_off(in_view(lambda view: view.failed), "stuck", "nothing moves", **values)


def failing_again(times: int) -> Change:
    """The load of a request fails so many times, and then the engine is stuck."""

    def changed(seen: list[Observation]) -> list[Observation]:
        index = next(i for i, one in enumerate(seen) if one.store and one.store.failed)
        end = after_failures()(seen)[-1]
        return [*seen[: index + 1], *(seen[index - 1], seen[index]) * (times - 1), end]

    return changed


def failing_before(seen: list[Observation]) -> list[Observation]:
    """The load of B fails three times, then B runs; that of C fails once, and then the engine is stuck."""
    first, second = (i for i, one in enumerate(seen) if one.store and one.store.failed)
    again = (seen[first - 1], seen[first]) * 2
    end = after_failures()(seen[second:])[-1]
    return [*seen[: first + 1], *again, *seen[first + 1 : second + 1], end]


def dies(where: Seen, text: str) -> Change:
    """The engine ends in an exception of the connector."""
    return breaks_off(where, "exception", text, "build_connector_meta")


RESETS: Seen = lambda seen: seen.do == "reset_local"  # noqa: E731
GOES_ON = computes("A", 18)

NEIGHBOURS = (
    Plant(
        "boundaries-past-hashes",
        "a state that P − 1 keeps too is not kept",
        "RT2 missing-checkpoint",
        SAME_BOUNDARY,
        NoState,
    ),
    Plant(
        "boundaries-past-hashes",
        "a window that P − 1 keeps too is not kept",
        "RT1 missing-window",
        SAME_BOUNDARY,
        NoWindowOfBoundaries,
    ),
    Plant(
        "chained-block-copies",
        "wrong KV before the shared block",
        "SF1 kv-of-hit",
        CHAINED,
        change=misreads("C", 6, 3),
    ),
    Plant(
        "chained-block-copies",
        "the first of the pair reads wrong KV",
        "SF1 kv-of-hit",
        CHAINED,
        change=misreads("B", 6, 4),
    ),
    Plant(
        "chained-block-copies",
        "wrong KV in what the request computes itself",
        "SF1 kv",
        CHAINED,
        change=misreads("C", 6, 6),
    ),
    Plant(
        "coarse-export-not-offered",
        "no state is saved",
        "TS1 missing-state",
        NO_EXPORT,
        SavesNoStates,
    ),
    Plant(
        "coarse-split-on-block-grid",
        "the chunk ignores every stop, not only those between the block grid",
        "CP7 jumped-checkpoint",
        kept("coarse-split-on-block-grid"),
        NoStopsWhenCoarse,
    ),
    Plant(
        "copied-before-computed",
        "wrong KV before the first token that is computed",
        "SF1 kv-of-hit",
        IN_PROGRESS,
        ShortAtFirst,
        misreads("C", 12, 7),
    ),
    Plant(
        "copied-before-computed",
        "wrong KV behind the first token that is computed",
        "SF1 kv-of-hit",
        IN_PROGRESS,
        ShortAtFirst,
        misreads("C", 12, 9),
    ),
    Plant(
        "events-of-sparse-groups",
        "the tokens told are not those of the prefix",
        "AC3 event-tokens",
        EVENTS,
        TellsOtherTokens,
    ),
    Plant(
        "events-of-sparse-groups",
        "full attention tells the tokens of a block more",
        "AC3 event-skips-blocks",
        EVENTS,
        TellsNextBlockOfAttention,
    ),
    Plant(
        "events-of-sparse-groups",
        "an event without entries tells a part of a block",
        "AC3 event-without-entries",
        EVENTS,
        TellsOfNothing,
    ),
    Plant(
        "export-decided-before-cut",
        "the cut chunk ends elsewhere",
        "CP7 jumped-checkpoint",
        kept("export-decided-before-cut"),
        CutShorter,
    ),
    Plant(
        "export-displaces-checkpoint",
        "the export is lost, and the end registered",
        "RT1 missing-mamba",
        BOTH_STATES,
        WithoutExport,
    ),
    Plant(
        "export-displaces-checkpoint",
        "neither the export nor the end is registered",
        "RT2 missing-checkpoint",
        BOTH_STATES,
        NeitherState,
    ),
    Plant(
        "external-proof-not-asked",
        "the store is asked for an alignment less",
        "LK4 external-too-short",
        PROOF,
        StoreAskedShorter,
    ),
    Plant(
        "failed-load-reserves-for-itself",
        "stuck with ample room",
        "LV2 stuck",
        AMPLE,
        change=after_failures(),
    ),
    Plant(
        "failed-load-retried-forever",
        "stuck after one failure",
        "LV2 stuck",
        RETRIED,
        change=failing_again(1),
    ),
    Plant(
        "failed-load-retried-forever",
        "stuck after one failure, while a request runs whose load failed often",
        "LV2 stuck",
        RETRIED_OTHER,
        change=failing_before,
    ),
    Plant(
        "hash-boundary-when-coarse",
        "a state is registered at another boundary",
        "CH3 stray-state",
        HASH_BOUNDARY,
        RegistersBeforeHashBoundary,
    ),
    Plant(
        "hash-boundary-when-coarse",
        "the entry of another prefix is lost with it",
        "RT1 lost",
        HASH_BOUNDARIES,
        LosesAnother,
    ),
    Plant(
        "items-side-by-side",
        "stalled between two items that the encoder keeps together",
        "CH2 stalled",
        BOTH_ITEMS,
        StallsBetweenMedia,
    ),
    Plant(
        "junction-floored-from-chunk-start",
        "the junction is ignored",
        "CH1 jumped-junction",
        JUNCTION,
        NoJunctionFromInside,
    ),
    Plant(
        "junction-where-prefill-ends",
        "the stop of the junction comes a unit late",
        "CH1 jumped-junction",
        kept("junction-where-prefill-ends"),
        StopsPastTheJunction,
    ),
    Plant(
        "loads-fill-the-pool",
        "stuck with loads in and blocks left",
        "LV1 stuck",
        LOADS,
        change=after_loads(free=5),
    ),
    Plant(
        "lookahead-hang",
        "a request stalls though its split leaves tokens",
        "CH2 stalled",
        LOOKAHEAD,
        StallsInside,
    ),
    Plant(
        "partial-block-as-full",
        "the end of the next block is registered",
        "CH3 stray-state",
        EXTENDED,
        ExtendingNext,
    ),
    Plant(
        "partial-block-as-full",
        "a state that was computed and kept at a block end is wrong",
        "SF2 state",
        RESENT,
        StaleAtBlockEnd,
    ),
    Plant(
        "partial-block-as-full",
        "a state is wrong that a later chunk computed where one ran past",
        "SF2 state",
        ENDED_LATER,
        StaleAtEndOfC,
    ),
    Plant(
        "partial-block-as-full",
        "the null block is read where a chunk ran past",
        "SF2 null",
        READ_LATER,
        ExtendingNull,
    ),
    Plant(
        "partial-block-as-full",
        "another state is put wrong",
        "TS2 put-wrong",
        STORED,
        change=with_transfer(wrong=(Entry(1, 1, "A"),)),
    ),
    Plant(
        "preempted-by-reset-then-told",
        "the connector fails without a reset",
        "LV1 exception-build_connector_meta",
        NO_RESET,
        change=dies(computes("A", 1), "TypeError: 'NoneType' object is not subscriptable"),
    ),
    Plant(
        "preempted-by-reset-then-told",
        "the connector fails in another way",
        "LV1 exception-build_connector_meta",
        RESET,
        change=dies(RESETS, "IndexError: list index out of range"),
    ),
    Plant(
        "preempted-by-reset-then-told",
        "the load of a request that no reset preempted is never reported",
        "LV2 load-unreported",
        ENDED_BEFORE,
        change=without_answer,
    ),
    Plant(
        "promoted-after-export",
        "another block end appears later",
        "CH3 stray-state",
        PROMOTED,
        change=change(GOES_ON, published=(Entry(0, 8, "A"),)),
    ),
    Plant(
        "promoted-after-export",
        "the checkpoint vanishes, and nothing is promoted",
        "RT1 lost",
        PROMOTED,
        change=change(GOES_ON, withdrawn=(Entry(0, 12, "A"),)),
    ),
    Plant(
        "resumed-prefill-loses-checkpoint",
        "a resumed request never stops at its prompt's checkpoint",
        "CP7 jumped-checkpoint",
        RESUMED,
        NoCheckpointWhenResumed,
    ),
    Plant(
        "scheduled-then-preempted",
        "a block that the chunk could not fill is visible",
        "RT1 uncomputed",
        PREEMPTED,
        change=taken_back(Entry(0, 20, "A")),
    ),
    Plant(
        "scheduled-then-preempted",
        "a state that lies before the chunk is visible",
        "CH3 stray-state",
        PREEMPTED,
        change=taken_back(Entry(1, 14, "A")),
    ),
    Plant(
        "scheduled-then-preempted",
        "an entry of a request that goes on is visible",
        "RT1 uncomputed",
        PREEMPTED,
        change=taken_back(Entry(0, 2, "B")),
    ),
    Plant(
        "second-layout-bounded",
        "the hit is shorter than the bound makes it",
        "LK1 hit-too-short",
        LAYOUTS,
        BelowTheBound,
    ),
    Plant(
        "second-layout-bounded-external",
        "the hit in the store is shorter than the bound makes it",
        "LK4 external-too-short",
        STORE_LAYOUTS,
        StoreBelowTheBound,
    ),
    Plant(
        "short-window-run",
        "the hit is two alignments short",
        "LK1 hit-too-short",
        COARSE_WINDOW,
        TwoAlignmentsShort,
    ),
    Plant(
        "split-on-smallest-block",
        "the chunk ignores every stop",
        "CP7 jumped-checkpoint",
        SMALL,
        NoStopsOverSmallBlocks,
    ),
    Plant(
        "tail-past-hashes",
        "the entry of the tail vanishes, and nothing takes its place",
        "RT1 evicted-in-use",
        TAIL,
        change=change(computes("A", 1538), withdrawn=(Entry(0, 1408, "A"),)),
    ),
    Plant(
        "tail-past-hashes",
        "the entry of a whole block vanishes beside that of the tail",
        "RT1 evicted-in-use",
        TAIL,
        change=change(
            computes("A", 1538),
            withdrawn=(Entry(0, 896, "A"), Entry(0, 1408, "A")),
            published=(Entry(0, 1536, "A"),),
        ),
    ),
    Plant(
        "unfinished-mamba",
        "no state is ever registered",
        "RT1 missing-mamba",
        HELD_BACK,
        NoStateWithModules,
    ),
    Plant(
        "window-without-checkpoint",
        "a block that the replay boundaries need is not kept",
        "RT1 missing-window",
        WINDOWS,
        NoWindowOfBoundaries,
    ),
)

TWINS = (
    Plant("boundaries-past-hashes", "", "RT2 missing-checkpoint", PAST_HASHES, NoState),
    Plant("chained-block-copies", "", "SF1 kv-of-hit", CHAINED, change=misreads("C", 6, 4)),
    Plant("coarse-export-not-offered", "", "TS1 missing-state", EXPORT, SavesNoExports),
    Plant(
        "coarse-split-on-block-grid",
        "",
        "CP7 jumped-checkpoint",
        kept("coarse-split-on-block-grid"),
        mistaken("split.block_grid"),
    ),
    Plant("copied-before-computed", "", "SF1 kv-of-hit", IN_PROGRESS, ShortAtFirst, misreads("C", 12, 8)),
    Plant(
        "events-of-sparse-groups",
        "",
        "AC3 event-skips-blocks",
        kept("events-of-sparse-groups", 1),
        TellsNextBlock,
    ),
    Plant(
        "export-decided-before-cut",
        "",
        "CP7 jumped-checkpoint",
        kept("export-decided-before-cut"),
        CutAtJunction,
    ),
    Plant(
        "export-decided-before-cut",
        "",
        "CP7 jumped-checkpoint",
        RESERVED,
        mistaken("split.export_before_cut", "endings.reserve_after"),
    ),
    Plant("export-displaces-checkpoint", "", "RT2 missing-checkpoint", BOTH_STATES, ExportAlone),
    Plant("external-proof-not-asked", "", "LK4 external-too-short", PROOF, StoreAskedShort),
    Plant("failed-load-reserves-for-itself", "", "LV2 stuck", FAILING, change=after_failures()),
    Plant("failed-load-retried-forever", "", "LV2 stuck", RETRIED, change=failing_again(3)),
    Plant("hash-boundary-when-coarse", "", "CH3 stray-state", HASH_BOUNDARY, RegistersHashBoundary),
    Plant("items-side-by-side", "", "CH2 stalled", MEDIA, StallsBetweenMedia),
    Plant(
        "junction-floored-from-chunk-start",
        "",
        "CH1 jumped-junction",
        kept("junction-floored-from-chunk-start"),
        mistaken("split.floor_from_start"),
    ),
    Plant("loads-fill-the-pool", "", "LV1 stuck", LOADS, change=after_loads(free=1)),
    Plant("lookahead-hang", "", "CH2 stalled", kept("lookahead-hang", 1), mistaken("endings.reserve_after")),
    Plant("partial-block-as-full", "", "CH3 stray-state", EXTENDED, Extending),
    Plant("partial-block-as-full", "", "SF2 state", READ_LATER, Extending),
    Plant(
        "preempted-by-reset-then-told",
        "",
        "LV1 exception-build_connector_meta",
        RESET,
        change=dies(RESETS, "TypeError: 'NoneType' object is not subscriptable"),
    ),
    Plant("preempted-by-reset-then-told", "", "LV2 load-unreported", RESET_LOAD, change=without_answer),
    Plant(
        "promoted-after-export",
        "",
        "CH4 transient",
        PROMOTED,
        change=change(GOES_ON, published=(Entry(0, 16, "A"),), withdrawn=(Entry(0, 12, "A"),)),
    ),
    Plant(
        "resumed-prefill-loses-checkpoint",
        "",
        "CP7 jumped-checkpoint",
        kept("resumed-prefill-loses-checkpoint"),
        mistaken("split.present_length"),
    ),
    Plant("scheduled-then-preempted", "", "RT1 uncomputed", PREEMPTED, change=taken_back(Entry(0, 18, "A"))),
    Plant(
        "second-layout-bounded", "", "LK2 bounded-by-other-layout", kept("second-layout-bounded", 1), Bounded
    ),
    Plant(
        "second-layout-bounded-external",
        "",
        "LK4 external-too-short",
        kept("second-layout-bounded-external"),
        StoreBounded,
    ),
    Plant("short-window-run", "", "PM1 scan-capped", kept("short-window-run"), ShortRun),
    Plant("split-on-smallest-block", "", "CH1 jumped-block", SMALL, mistaken("split.smallest_block")),
    Plant(
        "split-on-smallest-block",
        "",
        "CP7 jumped-checkpoint",
        kept("split-on-smallest-block"),
        mistaken("split.smallest_block"),
    ),
    Plant(
        "tail-past-hashes",
        "",
        "RT1 evicted-in-use",
        TAIL,
        change=change(
            computes("A", 1538), withdrawn=(Entry(0, 1408, "A"),), published=(Entry(0, 1536, "A"),)
        ),
    ),
    Plant("window-without-checkpoint", "", "RT1 missing-window", WINDOWS, NoWindowOfCheckpoint),
)
