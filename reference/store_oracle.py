"""The oracle of the store tier: what an engine must find in the store, put there, pin, load and give back.

One for each engine of a case; all share the requests, the identity of prefixes and the shelf, which is what
the store was seen to hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from reference.cache import Key
from reference.history import History
from reference.oracle import ChunkForecast, Forecast, Oracle
from reference.store_forecast import Owed, StoreForecast
from reference.store_puts import made_by, newly_owed, put_keys
from spec.liveness import after_failed_load
from spec.observation import Admitted, Entry, Observation, Pin, StoreView
from spec.trace import (
    DropKeys,
    KillMaster,
    ResetLocal,
    ResetStore,
    RestartMaster,
    Trace,
)

ENGINE_STEPS = ("run", "settle")


class Shelf:
    """What the store was seen to hold after the last observation, in order of arrival. `clock` counts
    observations, `lost` tells when a key was last seen to vanish."""

    def __init__(self) -> None:
        self.keys: dict[Key, Entry] = {}
        self.clock = 0
        self.lost: dict[Key, int] = {}


class StoreOracle(Oracle):
    """Follows one engine with a store. Beside what `Oracle` keeps:

    `answers` are asynchronous lookups that were answered and not used yet (what they must and may give, in
    tokens); `loading` and `loaded` requests by where they will go on, `orphans` loads of requests that have
    ended, `misled` requests whose load failed, `failures` how often. `pins` are the store jobs that hold
    blocks, `due_saves` keys that the store must hold when the saves have ended, `made` Mamba positions that a
    request computed since it last began (`began`, on the shelf's clock), `covered` requests whose prompt is
    computed, `excused` requests whose saves may be incomplete. `again` are requests that were preempted.
    `idle_puts` and `idle_gets` tell that nothing stood at the gate after the last observation."""

    def __init__(self, trace: Trace, engine: int, shelf: Shelf, beside: Oracle | None = None) -> None:
        super().__init__(trace, engine, beside)
        self.role = trace.configuration.roles[engine]
        self.shelf = shelf
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

    @property
    def saves(self) -> bool:
        """Whether the engine saves what its prompts compute."""
        return self.role in ("producer", "both")

    def holds_blocks(self) -> bool:
        """Requests, loads and saves hold blocks."""
        return super().holds_blocks() or bool(self.loading or self.orphans or self.pins)

    def _resets(self, step: ResetLocal) -> bool | None:
        if self.loading or self.orphans or self.pins:
            return False
        # The blocks of a failed load go back when the queue next reaches its request.
        return None if any(one.id in self.misled for one in self.live()) else super()._resets(step)

    def expected_start(self, history: History) -> int | None:
        """A request whose load has come in goes on behind it."""
        if history.id in self.loaded:
            return self.loading[history.id]
        return super().expected_start(history)

    def forecast(self, observation: Observation) -> Forecast:
        """What the observation must agree with; changes nothing but arrivals."""
        base = super().forecast(observation)
        # Where the target broke off, nothing was seen any more.
        view = observation.store or StoreView()
        loadings = tuple(self._admission(item, self.histories[item.request]) for item in view.loading)
        if loadings:
            base = replace(base, counters=self._counters([*base.admissions, *loadings]))
        promoted = self._promoted(base)
        if promoted:
            base = self._with_promoted(base, promoted)
        return replace(base, loadings=loadings, store=self._store_forecast(observation, view, base))

    # Lookups and loads.

    def external(self, history: History, keys: Iterable[Key], whole: bool = False) -> int:
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
        return self.external(history, keys), self.external(history, keys, whole=True)

    def _promoted(self, base: Forecast) -> list[ChunkForecast]:
        return [chunk for chunk in base.chunks if chunk.history.id in self.loaded]

    def _with_promoted(self, base: Forecast, promoted: list[ChunkForecast]) -> Forecast:
        """What a load brought becomes visible when its request goes on."""
        due: dict[Key, Entry] = {}
        for chunk in promoted:
            reach = self.loading[chunk.history.id]
            places: set[tuple[int, int]] = set()
            for group in self.geometry.attention:
                places.update((group.index, at) for at in range(group.block, reach + 1, group.block))
            due.update(self._keyed(chunk.history, frozenset(places)))
        return replace(base, must={**base.must, **due})

    # Keys and pins.

    def _store_forecast(self, observation: Observation, view: StoreView, base: Forecast) -> StoreForecast:
        step = self.step(observation)
        engine_step = observation.do in ENGINE_STEPS
        external, widest, unknown = self._external_due(view, (*observation.admitted, *view.loading))
        present = put_keys(self, view.transfers)
        owed = (*self.due_saves, *newly_owed(self, observation, base)) if self.saves else ()
        trouble = self._trouble(view)
        gone = {self.cache.key_of(entry, self.histories) for entry in view.dropped}
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
                one.id for one in self.live() if self.failures[one.id] and one.state != "running"
            ),
            refused=frozenset(failed if lead == "error" else ()),
            wiped=frozenset((present.keys() | gone) - seen.keys()),
            away=self._away(observation, view),
            # The blocks of a failed load go back when the queue next reaches its request.
            at_rest=not (
                self.loading
                or self.orphans
                or view.loading
                or view.pins
                or any(one.id in self.misled for one in self.live())
            ),
        )

    def _away(self, observation: Observation, view: StoreView) -> frozenset[str]:
        """Requests of which nothing could be scheduled in the step: they load, or wait for an answer."""
        away = {request for request in self.loading if request not in self.loaded}
        away |= {item.request for item in view.loading}
        if self.configuration.lookup_async:
            away |= {one.id for one in self.live() if one.state == "waiting" and one.id not in self.answers}
            # An answer is used up where its request is not admitted, and asked for again.
            away |= {answer.request for answer in view.answers}
        return frozenset(away)

    def _seen(self, view: StoreView) -> dict[Key, Entry]:
        seen = dict(self.shelf.keys)
        for entry in view.dropped:
            seen.pop(self.cache.key_of(entry, self.histories), None)
        for entry in view.stored:
            seen[self.cache.key_of(entry, self.histories)] = entry
        return seen

    def _expected(self, step: object, present: dict[Key, Entry]) -> dict[Key, Entry]:
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

    # Following.

    def adopt(self, observation: Observation, forecast: Forecast) -> None:
        """Follow the observed run: take over its choices and what it made visible."""
        view, due = observation.store or StoreView(), forecast.store
        step = self.step(observation)
        admitted = {item.request for item in observation.admitted}
        for request in admitted:
            self.began[request] = self.shelf.clock
            self.made.pop(request, None)
            self.covered.discard(request)
            self.answers.pop(request, None)
        dropped = set(observation.preempted)
        if isinstance(step, ResetLocal) and step.running:
            dropped |= {one.id for one in self.live() if one.state == "running"}
        self._forget_saves(dropped)
        for chunk in forecast.chunks:
            history = chunk.history
            self.made.setdefault(history.id, set()).update(made_by(self, chunk, observation))
            if chunk.publications.sure >= history.prompt:
                self.covered.add(history.id)
            if history.id in self.loaded:
                self.loaded.discard(history.id)
                self.loading.pop(history.id)
                history.state = "running"
        super().adopt(observation, forecast)
        self.excused |= self._trouble(view)
        owed = due.owed if view.held_puts else ()
        self.due_saves = tuple(one for one in owed if one.request not in self.excused | dropped)
        self._follow_loads(observation, view, forecast)
        self.pins = {pin.job: pin for pin in view.pins}
        self.idle_puts, self.idle_gets = not view.held_puts, not view.held_gets
        self.shelf.clock += 1
        self.shelf.lost.update(dict.fromkeys(due.wiped, self.shelf.clock))
        self.shelf.keys = dict(due.seen)
        if self.configuration.lookup_async:
            for answer in view.answers:
                history = self.histories[answer.request]
                self.answers[answer.request] = self._answer(history, answer.known, self.shelf.keys)

    def _forget_saves(self, requests: Iterable[str]) -> None:
        """What preempted requests had still to save is dropped."""
        for request in requests:
            history = self.histories[request]
            history.most = max(history.most, history.computed)
            self.again.add(request)
            self.covered.discard(request)
            self.made.pop(request, None)

    def _follow_loads(self, observation: Observation, view: StoreView, forecast: Forecast) -> None:
        for ended in observation.finished:
            if self.loading.pop(ended.request, None) is not None:
                if ended.request not in self.loaded and ended.request not in view.failed:
                    self.orphans.add(ended.request)
                self.loaded.discard(ended.request)
        for request in (*view.loaded, *view.failed):
            self.orphans.discard(request)
            if request not in self.loading:
                continue
            history = self.histories[request]
            if request in view.loaded:
                self.loaded.add(request)
                self._note_loaded(history)
            else:
                del self.loading[request]
                self.misled.add(request)
                self.failures[request] += 1
                history.state, history.computed, history.hit = "waiting", 0, None
        for admission in forecast.loadings:
            history, item = admission.history, admission.admitted
            history.state = "loading"
            history.junction = item.junction
            history.computed = item.local + item.external
            history.hit = item.local + item.external if history.hit is None else history.hit
            self.loading[history.id] = history.computed
            self.began[history.id] = self.shelf.clock
            self.answers.pop(history.id, None)
            self.misled.discard(history.id)
            self.made.pop(history.id, None)
            self.covered.discard(history.id)
            self.charged += self._need(history)
        self.misled -= {item.request for item in observation.admitted}

    def _note_loaded(self, history: History) -> None:
        """What a load brought may become visible from now on."""
        unit, reach = self.geometry.unit, self.loading[history.id]
        places = {
            (group.index, at) for group in self.geometry.attention for at in range(unit, reach + 1, unit)
        }
        places.update((group.index, reach) for group in self.geometry.mamba)
        self.materialised.update(self._keyed(history, frozenset(places)))


def oracles(trace: Trace) -> list[Oracle]:
    """The oracles of a trace, one per engine."""
    if trace.configuration.store == "off":
        return [Oracle(trace)]
    shelf = Shelf()
    first: Oracle = StoreOracle(trace, 0, shelf)
    rest = range(1, len(trace.configuration.roles))
    return [first, *(StoreOracle(trace, engine, shelf, first) for engine in rest)]
