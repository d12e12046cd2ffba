"""Counterexamples: made small, and confirmed by running the theorem on them in plain Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import z3

from proofs.assume import Discarded
from proofs.inputs import Parameter, Table
from proofs.symbolic import Term

SHRINK_TRIES = 5_000
# In Z3's units of work, as in `proofs.paths`; no theorem needs a fifth of it.
_SEARCH_UNITS = 1_500_000
_BOUNDS = (1, 2, 4, 16, 256, None)


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Values by parameter, as text, and how the theorem fails on them in plain Python."""

    values: Mapping[str, str]
    failure: str

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.values.items())


@dataclass(frozen=True, slots=True)
class Trial:
    """A theorem, run in plain Python on values of its parameters."""

    theorem: Callable[..., object]
    parameters: Sequence[Parameter]
    planted: Mapping[str, Any]

    def failure(self, values: Sequence[Any]) -> str | None:
        """How the theorem fails on the values; None if it holds for them or says nothing about them."""
        try:
            self.theorem(*values, **self.planted)
        except Discarded:
            return None
        except Exception as failure:
            return f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__
        return None

    def small_failure(self, linear: Sequence[Term]) -> list[Any] | None:
        """Values on which the theorem fails, among those that meet a path's conditions without its products.

        Small values are tried first. These conditions may let values pass that the path does not, so only
        the theorem's own failure counts.
        """
        integers = [term for parameter in self.parameters for term in parameter.integers()]
        for bound in _BOUNDS if integers else (None,):
            solver = z3.SimpleSolver()
            solver.set("rlimit", _SEARCH_UNITS)
            solver.add(*linear)
            if bound is not None:
                solver.add(*(z3.And(term >= -bound, term <= bound) for term in integers))
            if solver.check() == z3.sat:
                values = self.values(solver.model(), linear)
                if self.failure(values) is not None:
                    return values
        return None

    def values(self, model: Any, conditions: Sequence[Term]) -> list[Any]:
        """The plain values that a model of the conditions gives the parameters."""
        return [parameter.concrete(model, conditions) for parameter in self.parameters]

    def smallest(self, values: Sequence[Any], deadline: float) -> Counterexample:
        """The counterexample with smaller values put in, one after the other, as long as it stays one, within
        `SHRINK_TRIES`; the deadline is a last net."""
        best, tries = list(values), 0
        changed = True
        while changed:
            changed = False
            for index, value in enumerate(best):
                for smaller in _smaller(value):
                    tries += 1
                    if tries > SHRINK_TRIES or time.monotonic() > deadline:
                        break
                    tried = [*best[:index], smaller, *best[index + 1 :]]
                    if self.failure(tried) is not None:
                        best, changed = tried, True
                        break
        shown = {parameter.name: repr(value) for parameter, value in zip(self.parameters, best, strict=True)}
        return Counterexample(shown, self.failure(best) or "")


def _smaller(value: Any) -> Iterator[Any]:
    """Smaller values of the same kind, the smallest first."""
    if isinstance(value, bool):
        if value:
            yield False
    elif isinstance(value, int):
        sign = 1 if value > 0 else -1
        seen = set()
        for size in (0, 1, 2, 3, abs(value) // 2, abs(value) * 9 // 10, abs(value) - 1):
            if 0 <= size < abs(value) and size not in seen:
                seen.add(size)
                yield sign * size
        if value < 0:
            yield -value
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            for smaller in _smaller(item):
                yield (*value[:index], smaller, *value[index + 1 :])
    elif isinstance(value, Table):
        for point in value.points:
            yield Table(
                {other: kept for other, kept in value.points.items() if other != point}, value.otherwise
            )
