"""Counts how often a run with a store reached each axis and phase where its faults live, and each rule."""

from __future__ import annotations

from collections.abc import Iterator

from reference.oracle import ChunkForecast, Forecast
from spec.geometry import Geometry
from spec.observation import Entry, Observation, StoreView, Transfer
from spec.tail import completes, tail_span
from spec.trace import (
    NAMES,
    STORE_STEPS,
    Abort,
    Configuration,
    DropKeys,
    Gate,
    ResetLocal,
    Run,
    Settle,
    Step,
    Trace,
)
from tailproof.reach import folded

SAVERS = ("producer", "both")

# Rows: features of a whole case.
STORE_AXES: tuple[str, ...] = (
    "store both",
    "store producer",
    "store consumer",
    "store producer + consumer",
    "store both + both",
    "store consumer + both",
    "lookups beside the schedule",
    "lookups in the schedule",
    "decode saves",
    "loads on several threads",
    "failed loads end their request",
    "failed loads are computed anew",
)

# Columns, counted once per request, call or step that they happen to.
STORE_PHASES: tuple[str, ...] = (
    "load inside a block",
    "load at a block end",
    "load on top of a local hit",
    "load reported",
    "load failed",
    "load of a request that has ended",
    "loaded request scheduled",
    "aborted while loading",
    "lookup answered",
    "lookup failed",
    "put made",
    "put of a state",
    "put of a part of a block",
    "put while decoding",
    "put failed",
    "put of some keys only",
    "get made",
    "get failed",
    "job reported",
    "blocks pinned while others compute",
    "ended with its save under way",
    "aborted with its save under way",
    "preempted with its save under way",
    "reset refused for a load or a save",
    "puts held",
    "gets held",
    "several gets held",
    "lookups held",
    "keys lost",
    "store emptied",
    "step without the master",
    "prompt resumed and saved",
    "prompt with a junction saved",
)

STORE_TAGS = (*STORE_AXES, *STORE_PHASES)


def store_axes(configuration: Configuration) -> tuple[str, ...]:
    """The rows that a case counts in, in the order of STORE_AXES; none without a store."""
    if configuration.store == "off":
        return ()
    beside, anew = configuration.lookup_async, configuration.load_failures == "recompute"
    found = {
        f"store {' + '.join(configuration.roles)}",
        f"lookups {'beside' if beside else 'in'} the schedule",
        "failed loads are computed anew" if anew else "failed loads end their request",
    }
    if configuration.decode_saves:
        found.add("decode saves")
    if configuration.receivers > 1:
        found.add("loads on several threads")
    return tuple(axis for axis in STORE_AXES if axis in found)


def fault_name(step: Step) -> str | None:
    """What a step does to the store or to calls of it, as reports count it; None for other steps."""
    if not isinstance(step, STORE_STEPS):
        return None
    return f"gate {step.kind} {step.action}" if isinstance(step, Gate) else NAMES[type(step)]


class StoreReach:
    """The table: `counts[axis][phase]` is how often the phase was met in a case with that feature, `totals`
    how many cases had each feature and how often each phase was met. Call `case` before the steps of a case.
    """

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int]] = {axis: dict.fromkeys(STORE_PHASES, 0) for axis in STORE_AXES}
        self.totals: dict[str, int] = dict.fromkeys(STORE_TAGS, 0)
        self._rows: tuple[str, ...] = ()
        self._block = 1
        self._loading: set[str] = set()
        self._loaded: set[str] = set()
        self._running: dict[int, tuple[str, ...]] = {}

    def case(self, trace: Trace) -> None:
        """Begin a case."""
        self._rows = store_axes(trace.configuration)
        self._block = Geometry.of(trace.configuration).mamba_block
        self._loading.clear()
        self._loaded.clear()
        self._running.clear()
        for axis in self._rows:
            self.totals[axis] += 1

    def step(self, trace: Trace, observation: Observation, forecast: Forecast) -> list[str]:
        """Count the phases of one observation; returns them, none where there is no store."""
        if observation.store is None:
            return []
        step, store = trace.steps[observation.at], observation.store
        phases = [
            *self._load_phases(step, observation, store),
            *_call_phases(trace.configuration, store, forecast),
            *self._save_phases(step, observation, store),
            *_store_phases(step, observation, store),
            *_chunk_phases(trace.configuration, observation, forecast),
        ]
        for phase in phases:
            self.totals[phase] += 1
            for axis in self._rows:
                self.counts[axis][phase] += 1
        self._follow(observation, store)
        return phases

    def empty(self) -> list[tuple[str, str]]:
        """Cells that were never met, of the rows that were drawn."""
        return [
            (axis, phase)
            for axis, row in self.counts.items()
            if self.totals[axis]
            for phase in row
            if not row[phase]
        ]

    def _follow(self, observation: Observation, store: StoreView) -> None:
        ended = {one.request for one in observation.finished}
        self._loaded |= {*store.loaded} & self._loading
        self._loaded -= ended | {item.request for item in observation.scheduled}
        self._loading -= ended | {*store.loaded, *store.failed}
        self._loading |= {one.request for one in store.loading}
        self._running[observation.engine] = observation.running

    def _load_phases(self, step: Step, observation: Observation, store: StoreView) -> Iterator[str]:
        for one in store.loading:
            inside = (one.local + one.external) % self._block
            yield "load inside a block" if inside else "load at a block end"
            if one.local:
                yield "load on top of a local hit"
        for request in (*store.loaded, *store.failed):
            yield "load failed" if request in store.failed else "load reported"
            if request not in self._loading:
                yield "load of a request that has ended"
        for item in observation.scheduled:
            if item.request in self._loaded:
                yield "loaded request scheduled"
        if isinstance(step, Abort):
            for finished in observation.finished:
                if finished.request in self._loading:
                    yield "aborted while loading"

    def _save_phases(self, step: Step, observation: Observation, store: StoreView) -> Iterator[str]:
        """What happens to jobs, and to requests whose jobs are under way."""
        saving = {pin.request for pin in store.pins}
        yield from ("job reported" for _ in store.reported)
        if any(saving - {item.request} for item in observation.scheduled):
            yield "blocks pinned while others compute"
        for finished in observation.finished:
            if finished.request in saving:
                yield f"{'aborted' if isinstance(step, Abort) else 'ended'} with its save under way"
        again = {*observation.preempted}
        if isinstance(step, ResetLocal) and step.running:
            again |= {*self._running.get(observation.engine, ())}
        yield from ("preempted with its save under way" for request in again if request in saving)
        if observation.reset is False and (saving or not observation.running):
            yield "reset refused for a load or a save"


def _call_phases(configuration: Configuration, store: StoreView, forecast: Forecast) -> Iterator[str]:
    """Lookups and transfers that ended."""
    kinds = [group.kind for group in configuration.groups]
    blocks = [group.block for group in Geometry.of(configuration).groups]
    for answer in store.answers:
        yield "lookup answered" if answer.known else "lookup failed"
    for transfer in store.transfers:
        done = succeeded(transfer)
        yield f"{transfer.kind} made" if done else f"{transfer.kind} failed"
        if transfer.kind != "put":
            continue
        if done and transfer.failed:
            yield "put of some keys only"
        if any(kinds[entry.group] == "mamba" for entry in done):
            yield "put of a state"
        if any(kinds[one.group] != "mamba" and one.position % blocks[one.group] for one in done):
            yield "put of a part of a block"
        prefilling = {chunk.history.id for chunk in forecast.chunks if chunk.prefill}
        decoding = {chunk.history.id for chunk in forecast.chunks} - prefilling
        if any(entry.request in decoding for entry in done):
            yield "put while decoding"


def succeeded(transfer: Transfer) -> tuple[Entry, ...]:
    """The entries that a transfer has moved."""
    gone = set(transfer.failed)
    return () if transfer.error else tuple(entry for entry in transfer.entries if entry not in gone)


def _store_phases(step: Step, observation: Observation, store: StoreView) -> Iterator[str]:
    """What gates hold, and what the store lost."""
    if isinstance(step, Run | Settle):
        for held, name in (
            (store.held_puts, "puts"),
            (store.held_gets, "gets"),
            (store.held_lookups, "lookups"),
        ):
            if held:
                yield f"{name} held"
        if store.held_gets > 1:
            yield "several gets held"
        if not store.alive:
            yield "step without the master"
    if store.dropped:
        yield "keys lost" if isinstance(step, DropKeys) else "store emptied"


def _chunk_phases(
    configuration: Configuration, observation: Observation, forecast: Forecast
) -> Iterator[str]:
    """Prompts that a step completed, where they are saved."""
    for chunk in completed(configuration, observation, forecast):
        if chunk.history.known > chunk.history.prompt:
            yield "prompt resumed and saved"
        if _junction(chunk, forecast):
            yield "prompt with a junction saved"


def completed(
    configuration: Configuration, observation: Observation, forecast: Forecast
) -> Iterator[ChunkForecast]:
    """The chunks of a step that complete a prompt on an engine that saves prompts."""
    if configuration.roles[observation.engine] in SAVERS:
        for chunk in forecast.chunks:
            end = min(chunk.scheduled.end, chunk.publications.sure)
            if completes(chunk.scheduled.start, end, chunk.history.prompt):
                yield chunk


def _junction(chunk: ChunkForecast, forecast: Forecast) -> int:
    """The junction that the request of a chunk knows of by now, 0 for none."""
    learned = {one.history.id: one.admitted.junction for one in forecast.admissions}
    return learned.get(chunk.history.id, chunk.history.junction)


def exercised_store(trace: Trace, observation: Observation, forecast: Forecast) -> Iterator[str]:
    """The rules of the store that this step would have shown to be broken."""
    store = observation.store
    if store is None:
        return
    geometry = Geometry.of(trace.configuration)
    # Where a put fails, the saves of the engine may be incomplete, and nothing is said of them.
    if store.alive and all(succeeded(one) == one.entries for one in store.transfers if one.kind == "put"):
        for chunk in completed(trace.configuration, observation, forecast):
            yield from _saving_rules(geometry, chunk, _junction(chunk, forecast))
    for transfer in store.transfers:
        yield from _transfer_rules(geometry, transfer)
    if store.loading or (forecast.store is not None and any(forecast.store.external.values())):
        yield "LK4"
    computes = bool(observation.scheduled or observation.finished or observation.preempted)
    if store.pins and computes:
        yield "LT1"
    if store.reported:
        yield "LT2"
    if store.failed or any(not answer.known for answer in store.answers):
        yield "LV2"


def _saving_rules(geometry: Geometry, chunk: ChunkForecast, junction: int) -> Iterator[str]:
    """Rules about what is saved of a prompt that is now complete."""
    history, checkpoint = chunk.history, geometry.checkpoint(chunk.history.prompt)
    if checkpoint:
        yield "TS1"
    if not geometry.fine or not checkpoint:
        return
    if junction:
        yield "TS5"
    if history.known > history.prompt:
        yield "TS6"
    for group in geometry.attention:
        span = tail_span(
            history.prompt, history.known, geometry.unit, geometry.align, group.margin, geometry.eagle
        )
        if span.start < span.end:
            yield "TS7"
            return


def _transfer_rules(geometry: Geometry, transfer: Transfer) -> Iterator[str]:
    if transfer.kind == "put":
        if transfer.entries:
            yield from ("TS2", "TS4")
        if succeeded(transfer):
            yield "TS3"
        return
    loaded = {geometry.groups[entry.group].kind for entry in succeeded(transfer)}
    if "mamba" in loaded:
        yield "SF2"
    if loaded - {"mamba"}:
        yield "SF1"


def store_lines(reach: StoreReach) -> Iterator[str]:
    """How often each feature and phase of the store was met, and which were not met together."""
    half = (len(STORE_TAGS) + 1) // 2
    shown = [f"{tag:<42}{reach.totals[tag]:>8}" for tag in STORE_TAGS]
    yield from (
        f"  {one}   {two}".rstrip() for one, two in zip(shown[:half], [*shown[half:], ""], strict=False)
    )
    empty: dict[str, list[str]] = {}
    for axis, phase in reach.empty():
        if reach.totals[phase]:
            empty.setdefault(axis, []).append(phase)
    for axis, phases in empty.items():
        yield from folded(f"empty: {axis} ×", phases)
