"""CH: where prefill chunks must end, and which states they leave behind."""

from __future__ import annotations

from collections.abc import Callable


def can_export(start: int, end: int, position: int, unit: int, block: int, alignment: int | None) -> bool:
    """Whether a backend can export the state at `position` while it computes the chunk [start, end).

    The state goes to the column before the running one, so that column must lie past the chunk's initial
    state; it must be a unit past the start and on the backend's `alignment` (tokens; None: no export).
    """
    if alignment is None or start % unit:
        return False
    column = -(-end // block) - 2
    return (
        column > (start - 1) // block
        and start + unit <= position < end
        and (position - start) % alignment == 0
    )


def exported(
    start: int,
    end: int,
    prefill_end: int,
    retention: int | None,
    unit: int,
    block: int,
    alignment: int | None,
    checkpoint: Callable[[int], int],
) -> int:
    """The position whose state the chunk [start, end) exports into a reserved block, 0 for none.

    `checkpoint(n)` is the resend checkpoint of n tokens on the hit grid. With retention 0 only the chunk
    that ends the prefill has a block reserved for it.
    """
    if retention == 0 and end < prefill_end:
        return 0
    position = checkpoint(end)
    return position if can_export(start, end, position, unit, block, alignment) else 0


def junction_stop(junction: int, prompt: int, block: int, junctions: bool) -> int:
    """Where a chunk must end for a junction: at the junction itself where junction checkpoints are on (within
    the prompt), else at the block boundary below it; 0 for none."""
    return junction if junctions and junction <= prompt else junction // block * block


def required_stops(
    *,
    start: int,
    prompt: int,
    tokens: int,
    can_export: bool,
    export: int,
    junction: int,
    checkpoint: Callable[[int], int],
    block_checkpoint: Callable[[int], int],
    lookahead: int = 0,
) -> dict[str, int]:
    """CH1: the positions, by name, that a prefill chunk beginning at `start` must not jump over.

    `tokens` is the request's present length, above `prompt` for a resumed request. `checkpoint(n)` is the
    resend checkpoint of n tokens on the hit grid, `block_checkpoint(n)` the last block-aligned position
    that a lookup could use. `export` is what the chunk exports and keeps (0: nothing), `can_export` whether
    the backend ever does, `junction` the junction's stop (`junction_stop`).

    Checkpoint and junction are needed unless exported. The block stop is a second, coarser state, which a
    backend that exports may give up. No chunk may end so near to the end of the prefill that a draft module
    lacks one of the `lookahead` tokens it reads, so a stop there is none.
    """
    stops: dict[str, int] = {}
    if export != junction:
        stops["junction"] = junction
    if export != checkpoint(prompt):
        stops["checkpoint"] = checkpoint(prompt)
    if not can_export:
        stops["block"] = block_checkpoint(tokens)
    return {name: stop for name, stop in stops.items() if stop > start and not 0 < tokens - stop < lookahead}


def must_advance(scheduled: int, unfinished: bool) -> bool:
    """CH2: a step with unfinished requests and free blocks schedules something; True when it did."""
    return scheduled > 0 or not unfinished
