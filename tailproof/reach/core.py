"""The rows and columns of reach in the engine's own cache: features of a case, phases of a request."""

from __future__ import annotations

from collections.abc import Iterator

from reference.forecast import ChunkForecast, Forecast
from spec.geometry import Geometry
from spec.observation import Finished, Observation
from spec.trace import TURN, Abort, Configuration, ResetLocal, Run, Settle, Step, Submit, Trace, prompt_length
from tailproof.reach.table import Impossible, Table

TIGHT = "pool too small for everything"
LONG_PROMPT = 4

# Rows, in the order in which a table shows them. All are features of a whole case, but TIGHT, which holds
# step by step. "retention k" is any interval above 0; block sizes are those before DCP scales them.
AXES: tuple[str, ...] = (
    "eagle off",
    "eagle on",
    "annotation none",
    "annotation attention",
    "annotation separate group",
    "annotation replicated group",
    "states at chunk ends",
    "exports aligned to U",
    "exports aligned finer",
    "exports aligned coarser",
    "hits fine",
    "hits coarse",
    "retention None",
    "retention 0",
    "retention k",
    "junction checkpoints on",
    "attention block below the Mamba block",
    "attention block above the Mamba block",
    "several attention layouts",
    "sliding-window group",
    "DCP 2",
    "DCP 4",
    "DCP 8",
    "several speculative tokens",
    "multi-module MTP",
    "long-prefill threshold",
    "priority scheduling",
    "budget below a block",
    "a prompt of four budgets or more",
    "asynchronous scheduling",
    "KV events",
    "cache salts",
    "adapters",
    "media",
    TIGHT,
)

# Columns, each with its head in a narrow table.
PHASES: dict[str, str] = {
    "submit": "sub",
    "next turn of an earlier request": "turn",
    "hit 0": "hit0",
    "hit inside a block": "hitI",
    "hit at a block end": "hitE",
    "same prefix, same step": "same",
    "first prefill chunk": "pre1",
    "later prefill chunk": "pre+",
    "export made": "exp",
    "decode": "dec",
    "drafts accepted": "acc",
    "drafts rejected": "rej",
    "finished": "fin",
    "aborted while waiting": "abW",
    "aborted in prefill": "abP",
    "aborted in decode": "abD",
    "preempted for space": "pree",
    "resumed request": "resu",
    "entries thrown out": "out",
    "reset taken": "rsT",
    "reset refused": "rsN",
    "reset of running requests": "rsR",
}

# Cells that no configuration of the row can reach. One that is reached all the same is a fault of this table.
UNSUPPORTED: Impossible = {
    "eagle off": {
        "drafts accepted": "without EAGLE there are no drafts",
        "drafts rejected": "without EAGLE there are no drafts",
    },
    "states at chunk ends": {"export made": "states are kept at chunk ends only"},
    "hits coarse": {"hit inside a block": "coarse hits lie at block ends only"},
    "budget below a block": {"export made": "a chunk that exports is longer than a block"},
}

# Columns that a target cannot reach under any configuration.
LACKS: Impossible = {
    "reference": {
        "preempted for space": "the memory of the reference is unlimited",
        "entries thrown out": "the memory of the reference is unlimited",
    }
}


def unsupported(target: str = "") -> Impossible:
    """The cells that cannot be reached, as reasons by axis and phase; also a target's, given its name."""
    lacks = LACKS.get(target.partition("+")[0], {})
    cells = {axis: lacks | UNSUPPORTED.get(axis, {}) for axis in AXES}
    return {axis: reasons for axis, reasons in cells.items() if reasons}


def axes(trace: Trace) -> tuple[str, ...]:
    """The rows that a case counts in, but for TIGHT, in the order of AXES."""
    return tuple(_axes(trace))


def _axes(trace: Trace) -> Iterator[str]:
    configuration = trace.configuration
    geometry = Geometry.of(configuration)
    yield "eagle on" if configuration.eagle else "eagle off"
    if configuration.eagle:
        yield f"annotation {_annotation(configuration)}"
    alignment = geometry.mamba[0].checkpoint_alignment
    if alignment is None:
        yield "states at chunk ends"
    elif alignment == geometry.unit:
        yield "exports aligned to U"
    else:
        yield "exports aligned finer" if alignment < geometry.unit else "exports aligned coarser"
    yield "hits fine" if geometry.fine else "hits coarse"
    retention = configuration.retention
    yield "retention None" if retention is None else "retention k" if retention else "retention 0"
    if geometry.junctions:
        yield "junction checkpoints on"
    yield from _layout_axes(configuration, geometry.mamba_block)
    if configuration.speculative > 1:
        yield "several speculative tokens"
    if configuration.multi_module:
        yield "multi-module MTP"
    yield from _scheduling_axes(trace, geometry.mamba_block)


def _annotation(configuration: Configuration) -> str:
    """How the draft model's layers are marked: `attention` where every attention group has the mark."""
    attention = [group for group in configuration.groups if group.kind != "mamba"]
    drafts = [group for group in attention if group.draft]
    if any(group.replicated for group in drafts):
        return "replicated group"
    if not drafts:
        return "none"
    return "attention" if len(drafts) == len(attention) else "separate group"


def _layout_axes(configuration: Configuration, mamba_block: int) -> Iterator[str]:
    blocks = {group.block for group in configuration.groups if group.kind != "mamba"}
    if min(blocks) < mamba_block:
        yield "attention block below the Mamba block"
    if max(blocks) > mamba_block:
        yield "attention block above the Mamba block"
    if len(blocks) > 1:
        yield "several attention layouts"
    if any(group.kind == "window" for group in configuration.groups):
        yield "sliding-window group"
    if configuration.dcp in (2, 4, 8):
        yield f"DCP {configuration.dcp}"


def _scheduling_axes(trace: Trace, mamba_block: int) -> Iterator[str]:
    configuration = trace.configuration
    if configuration.long_prefill:
        yield "long-prefill threshold"
    if configuration.policy == "priority":
        yield "priority scheduling"
    if configuration.budget < mamba_block:
        yield "budget below a block"
    submits = list(trace.submits())
    if any(prompt_length(submit.prompt) >= LONG_PROMPT * configuration.budget for submit in submits):
        yield "a prompt of four budgets or more"
    if configuration.asynchronous:
        yield "asynchronous scheduling"
    if configuration.events:
        yield "KV events"
    if any(submit.salt is not None for submit in submits):
        yield "cache salts"
    if any(submit.adapter is not None for submit in submits):
        yield "adapters"
    if any(submit.media for submit in submits):
        yield "media"


class Reach(Table):
    """The table of axes and phases.

    A phase counts once per request that it happens to, and once per step where it concerns no single request.
    Call `case` before the steps of a case.
    """

    def __init__(self) -> None:
        super().__init__(AXES, PHASES, unsupported)
        self._block = 1
        self._running: dict[int, tuple[str, ...]] = {}
        self._prefilling: set[str] = set()

    def case(self, features: tuple[str, ...], mamba_block: int) -> None:
        """Begin a case with these features (`axes`) and this Mamba block, in tokens."""
        self.begin(features)
        self._block = mamba_block
        self._running.clear()
        self._prefilling.clear()

    def step(self, step: Step, observation: Observation, forecast: Forecast) -> list[str]:
        """Count the phases of one observation; returns them."""
        tight = () if forecast.roomy else (TIGHT,)
        phases = self.count(self._phases(step, observation, forecast), *tight)
        self._running[observation.engine] = observation.running
        return phases

    def _phases(self, step: Step, observation: Observation, forecast: Forecast) -> Iterator[str]:
        if isinstance(step, Submit):
            yield "submit"
            if step.prompt[0][0].startswith(TURN):
                yield "next turn of an earlier request"
        elif isinstance(step, ResetLocal):
            yield "reset taken" if observation.reset else "reset refused"
            if step.running and observation.reset and self._running.get(observation.engine):
                yield "reset of running requests"
        elif isinstance(step, Run | Settle):
            yield from self._engine_phases(step, observation, forecast)
        for finished in observation.finished:
            yield self._aborted(finished) if isinstance(step, Abort) else "finished"

    def _aborted(self, finished: Finished) -> str:
        if not any(finished.request in running for running in self._running.values()):
            return "aborted while waiting"
        return "aborted in prefill" if finished.request in self._prefilling else "aborted in decode"

    def _engine_phases(
        self, step: Run | Settle, observation: Observation, forecast: Forecast
    ) -> Iterator[str]:
        for _ in observation.preempted:
            yield "preempted for space"
        if observation.withdrawn:
            yield "entries thrown out"
        if len(forecast.admissions) > 1:
            firsts = [item.history.numbers[0] for item in forecast.admissions if item.history.numbers]
            if len(set(firsts)) < len(firsts):
                yield "same prefix, same step"
        admitted = set()
        for admission in forecast.admissions:
            admitted.add(admission.history.id)
            hit = admission.admitted.local
            yield "hit 0" if not hit else "hit inside a block" if hit % self._block else "hit at a block end"
            if admission.history.hit is not None:
                yield "resumed request"
        for chunk in forecast.chunks:
            yield from self._chunk_phases(chunk, chunk.history.id in admitted, step.accept)

    def _chunk_phases(self, chunk: ChunkForecast, fresh: bool, accept: int) -> Iterator[str]:
        item = chunk.scheduled
        if item.end < chunk.history.prefill_end:
            self._prefilling.add(item.request)
        else:
            self._prefilling.discard(item.request)
        if chunk.publications.export:
            yield "export made"
        if chunk.prefill:
            yield "first prefill chunk" if fresh else "later prefill chunk"
            return
        yield "decode"
        # The drafts of a request just admitted are padding, never verified.
        if item.drafts and not fresh:
            if accept:
                yield "drafts accepted"
            if accept < item.drafts:
                yield "drafts rejected"
