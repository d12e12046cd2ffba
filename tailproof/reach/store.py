"""Counts how often a run with a store reached each axis and phase where its faults live."""

from __future__ import annotations

from collections.abc import Iterator

from reference.forecast import Forecast
from spec.geometry import Geometry
from spec.observation import Observation, StoreView
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
from tailproof.judge.saves import completed, learned_junction, succeeded
from tailproof.reach.table import Table, folded

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


class StoreReach(Table):
    """The table of features and phases of the store. Call `case` before the steps of a case."""

    def __init__(self) -> None:
        super().__init__(STORE_AXES, dict.fromkeys(STORE_PHASES, ""))
        self._block = 1
        self._loading: set[str] = set()
        self._loaded: set[str] = set()
        self._running: dict[int, tuple[str, ...]] = {}

    def case(self, trace: Trace) -> None:
        """Begin a case."""
        self.begin(store_axes(trace.configuration))
        self._block = Geometry.of(trace.configuration).mamba_block
        self._loading.clear()
        self._loaded.clear()
        self._running.clear()

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
        self._follow(observation, store)
        return self.count(phases)

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
        if learned_junction(chunk, forecast):
            yield "prompt with a junction saved"


def store_lines(reach: StoreReach) -> Iterator[str]:
    """How often each feature and phase of the store was met, and which were not met together."""
    half = (len(STORE_TAGS) + 1) // 2
    shown = [f"{tag:<42}{reach.totals[tag]:>8}" for tag in STORE_TAGS]
    yield from (
        f"  {one}   {two}".rstrip() for one, two in zip(shown[:half], [*shown[half:], ""], strict=False)
    )
    empty: dict[str, list[str]] = {}
    for axis, phase in reach.empty():
        if reach.totals[axis] and reach.totals[phase]:
            empty.setdefault(axis, []).append(phase)
    for axis, phases in empty.items():
        yield from folded(f"empty: {axis} ×", phases)
