"""The parameters of a theorem: their kinds, symbolic values for them, and plain values out of a model."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import z3

from proofs.symbolic import SymBool, SymFunction, SymInt, Term, Unsupported

INTEGER, BOOLEAN, PREDICATE, FUNCTION = "integer", "boolean", "predicate", "function"


class Table:
    """A function of one integer by its values at a few points and one value elsewhere."""

    def __init__(self, points: dict[int, Any], otherwise: Any) -> None:
        self.points = {point: value for point, value in points.items() if value != otherwise}
        self.otherwise = otherwise

    def __call__(self, argument: int) -> Any:
        return self.points.get(argument, self.otherwise)

    def __repr__(self) -> str:
        if self.otherwise is False:
            return "{" + ", ".join(map(str, sorted(self.points))) + "}"
        return f"{dict(sorted(self.points.items()))}, else {self.otherwise}"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: its name and kind; a tuple has a kind for each item."""

    name: str
    kind: str | tuple[str, ...]

    def symbolic(self) -> Any:
        """A value that stands for all of them."""
        if isinstance(self.kind, tuple):
            return tuple(part.symbolic() for part in self._parts())
        if self.kind == INTEGER:
            return SymInt(z3.Int(self.name))
        if self.kind == BOOLEAN:
            return SymBool(z3.Bool(self.name))
        return SymFunction(self.name, truth=self.kind == PREDICATE)

    def integers(self) -> Iterator[Term]:
        """The integer terms, which a counterexample should keep small."""
        if isinstance(self.kind, tuple):
            for part in self._parts():
                yield from part.integers()
        elif self.kind == INTEGER:
            yield z3.Int(self.name)

    def concrete(self, model: Any, conditions: Sequence[Term]) -> Any:
        """The plain value that a model of the conditions gives the parameter."""
        if isinstance(self.kind, tuple):
            return tuple(part.concrete(model, conditions) for part in self._parts())
        if self.kind == INTEGER:
            return model.eval(z3.Int(self.name), model_completion=True).as_long()
        if self.kind == BOOLEAN:
            return z3.is_true(model.eval(z3.Bool(self.name), model_completion=True))
        return _table(model, SymFunction(self.name, truth=self.kind == PREDICATE).declaration, conditions)

    def _parts(self) -> Iterator[Parameter]:
        for index, kind in enumerate(self.kind):
            yield Parameter(f"{self.name}[{index}]", kind)


def of(theorem: Callable[..., object]) -> tuple[Parameter, ...]:
    """The parameters that a theorem ranges over; keyword-only ones are the functions that it is about.

    Raises:
        Unsupported: for a parameter without a kind that the engine knows.
    """
    hints = typing.get_type_hints(theorem)
    found = []
    for parameter in inspect.signature(theorem).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            continue
        kind = _kind(hints.get(parameter.name))
        if kind is None or parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            raise Unsupported(f"parameter {parameter.name!r} of that kind")
        found.append(Parameter(parameter.name, kind))
    return tuple(found)


def _kind(hint: Any) -> str | tuple[str, ...] | None:
    if hint is int:
        return INTEGER
    if hint is bool:
        return BOOLEAN
    if hint == Callable[[int], bool]:
        return PREDICATE
    if hint == Callable[[int], int]:
        return FUNCTION
    if typing.get_origin(hint) is tuple:
        kinds = [_kind(item) for item in typing.get_args(hint)]
        if all(isinstance(kind, str) for kind in kinds):
            return tuple(kind for kind in kinds if isinstance(kind, str))
    return None


def _table(model: Any, declaration: Any, conditions: Sequence[Term]) -> Table:
    """The function's values where the conditions ask for them; anywhere else it has none that matters."""
    truth = declaration.range() == z3.BoolSort()
    points: dict[int, Any] = {}
    for call in _calls(declaration, conditions):
        point = model.eval(call.arg(0), model_completion=True).as_long()
        value = model.eval(call, model_completion=True)
        points[point] = z3.is_true(value) if truth else value.as_long()
    return Table(points, False if truth else 0)


def _calls(declaration: Any, conditions: Sequence[Term]) -> Iterator[Term]:
    seen = set()
    waiting = list(conditions)
    while waiting:
        term = waiting.pop()
        if term.get_id() in seen:
            continue
        seen.add(term.get_id())
        if z3.is_app(term) and term.decl().eq(declaration):
            yield term
        waiting.extend(term.children())
