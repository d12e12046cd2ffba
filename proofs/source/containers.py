"""Containers that lifted functions use, exact for plain and for symbolic items and lengths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proofs.stand_ins import SymRange
from proofs.symbolic import Unsupported, is_symbolic


def distinct(*values: Any) -> Any:
    """A set display."""
    return set(values)


def symbolic_distinct(*values: Any) -> Any:
    """A set display as a list without repetitions; which values are equal is decided by the path.

    Only what does not depend on the order may be done with it: sorting, asking for members, counting.
    """
    kept: list[Any] = []
    for value in values:
        if not any(value == other for other in kept):
            kept.append(value)
    return kept


def repeated(value: Any, times: int) -> Any:
    """A list that holds one value so many times."""
    return [value] * times


def symbolic_repeated(value: Any, times: Any) -> Any:
    """The same for a symbolic length."""
    return Written(value, times) if is_symbolic(times) else [value] * times


class Written:
    """A list of unknown length: one value everywhere but where another one was written."""

    def __init__(self, value: Any, length: Any) -> None:
        self.symbolic_length = 0 if length < 0 else length
        self._value = value
        self._writes: list[tuple[Any, Any]] = []

    def _place(self, index: Any) -> Any:
        if isinstance(index, slice):
            raise Unsupported("slice of a list of symbolic length")
        if index < 0:
            index = index + self.symbolic_length
        if index < 0 or index >= self.symbolic_length:
            raise IndexError("list index out of range")
        return index

    def __setitem__(self, index: Any, value: Any) -> None:
        self._writes.append((self._place(index), value))

    def __getitem__(self, index: Any) -> Any:
        place = self._place(index)
        for written, value in reversed(self._writes):
            if written == place:
                return value
        return self._value

    def __iter__(self) -> Iterator[Any]:
        raise Unsupported("turn through a list of symbolic length")


_chosen: list[Any] = []


def choose(index: Any) -> None:
    """Say which turn of a loop a theorem is about (see `one_turn_range`); nothing in plain Python."""


def symbolic_choose(index: Any) -> None:
    """Keep the index for `one_turn_range`."""
    _chosen[:] = [index]


def one_turn_range(*ends: Any) -> Any:
    """`range` whose only turn is the chosen one, where the range has it.

    A proof over it covers every turn where turns do not touch one another: nothing in or after the loop may
    depend on what another turn did. A theorem that asks for it answers for that.
    """
    if not any(map(is_symbolic, ends)):
        return range(*ends)
    return (_chosen[0],) if _chosen[0] in SymRange(*ends) else ()
