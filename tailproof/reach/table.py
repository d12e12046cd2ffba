"""Tells how far the generator reaches: how often each phase was met under each configuration feature."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from reference.oracle import ChunkForecast, Forecast
from spec.geometry import Geometry
from spec.observation import Finished, Observation
from spec.trace import TURN, Abort, Configuration, ResetLocal, Run, Settle, Step, Submit, Trace, prompt_length

Cell = tuple[str, str]

TIGHT = "pool too small for everything"
LONG_PROMPT = 4
_WIDTH = 110

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

_HALF = (len(PHASES) + 1) // 2
_LEGEND_ROWS = (len(PHASES) + 2) // 3

# Cells that no configuration of the row can reach. One that is reached all the same is a fault of this table.
UNSUPPORTED: dict[str, dict[str, str]] = {
    "eagle off": {
        "drafts accepted": "without EAGLE there are no drafts",
        "drafts rejected": "without EAGLE there are no drafts",
    },
    "states at chunk ends": {"export made": "states are kept at chunk ends only"},
    "hits coarse": {"hit inside a block": "coarse hits lie at block ends only"},
    "budget below a block": {"export made": "a chunk that exports is longer than a block"},
}

# Columns that a target cannot reach under any configuration.
LACKS: dict[str, dict[str, str]] = {
    "reference": {
        "preempted for space": "the memory of the reference is unlimited",
        "entries thrown out": "the memory of the reference is unlimited",
    }
}


def unsupported(target: str = "") -> dict[str, dict[str, str]]:
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


class Reach:
    """The table: `counts[axis][phase]` is how often the phase was met in a case with that feature.

    A phase counts once per request that it happens to, and once per step where it concerns no single request.
    Call `case` before the steps of a case.
    """

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int]] = {axis: dict.fromkeys(PHASES, 0) for axis in AXES}
        self._rows: tuple[dict[str, int], ...] = ()
        self._tight_rows: tuple[dict[str, int], ...] = ()
        self._block = 1
        self._running: dict[int, tuple[str, ...]] = {}
        self._prefilling: set[str] = set()

    def case(self, features: tuple[str, ...], mamba_block: int) -> None:
        """Begin a case with these features (`axes`) and this Mamba block, in tokens."""
        self._rows = tuple(self.counts[axis] for axis in features)
        self._tight_rows = (*self._rows, self.counts[TIGHT])
        self._block = mamba_block
        self._running.clear()
        self._prefilling.clear()

    def step(self, step: Step, observation: Observation, forecast: Forecast) -> list[str]:
        """Count the phases of one observation; returns them."""
        phases = list(self._phases(step, observation, forecast))
        for row in self._rows if forecast.roomy else self._tight_rows:
            for phase in phases:
                row[phase] += 1
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

    def reached(self) -> dict[Cell, int]:
        """The cells met at least once, with their counts."""
        return {
            (axis, phase): count for axis, row in self.counts.items() for phase, count in row.items() if count
        }

    def supported(self, target: str = "") -> dict[Cell, int]:
        """The counts of the cells that can be met at all, on a target when its name is given."""
        impossible = unsupported(target)
        return {
            (axis, phase): count
            for axis, row in self.counts.items()
            for phase, count in row.items()
            if phase not in impossible.get(axis, {})
        }

    def empty(self, target: str = "") -> list[Cell]:
        """Supported cells that were never met."""
        return [cell for cell, count in self.supported(target).items() if not count]

    def contradicted(self, target: str = "") -> list[Cell]:
        """Cells that were met although they are declared impossible: a fault of Tailproof, not the target."""
        supported = self.supported(target)
        return [cell for cell in self.reached() if cell not in supported]


def reach_lines(reach: Reach, target: str) -> Iterator[str]:
    """How many cells of axes and phases a run met, the rarest of them, and the names of the empty ones."""
    counts = reach.supported(target)
    met = {cell: count for cell, count in counts.items() if count}
    line = f"reach: {len(met)} of {len(counts)} cells"
    if met:
        axis, phase = min(met, key=lambda cell: met[cell])
        line += f", fewest {met[axis, phase]} ({axis} × {phase})"
    yield line
    empty = reach.empty(target)
    undrawn = [axis for axis in AXES if not any(reach.counts[axis].values())]
    unmet = [phase for phase in PHASES if not any(row[phase] for row in reach.counts.values())]
    unmet = [phase for phase in unmet if any(phase == cell[1] for cell in empty)]
    yield from folded("no case has", undrawn)
    yield from folded("no case meets", unmet)
    for axis in AXES:
        left = [phase for row, phase in empty if row == axis and phase not in unmet]
        if axis not in undrawn:
            yield from folded(f"empty: {axis} ×", left)
    wrong = [f"{axis} × {phase}" for axis, phase in reach.contradicted(target)]
    yield from folded("met, though declared impossible (a fault of tailproof):", wrong)


def folded(head: str, names: list[str]) -> list[str]:
    """A head and names as lines of bounded width; nothing without names."""
    if not names:
        return []
    # No line may break inside a name.
    kept = f"{head} {'; '.join(name.replace(' ', chr(0)) for name in names)}"
    lines = textwrap.wrap(
        kept,
        _WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace(chr(0), " ") for line in lines]


def reach_table(reach: Reach, target: str) -> Iterator[str]:
    """The table of axes and phases in two halves, its heads, and why some cells cannot be met."""
    impossible = unsupported(target)
    phases = list(PHASES)
    wide = max(map(len, AXES))
    for columns in (phases[:_HALF], phases[_HALF:]):
        yield f"  {'':<{wide}}" + "".join(f"{PHASES[phase]:>6}" for phase in columns)
        for axis in AXES:
            cells = (_cell(reach, (axis, phase), impossible) for phase in columns)
            yield f"  {axis:<{wide}}" + "".join(f"{cell:>6}" for cell in cells)
        yield ""
    heads = [f"{head:<6}{phase:<34}" for phase, head in PHASES.items()]
    yield from ("  " + "".join(heads[at::_LEGEND_ROWS]).rstrip() for at in range(_LEGEND_ROWS))
    yield ""
    yield "  A dash is a cell that cannot be met:"
    reasons: dict[tuple[str, str], list[str]] = {}
    for axis, row in impossible.items():
        for phase, reason in row.items():
            reasons.setdefault((phase, reason), []).append(axis)
    for (phase, reason), rows in reasons.items():
        where = "every row" if len(rows) == len(AXES) else ", ".join(rows)
        yield f"    {where} × {phase}: {reason}"


def _cell(reach: Reach, cell: Cell, impossible: dict[str, dict[str, str]]) -> str:
    axis, phase = cell
    count = reach.counts[axis][phase]
    if not count and phase in impossible.get(axis, {}):
        return "-"
    return str(count) if count < 100_000 else f"{count // 1000}k"
