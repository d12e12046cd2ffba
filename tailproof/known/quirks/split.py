"""Wrong variants of CH1 and CP7: how vLLM's scheduler cuts a prefill into chunks.

Source: vllm/v1/core/sched/scheduler.py, `_mamba_block_aligned_split` and `_reserve_prefill_lookahead`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from reference.forecast import ChunkForecast
from reference.history import History
from spec.chunking import can_export
from spec.geometry import Geometry
from spec.trace import Configuration
from tailproof.judge.findings import Finding
from tailproof.judge.saves import learned_junction
from tailproof.judge.step import Step
from tailproof.known.quirks.case import Case, Wrong, quirk


@dataclass(frozen=True, slots=True)
class Prefill:
    """What the split knows of a request: where its chunk begins, the lengths of its prompt and of all
    `tokens` that the scheduler knows, its junction (0: none); all in tokens."""

    start: int
    prompt: int
    tokens: int
    junction: int

    @staticmethod
    def of(history: History, start: int, junction: int) -> Prefill:
        """The prefill of a request from `start` on."""
        return Prefill(start, history.prompt, history.prompt + history.told, junction)

    @property
    def end(self) -> int:
        """Where the prefill ends."""
        return max(self.prompt, self.tokens - 1)


def smallest_block(configuration: Configuration) -> int:
    """The smallest block of all groups in tokens, not scaled by DCP: the block size that vLLM's engine core
    puts into the cache configuration."""
    return min(group.block for group in configuration.groups)


def split_end(
    geometry: Geometry, configuration: Configuration, prefill: Prefill, asked: int, wrong: Wrong
) -> int:
    """Where the chunk of at most `asked` tokens ends. With no quirk at work it jumps over no required stop;
    each of `wrong` makes one of the mistakes of this room."""
    block = geometry.mamba_block
    if "split.smallest_block" in wrong:
        block = smallest_block(configuration)
    end = prefill.start + asked
    if prefill.start >= prefill.end:
        return end
    exports = _exports(geometry, prefill, end, block)
    cut = _reserved(geometry, prefill, _cut(geometry, configuration, prefill, end, block, exports, wrong))
    if exports and cut < prefill.end and "split.export_before_cut" not in wrong:
        cut = _reserved(geometry, prefill, _cut(geometry, configuration, prefill, end, block, False, wrong))
    return max(cut, prefill.start)


def _reserved(geometry: Geometry, prefill: Prefill, end: int) -> int:
    """Where a chunk ends that leaves draft modules what they read ahead."""
    left = prefill.tokens - end
    return end - (geometry.lookahead - left) if 0 < left < geometry.lookahead else end


def _exports(geometry: Geometry, prefill: Prefill, end: int, block: int) -> bool:
    """Whether the chunk is taken to export a checkpoint, judged by that block size."""
    position = geometry.checkpoint(prefill.end)
    alignment = geometry.mamba[0].checkpoint_alignment
    valid = can_export(prefill.start, end, position, geometry.unit, block, alignment)
    return end >= prefill.end and valid


def _cut(
    geometry: Geometry,
    configuration: Configuration,
    prefill: Prefill,
    end: int,
    block: int,
    exports: bool,
    wrong: Wrong,
) -> int:
    start = prefill.start
    most = end
    if end < prefill.end:
        share = min(configuration.budget, configuration.long_prefill or configuration.budget)
        aligned = end // block * block
        if aligned > start or block <= share:
            most = aligned
    stops = set(_stops(geometry, prefill, most, block, exports, wrong))
    # The worker exports the checkpoint of where the chunk ends.
    kept = exports and geometry.checkpoint(end) == geometry.checkpoint(prefill.prompt)
    resumed = prefill.tokens > prefill.prompt and "split.present_length" not in wrong
    off_grid = not geometry.fine and geometry.align > geometry.mamba_block
    if not kept and (resumed or (off_grid and "split.block_grid" not in wrong)):
        stops.add(geometry.checkpoint(prefill.prompt))
    if "endings.reserve_after" not in wrong:
        stops = {stop for stop in stops if not 0 < prefill.tokens - stop < geometry.lookahead}
    return min((stop for stop in stops if start < stop < most), default=most)


def _stops(
    geometry: Geometry, prefill: Prefill, end: int, block: int, exports: bool, wrong: Wrong
) -> Iterator[int]:
    start, prompt = prefill.start, prefill.prompt
    checkpoint = geometry.checkpoint(prompt)
    last = 0 if exports else geometry.checkpoint_on(prefill.tokens, block)
    yield last
    if start % block and not exports:
        yield start // block * block + block
    if geometry.fine and not exports and last < checkpoint < prompt:
        yield checkpoint
    yield from _junction(geometry, prefill, end, block, wrong)


def _junction(geometry: Geometry, prefill: Prefill, end: int, block: int, wrong: Wrong) -> Iterator[int]:
    start, junction = prefill.start, prefill.junction
    # A resumed prefill may end at its junction, and must stop at the block end below it all the same.
    last = junction == end == prefill.end and "split.junction_inside_only" not in wrong
    if not (start < junction < end or last):
        return
    if geometry.junctions and junction <= prefill.prompt:
        yield junction
    elif "split.floor_from_start" in wrong and not last:
        yield start + (junction - start) // block * block
    else:
        yield junction // block * block


def possible(step: Step, chunk: ChunkForecast, wrong: Wrong) -> bool:
    """Whether a split with these mistakes makes just this chunk of what the step had left for it."""
    item, configuration = chunk.scheduled, step.configuration
    prefill = Prefill.of(chunk.history, item.start, learned_junction(chunk, step.expected))
    most = asked(step, chunk, prefill.tokens - item.start)
    # A bounded encoder may cut what is asked for, so any shorter chunk will do there.
    bounded = configuration.encoder and chunk.history.submit.media
    least = item.end - item.start if bounded else most
    return any(
        split_end(step.geometry, configuration, prefill, tokens, wrong) == item.end
        for tokens in range(max(least, 1), most + 1)
    )


def asked(step: Step, chunk: ChunkForecast, left: int) -> int:
    """The tokens that a chunk may have at most: what is `left` of its prefill, its share where others wait,
    and what the requests scheduled before it have left of the step's budget."""
    configuration, scheduled = step.configuration, step.observation.scheduled
    before = scheduled[: scheduled.index(chunk.scheduled)]
    spent = sum(item.end - item.start for item in before)
    if configuration.long_prefill and len(step.expected.live_before) > 1:
        left = min(left, configuration.long_prefill)
    return min(left, configuration.budget - spent)


def explains(case: Case, finding: Finding, name: str) -> bool:
    """Whether a chunk that jumped over a stop is one that the split makes with this mistake."""
    if not finding.stop:
        return False
    chunk = next(one for one in case.step.expected.chunks if one.history.id == finding.request)
    return case.due_to(name, lambda wrong: possible(case.step, chunk, wrong))


@quirk("split.block_grid")
def stops_on_the_block_grid(case: Case, finding: Finding) -> bool:
    """With coarse hits the last stop lies on the Mamba block, not on the grid where hits land."""
    return explains(case, finding, "split.block_grid")


@quirk("split.present_length")
def goes_by_the_present_length(case: Case, finding: Finding) -> bool:
    """A resumed prefill has the checkpoint of its prompt as a stop only above the last block end of its
    present length, and exports the checkpoint of that length."""
    return explains(case, finding, "split.present_length")


@quirk("split.floor_from_start")
def floors_the_junction_from_the_start(case: Case, finding: Finding) -> bool:
    """The junction is rounded down in blocks counted from where the chunk begins."""
    return explains(case, finding, "split.floor_from_start")


@quirk("split.junction_inside_only")
def asks_for_a_junction_inside(case: Case, finding: Finding) -> bool:
    """The stop of a junction counts only where the junction itself lies inside the chunk, so not where the
    prefill ends just there."""
    return explains(case, finding, "split.junction_inside_only")


@quirk("split.export_before_cut")
def exports_before_the_cut(case: Case, finding: Finding) -> bool:
    """Whether the chunk exports is decided before a junction, or what draft modules need, cuts it."""
    return explains(case, finding, "split.export_before_cut")
