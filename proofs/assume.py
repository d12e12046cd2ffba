"""The few words that a theorem needs beside `assert`."""

from __future__ import annotations

from collections.abc import Iterable


class Discarded(Exception):
    """An assumption of a theorem does not hold for these values, so they say nothing about it."""


def assume(condition: bool) -> None:
    """Go on only where `condition` holds.

    Raises:
        Discarded: where it does not.
    """
    if not condition:
        raise Discarded


def implies(condition: bool, conclusion: bool) -> bool:
    """Whether `conclusion` holds or `condition` does not. Both are evaluated, so that no branch is needed."""
    return not condition or conclusion


def refutes(condition: bool, conclusion: bool) -> bool:
    """Whether not both hold. Both are evaluated, so that no branch is needed."""
    return not condition or not conclusion


def every(conditions: Iterable[bool]) -> bool:
    """Whether all conditions hold. All are evaluated, so that no branch is needed."""
    return all(tuple(conditions))


def foretell(name: str, value: int) -> int:
    """Say what the loop invariants know as `name` (see `proofs.loops`); returns `value`.

    An invariant may speak of a number that is only found later, since it holds for every number; this is
    where the engine learns which one is meant. In plain Python nothing happens.
    """
    return value
