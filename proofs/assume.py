"""The one word that a theorem needs beside `assert`: what it takes for granted."""

from __future__ import annotations


class Discarded(Exception):
    """An assumption of a theorem does not hold for these values, so they say nothing about it."""


def assume(condition: bool) -> None:
    """Go on only where `condition` holds.

    Raises:
        Discarded: where it does not.
    """
    if not condition:
        raise Discarded
