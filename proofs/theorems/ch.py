"""CH: theorems about one arbitrary prefill chunk, for any budget; so they hold for any number of chunks."""

from __future__ import annotations

from collections.abc import Callable

from proofs.assume import assume
from proofs.loops import Loop, by_induction
from proofs.theorems.kinds import Checkpoint, ChunkEnd, Exported, Stops
from spec.checkpoint import resend_checkpoint
from spec.chunking import exported, required_stops
from spec.split import chunk_end, first_stop

_FIRST_STOP = Loop(
    first_stop, lambda start, end, most: (start < end, end <= most), measure=lambda start, end: end - start
)


@by_induction(_FIRST_STOP)
def ch1_no_stop_is_jumped(
    start: int,
    tokens: int,
    budget: int,
    maximum: int,
    block: int,
    first: int,
    second: int,
    third: Callable[[int], int],
    *,
    end_of: ChunkEnd = chunk_end,
) -> None:
    """CH1: a chunk jumps over none of its required stops, wherever they lie.

    There are three, as in `required_stops`; the third may depend on where the chunk ends, since what a longer
    chunk exports need be no stop.
    """
    assume(block >= 1)
    assume(start >= 0)
    assume(start < tokens)
    assume(budget >= 1)
    assume(maximum >= budget)
    end = end_of(start, tokens, budget, maximum, block, lambda end: (first, second, third(end)))
    assert not start < first < end
    assert not start < second < end
    assert not start < third(end) < end


def ch1_stop_unless_exported(
    start: int,
    prompt: int,
    tokens: int,
    exports: bool,
    export: int,
    junction: int,
    lookahead: int,
    checkpoint: Callable[[int], int],
    block_checkpoint: Callable[[int], int],
    *,
    stops: Stops = required_stops,
) -> None:
    """CH1: checkpoint and junction ahead of a chunk are required stops unless the chunk exports them, and so
    is the block boundary that a lookup could use unless the backend exports.

    So each state is there in the end, however many chunks there were, but for those within a draft module's
    `lookahead` of the end. The checkpoints may be any functions.
    """
    assume(lookahead >= 0)
    found = stops(
        start=start,
        prompt=prompt,
        tokens=tokens,
        can_export=exports,
        export=export,
        junction=junction,
        checkpoint=checkpoint,
        block_checkpoint=block_checkpoint,
        lookahead=lookahead,
    )
    values = tuple(found.values())
    assert all(stop > start for stop in values)
    for stop, exported_too in (
        (checkpoint(prompt), export == checkpoint(prompt)),
        (junction, export == junction),
        (block_checkpoint(tokens), exports),
    ):
        if stop > start and not 0 < tokens - stop < lookahead:
            assert stop in values or exported_too


@by_induction(_FIRST_STOP)
def ch2_advances(
    start: int,
    tokens: int,
    budget: int,
    maximum: int,
    block: int,
    stop: int,
    other: Callable[[int], int],
    *,
    end_of: ChunkEnd = chunk_end,
) -> None:
    """CH2: a chunk advances when its budget is the whole of a step's, or reaches the next block boundary, a
    required stop or the end. One stop stands still, another may move with the chunk's end."""
    assume(block >= 1)
    assume(start >= 0)
    assume(start < tokens)
    assume(budget >= 1)
    assume(maximum >= budget)
    end = end_of(start, tokens, budget, maximum, block, lambda end: (stop, other(end)))
    reach = min(start + budget, tokens)
    assert start <= end <= reach
    if budget == maximum or reach == tokens or start < reach // block * block or start < stop <= reach:
        assert end > start


def ch3_export_inside_its_chunk(
    start: int,
    end: int,
    prefill_end: int,
    all_kept: bool,
    retention: int,
    unit: int,
    block: int,
    exports: bool,
    alignment: int,
    eagle: bool,
    *,
    export: Exported = exported,
    checkpoint: Checkpoint = resend_checkpoint,
) -> None:
    """CH3: what a chunk publishes beside its end is a state that it really passes.

    It lies past the chunk's start by a unit, on the backend's alignment, before its end, in a column between
    the initial state and the running one.
    """
    assume(unit >= 1)
    assume(block >= unit)
    assume(start >= 0)
    assume(end > start)
    assume(prefill_end >= end)
    assume(retention >= 0)
    assume(alignment >= 1)
    position = export(
        start,
        end,
        prefill_end,
        None if all_kept else retention,
        unit,
        block,
        alignment if exports else None,
        lambda length: checkpoint(length, unit, eagle),
    )
    if position != 0:
        assert exports
        assert start + unit <= position < end
        assert (position - start) % alignment == 0
        assert position == checkpoint(end, unit, eagle)
        column = -(-end // block) - 2
        assert column >= 0
        assert column > (start - 1) // block
        if not all_kept and retention == 0:
            assert end == prefill_end
