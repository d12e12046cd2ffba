"""What one computed chunk leaves behind: the entries that must and that may be visible after it."""

from __future__ import annotations

from dataclasses import dataclass

from reference.history import History
from spec.chunking import exported, junction_stop
from spec.geometry import Geometry, GroupGeometry
from spec.lookup import window_blocks
from spec.retention import (
    attention_tail,
    cacheable,
    keeps_chunk_end,
    keeps_export,
    window_boundaries,
)
from spec.trace import Configuration

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Publications:
    """Entries as (group, position in tokens). `export` is the state exported inside the chunk (0: none)
    and `overwritten` the block end whose place it took; `sure` the chunk's end without drafts."""

    must: frozenset[Place]
    may: frozenset[Place]
    export: int
    overwritten: int
    sure: int


def publications(
    configuration: Configuration, geometry: Geometry, history: History, start: int, end: int, drafts: int
) -> Publications:
    """The publications of the chunk [start, end) of a request, its last `drafts` tokens speculative.

    Keys appear when the chunk is scheduled, so accepted drafts count from the next step on.
    """
    must: set[Place] = set()
    may: set[Place] = set()
    sure = end - drafts
    for attention in geometry.attention:
        final = _final(geometry, attention, sure)
        may.update((attention.index, at) for at in range(geometry.unit, final + 1, geometry.unit))
        first, reach = _span(geometry, attention, start, sure)
        must.update((attention.index, at) for at in range(first, reach + 1, attention.block))
        tail = attention_tail(history.prompt, geometry.unit, attention.drops, geometry.hash_lookahead)
        if geometry.fine and _final(geometry, attention, start) < tail <= reach and tail % attention.block:
            must.add((attention.index, tail))
    for window in geometry.windows:
        final = _final(geometry, window, sure)
        may.update((window.index, at) for at in range(window.block, final + 1, window.block))
        first, reach = _span(geometry, window, start, sure)
        needed = _window_needs(configuration, geometry, history, window, first, reach)
        must.update((window.index, at) for at in needed if first <= at <= reach)
    export = _export(configuration, geometry, history, start, end, drafts)
    block = geometry.mamba_block
    stop = junction_stop(history.junction, history.prompt, block, geometry.junctions)
    for mamba in geometry.mamba:
        for position in {sure, export, history.crossed_boundary}:
            if position > 0 and position % geometry.unit == 0:
                may.add((mamba.index, position))
        reach = cacheable(sure, block, geometry.align, mamba.drops, geometry.fine)
        # A step that drafts runs in the column of its last draft, so its state can only be put back into
        # the column of a block boundary that is the one before.
        placed = sure // block + 1 >= -(-end // block)
        if (
            placed
            and sure % geometry.unit == 0
            and sure <= reach
            and keeps_chunk_end(
                sure,
                checkpoint=geometry.checkpoint(history.prompt),
                boundaries=geometry.replay_boundaries(history.prompt, block),
                junction=history.junction,
                stop=stop,
                block=block,
                retention=configuration.retention,
            )
        ):
            must.add((mamba.index, sure))
        if export and keeps_export(
            export,
            checkpoint=geometry.checkpoint(history.prompt),
            junction=history.junction,
            block=block,
            retention=configuration.retention,
        ):
            must.add((mamba.index, export))
    overwritten = (-(-end // block) - 1) * block if export else 0
    return Publications(frozenset(must), frozenset(may), export, overwritten, sure)


def _final(geometry: Geometry, group: GroupGeometry, tokens: int) -> int:
    """How many of `tokens` computed tokens no draft module rewrites."""
    return max(tokens - geometry.unfinished, 0) if group.drops else tokens


def _span(geometry: Geometry, group: GroupGeometry, start: int, sure: int) -> tuple[int, int]:
    """The first block end that is published only now, and how far publishing reaches."""
    final = _final(geometry, group, start)
    reach = cacheable(sure, group.block, geometry.align, group.drops, geometry.fine, geometry.unfinished)
    return final // group.block * group.block + group.block, reach


def _window_needs(
    configuration: Configuration,
    geometry: Geometry,
    history: History,
    group: GroupGeometry,
    first: int,
    reach: int,
) -> set[int]:
    """Block ends that hits at the kept lengths need, of those around [first, reach]."""
    kept = (
        geometry.checkpoint(history.prompt),
        *geometry.replay_boundaries(history.prompt, geometry.grid),
        history.junction,
    )
    lengths = window_boundaries(
        max(first - group.margin, 1),
        reach + group.window + group.block,
        kept=kept,
        grid=geometry.grid,
        retention=configuration.retention,
    )
    return {
        end for length in lengths for end in window_blocks(length, group.block, group.window, group.margin)
    }


def _export(
    configuration: Configuration, geometry: Geometry, history: History, start: int, end: int, drafts: int
) -> int:
    if drafts or start >= history.prefill_end:
        return 0
    return exported(
        start,
        end,
        history.prefill_end,
        configuration.retention,
        geometry.unit,
        geometry.mamba_block,
        geometry.mamba[0].checkpoint_alignment,
        geometry.checkpoint,
    )
