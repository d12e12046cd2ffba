"""A slow engine's loads: what it asks of the store, what it gets, and what becomes of the request."""

from __future__ import annotations

from collections.abc import Generator

from reference.cache import Key, Lookup
from reference.engine import SlowEngine
from reference.history import History
from reference.plan import Plan
from reference.store import SlowStore
from reference.store_jobs import Asked, Found, Job, Load
from reference.store_saves import StoreSaves
from spec.observation import Admitted, Answer, Entry, FailedRead, Finished, Transfer


class StoreLoads(StoreSaves):
    """Lookups in a store, and loads of what it holds. `asked` are lookups that are not used yet, `loads` what
    is loaded, until the request has begun to compute or the load of an ended one is told."""

    def __init__(self, engine: SlowEngine, number: int, store: SlowStore) -> None:
        super().__init__(engine, number, store)
        self.asked: dict[str, Asked] = {}
        self.loads: dict[str, Load] = {}
        self.disappointed: set[str] = set()

    # The rules, one method each.

    def asks(self, history: History) -> bool:
        """Whether the store is asked for a request at all: not for one shorter than any hit, and not again
        after a load that failed, since the next one may fail as well (LV2)."""
        return history.known >= self.geometry.grid and history.id not in self.disappointed

    def external(self, history: History) -> Found:
        """LK4: what the store holds of a request, by the rule of the local lookup."""
        hit = self.external_lookup(history, self.store.keys()).hit
        found_by = {
            group.index: self.found_by(history, group.index, hit) for group in self.geometry.attention
        }
        return Found(hit, found_by if hit else {})

    def external_lookup(self, history: History, keys: set[Key]) -> Lookup:
        """LK4: the lookup over the keys of the store."""
        return self.cache.lookup(history, keys)

    def found_by(self, history: History, group: int, hit: int) -> int:
        """The position of the key that holds an attention group's last block of a hit: the hit itself, or the
        next key within the block."""
        unit, block = self.geometry.unit, self.geometry.groups[group].block
        last = min(-(-hit // block) * block, history.known // unit * unit)
        ends = range(max(hit, unit), last + 1, unit)
        return next((at for at in ends if self.store.holds(self.cache.key(group, history, at))), hit)

    def prefers_external(self, local: int, external: int) -> bool:
        """Whether a load is worth it."""
        return external > local

    def wanted(self, history: History, local: int, found: Found) -> tuple[Entry, ...]:
        """What a load of [local, hit) gets: the blocks of attention, the last under the key it is found by,
        and the states at the hit."""
        entries: list[Entry] = []
        for group in self.geometry.groups:
            if group.kind == "mamba":
                entries.append(Entry(group.index, found.hit, history.id))
                continue
            for end in range(local + group.block, found.hit + group.block, group.block):
                position = end if end < found.hit else found.found_by[group.index]
                entries.append(Entry(group.index, position, history.id))
        return tuple(entries)

    def fetched(self, load: Load, entry: Entry) -> int | None:
        """The bytes that a get brings into a request's block, None when there are none."""
        return self.store.get(self.cache.key(entry.group, load.history, entry.position))

    def succeeds(self, load: Load, failed: list[Entry]) -> bool:
        """A load with any failed key has failed; what came of it does not count."""
        return not failed

    def kept_of_local(self, hit: int) -> int:
        """How much of a shorter local hit stays when the store serves more: whole spans of the alignment."""
        return hit // self.geometry.align * self.geometry.align

    def failure_reason(self) -> str:
        """LV2: the reason that a request ends with when its load failed and it is not computed anew."""
        return "error"

    def recomputes(self, history: History) -> bool:
        """LV2: whether a request whose load failed goes on without it; else it ends with an error."""
        return self.configuration.load_failures == "recompute"

    def retries(self, load: Load) -> bool:
        """LV2: whether a failed load is made again, without a new lookup: never."""
        return False

    def gives_back_abandoned(self, load: Load) -> bool:
        """LT3: whether the blocks of a load are given back when its request ended meanwhile."""
        return True

    # Lookups.

    def _ask(self, history: History) -> Found | None:
        """The store's answer to a request in the queue, None while there is none."""
        if not self.asks(history):
            return Found(0)
        if not self.configuration.lookup_async:
            return self._answer(history, self.lines["lookup"].fate)
        asked = self.asked.get(history.id)
        if asked is None:
            asked = self.asked[history.id] = Asked()
            asked.work = self._look_up(history, asked)
            self.lines["lookup"].add(asked.work)
        if asked.found is not None:
            del self.asked[history.id]
        return asked.found

    def _look_up(self, history: History, asked: Asked) -> Generator[None, str, None]:
        fate = yield
        asked.found = self._answer(history, fate)

    def _answer(self, history: History, fate: str) -> Found:
        known = not fate and self.store.alive
        self.shown.answers.append(Answer(history.id, known))
        return self.external(history) if known else Found(0)

    # The queue.

    def queue(self) -> list[History]:
        """Requests that hold blocks are reached first."""
        return sorted(self.engine.waiting, key=lambda history: history.id not in self.loads)

    def admit(self, history: History, plan: Plan) -> bool:
        """Let a waiting request begin, or load; False when it must wait and nobody may overtake it."""
        load = self.loads.get(history.id)
        if load is not None and not load.told:
            return True
        if load is not None and load.good:
            return self._promote(load, plan)
        if load is not None:
            del self.loads[history.id]
            self.give_back(history)
        local = self.engine.lookup(history)
        found = self._ask(history)
        if found is None:
            return True
        if self.prefers_external(local.hit, found.hit):
            self._load(history, local, found, plan)
            return True
        return self.engine.begin(history, local, plan)

    def _load(self, history: History, local: Lookup, found: Found, plan: Plan) -> None:
        kept = self.kept_of_local(local.hit)
        load = Load(history, kept, found.hit, self.wanted(history, kept, found))
        history.junction = local.junction
        self.loads[history.id] = load
        self.hold(history, found.hit)
        plan.counters.append(self.engine.counted(history, kept))
        self.shown.loading.append(
            Admitted(history.id, kept, found.hit - kept, local.junction, plan.appeared())
        )
        self.lines["get"].add(self._fetch(load))

    def _fetch(self, load: Load) -> Generator[None, str, None]:
        """What a loading thread does."""
        fate = yield
        failed: list[Entry] = []
        for index, entry in enumerate(load.entries):
            spoiled = fate and (fate != "part" or index == len(load.entries) - 1)
            content = None if spoiled else self.fetched(load, entry)
            if content is None:
                failed.append(entry)
            else:
                load.content[entry.group, entry.position] = content
        wrong = tuple(
            entry
            for entry in load.entries
            if entry not in failed and load.content[entry.group, entry.position] != self._due(entry)
        )
        error = "RefusedError" if fate == "raise" else ""
        self.shown.transfers.append(Transfer("get", load.entries, tuple(failed), wrong, (), error))
        load.good = self.succeeds(load, failed)
        self.done.append(load)

    def _promote(self, load: Load, plan: Plan) -> bool:
        """What came is visible, and the request computes what is left; False when it must wait for room."""
        if not load.arrived:
            load.arrived = True
            self._arrive(load, plan)
        item = self.engine.schedule(load.history, load.hit, plan.budget, 0)
        if item is None:
            return False
        self.engine.start(load.history, item, plan)
        return True

    def _arrive(self, load: Load, plan: Plan) -> None:
        history = load.history
        left = self.engine.publications(history, load.local, load.hit, 0)
        for group, position in self.engine.published(history, left):
            mamba = self.geometry.groups[group].kind == "mamba"
            if position > load.hit or (mamba and position < load.hit):
                continue
            key = self.cache.key(group, history, position)
            if key in self.cache.visible:
                continue
            entry = Entry(group, position, history.id)
            content = self.read(group, history, position)
            if content is not None:
                self.engine.content[key] = content
            plan.published[key] = self.engine.owners[key] = entry
            plan.fresh.add(key)
            self.cache.publish([key])

    def read(self, group: int, history: History, position: int) -> int | None:
        """The content under an entry that a request reuses, of its load where it has one."""
        load = self.loads.get(history.id)
        mamba = self.geometry.groups[group].kind == "mamba"
        if load is None or (position <= load.local and not mamba):
            return super().read(group, history, position)
        at = position
        if (
            not mamba
            and -(-position // self.geometry.groups[group].block) * self.geometry.groups[group].block
            > load.hit
        ):
            at = load.last(group)
        found = load.content.get((group, at))
        expected = self.expected[history.id]
        # The last block may have come under a later key; what is right up to there is right up to here.
        return expected[position] if found == expected[at] else found

    def adopted(self, history: History, hit: int, failed: list[FailedRead]) -> list[FailedRead]:
        """The request's blocks hold what its hit or its load brought."""
        super().adopted(history, hit, failed)
        if history.id not in self.loads:
            return failed
        for group in self.geometry.attention:
            if hit % group.block and self.read(group.index, history, hit) != self.expected[history.id][hit]:
                failed.append(FailedRead(history.id, group.index, hit, "kv"))
        del self.loads[history.id]
        return failed

    # Ends.

    def ended(self, history: History, reason: str) -> None:
        """The request's lookup and blocks are given up, but for those of a load that is under way."""
        asked = self.asked.pop(history.id, None)
        if asked is not None and asked.work is not None:
            self.lines["lookup"].discard(asked.work)
        load = self.loads.get(history.id)
        if load is not None and not load.told:
            load.abandoned = True
            return
        self.loads.pop(history.id, None)
        self.give_back(history)

    def conclude(self) -> list[Finished]:
        """Saves, loads and lookups go on; then the worker tells what had ended before."""
        told, self.done = self.done, []
        for kind in ("put", "get", "lookup"):
            self.lines[kind].run()
        finished: list[Finished] = []
        for one in told:
            if isinstance(one, Job):
                self.told_saved(one)
            else:
                finished.extend(self._told_loaded(one))
        return finished

    def _told_loaded(self, load: Load) -> list[Finished]:
        """The worker tells that a load has ended."""
        history = load.history
        if not load.good and not load.abandoned and self.retries(load):
            self.lines["get"].add(self._fetch(load))
            return []
        load.told = True
        (self.shown.loaded if load.good else self.shown.failed).append(history.id)
        if load.abandoned:
            del self.loads[history.id]
            if self.gives_back_abandoned(load):
                self.give_back(history)
            return []
        if load.good:
            return []
        self.disappointed.add(history.id)
        if self.recomputes(history):
            return []
        return [self.engine.finish(history, self.failure_reason())]
