"""Planted faults of the reference: `reference+NAME` is the slow engine with one rule broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reference.cache import Key, Lookup
from reference.engine import SlowEngine
from reference.history import History, Prefixes
from reference.publish import Publications
from reference.wrong_lookups import bounded_by_the_one_before
from spec.checkpoint import capped_and_dropped_checkpoint
from spec.exact_model import plain
from spec.geometry import Geometry
from spec.observation import Counters, Entry, Event, Observation
from spec.proof import capped_scan_bound
from spec.trace import Configuration, Submit
from tailproof.planted import named

Place = tuple[int, int]


class OldCheckpoint(SlowEngine):
    """Every component uses the checkpoint rule with cap and drop."""

    def layout(self, geometry: Geometry) -> Geometry:
        profile = replace(geometry.profile, checkpoint=capped_and_dropped_checkpoint)
        return replace(geometry, profile=profile)


class RegistersOldCheckpoint(SlowEngine):
    """The registration alone uses the old checkpoint."""

    def published(self, history: History, left: Publications) -> set[Place]:
        new = self.geometry.checkpoint(history.prompt)
        old = capped_and_dropped_checkpoint(history.prompt, self.geometry.grid, self.geometry.eagle)
        moved = set()
        for group, position in left.must:
            mamba = self.geometry.groups[group].kind == "mamba"
            moved.add((group, old if mamba and position == new and old > 0 else position))
        return moved


class ScanCapped(SlowEngine):
    """The proof scan stops at P − 1."""

    def layout(self, geometry: Geometry) -> Geometry:
        return replace(geometry, profile=replace(geometry.profile, bound=capped_scan_bound))


class OffGridHit(SlowEngine):
    """A hit is one token longer than the unit it ends in."""

    def lookup(self, history: History) -> Lookup:
        found = self.cache.lookup(history)
        return replace(found, hit=found.hit + 1) if 0 < found.hit < history.known - 1 else found


class DoubleDrop(SlowEngine):
    """A group that drops does so twice."""

    def layout(self, geometry: Geometry) -> Geometry:
        groups = tuple(replace(group, margin=2 * group.margin) for group in geometry.groups)
        return replace(geometry, groups=groups)


class NoDrop(SlowEngine):
    """No group drops."""

    def lookup(self, history: History) -> Lookup:
        kept = self.cache.geometry
        groups = tuple(replace(group, margin=0) for group in kept.groups)
        self.cache.geometry = replace(kept, groups=groups)
        try:
            return self.cache.lookup(history)
        finally:
            self.cache.geometry = kept


class StateExtendsHit(SlowEngine):
    """The longest Mamba state alone decides the hit."""

    def lookup(self, history: History) -> Lookup:
        found = self.cache.lookup(history)
        group = self.geometry.mamba[0]
        serves = self.cache.states(history, group)
        grid = self.geometry.grid
        longest = next((at for at in range((history.known - 1) // grid * grid, 0, -grid) if serves(at)), 0)
        return replace(found, hit=max(found.hit, longest))


class StopsEarly(SlowEngine):
    """A lookup gives up the deepest two thirds of a hit, down to the next state."""

    def lookup(self, history: History) -> Lookup:
        found = self.cache.lookup(history)
        if found.hit == 0:
            return found
        serves = [self.cache.states(history, group) for group in self.geometry.mamba]
        grid = self.geometry.grid
        below = range(found.hit // 3 // grid * grid, 0, -grid)
        return replace(found, hit=next((at for at in below if all(s(at) for s in serves)), 0))


class NoJunction(SlowEngine):
    """No junction is ever noticed."""

    def lookup(self, history: History) -> Lookup:
        return replace(self.cache.lookup(history), junction=0)


class ForgetsTailEntry(SlowEngine):
    """The attention entry at the prompt's last hash boundary is not registered."""

    def published(self, history: History, left: Publications) -> set[Place]:
        return {
            (group, position)
            for group, position in left.must
            if self.geometry.groups[group].kind == "mamba"
            or position % self.geometry.groups[group].block == 0
        }


class PublishesUncomputed(SlowEngine):
    """The attention block that is still being filled is registered as if full."""

    def published(self, history: History, left: Publications) -> set[Place]:
        places = set(left.must)
        for group in self.geometry.attention:
            end = -(-(left.sure + 1) // group.block) * group.block
            if end <= len(history.numbers) * self.geometry.unit:
                places.add((group.index, end))
        return places


class LosesEntry(SlowEngine):
    """Submitting a request throws one cached entry away."""

    def _submit(self, at: int, step: Submit) -> Observation:
        observation = super()._submit(at, step)
        if not self.cache.visible:
            return observation
        key = min(self.cache.visible)
        self.cache.visible.remove(key)
        return replace(observation, withdrawn=(self.owners[key],))


class RetentionDropsCheckpoint(SlowEngine):
    """With sparse retention a checkpoint inside a block is not kept."""

    def published(self, history: History, left: Publications) -> set[Place]:
        checkpoint = self.geometry.checkpoint(history.prompt)
        sparse = self.configuration.retention is not None
        return {
            (group, position)
            for group, position in left.must
            if not (sparse and self.geometry.groups[group].kind == "mamba" and position == checkpoint)
        }


class RunsPastJunction(SlowEngine):
    """Prefill chunks ignore the junction."""

    def stops(self, history: History, start: int, export: int) -> dict[str, int]:
        return {
            name: stop for name, stop in super().stops(history, start, export).items() if name != "junction"
        }


class StallsOnce(SlowEngine):
    """A request on the last chunk of its prompt is passed over once."""

    def may_run(self, history: History) -> bool:
        seen = getattr(self, "passed", None)
        if seen is None:
            self.passed: set[str] = set()
        if history.computed >= history.prompt or history.id in self.passed:
            return True
        self.passed.add(history.id)
        return False


class PreemptsFreely(SlowEngine):
    """The youngest of several running requests is started again once."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.preempted: set[str] = set()

    def _engine_step(self, at: int, do: str, accept: int) -> Observation:
        victim = self.running[-1] if len(self.running) > 1 else None
        if victim is None or victim.id in self.preempted:
            return super()._engine_step(at, do, accept)
        self.preempted.add(victim.id)
        self.running.remove(victim)
        self.waiting.insert(0, victim)
        victim.state, victim.computed = "waiting", 0
        return replace(super()._engine_step(at, do, accept), preempted=(victim.id,))


class PublishesMidChunk(SlowEngine):
    """Every block boundary inside a chunk is registered for Mamba too."""

    def published(self, history: History, left: Publications) -> set[Place]:
        places = set(left.must)
        block = self.geometry.mamba_block
        boundary = (left.sure - 1) // block * block
        if boundary > history.computed and boundary != left.overwritten:
            places.update((group.index, boundary) for group in self.geometry.mamba)
        return places


class PublishesTransient(SlowEngine):
    """The block end whose place an export took is registered."""

    def published(self, history: History, left: Publications) -> set[Place]:
        places = set(left.must)
        if left.overwritten and left.overwritten != left.export:
            places.update((group.index, left.overwritten) for group in self.geometry.mamba)
        return places


class SkipsToken(SlowEngine):
    """After a chunk of the prompt the next one begins a token late."""

    def advanced(self, history: History, computed: int) -> int:
        return computed + 1 if computed < history.prompt - 1 else computed


class CoarseLookup(SlowEngine):
    """Lookups land on the alignment although everything else works in units."""

    def lookup(self, history: History) -> Lookup:
        kept = self.cache.geometry
        self.cache.geometry = replace(kept, fine=False)
        try:
            return self.cache.lookup(history)
        finally:
            self.cache.geometry = kept


class LeaksBlock(SlowEngine):
    """A finished request keeps one block."""

    def released(self, history: History) -> int:
        return self.blocks_of(history) - 1


class ResetKeepsEntries(SlowEngine):
    """A reset reports success and clears nothing."""

    def reset_clears(self) -> bool:
        return False


class SaltBlind(Prefixes):
    """Gives a prefix the same identity under every salt."""

    def root(self, salt: str | None) -> int:
        return super().root(None)


class IgnoresSalt(SlowEngine):
    """Prefixes of different salts are taken for the same."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.prefixes = SaltBlind(configuration.unit)


class AdapterBlind(Prefixes):
    """Gives a prefix the same identity under every adapter."""

    def root(self, salt: str | None) -> int:
        return super().root(salt and salt.partition("\0")[0])


class IgnoresAdapter(SlowEngine):
    """Prefixes computed by different adapters are taken for the same."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.prefixes = AdapterBlind(configuration.unit, self.geometry.hash_lookahead)


class MediaBlind(Prefixes):
    """Gives a prefix the same identity whatever media stand behind its tokens."""

    def extend(self, numbers: list[int], tokens: Sequence[int], salt: str | None) -> None:
        super().extend(numbers, plain(tokens), salt)


class IgnoresMedia(SlowEngine):
    """Prefixes with different media are taken for the same."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.prefixes = MediaBlind(configuration.unit, self.geometry.hash_lookahead)


class StaleState(SlowEngine):
    """The state kept under an entry is that of one token less."""

    def stored(self, kind: str, history: History, position: int, state: int) -> int:
        return self.expected[history.id][position - 1] if kind == "mamba" else state


class StaleKv(SlowEngine):
    """The KV kept under attention entries is wrong."""

    def stored(self, kind: str, history: History, position: int, state: int) -> int:
        return state + 1 if kind == "full" else state


class SameStepReuse(SlowEngine):
    """A state that is being computed in this step is reused at once."""

    def must_wait(self, history: History, hit: int, fresh: set[Key]) -> bool:
        return False


class WrongOutput(SlowEngine):
    """A request that reused its cache samples another token."""

    def sample(self, history: History, state: int) -> int:
        return super().sample(history, state) + (1 if history.hit else 0)


class MiscountsHit(SlowEngine):
    """Reused tokens are reported one unit short."""

    def reported(self, history: History, hit: int) -> int:
        return max(hit - self.configuration.unit, 0)


class NeverFinishes(SlowEngine):
    """A request that has reused something does not end."""

    def has_ended(self, history: History) -> bool:
        return super().has_ended(history) and not history.hit


class BoundedByFirstLayout(SlowEngine):
    """An attention layout is scanned only to its margin past what the one before it could serve."""

    def lookup(self, history: History) -> Lookup:
        found = self.cache.lookup(history)
        return replace(found, hit=bounded_by_the_one_before(self.geometry, history, self.cache.visible))


class WindowIgnored(SlowEngine):
    """Sliding-window groups have no say in a lookup, and every state that may be visible is."""

    def publications(self, history: History, start: int, end: int, drafts: int) -> Publications:
        left = super().publications(history, start, end, drafts)
        states = {group.index for group in self.geometry.mamba}
        return replace(left, must=left.must | {place for place in left.may if place[0] in states})

    def lookup(self, history: History) -> Lookup:
        kept = self.cache.geometry
        groups = tuple(group for group in kept.groups if group.kind != "window")
        self.cache.geometry = replace(kept, groups=groups)
        try:
            return self.cache.lookup(history)
        finally:
            self.cache.geometry = kept


class ForgetsWindow(SlowEngine):
    """The last block of a sliding window that is needed is not registered."""

    def published(self, history: History, left: Publications) -> set[Place]:
        places = set(left.must)
        for group in self.geometry.windows:
            ends = [position for index, position in places if index == group.index]
            if ends:
                places.remove((group.index, max(ends)))
        return places


class EvictsInUse(SlowEngine):
    """Admitting a request throws out an attention block that a running request holds."""

    def _engine_step(self, at: int, do: str, accept: int) -> Observation:
        group = self.geometry.attention[0]
        holders = [one for one in self.running if one.hit is not None and one.computed >= 2 * group.block]
        observation = super()._engine_step(at, do, accept)
        for history in holders:
            key = self.cache.key(group.index, history, group.block)
            if history.state == "running" and key in self.cache.visible:
                self.cache.visible.remove(key)
                return replace(observation, withdrawn=(*observation.withdrawn, self.owners[key]))
        return observation


class WorkerUnits(SlowEngine):
    """The workers use the alignment where the scheduler uses the grid of hits."""

    def units(self) -> tuple[int, int]:
        return self.geometry.unit, self.geometry.align


class MiscountsLookups(SlowEngine):
    """A resumed request counts as a new one."""

    def counted(self, history: History, hit: int) -> Counters:
        return Counters(requests=1, queries=history.known, hits=hit)


class ForgetsEvent(SlowEngine):
    """Entries inside a block are not told by events."""

    def told(self, entry: Entry) -> Event | None:
        block = self.geometry.groups[entry.group].block
        return super().told(entry) if entry.position % block == 0 else None


class TellsTooMuch(SlowEngine):
    """An event tells of the prefix one unit further than what was stored, too."""

    def told(self, entry: Entry) -> Event | None:
        unit, history = self.geometry.unit, self.histories[entry.request]
        if entry.position + unit > history.prompt:
            return super().told(entry)
        both = (entry, replace(entry, position=entry.position + unit))
        return Event("stored", both, entry.position - unit, 2 * unit)


class TellsWrongTokens(SlowEngine):
    """Events list the tokens from the start of the prompt."""

    def told(self, entry: Entry) -> Event | None:
        event = super().told(entry)
        return event and replace(event, tokens=entry.position)


class StallsInLookahead(SlowEngine):
    """A chunk stops at a block end within what draft modules read ahead, and then keeps the distance."""

    def chunk_end(self, history: History, start: int, budget: int) -> int:
        block, lookahead = self.geometry.mamba_block, self.geometry.lookahead
        boundary = start // block * block + block
        if start % block and 0 < history.known - boundary < lookahead:
            return max(history.known - lookahead, start)
        return super().chunk_end(history, start, budget)


MUTANTS = named(globals(), SlowEngine)
