"""Loop lemmas: what a theorem states about a loop so that one arbitrary turn stands for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Theorem = TypeVar("Theorem", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Loop:
    """A lemma about loop `number` (from 0, in source order) of `function`, a function without effects.

    `invariant` takes variables of the function by name and returns conditions that hold whenever the loop
    decides whether to go on; in a `for` over a range the loop variable is the index that comes next. Its
    keyword-only parameters are numbers that the theorem foretells. `measure` takes variables too: it must
    fall with every turn and not be negative when one begins (a `for` over a range needs none).
    """

    function: Callable[..., Any]
    invariant: Callable[..., tuple[bool, ...]]
    measure: Callable[..., int] | None = None
    number: int = 0


def by_induction(*loops: Loop) -> Callable[[Theorem], Theorem]:
    """Attach loop lemmas to a theorem. Only the engine uses them; elsewhere the loops simply run."""

    def attach(theorem: Theorem) -> Theorem:
        theorem.loops = loops  # type: ignore[attr-defined]
        return theorem

    return attach


def loops_of(theorem: Callable[..., object]) -> tuple[Loop, ...]:
    """The loop lemmas of a theorem."""
    found: tuple[Loop, ...] = getattr(theorem, "loops", ())
    return found
