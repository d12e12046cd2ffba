"""The oracle: replays a trace beside a system under test and predicts what the system is not free to choose.

From each observation it takes the free choices (what ran, in which order and how far, what was preempted
and evicted) and predicts the rest: hits, junctions, which entries must and may be visible, outputs, ends.
Judging is the business of `tailproof.lockstep`; the oracle knows no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from reference.cache import Key, Lookup, SlowCache
from reference.history import History, Prefixes
from reference.publish import Publications, publications
from spec.chunking import junction_stop, required_stops
from spec.geometry import Geometry
from spec.observation import Admitted, Entry, Observation, Scheduled
from spec.trace import Abort, ResetLocal, Run, Settle, Step, Submit, Trace


@dataclass(frozen=True, slots=True)
class AdmissionForecast:
    """What an admitted request is due: `lookup` over the entries `visible` at the moment of its lookup;
    `fresh` are Mamba positions of its prefix that were published earlier in the same step."""

    admitted: Admitted
    history: History
    lookup: Lookup
    visible: frozenset[Key]
    fresh: frozenset[int]


@dataclass(frozen=True, slots=True)
class ChunkForecast:
    """One scheduled chunk. `expected_start` is where it must begin, None for a request that has no business
    running; `stops` the required stops by name; `publications` what it leaves; `prefill` whether it still
    reads the prompt."""

    scheduled: Scheduled
    history: History
    expected_start: int | None
    stops: dict[str, int]
    publications: Publications
    prefill: bool


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one observation must agree with. Keys are (group, identity of a prefix).

    `must` has to be visible after the step; `missing` of these were not seen, `stray` were seen but may not
    be visible, `lost` had to stay visible and vanished. `live_before` are the requests not ended before the
    step, `waiting` those of them not running. `roomy` tells that the pool can hold everything, so
    nothing may be evicted or stall, `fits` that each live request fits alone; `ends` the requests that must
    end in this step with their outputs.
    """

    admissions: tuple[AdmissionForecast, ...] = ()
    chunks: tuple[ChunkForecast, ...] = ()
    must: dict[Key, Entry] = field(default_factory=dict)
    may: frozenset[Key] = frozenset()
    missing: tuple[Entry, ...] = ()
    stray: tuple[Entry, ...] = ()
    lost: tuple[Entry, ...] = ()
    ends: dict[str, tuple[int, ...]] = field(default_factory=dict)
    live_before: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    roomy: bool = True
    fits: bool = True
    reset_succeeds: bool | None = None


class Oracle:
    """Follows one run of a trace. Call `forecast`, then `adopt`, for each observation in order.

    `passed` are visible Mamba keys of block ends that an exporting chunk, begun inside the block, ran past:
    it computed no state there, and may have registered another under the key. `charged` bounds the blocks
    filled since the last reset.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.configuration = trace.configuration
        self.geometry = Geometry.of(trace.configuration)
        self.prefixes = Prefixes(trace.configuration.unit)
        self.cache = SlowCache(self.geometry)
        self.histories: dict[str, History] = {}
        self.required: dict[Key, Entry] = {}
        self.materialised: set[Key] = set()
        self.passed: set[Key] = set()
        self.charged = 0

    def live(self) -> list[History]:
        """The requests that have arrived and not ended."""
        return [history for history in self.histories.values() if history.state != "finished"]

    def step(self, observation: Observation) -> Step:
        """The trace step that an observation belongs to."""
        return self.trace.steps[observation.at]

    def forecast(self, observation: Observation) -> Forecast:
        """What the observation must agree with; changes nothing but arrivals."""
        step = self.step(observation)
        if isinstance(step, Submit) and step.id not in self.histories:
            self.histories[step.id] = History.of(step, self.prefixes, self.histories)
        before = tuple(history.id for history in self.live())
        roomy = self._roomy()
        if isinstance(step, ResetLocal):
            held = any(history.state == "running" for history in self.live())
            return Forecast(live_before=before, roomy=roomy, reset_succeeds=step.running or not held)
        if not isinstance(step, Run | Settle):
            lost = self._lost({self.cache.key_of(entry, self.histories) for entry in observation.withdrawn})
            return Forecast(
                lost=lost,
                stray=observation.published,
                live_before=before,
                waiting=tuple(history.id for history in self.live() if history.state == "waiting"),
                roomy=roomy,
            )
        return self._forecast_engine_step(observation, step.accept, before, roomy)

    def _forecast_engine_step(
        self, observation: Observation, accept: int, before: tuple[str, ...], roomy: bool
    ) -> Forecast:
        published = {self.cache.key_of(entry, self.histories): entry for entry in observation.published}
        withdrawn = {self.cache.key_of(entry, self.histories) for entry in observation.withdrawn}
        admitted = {item.request: item for item in observation.admitted}
        admissions: list[AdmissionForecast] = []
        chunks: list[ChunkForecast] = []
        must: dict[Key, Entry] = {}
        may: set[Key] = set()
        ends: dict[str, tuple[int, ...]] = {}
        for item in observation.scheduled:
            history = self.histories[item.request]
            start: int | None = history.computed if history.state == "running" else None
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
            if chunk.publications.sure >= history.known:
                produced = history.produced + 1 + accepted
                if produced >= history.submit.outputs:
                    ends[item.request] = tuple(history.sampled)
        return Forecast(
            fits=self._fits(),
            admissions=tuple(admissions),
            chunks=tuple(chunks),
            must=must,
            may=frozenset(may),
            missing=tuple(
                entry
                for key, entry in must.items()
                if key not in published and (key not in self.cache.visible or key in withdrawn)
            ),
            stray=tuple(
                entry for key, entry in published.items() if key not in may and key not in self.materialised
            ),
            lost=self._lost(withdrawn),
            ends=ends,
            live_before=before,
            roomy=roomy,
        )

    def _admission(self, admitted: Admitted, history: History) -> AdmissionForecast:
        appeared = {self.cache.key_of(entry, self.histories) for entry in admitted.appeared}
        gone = {self.cache.key_of(entry, self.histories) for entry in admitted.gone}
        visible = (self.cache.visible | appeared) - gone
        fresh = {
            position
            for group in self.geometry.mamba
            for position in range(self.geometry.unit, history.known, self.geometry.unit)
            if self.cache.key(group.index, history, position) in appeared
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
            )
        return ChunkForecast(item, history, start, stops, left, prefill)

    def _keyed(self, history: History, places: frozenset[tuple[int, int]]) -> dict[Key, Entry]:
        reach = len(history.numbers) * self.geometry.unit
        return {
            self.cache.key(group, history, position): Entry(group, position, history.id)
            for group, position in places
            if position <= reach
        }

    def _lost(self, withdrawn: set[Key]) -> tuple[Entry, ...]:
        return tuple(self.required[key] for key in withdrawn if key in self.required)

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
        attention = sum(-(-length // group.block) + 2 for group in self.geometry.attention)
        return attention + (5 + speculative) * len(self.geometry.mamba)

    def _length(self, history: History) -> int:
        return history.prompt + history.submit.outputs + 2 * self.configuration.speculative + 1

    def _fits(self) -> bool:
        """Whether each live request fits into the pool when it has it for itself."""
        return all(self._held(history) < self.configuration.blocks for history in self.live())

    def adopt(self, observation: Observation, forecast: Forecast) -> None:
        """Follow the observed run: take over its choices and what it made visible."""
        step = self.step(observation)
        if isinstance(step, ResetLocal) and observation.reset:
            self.required.clear()
            self.materialised.clear()
            self.passed.clear()
            self.charged = 0
        for request in (*observation.preempted, *self._preempted_by_reset(step, observation)):
            history = self.histories[request]
            history.state, history.computed = "waiting", 0
        for admission in forecast.admissions:
            history = admission.history
            history.state = "running"
            self.charged += self._need(history)
            history.junction = admission.admitted.junction
            if history.hit is None:
                history.hit = admission.admitted.local + admission.admitted.external
        fresh = {item.request for item in observation.admitted}
        for chunk in forecast.chunks:
            self._advance(chunk, step, chunk.scheduled.request in fresh)
        withdrawn = {self.cache.key_of(entry, self.histories) for entry in observation.withdrawn}
        self.cache.visible -= withdrawn
        self.cache.publish(self.cache.key_of(entry, self.histories) for entry in observation.published)
        self._note_passed(forecast)
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

    def _note_passed(self, forecast: Forecast) -> None:
        block, unit = self.geometry.mamba_block, self.geometry.unit
        for chunk in forecast.chunks:
            item, history = chunk.scheduled, chunk.history
            boundary = -(-item.start // block) * block
            known = boundary // unit <= len(history.numbers)
            if chunk.publications.export and known and item.start < boundary < item.end:
                keys = {self.cache.key(group.index, history, boundary) for group in self.geometry.mamba}
                self.passed |= keys & self.cache.visible

    def _preempted_by_reset(self, step: Step, observation: Observation) -> list[str]:
        if isinstance(step, ResetLocal) and step.running and observation.reset:
            return [history.id for history in self.live() if history.state == "running"]
        return []

    def _advance(self, chunk: ChunkForecast, step: Step, admitted: bool) -> None:
        history, item = chunk.history, chunk.scheduled
        history.computed = item.end
        if chunk.publications.sure < history.known:
            return
        assert isinstance(step, Run | Settle)
        # The drafts of a request just admitted are padding, never accepted.
        accepted = 0 if admitted else min(step.accept, item.drafts)
        history.computed = chunk.publications.sure + accepted
        boundary = history.computed // self.geometry.mamba_block * self.geometry.mamba_block
        history.crossed = boundary if boundary > chunk.publications.sure else 0
        history.produce(1 + accepted, self.prefixes)
