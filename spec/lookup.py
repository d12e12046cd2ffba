"""LK: the greatest prefix length that every group can serve."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def attention_extent(visible: Callable[[int], bool], block: int, unit: int, bound: int, fine: bool) -> int:
    """E_g in tokens: contiguous full blocks from 0, then (fine) the highest interior entry of the next.

    `visible(p)` tells whether the group holds an entry for the request's first p tokens; `bound` is the
    scan bound of PM1.
    """
    extent = 0
    while extent + block <= bound and visible(extent + block):
        extent += block
    if fine:
        for position in range(min(extent + block - unit, bound // unit * unit), extent, -unit):
            if visible(position):
                return position
    return extent


def attention_serves(length: int, margin: int, extent: int) -> bool:
    """An attention group serves `length` when its proof reaches the margin beyond it."""
    return length == 0 or length + margin <= extent


def window_blocks(length: int, block: int, window: int, margin: int) -> tuple[int, ...]:
    """Block ends, in tokens, that a sliding-window group needs for a hit of `length` tokens (a multiple of
    `block`): the blocks that hold the `window` − 1 tokens before it, and the margin's block after it."""
    need = -(-(window - 1) // block)
    below = [length - index * block for index in range(need) if length - index * block > 0]
    return (*range(length + margin, length, -block), *below)


def window_serves(
    length: int, block: int, window: int, margin: int, bound: int, visible: Callable[[int], bool]
) -> bool:
    """A sliding-window group serves `length` when all blocks of the window below it, and its proof up to the
    margin, are visible; `bound` is the scan bound of PM1."""
    if length == 0:
        return True
    if length % block or length + margin > bound:
        return False
    return all(visible(end) for end in window_blocks(length, block, window, margin))


def mamba_serves(length: int, visible: Callable[[int], bool]) -> bool:
    """A Mamba group serves `length` when it holds the state after exactly that many tokens."""
    return length == 0 or visible(length)


def greatest_hit(limit: int, grid: int, serves: Iterable[Callable[[int], bool]]) -> int:
    """LK1: the greatest length on the grid, at most `limit`, that every group serves; tried from the top."""
    groups = tuple(serves)
    length = limit // grid * grid
    while not all(serve(length) for serve in groups):
        length -= grid
    return length


def junction(limit: int, grid: int, hit: int, attention: Iterable[Callable[[int], bool]]) -> tuple[int, int]:
    """LK5: the least and the greatest junction, each 0 when it does not exceed the hit.

    `attention` holds one predicate per layout of full attention, since groups of equal layout are looked up
    together. Mamba groups have no say: a lookup never searches states beyond the attention's reach. Where
    layouts differ, the junction lies between what all of them and what one of them could serve; which, is
    not laid down.
    """
    serves = tuple(attention)
    if not serves:
        return 0, 0
    least = greatest_hit(limit, grid, serves)
    greatest = max((greatest_hit(limit, grid, (serve,)) for serve in serves), default=0)
    return (least if least > hit else 0), (greatest if greatest > hit else 0)
