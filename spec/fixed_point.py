"""LK1: the fixed point by which implementations find the hit that `spec.lookup.greatest_hit` defines."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def shortened(candidate: int, grid: int, serves: Callable[[int], bool]) -> int:
    """One group's turn (PM4): the greatest length on the grid, at most `candidate`, that the group serves.

    Lengths are in tokens. A group serves 0, so the turn ends.
    """
    length = candidate // grid * grid
    while not serves(length):
        length -= grid
    return length


def fixed_point(limit: int, grid: int, serves: Iterable[Callable[[int], bool]]) -> int:
    """The hit as implementations find it: every group shortens the candidate in its turn, until none does.

    `limit` is the greatest length in tokens that may be reused, `grid` where hits land.
    """
    groups = tuple(serves)
    candidate = limit // grid * grid
    while True:
        before = candidate
        for serve in groups:
            candidate = shortened(candidate, grid, serve)
        if candidate == before:
            return candidate
