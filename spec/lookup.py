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


def junction(limit: int, grid: int, hit: int, attention: Iterable[Callable[[int], bool]]) -> int:
    """LK5: the longest length that the attention of one layout could serve, when it exceeds the hit, else 0.

    `attention` holds one predicate per layout, since groups of equal layout are looked up together. Mamba
    groups have no say: a lookup never searches states beyond the attention's reach.
    """
    longest = max((greatest_hit(limit, grid, (serve,)) for serve in attention), default=0)
    return longest if longest > hit else 0
