"""Replaces products of unknowns by unknowns of their own, so that questions become linear and quick."""

from __future__ import annotations

import z3

from proofs.symbolic import Term


class Products:
    """One name for every product that occurs.

    A condition without products follows from the condition itself: whatever meets the one meets the other,
    with the products' values for their names. So "no values meet it" carries over, "some do" does not.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[int, ...], Term] = {}
        # Terms are kept, so that their numbers stay theirs.
        self._kept: list[Term] = []
        self._done: dict[int, tuple[Term, Term]] = {}

    def without(self, term: Term) -> Term:
        """The term with a name for every product of two or more unknowns."""
        known = self._done.get(term.get_id())
        if known is None:
            known = (term, self._replaced(term))
            self._done[term.get_id()] = known
        return known[1]

    def _replaced(self, term: Term) -> Term:
        known = self._done.get(term.get_id())
        if known is not None:
            return known[1]
        # Sums are spread here, side by side: spreading a comparison as a whole would factor it again.
        spread = z3.simplify(term, som=True) if z3.is_add(term) or z3.is_mul(term) else term
        arguments = [self._replaced(argument) for argument in spread.children()]
        if not arguments:
            made = spread
        elif z3.is_mul(spread):
            made = self._product(arguments)
        else:
            made = spread.decl()(*arguments)
        self._done[term.get_id()] = (term, made)
        return made

    def _product(self, factors: list[Term]) -> Term:
        flat: list[Term] = []
        for factor in factors:
            flat += factor.children() if z3.is_mul(factor) else [factor]
        numbers = [factor for factor in flat if z3.is_int_value(factor)]
        unknowns = sorted(
            (factor for factor in flat if not z3.is_int_value(factor)), key=lambda factor: factor.get_id()
        )
        if len(unknowns) > 1:
            key = tuple(factor.get_id() for factor in unknowns)
            if key not in self._names:
                self._names[key] = z3.Int(f"product!{len(self._names)}")
                self._kept.extend(unknowns)
            unknowns = [self._names[key]]
        return z3.Product([*numbers, *unknowns])
