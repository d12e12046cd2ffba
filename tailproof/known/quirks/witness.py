"""What quirks remember of a run, made from the same observations as the oracle."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from reference.cache import Key
from reference.forecast import ChunkForecast
from spec.trace import ResetLocal
from tailproof.judge.step import Step


@dataclass(slots=True)
class Witness:
    """The memory of one engine's run.

    `overrun` are Mamba keys of block ends that a chunk, begun inside the block, ran past, each with the
    length whose state the block held; `displaced` those of block ends whose place an export took, each with
    the key of the export; `late` Mamba keys that became visible in a later step than the one that computed
    them.
    `chunks` is the last chunk of each request. `reset` are requests that a reset preempted since the last
    engine step, `reset_loads` those of them that load, `failures` counts the loads of each request that
    failed in a row.
    """

    overrun: dict[Key, int] = field(default_factory=dict)
    displaced: dict[Key, Key] = field(default_factory=dict)
    late: set[Key] = field(default_factory=set)
    chunks: dict[str, ChunkForecast] = field(default_factory=dict)
    reset: set[str] = field(default_factory=set)
    reset_loads: set[str] = field(default_factory=set)
    failures: Counter[str] = field(default_factory=Counter)

    def follow(self, step: Step) -> None:
        """Take a step over."""
        do, observation = step.oracle.step(step.observation), step.observation
        if isinstance(do, ResetLocal):
            if observation.reset:
                self.overrun.clear()
                self.displaced.clear()
                self.late.clear()
            if do.running:
                self.reset |= {one.id for one in step.oracle.live() if one.state == "running"}
            return
        states = {step.key(one) for one in observation.published if step.kind(one) == "mamba"}
        for chunk in step.expected.chunks:
            # What appears at the end of a chunk, or as its export, is what was computed there.
            for key in self._ends(step, chunk) & states if states else ():
                self.overrun.pop(key, None)
                self.late.discard(key)
            self.failures.pop(chunk.history.id, None)
        for chunk in step.expected.chunks:
            self._chunk(step, chunk)
        self.late |= states - step.expected.may
        if observation.do in ("run", "settle"):
            loading = {item.request for item in step.view.loading}
            self.reset_loads = (self.reset_loads - loading) | (loading & self.reset)
            self.reset = set()
        self.failures.update(step.view.failed)
        for request in step.view.loaded:
            self.failures.pop(request, None)

    @staticmethod
    def _ends(step: Step, chunk: ChunkForecast) -> set[Key]:
        """The keys of the states at a chunk's end and of its export."""
        reach = len(chunk.history.final_numbers) * step.geometry.unit
        return {
            step.cache.key(group, chunk.history, position)
            for group, position in chunk.publications.must
            if position in (chunk.publications.sure, chunk.publications.export) and position <= reach
        }

    def _chunk(self, step: Step, chunk: ChunkForecast) -> None:
        item, history, left = chunk.scheduled, chunk.history, chunk.publications
        self.chunks[history.id] = chunk
        reach = len(history.final_numbers) * step.geometry.unit
        boundary = block_end_inside(step, chunk)
        for group in step.geometry.mamba:
            if 0 < boundary <= reach:
                self.overrun[step.cache.key(group.index, history, boundary)] = item.start
            if left.overwritten and max(left.overwritten, left.export) <= reach:
                place = step.cache.key(group.index, history, left.overwritten)
                self.displaced[place] = step.cache.key(group.index, history, left.export)


def block_end_inside(step: Step, chunk: ChunkForecast) -> int:
    """The end of the Mamba block that a chunk began inside of, where the chunk runs past it; else 0."""
    block, item = step.geometry.mamba_block, chunk.scheduled
    boundary = -(-item.start // block) * block
    return boundary if item.start < boundary < item.end else 0
