"""The oracle: replays a trace beside a system under test and predicts what the system is not free to choose.

From each observation it takes the free choices (what ran, in which order and how far, what was preempted
and evicted) and predicts the rest: hits, junctions, which entries must and may be visible, outputs, ends.
Judging is the business of `tailproof.judge`; the oracle knows no verdict.
"""

from __future__ import annotations

from dataclasses import replace

from reference.cache import Key, SlowCache
from reference.events import Told
from reference.forecast import AdmissionForecast, ChunkForecast, Forecast
from reference.history import History, Prefixes, live
from reference.ledger import Ledger, Shelf
from reference.publish import publications
from spec.chunking import junction_stop, required_stops
from spec.geometry import Geometry, GroupGeometry
from spec.observation import Admitted, Counters, Entry, Observation, Scheduled, StoreView
from spec.retention import attention_tail, cacheable
from spec.trace import Abort, ResetLocal, Run, Settle, Step, Submit, Trace


class Oracle:
    """Follows one engine through one run of a trace; `beside` another of its engines, if there is one, whose
    requests and shelf it shares. Call `forecast`, then `adopt`, for each observation in order.

    `ledger` is what goes on between the engine and the store, nothing without one.
    `required` are visible entries that were promised, `materialised` the keys of everything computed since
    the last reset, and `charged` bounds the blocks filled since then. `owed` are entries that asynchronous
    scheduling publishes a step later, once it knows their tokens, and `counted` what counters have yet to
    show.
    """

    def __init__(self, trace: Trace, engine: int = 0, beside: Oracle | None = None) -> None:
        self.trace = trace
        self.engine = engine
        self.configuration = trace.configuration
        self.geometry = Geometry.of(trace.configuration)
        self.prefixes = Prefixes(trace.configuration.unit, self.geometry.hash_lookahead)
        if beside is not None:
            self.prefixes = beside.prefixes
        self.cache = SlowCache(self.geometry)
        self.histories: dict[str, History] = {} if beside is None else beside.histories
        shelf: Shelf = Shelf() if beside is None else beside.ledger.shelf
        self.ledger: Ledger = Ledger(trace.configuration, engine, shelf, self.cache, self.histories)
        self.required: dict[Key, Entry] = {}
        self.materialised: set[Key] = set()
        self.charged = 0
        self.told = Told()
        self.counted = Counters()
        self.owed: dict[Key, Entry] = {}

    def live(self) -> list[History]:
        """The requests of this engine that have arrived and not ended."""
        return live(self.histories, self.engine)

    def holds_blocks(self) -> bool:
        """Whether anything holds a block, so that the cache cannot be emptied."""
        return self.ledger.holds_blocks() or any(history.state == "running" for history in self.live())

    def expected_start(self, history: History) -> int | None:
        """Where the next chunk of a request not admitted in the step begins; None if it may not run."""
        return history.computed if history.state == "running" else self.ledger.expected_start(history)

    def step(self, observation: Observation) -> Step:
        """The trace step that an observation belongs to."""
        return self.trace.steps[observation.at]

    def forecast(self, observation: Observation) -> Forecast:
        """What the observation must agree with; changes nothing but arrivals."""
        step = self.step(observation)
        if isinstance(step, Submit) and step.id not in self.histories:
            self.histories[step.id] = History.of(step, self.prefixes, self.histories)
        # Where the target broke off, nothing was seen any more.
        view = observation.store or StoreView()
        base = Forecast(
            live_before=tuple(history.id for history in self.live()),
            roomy=self._roomy(),
            loadings=tuple(self._admission(item, self.histories[item.request]) for item in view.loading),
        )
        if isinstance(step, ResetLocal):
            base = replace(base, reset_succeeds=self._resets(step))
        elif isinstance(step, Run | Settle) and observation.do != "gate":
            base = self._forecast_engine_step(observation, step.accept, base)
        else:
            waiting = tuple(history.id for history in self.live() if history.state == "waiting")
            base = replace(base, required=self.required, waiting=waiting)
        return replace(base, store=self.ledger.forecast(observation, step, view, base.chunks))

    def _resets(self, step: ResetLocal) -> bool | None:
        """Whether a reset must take effect; None where it may."""
        if self.ledger.holds_blocks():
            return False
        return None if self.ledger.holds_back_blocks() else step.running or not self.holds_blocks()

    def _forecast_engine_step(self, observation: Observation, accept: int, base: Forecast) -> Forecast:
        admitted = {item.request: item for item in observation.admitted}
        admissions: list[AdmissionForecast] = []
        chunks: list[ChunkForecast] = []
        must: dict[Key, Entry] = {}
        may: set[Key] = set()
        ends: dict[str, tuple[int, ...]] = {}
        settled = {history.id: history.known for history in self.live()}
        for item in observation.scheduled:
            history = self.histories[item.request]
            start = self.expected_start(history)
            junction = history.junction
            if item.request in admitted:
                choice = admitted[item.request]
                admissions.append(self._admission(choice, history))
                # Hit and junction are judged on their own; what follows is judged by what was taken.
                start, junction = choice.local + choice.external, choice.junction
            chunk = self._chunk(item, history, start, junction)
            chunks.append(chunk)
            due = self._keyed(history, chunk.publications.must)
            must.update(due)
            may.update(self._keyed(history, chunk.publications.may), due)
            accepted = 0 if item.request in admitted else min(accept, item.drafts)
            if chunk.publications.sure >= history.known and not self.configuration.asynchronous:
                produced = min(history.produced + 1 + accepted, history.submit.outputs)
                settled[item.request] = history.prompt + produced
                may.update(self._accepted(history, chunk.publications.sure, accepted))
                if produced >= history.submit.outputs:
                    ends[item.request] = tuple(history.sampled)
        complete = frozenset(one.id for one in self.live() if one.produced >= one.submit.outputs)
        if self.configuration.asynchronous:
            ends = {request: tuple(self.histories[request].sampled) for request in complete}
        must, owed = self._due_now(must, observation, settled)
        for chunk in chunks:
            must.update(self._keyed(chunk.history, self.ledger.promoted(chunk.history)))
        told = None
        if observation.events is not None:
            told = self.told.after(observation.events, self._key_of)
        return replace(
            base,
            computed=self.materialised,
            required=self.required,
            held=self._held_entries(observation),
            told=told,
            counters=self._counters([*admissions, *base.loadings]),
            complete=complete,
            owed=owed,
            verified=sum(map(self._verified, chunks)),
            fits=self._fits(),
            admissions=tuple(admissions),
            chunks=tuple(chunks),
            must=must,
            may=frozenset(may),
            ends=ends,
        )

    def _key_of(self, entry: Entry) -> Key:
        return self.cache.key_of(entry, self.histories)

    def _due_now(
        self, must: dict[Key, Entry], observation: Observation, settled: dict[str, int]
    ) -> tuple[dict[Key, Entry], dict[Key, Entry]]:
        """Of what must become visible, what is due in this step, and what is owed until its tokens are known.

        Due is what was known when the step was scheduled, and what was owed before by requests that are
        neither preempted nor gone, once the answers that the step brings make its tokens known (`settled`).
        Without asynchronous scheduling they are those of the step itself. A state or a window that has no
        name with the answer of its own step is owed no longer: its block moves on.
        """
        lookahead = self.geometry.hash_lookahead
        gone = {*observation.preempted}
        gone |= {one.id for one in self.histories.values() if one.state != "running"}
        before = {
            key: entry
            for key, entry in self.owed.items()
            if entry.request not in gone
            and (self.configuration.asynchronous or self.geometry.groups[entry.group].kind == "full")
        }
        now = {
            key: entry
            for key, entry in before.items()
            if entry.position + lookahead <= settled.get(entry.request, 0)
        }
        owed = {
            key: entry
            for key, entry in before.items()
            if key not in now and self.geometry.groups[entry.group].kind == "full"
        }
        for key, entry in must.items():
            known = settled[entry.request] - lookahead
            if self.configuration.asynchronous:
                known = self._known(entry)
            (now if entry.position <= known else owed)[key] = entry
        return now, owed

    def _known(self, entry: Entry) -> int:
        """How far the scheduler can name an entry's request: the tokens that it knows, without those that
        draft modules rewrite and those that a hash covers past its unit."""
        history = self.histories[entry.request]
        unfinished = self.geometry.unfinished if self.geometry.groups[entry.group].drops else 0
        return history.prompt + history.told - max(unfinished, self.geometry.hash_lookahead)

    def _accepted(self, history: History, sure: int, accepted: int) -> dict[Key, Entry]:
        """What accepted drafts filled, which may be published with the answer already."""
        geometry, end = self.geometry, sure + accepted
        places: set[tuple[int, int]] = set()
        for group in (*geometry.attention, *geometry.windows):
            rewritten = geometry.unfinished if group.drops else 0
            filled = range(geometry.unit, end - rewritten + 1, geometry.unit)
            places.update((group.index, at) for at in filled if at > sure - rewritten)
        boundary = end // geometry.mamba_block * geometry.mamba_block
        if boundary > sure:
            places.update((group.index, boundary) for group in geometry.mamba)
        return self._keyed(history, frozenset(places))

    def _held_entries(self, observation: Observation) -> dict[Key, Entry]:
        """Entries of attention blocks, full or the prompt's last, that a running request holds; none are
        named where nothing was withdrawn."""
        if not observation.withdrawn:
            return {}
        held: dict[Key, Entry] = {}
        for history in self.live():
            if history.state != "running" or history.id in observation.preempted:
                continue
            known = min(history.computed, history.prompt + history.told - self.geometry.hash_lookahead)
            for group in self.geometry.attention:
                reach = self._cacheable(known, group)
                tail = attention_tail(
                    history.prompt, self.geometry.unit, group.drops, self.geometry.hash_lookahead
                )
                ends = range(group.block, reach + 1, group.block)
                for position in (*ends, tail) if self.geometry.fine and 0 < tail <= reach else ends:
                    key = self.cache.key(group.index, history, position)
                    held[key] = Entry(group.index, position, history.id)
        return held

    def _cacheable(self, tokens: int, group: GroupGeometry) -> int:
        geometry = self.geometry
        return cacheable(tokens, group.block, geometry.align, group.drops, geometry.fine, geometry.unfinished)

    def _counters(self, admissions: list[AdmissionForecast]) -> Counters:
        first = [admission for admission in admissions if admission.history.hit is None]
        again = [admission for admission in admissions if admission.history.hit is not None]
        return Counters(
            self.counted.requests + len(first),
            self.counted.queries + sum(admission.history.known for admission in first),
            self.counted.hits + sum(admission.admitted.local for admission in first),
            self.counted.preempted_requests + len(again),
            self.counted.preempted_queries + sum(admission.history.known for admission in again),
            self.counted.preempted_hits + sum(admission.admitted.local for admission in again),
        )

    def _verified(self, chunk: ChunkForecast) -> int:
        """Tokens and states that the content check reads for a chunk."""
        start, total = chunk.scheduled.start, 0
        for group in self.geometry.groups:
            if group.kind == "mamba":
                total += start > 0
                continue
            first = max(start - group.window + 1, 0) if group.window else 0
            total += start - first
        return total

    def _admission(self, admitted: Admitted, history: History) -> AdmissionForecast:
        appeared = {self.cache.key_of(entry, self.histories) for entry in admitted.appeared}
        gone = {self.cache.key_of(entry, self.histories) for entry in admitted.gone}
        visible = (self.cache.visible | appeared) - gone
        fresh = {
            position
            for group in self.geometry.mamba
            for position in range(self.geometry.unit, history.known, self.geometry.unit)
            if position <= len(history.final_numbers) * self.geometry.unit
            and self.cache.key(group.index, history, position) in appeared
        }
        lookup = self.cache.lookup(history, visible)
        return AdmissionForecast(admitted, history, lookup, frozenset(visible), frozenset(fresh))

    def _chunk(self, item: Scheduled, history: History, start: int | None, junction: int) -> ChunkForecast:
        kept, history.junction = history.junction, junction
        left = publications(self.configuration, self.geometry, history, item.start, item.end, item.drafts)
        history.junction = kept
        prefill = item.start < history.prefill_end
        stops: dict[str, int] = {}
        if prefill:
            stops = required_stops(
                start=item.start,
                prompt=history.prompt,
                tokens=history.known,
                junction=junction_stop(
                    junction, history.prompt, self.geometry.mamba_block, self.geometry.junctions
                ),
                can_export=self.geometry.mamba[0].checkpoint_alignment is not None,
                export=left.export if (self.geometry.mamba[0].index, left.export) in left.must else 0,
                checkpoint=self.geometry.checkpoint,
                block_checkpoint=self.geometry.block_checkpoint,
                lookahead=self.geometry.lookahead,
            )
        return ChunkForecast(item, history, start, stops, left, prefill)

    def _keyed(self, history: History, places: frozenset[tuple[int, int]]) -> dict[Key, Entry]:
        reach = len(history.final_numbers) * self.geometry.unit
        return {
            self.cache.key(group, history, position): Entry(group, position, history.id)
            for group, position in places
            if position <= reach
        }

    def _roomy(self) -> bool:
        """Whether the pool surely holds all that was admitted since the last reset, and all that waits: every
        admission may take blocks of its own, also for keys that are visible already."""
        waiting = sum(self._need(history) for history in self.live() if history.state == "waiting")
        return self.charged + waiting < self.configuration.blocks

    def _need(self, history: History) -> int:
        """Blocks that one admission of a request can fill at most, those that it leaves in the cache too."""
        left = -(-self._length(history) // self.geometry.mamba_block) * len(self.geometry.mamba)
        return self._held(history) + left

    def _held(self, history: History) -> int:
        """Blocks that a running request holds at most."""
        length, speculative = self._length(history), self.configuration.speculative
        blocks = [group.block for group in (*self.geometry.attention, *self.geometry.windows)]
        return sum(-(-length // block) + 2 for block in blocks) + (5 + speculative) * len(self.geometry.mamba)

    def _length(self, history: History) -> int:
        return history.prompt + history.submit.outputs + 2 * self.configuration.speculative + 1

    def _fits(self) -> bool:
        """Whether each live request fits into the pool when it has it for itself."""
        return all(self._held(history) < self.configuration.blocks for history in self.live())

    def adopt(self, observation: Observation, forecast: Forecast) -> None:
        """Follow the observed run: take over its choices and what it made visible."""
        step = self.step(observation)
        dropped = {*observation.preempted, *self._preempted_by_reset(step)}
        self.ledger.begin(observation, dropped, forecast)
        if isinstance(step, ResetLocal) and observation.reset:
            self.required.clear()
            self.materialised.clear()
            self.charged = 0
        for request in dropped:
            history = self.histories[request]
            history.state, history.computed = "waiting", 0
            history.exports.clear()
            if isinstance(step, ResetLocal) and self.configuration.asynchronous:
                history.forget(self.prefixes)
        for admission in forecast.admissions:
            history = admission.history
            history.state = "running"
            self.charged += self._need(history)
            history.junction = admission.admitted.junction
            if history.hit is None:
                history.hit = admission.admitted.local + admission.admitted.external
        fresh = {item.request for item in observation.admitted}
        self._account(observation, forecast)
        for chunk in forecast.chunks:
            self._advance(chunk, step, chunk.scheduled.request in fresh)
        withdrawn = {self.cache.key_of(entry, self.histories) for entry in observation.withdrawn}
        self.cache.visible -= withdrawn
        self.cache.publish(self.cache.key_of(entry, self.histories) for entry in observation.published)
        self.required.update(
            (key, entry) for key, entry in forecast.must.items() if key in self.cache.visible
        )
        for key in withdrawn:
            self.required.pop(key, None)
        self.materialised.update(forecast.may)
        for finished in observation.finished:
            self.histories[finished.request].state = "finished"
        if isinstance(step, Abort):
            self.histories[step.id].state = "finished"
        for request, places in self.ledger.end(observation, dropped, forecast).items():
            self.materialised.update(self._keyed(self.histories[request], places))
        self.charged += sum(self._need(admission.history) for admission in forecast.loadings)

    def _account(self, observation: Observation, forecast: Forecast) -> None:
        """Take over what concerns asynchronous scheduling, events and counters."""
        if forecast.told is not None:
            self.told = forecast.told
        if isinstance(self.step(observation), Run | Settle) and observation.do != "gate":
            self.counted = Counters() if observation.counters is not None else forecast.counters
            self.owed = forecast.owed
            for history in self.live():
                history.told = history.produced

    def _preempted_by_reset(self, step: Step) -> list[str]:
        if isinstance(step, ResetLocal) and step.running:
            return [history.id for history in self.live() if history.state == "running"]
        return []

    def _advance(self, chunk: ChunkForecast, step: Step, admitted: bool) -> None:
        history, item = chunk.history, chunk.scheduled
        history.computed = item.end
        if chunk.publications.export:
            history.exports[chunk.publications.overwritten] = chunk.publications.export
        if chunk.publications.sure < history.known:
            return
        assert isinstance(step, Run | Settle)
        # The drafts of a request just admitted are padding, never accepted.
        accepted = 0 if admitted else min(step.accept, item.drafts)
        history.computed = chunk.publications.sure + accepted
        boundary = history.computed // self.geometry.mamba_block * self.geometry.mamba_block
        history.crossed_boundary = boundary if boundary > chunk.publications.sure else 0
        history.produce(1 + accepted, self.prefixes)
        if not self.configuration.asynchronous:
            history.told = history.produced
            return
        # What accepted drafts filled may be published with the answer, before the next step.
        unit = self.geometry.unit
        whole = range(unit, history.computed // unit * unit + 1, unit)
        filled = {(group.index, position) for group in self.geometry.attention for position in whole}
        filled.update((group.index, position) for group in self.geometry.windows for position in whole)
        if history.crossed_boundary:
            filled.update((group.index, history.crossed_boundary) for group in self.geometry.mamba)
        self.materialised.update(self._keyed(history, frozenset(filled)))


def oracles(trace: Trace) -> list[Oracle]:
    """The oracles of a trace, one per engine; they share requests, identities of prefixes and the shelf."""
    first = Oracle(trace)
    return [first, *(Oracle(trace, engine, first) for engine in range(1, len(trace.configuration.roles)))]
