"""RT: which computed positions stay visible as prefix-cache entries."""

from __future__ import annotations


def replay_boundaries(
    prompt: int, block: int, align: int, grid: int, drops: bool, lookahead: int = 0
) -> tuple[int, ...]:
    """Block ends at which a resend or an extension of the prompt could resume on the block grid.

    `block` is the Mamba block, `align` the scheduler alignment L, `grid` where hits land, all in tokens;
    `drops` whether EAGLE lookups drop, `lookahead` how many tokens past its unit a hash covers. Modified in
    0.33: without the drop a resend reaches the last hash of the prompt, also with EAGLE.
    """
    if not drops:
        return (max(prompt - max(1, lookahead), 0) // grid * grid // block * block,)
    resend = max((prompt - 1) // align * align - align, 0)
    extension = max(prompt // align * align - align, 0)
    return (resend, extension)


def keeps_interval(position: int, block: int, retention: int | None) -> bool:
    """Whether the retention interval alone keeps the state at `position` (tokens)."""
    if position % block:
        return False
    if retention is None:
        return True
    return retention > 0 and position % retention == 0


def keeps_chunk_end(
    position: int,
    *,
    checkpoint: int,
    boundaries: tuple[int, ...],
    junction: int,
    stop: int,
    block: int,
    retention: int | None,
) -> bool:
    """RT1: whether a Mamba state that a chunk left at `position` must stay visible.

    Kept are the resend checkpoint, the replay boundaries, the junction (floored to the block, and exactly
    where `stop` of `spec.chunking.junction_stop` is), and what the retention interval asks for.
    """
    return position > 0 and (
        position in (checkpoint, stop, junction // block * block)
        or position in boundaries
        or keeps_interval(position, block, retention)
    )


def keeps_export(position: int, *, checkpoint: int, junction: int, block: int, retention: int | None) -> bool:
    """RT1: whether a Mamba state exported inside a chunk must stay visible.

    An export that is neither the resend checkpoint nor the junction nor on the retention interval is
    transient: the next export reuses its place, so it must not be published (CH4). A replay boundary or
    the block boundary below a junction is no reason here: a chunk exports one state, and a resend needs the
    checkpoint.
    """
    if position <= 0:
        return False
    return position in (checkpoint, junction) or keeps_interval(position, block, retention)


def attention_tail(prompt: int, unit: int, drops: bool, lookahead: int = 0) -> int:
    """The prompt's last hash boundary that a resend can use as proof: through P for a group that drops,
    else through P − 1, or, where hashes cover `lookahead` more tokens, as far as the prompt knows them."""
    return (prompt if drops else max(prompt - max(1, lookahead), 0)) // unit * unit


def cacheable(tokens: int, block: int, align: int, drops: bool, fine: bool, unfinished: int = 0) -> int:
    """How many of `tokens` computed tokens may be published by a group.

    Coarse hits land on the alignment L only, so nothing past the last L boundary is published, except the
    one block that a group that drops needs as proof. The last `unfinished` tokens of a group that drops have
    KV that the draft modules still rewrite.
    """
    final = max(tokens - unfinished, 0) if drops else tokens
    if fine:
        return final
    aligned = final // align * align
    if drops and tokens // align * align > 0:
        return min(final, aligned + block)
    return aligned


def window_boundaries(
    first: int, last: int, *, kept: tuple[int, ...], grid: int, retention: int | None
) -> set[int]:
    """Lengths in [first, last] at which hits of a sliding-window group must stay possible.

    `kept` are the positions kept under every retention setting (resend checkpoint, replay boundaries,
    junction), which count floored to the `grid`; retention None keeps every length on the grid, k the
    multiples of k.
    """
    step = grid if retention is None else retention
    dense = set(range(-(-first // step) * step, last + 1, step)) if step else set()
    return {length for length in dense | {at // grid * grid for at in kept} if first <= length <= last}
