"""Numbers and positions in words, as explanations say them."""

from __future__ import annotations

from collections.abc import Sequence

LISTED = 4


def count(number: int, name: str) -> str:
    """So many of something."""
    return f"{number} {name}{'' if number == 1 else 's'}"


def places(positions: Sequence[int]) -> str:
    """Positions in words, many as a range."""
    if len(positions) <= LISTED:
        return ", ".join(map(str, positions))
    return f"{positions[0]} to {positions[-1]} ({len(positions)} entries)"
