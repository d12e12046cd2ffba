"""Stand-ins for Python's built-ins, injected into a function's globals so that it runs on symbolic values."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import z3

from proofs.symbolic import SymBool, SymInt, SymSequence, Unsupported, integer_term, is_symbolic, running

_NOTHING = object()


def _extreme(real: Callable[..., Any], beats: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def extreme(*values: Any, key: Callable[[Any], Any] | None = None, default: Any = _NOTHING) -> Any:
        if len(values) == 1:
            values = tuple(values[0])
        elif default is not _NOTHING:
            raise TypeError("a default goes with one iterable only")
        if not values and default is not _NOTHING:
            return default
        if key is not None or not all(type(value) in (int, SymInt) for value in values):
            return real(values, key=key)
        if not any(is_symbolic(value) for value in values):
            return real(values)
        best = integer_term(values[0])
        for value in values[1:]:
            term = integer_term(value)
            best = z3.If(beats(term, best), term, best)
        return SymInt(best)

    return extreme


symbolic_min = _extreme(min, lambda new, best: new < best)
symbolic_max = _extreme(max, lambda new, best: new > best)


def symbolic_len(value: Any) -> Any:
    """The length of a collection, or of an attribute bag that states one as `symbolic_length`."""
    if type(value) is SymSequence:
        return value.length
    stated = getattr(value, "symbolic_length", None)
    return len(value) if stated is None else stated


class SymRange:
    """`range` with symbolic ends, one index after the other, exactly: an end without a bound never ends."""

    def __init__(self, *ends: Any) -> None:
        if not 1 <= len(ends) <= 3:
            raise TypeError(f"range takes 1 to 3 arguments, got {len(ends)}")
        self.start, self.stop, self.step = (
            (0, ends[0], 1) if len(ends) == 1 else (*ends, 1) if len(ends) == 2 else ends
        )
        if self.step == 0:
            raise ValueError("range() arg 3 must not be zero")

    def __iter__(self) -> Iterator[Any]:
        index = self.start
        if self.step > 0:
            while index < self.stop:
                yield index
                index = index + self.step
        else:
            while index > self.stop:
                yield index
                index = index + self.step

    @property
    def symbolic_length(self) -> Any:
        """How many indices there are."""
        if self.step > 0:
            return symbolic_max(0, (self.stop - self.start + self.step - 1) // self.step)
        return symbolic_max(0, (self.start - self.stop - self.step - 1) // -self.step)

    def __contains__(self, value: Any) -> bool:
        inside = self.start <= value < self.stop if self.step > 0 else self.stop < value <= self.start
        return bool(inside and (value - self.start) % self.step == 0)

    def __reversed__(self) -> Iterator[Any]:
        last = self.start + (self.symbolic_length - 1) * self.step
        return iter(SymRange(last, self.start - self.step, -self.step))


def symbolic_range(*ends: Any) -> Any:
    """`range`, exact for symbolic ends too."""
    return SymRange(*ends) if any(map(is_symbolic, ends)) else range(*ends)


def arbitrary_range(*ends: Any) -> Any:
    """`range` whose symbolic ends give one arbitrary index in place of all.

    A proof over it covers every iteration only where iterations do not touch one another: the loop's body
    may read what was there before the loop and may assert, append to a list or return, but nothing after or
    in the loop may depend on what another iteration did, or on how many there were. It is no part of
    `BUILTINS`: who injects it answers for that condition.
    """
    if not any(map(is_symbolic, ends)):
        return range(*ends)
    whole = SymRange(*ends)
    index = SymInt(running().fresh("iteration"))
    return (index,) if index in whole else ()


class _IntMeta(type):
    def __call__(cls, *arguments: Any) -> Any:
        if len(arguments) == 1 and is_symbolic(arguments[0]):
            return SymInt(integer_term(arguments[0]))
        return int(*arguments)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, int)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, int)

    def __getattr__(cls, name: str) -> NoReturn:
        raise Unsupported(f"attribute {name!r} of int")


class SymbolicInt(metaclass=_IntMeta):
    """`int`: converts symbolic values, and answers isinstance for them."""


def symbolic_type(*arguments: Any) -> Any:
    """`type`, which a symbolic value could only answer wrongly."""
    if len(arguments) != 1 or is_symbolic(arguments[0]):
        raise Unsupported("type of a symbolic value, or a type made at run time")
    return type(arguments[0])


def _refused(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise Unsupported(f"call of {name}")

    return refuse


def symbolic_any(values: Iterable[Any]) -> bool:
    """`any`: deciding one value after the other is what it does anyway."""
    return any(values)


def symbolic_all(values: Iterable[Any]) -> bool:
    """`all`, likewise."""
    return all(values)


def symbolic_sum(values: Iterable[Any], start: Any = 0) -> Any:
    """`sum` of plain and symbolic integers."""
    total = start
    for value in values:
        total = total + value
    return total


_REFUSED = (
    "__import__",
    "breakpoint",
    "compile",
    "delattr",
    "eval",
    "exec",
    "globals",
    "id",
    "input",
    "locals",
    "open",
    "print",
    "setattr",
    "vars",
)

BUILTINS: Mapping[str, Any] = {
    **vars(builtins),
    **{name: _refused(name) for name in _REFUSED},
    "min": symbolic_min,
    "max": symbolic_max,
    "any": symbolic_any,
    "all": symbolic_all,
    "sum": symbolic_sum,
    "range": symbolic_range,
    "len": symbolic_len,
    "int": SymbolicInt,
    "type": symbolic_type,
}


def if_then_else(condition: Any, one: Any, other: Any) -> Any:
    """`one if condition else other` as a single term, where all three are integers; no branch is explored."""
    if type(condition) is not SymBool:
        return one if condition else other
    return SymInt(z3.If(condition.term, integer_term(one), integer_term(other)))
