"""The ledger of one engine: what a store owes it and it owes the store, what it pins and what it loads.

Every oracle has one. Without a store nothing is ever entered, and all that it forecasts is empty. The engines
of a case share the shelf, which is what the store was seen to hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from reference.cache import Key, SlowCache
from reference.forecast import AdmissionForecast, ChunkForecast, Forecast, Owed, StoreForecast
from reference.history import History, live
from spec.geometry import Geometry
from spec.liveness import after_failed_load
from spec.observation import Admitted, Entry, Observation, Pin, StoreView
from spec.tail import Span, normal_span, tail_blocks, tail_key, tail_span
from spec.trace import Configuration, DropKeys, KillMaster, ResetStore, RestartMaster, Step

ENGINE_STEPS = ("run", "settle")


class Shelf:
    """What the store was seen to hold after the last observation, in order of arrival. `clock` counts
    observations, `lost` tells when a key was last seen to vanish."""

    def __init__(self) -> None:
        self.keys: dict[Key, Entry] = {}
        self.clock = 0
        self.lost: dict[Key, int] = {}


class Ledger:
    """What is under way between one engine and the store, as far as it was seen.

    `answers` are asynchronous lookups that were answered and not used yet (what they must and may give, in
    tokens); `loading` and `loaded` requests by where they will go on, `orphans` loads of requests that have
    ended, `misled` requests whose load failed, `failures` how often. `pins` are the store jobs that hold
    blocks, `due_saves` keys that the store must hold when the saves have ended, `made` Mamba positions that a
    request computed since it last began (`began`, on the shelf's clock), `covered` requests whose prompt is
    computed, `excused` requests whose saves may be incomplete. `again` are requests that were preempted.
    `idle_puts` and `idle_gets` tell that nothing stood at the gate after the last observation (`followed`,
    on the shelf's clock)."""

    def __init__(
        self,
        configuration: Configuration,
        engine: int,
        shelf: Shelf,
        cache: SlowCache,
        histories: dict[str, History],
    ) -> None:
        self.configuration = configuration
        self.engine = engine
        self.shelf = shelf
        self.cache = cache
        self.histories = histories
        self.geometry: Geometry = cache.geometry
        self.answers: dict[str, tuple[int | None, int]] = {}
        self.loading: dict[str, int] = {}
        self.loaded: set[str] = set()
        self.orphans: set[str] = set()
        self.misled: set[str] = set()
        self.failures: Counter[str] = Counter()
        self.pins: dict[int, Pin] = {}
        self.due_saves: tuple[Owed, ...] = ()
        self.made: dict[str, set[int]] = {}
        self.covered: set[str] = set()
        self.excused: set[str] = set()
        self.again: set[str] = set()
        self.began: dict[str, int] = {}
        self.idle_puts = self.idle_gets = True
        self.followed = 0

    @property
    def saves(self) -> bool:
        """Whether the engine saves what its prompts compute."""
        return self.configuration.roles[self.engine] in ("producer", "both")

    def holds_blocks(self) -> bool:
        """Whether loads or saves hold blocks."""
        return bool(self.loading or self.orphans or self.pins)

    def holds_back_blocks(self) -> bool:
        """Whether blocks of a failed load are out: they go back when the queue next reaches its request."""
        return any(one.id in self.misled for one in self._live())

    def expected_start(self, history: History) -> int | None:
        """Where a request whose load has come in goes on, None for others."""
        return self.loading[history.id] if history.id in self.loaded else None

    def _live(self) -> list[History]:
        return live(self.histories, self.engine)

    def promoted(self, history: History) -> frozenset[tuple[int, int]]:
        """What a load brought, as (group, position), which becomes visible when its request goes on."""
        if history.id not in self.loaded:
            return frozenset()
        reach = self.loading[history.id]
        return frozenset(
            (group.index, at)
            for group in self.geometry.attention
            for at in range(group.block, reach + 1, group.block)
        )

    def forecast(
        self, observation: Observation, step: Step, view: StoreView, chunks: Iterable[ChunkForecast]
    ) -> StoreForecast:
        """What the observation must show of the store; `chunks` are what was computed in it."""
        engine_step = observation.do in ENGINE_STEPS
        external, widest, unknown = self._external_due(view, (*observation.admitted, *view.loading))
        present = self._present(view)
        # Meanwhile another engine may have been seen to empty the store.
        kept = [one for one in self.due_saves if self.shelf.lost.get(one.key, -1) <= self.followed]
        owed = (*kept, *self._newly_owed(observation, chunks)) if self.saves else ()
        trouble = self._trouble(view)
        gone = {self._key(entry) for entry in view.dropped}
        seen = self._seen(view)
        failed = {request for request in view.failed if request in self.loading}
        lead = after_failed_load(self.configuration.load_failures)
        return StoreForecast(
            external=external,
            widest=widest,
            unknown=frozenset(unknown),
            shelf=self.shelf.keys,
            present=present,
            expected=self._expected(step, present),
            seen=seen,
            owed=tuple(one for one in owed if one.request not in trouble and one.key not in gone),
            pins=self.pins,
            idle_puts=engine_step and self.idle_puts,
            idle_gets=engine_step and self.idle_gets,
            loads=(*self.loading, *self.orphans),
            loaded=frozenset(self.loaded),
            failed_before=frozenset(self.misled),
            failing=frozenset(
                one.id for one in self._live() if self.failures[one.id] and one.state != "running"
            ),
            refused=frozenset(failed if lead == "error" else ()),
            wiped=frozenset((present.keys() | gone) - seen.keys()),
            away=self._away(view),
            at_rest=not (
                self.loading or self.orphans or view.loading or view.pins or self.holds_back_blocks()
            ),
        )

    # Lookups and loads.

    def _external(self, history: History, keys: Iterable[Key], whole: bool = False) -> int:
        """The external hit of a request over keys of the store (LK4), tokens; `whole` as for `lookup`."""
        if history.known < self.geometry.grid:
            return 0
        return self.cache.lookup(history, set(keys), whole).hit

    def _external_due(
        self, view: StoreView, admitted: Iterable[Admitted]
    ) -> tuple[dict[str, int], dict[str, int], set[str]]:
        due: dict[str, int] = {}
        widest: dict[str, int] = {}
        unknown: set[str] = set()
        now = {answer.request: answer.known for answer in view.answers}
        for item in admitted:
            history = self.histories[item.request]
            if self.configuration.lookup_async:
                found, most = self.answers.get(item.request, (0, 0))
            else:
                found, most = self._answer(history, now.get(item.request, True), self.shelf.keys)
            # Whether the store is asked again after a load that failed is the engine's choice; that this ends
            # is not (LV2).
            if self.failures[item.request] and not item.external:
                found = 0
            due[item.request], widest[item.request] = found or 0, most
            if found is None:
                unknown.add(item.request)
        return due, widest, unknown

    def _answer(self, history: History, known: bool, keys: Iterable[Key]) -> tuple[int | None, int]:
        """What a lookup that found these keys must and may give; (None, 0) where there was no answer."""
        if not known:
            return None, 0
        return self._external(history, keys), self._external(history, keys, whole=True)

    def _away(self, view: StoreView) -> frozenset[str]:
        """Requests of which nothing could be scheduled in the step: they load, or wait for an answer."""
        away = {request for request in self.loading if request not in self.loaded}
        away |= {item.request for item in view.loading}
        if self.configuration.lookup_async:
            away |= {one.id for one in self._live() if one.state == "waiting" and one.id not in self.answers}
            # An answer is used up where its request is not admitted, and asked for again.
            away |= {answer.request for answer in view.answers}
        return frozenset(away)

    # Keys.

    def _key(self, entry: Entry) -> Key:
        return self.cache.key_of(entry, self.histories)

    def _present(self, view: StoreView) -> dict[Key, Entry]:
        """The keys that the store holds after the transfers of a step."""
        present = dict(self.shelf.keys)
        for transfer in view.transfers:
            if transfer.kind != "get":
                for entry in transfer.entries:
                    if entry not in transfer.failed:
                        present.setdefault(self._key(entry), entry)
        return present

    def _seen(self, view: StoreView) -> dict[Key, Entry]:
        seen = dict(self.shelf.keys)
        for entry in view.dropped:
            seen.pop(self._key(entry), None)
        for entry in view.stored:
            seen[self._key(entry)] = entry
        return seen

    def _expected(self, step: Step, present: dict[Key, Entry]) -> dict[Key, Entry]:
        if isinstance(step, ResetStore | KillMaster | RestartMaster):
            return {}
        if isinstance(step, DropKeys):
            return dict(list(present.items())[: max(len(present) - step.count, 0)])
        return present

    def _trouble(self, view: StoreView) -> set[str]:
        """Requests whose saves may be incomplete from now on, since a put failed."""
        failing = any(one.kind == "put" and (one.failed or one.error) for one in view.transfers)
        if not failing and view.alive:
            return set()
        return {one.id for one in self.histories.values() if one.submit.engine == self.engine}

    # Saves.

    def _newly_owed(self, observation: Observation, chunks: Iterable[ChunkForecast]) -> list[Owed]:
        """The keys that the saves of prompts completed in this step bring (TS1, TS6, TS7)."""
        owed: list[Owed] = []
        for chunk in chunks:
            history = chunk.history
            begins = any(item.request == history.id for item in observation.admitted)
            covered = history.id in self.covered and not begins
            if covered or chunk.publications.sure < history.prompt or history.id in self.excused:
                continue
            made = set() if begins else self.made.get(history.id, set())
            now = self._made_by(chunk, observation)
            began = self.shelf.clock if begins else self.began.get(history.id, 0)
            for key, entry, tail in self._due_keys(history, made | now):
                # What the store lost after it was saved is not saved again.
                if self.shelf.lost.get(key, -1) >= began:
                    continue
                owed.append(Owed(key, entry, history.id, tail, history.id in self.again, bool(now)))
        return owed

    def _made_by(self, chunk: ChunkForecast, observation: Observation) -> set[int]:
        """The positions of states that a chunk computed and that became visible in the engine's own cache."""
        visible = self.cache.visible | {self._key(one) for one in observation.published}
        states = {group.index for group in self.geometry.mamba}
        return {
            position
            for group, position in chunk.publications.must
            if group in states and self.cache.key(group, chunk.history, position) in visible
        }

    def _due_keys(self, history: History, made: set[int]) -> list[tuple[Key, Entry, bool]]:
        """Key, entry and whether only the tail brings it, of all that the saves of a prompt bring."""
        geometry, prompt = self.geometry, history.prompt
        normal = normal_span(prompt, geometry.align)
        checkpoint = geometry.checkpoint(prompt)
        places: dict[tuple[int, int], bool] = {}
        for group in geometry.attention:
            span = Span(0, 0)
            if geometry.fine:
                span = tail_span(
                    prompt, history.known, geometry.unit, geometry.align, group.margin, geometry.eagle
                )
            indices = tail_blocks(span, group.block)
            for index in range(indices.start, indices.end):
                places[group.index, tail_key(index, span, group.block)] = True
            for end in range(group.block, normal.end + 1, group.block):
                places[group.index, end] = False
        if checkpoint and checkpoint in made:
            places.update(((group.index, checkpoint), True) for group in geometry.mamba)
        return [
            (self.cache.key(group, history, at), Entry(group, at, history.id), tail)
            for (group, at), tail in places.items()
        ]

    # Following.

    def begin(self, observation: Observation, dropped: set[str], forecast: Forecast) -> None:
        """Follow an observation, before its requests and the cache are brought up to date; `dropped` are the
        requests that lose their blocks, and what they had still to save."""
        for item in observation.admitted:
            self._forget(item.request)
        for request in dropped:
            history = self.histories[request]
            history.reached_before = max(history.reached_before, history.computed)
            self.again.add(request)
            self.covered.discard(request)
            self.made.pop(request, None)
        for chunk in forecast.chunks:
            history = chunk.history
            if self.saves:
                self.made.setdefault(history.id, set()).update(self._made_by(chunk, observation))
                if chunk.publications.sure >= history.prompt:
                    self.covered.add(history.id)
            if history.id in self.loaded:
                self.loaded.discard(history.id)
                self.loading.pop(history.id)
                history.state = "running"

    def _forget(self, request: str) -> None:
        """A request begins, or loads, from now on."""
        self.began[request] = self.shelf.clock
        self.made.pop(request, None)
        self.covered.discard(request)
        self.answers.pop(request, None)

    def end(
        self, observation: Observation, dropped: set[str], forecast: Forecast
    ) -> dict[str, frozenset[tuple[int, int]]]:
        """Follow an observation, when all else is up to date; the entries that loads brought, by request,
        which may become visible from now on."""
        view, due = observation.store or StoreView(), forecast.store
        self.excused |= self._trouble(view)
        owed = due.owed if view.held_puts else ()
        self.due_saves = tuple(one for one in owed if one.request not in self.excused | dropped)
        self._follow_ends(observation, view)
        brought = self._follow_answers(view)
        for admission in forecast.loadings:
            self._follow_loading(admission)
        self.misled -= {item.request for item in observation.admitted}
        self.pins = {pin.job: pin for pin in view.pins}
        self.idle_puts, self.idle_gets = not view.held_puts, not view.held_gets
        self.shelf.clock = self.followed = self.shelf.clock + 1
        self.shelf.lost.update(dict.fromkeys(due.wiped, self.shelf.clock))
        self.shelf.keys = dict(due.seen)
        if self.configuration.lookup_async:
            for answer in view.answers:
                history = self.histories[answer.request]
                self.answers[answer.request] = self._answer(history, answer.known, self.shelf.keys)
        return brought

    def _follow_ends(self, observation: Observation, view: StoreView) -> None:
        for ended in observation.finished:
            if self.loading.pop(ended.request, None) is not None:
                if ended.request not in self.loaded and ended.request not in view.failed:
                    self.orphans.add(ended.request)
                self.loaded.discard(ended.request)

    def _follow_answers(self, view: StoreView) -> dict[str, frozenset[tuple[int, int]]]:
        brought: dict[str, frozenset[tuple[int, int]]] = {}
        for request in (*view.loaded, *view.failed):
            self.orphans.discard(request)
            if request not in self.loading:
                continue
            history = self.histories[request]
            if request in view.loaded:
                self.loaded.add(request)
                brought[request] = self._brought(self.loading[request])
            else:
                del self.loading[request]
                self.misled.add(request)
                self.failures[request] += 1
                history.state, history.computed, history.hit = "waiting", 0, None
        return brought

    def _brought(self, reach: int) -> frozenset[tuple[int, int]]:
        unit = self.geometry.unit
        places = {
            (group.index, at) for group in self.geometry.attention for at in range(unit, reach + 1, unit)
        }
        return frozenset(places | {(group.index, reach) for group in self.geometry.mamba})

    def _follow_loading(self, admission: AdmissionForecast) -> None:
        history, item = admission.history, admission.admitted
        history.state = "loading"
        history.junction = item.junction
        history.computed = item.local + item.external
        history.hit = item.local + item.external if history.hit is None else history.hit
        self._forget(history.id)
        self.loading[history.id] = history.computed
        self.misled.discard(history.id)
