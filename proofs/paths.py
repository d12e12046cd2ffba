"""One path through a function, and the questions that decide which paths there are."""

from __future__ import annotations

import gc
import heapq
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import z3

from proofs.products import Products
from proofs.symbolic import Term

# Limits in Z3's own units of work ("rlimit"), in which the machine's speed has no say: some half a million
# are a second. No theorem needs more than a fifth of one (the greatest: 193,000 for a branch, 17 million for
# a whole theorem), but for the first try, which the last of the `_WAYS` repeats with ten times as much.
BRANCH_UNITS = 1_000_000
FIRST_UNITS = 1_000_000
THEOREM_UNITS = 100_000_000
# So many new decisions a path takes in one go, lest a long one keep short ones waiting.
STRIDE = 30

_PREPARE = ("simplify", "propagate-values", "solve-eqs", "elim-uncnstr")
# Ways to answer a question that decides the verdict, each with its limit; what one is slow at another sees at
# once. Z3's own choice (the empty one) has a clock of two seconds inside. The questions that only it answers
# take it 190,000 units, a tenth of that time, and it is given few, so that the clock hardly ever has a say.
_WAYS: tuple[tuple[tuple[str, ...], int], ...] = (
    ((*_PREPARE, "purify-arith", "simplify", "smt"), 1_000_000),
    ((), 1_000_000),
    ((*_PREPARE, "simplify", "smt"), 10_000_000),
)


def fresh_context() -> None:
    """Let Z3 begin anew: terms are ordered by when they were first made, so what a process did before would
    otherwise have a say in how a question is put, and in how long its answer takes."""
    z3.z3._main_ctx = None


class Abandoned(BaseException):
    """The path holds for no values."""


class Suspended(BaseException):
    """The path has gone far enough for now; shorter ones come first."""


class OutOfBudget(BaseException):
    """What the theorem may cost is spent."""


@dataclass(frozen=True, slots=True)
class Query:
    """One question to Z3: can all of `assertions` hold? `answer` is sat, unsat or unknown, `units` what
    it took of Z3's units of work."""

    assertions: tuple[Term, ...]
    answer: str
    units: int = 0


def units_spent(solver: Any = None) -> int:
    """Z3's units of work so far, of all solvers since `fresh_context`, as one that has just answered says;
    without one, at the price of a trivial question."""
    if solver is None:
        solver = z3.SimpleSolver()
        solver.check()
    numbers = solver.statistics()
    told = any(name == "rlimit count" for name, _ in numbers)
    return int(numbers.get_key_value("rlimit count")) if told else units_spent()


class Paths:
    """The paths still to be taken, and all questions asked so far. They may cost so many of Z3's `units`; the
    `deadline` (of time.monotonic) is a last net, for what does not ask Z3."""

    def __init__(self, deadline: float, units: int = THEOREM_UNITS) -> None:
        self.deadline = deadline
        self._began = self._last = units_spent()
        self._units = units
        self.queries: list[Query] = []
        self.products = Products()
        # Paths share most of their terms, so what is made of a term is kept, and with it the term itself.
        self._simple: dict[int, tuple[Term, Term]] = {}
        self._orders: dict[tuple[int, int, int], tuple[list[Term], tuple[Term, Term, Term]]] = {}
        self._waiting: list[tuple[int, int, list[bool], Any]] = [(0, 0, [], None)]
        self._count = itertools.count(1)

    def wait(self, prefix: list[bool], model: Any) -> None:
        """Leave a side of a branch for later."""
        heapq.heappush(self._waiting, (len(prefix), next(self._count), prefix, model))

    def runs(self) -> Iterator[Run]:
        """All paths, those with the fewest decisions first, so that an endless loop hides no short path."""
        while self._waiting:
            _, _, prefix, model = heapq.heappop(self._waiting)
            yield Run(self, prefix, model)

    def simplified(self, term: Term) -> Term:
        """The term in Z3's simplest form."""
        known = self._simple.get(term.get_id())
        if known is None:
            known = self._simple[term.get_id()] = (term, z3.simplify(term))
        return known[1]

    def order_facts(self, divisor: Term, one: Term, other: Term) -> list[Term]:
        """What Z3 is slow to see, and does not see at all without products: of two multiples of the divisor
        the one with the smaller factor is smaller, by the divisor at least."""
        key = (divisor.get_id(), one.get_id(), other.get_id())
        known = self._orders.get(key)
        if known is None:
            facts = [z3.Implies(one == other, divisor * one == divisor * other)]
            for less, more in ((one, other), (other, one)):
                smaller = divisor * less + divisor <= divisor * more
                facts.append(z3.Implies(z3.And(divisor > 0, less < more), smaller))
            known = self._orders[key] = (facts, (divisor, one, other))
        return known[0]

    @property
    def units(self) -> int:
        """What was spent so far."""
        return self._last - self._began

    def check_budget(self) -> None:
        """Raises OutOfBudget when all units are spent, or past the deadline."""
        if self.units >= self._units or time.monotonic() > self.deadline:
            raise OutOfBudget

    def ask(self, assertions: Sequence[Term], units: int, way: Sequence[str]) -> tuple[str, Any]:
        """Whether all assertions can hold, and values for which they do; `way` names Z3's tactics."""
        solver = z3.Then(*way).solver() if way else z3.Solver()
        solver.add(*assertions)
        # Z3 does not always keep its own limits. No term may die in the watching thread while this one is
        # in Z3, whose reference counts are not safe: hence no collection until that thread is gone.
        collecting = gc.isenabled()
        gc.disable()
        watch = threading.Timer(max(self.deadline - time.monotonic(), 0.0) + 1.0, solver.interrupt)
        watch.daemon = True
        watch.start()
        try:
            return self.answer(solver, assertions, units)
        finally:
            watch.cancel()
            watch.join()
            if collecting:
                gc.enable()

    def answer(self, solver: Any, assertions: Sequence[Term], units: int) -> tuple[str, Any]:
        """The answer of a solver that holds the assertions; unknown when it takes more units."""
        self.check_budget()
        solver.set("rlimit", min(units, self._units - self.units))
        solver.set("timeout", max(1, int(1000 * (self.deadline - time.monotonic()))))
        try:
            answer = str(solver.check())
        except z3.Z3Exception:
            answer = "unknown"
        before, self._last = self._last, units_spent(solver)
        self.queries.append(Query(tuple(assertions), answer, self._last - before))
        return answer, solver.model() if answer == "sat" else None

    def ask_first(self, assertions: Sequence[Term]) -> tuple[str, Any]:
        """A question whose answer decides the verdict, in the way that answers most of them."""
        return self.ask(assertions, FIRST_UNITS, _WAYS[-1][0])

    def ask_hard(self, assertions: Sequence[Term]) -> tuple[str, Any]:
        """The same for one that was not answered so: in one way after the other, with more units."""
        answer, model = "unknown", None
        for way, units in _WAYS:
            answer, model = self.ask(assertions, units, way)
            if answer != "unknown":
                break
        return answer, model


class Run:
    """One path: a list of decisions, taken over from before and then new ones.

    `conditions` are those of the path; the questions whether it goes on at all are asked about `linear`, the
    same without products, which is quick and can only find more paths, never fewer.
    """

    def __init__(self, paths: Paths, prefix: list[bool], model: Any) -> None:
        self.paths, self.prefix, self.model = paths, prefix, model
        self.conditions: list[Term] = []
        self.linear: list[Term] = []
        self._solver = z3.SimpleSolver()
        self._told = 0
        self._taken = 0
        self._begun = len(prefix)
        self._settled: dict[int, bool] = {}
        self._kept: list[Term] = []
        self._multiples: dict[int, list[Term]] = {}
        self._divisions: dict[tuple[int, int], tuple[Term, Term]] = {}
        self._created = 0

    def decide(self, condition: Term) -> bool:
        """Which side of a condition this run follows."""
        condition = self.paths.simplified(condition)
        if z3.is_true(condition):
            return True
        if z3.is_false(condition):
            return False
        known = self._settled.get(condition.get_id())
        if known is not None:
            return known
        self.paths.check_budget()
        if self._taken < len(self.prefix):
            side = self.prefix[self._taken]
        else:
            if self._taken - self._begun >= STRIDE:
                self.paths.wait(self.prefix, self.model)
                raise Suspended
            side = self._new_decision(condition)
            self.prefix.append(side)
        self._taken += 1
        self._settle(condition, side)
        return side

    def assume(self, condition: Term) -> None:
        """Go on only where a condition holds.

        Raises:
            Abandoned: where it holds nowhere.
        """
        condition = self.paths.simplified(condition)
        if z3.is_true(condition):
            return
        if z3.is_false(condition):
            raise Abandoned
        self.paths.check_budget()
        self._settle(condition, True)
        if self._taken < len(self.prefix) or self._told_by_model(condition):
            return
        answer, self.model = self._ask(z3.BoolVal(True))
        if answer == "unsat":
            raise Abandoned

    def fresh(self, name: str) -> Term:
        """An integer that nothing is known about yet."""
        self._created += 1
        return z3.Int(f"any {name}!{self._created}")

    def divided(self, dividend: Term, divisor: Term) -> tuple[Term, Term]:
        """Quotient and rest of a division by a positive divisor, by what defines them."""
        known = self._divisions.get((dividend.get_id(), divisor.get_id()))
        if known is not None:
            return known
        number = len(self._divisions)
        quotient, rest = z3.Int(f"quotient!{number}"), z3.Int(f"rest!{number}")
        facts = [dividend == divisor * quotient + rest, rest >= 0, rest < divisor]
        facts += self._multiple_facts(divisor, quotient)
        if _negated(dividend):
            facts += self._multiple_facts(divisor, -quotient)
        if z3.is_mul(divisor):
            factors = divisor.children()
            for index, factor in enumerate(factors):
                if not z3.is_int_value(factor):
                    others = z3.Product([*factors[:index], *factors[index + 1 :], quotient])
                    facts += self._multiple_facts(factor, z3.simplify(others))
        self._kept += [dividend, divisor]
        self._divisions[dividend.get_id(), divisor.get_id()] = (quotient, rest)
        self._add(facts)
        return quotient, rest

    def multiplied(self, one: Term, other: Term) -> None:
        """Take note of a product of two unknowns."""
        facts = [*self._multiple_facts(one, other), *self._multiple_facts(other, one)]
        if facts:
            self._add(facts)

    def _add(self, facts: list[Term]) -> None:
        self.conditions += facts
        self.linear += [self.paths.products.without(fact) for fact in facts]
        if self._taken >= len(self.prefix):
            self.model = None

    def _multiple_facts(self, divisor: Term, times: Term) -> list[Term]:
        """How a multiple of the divisor lies to all others that this path knows, 0 among them."""
        known = self._multiples.get(divisor.get_id())
        if known is None:
            known = self._multiples[divisor.get_id()] = [z3.IntVal(0)]
            self._kept.append(divisor)
        if any(other.eq(times) for other in known):
            return []
        facts = [fact for other in known for fact in self.paths.order_facts(divisor, other, times)]
        known.append(times)
        return facts

    def _settle(self, condition: Term, side: bool) -> None:
        other = self.paths.simplified(z3.Not(condition))
        kept = condition if side else other
        self.conditions.append(kept)
        self.linear.append(self.paths.products.without(kept))
        # Both terms stay alive, so that no other term gets their number.
        self._kept += [condition, other]
        self._settled[condition.get_id()] = side
        self._settled[other.get_id()] = not side

    def _new_decision(self, condition: Term) -> bool:
        side = self._told_by_model(condition)
        if side is None:
            answer, self.model = self._ask(condition)
            if answer == "unsat":
                return False
            side = True
        answer, model = self._ask(z3.Not(condition) if side else condition)
        if answer != "unsat":
            self.paths.wait([*self.prefix, not side], model)
        return side

    def _told_by_model(self, condition: Term) -> bool | None:
        if self.model is None:
            return None
        value = self.model.eval(self.paths.products.without(condition), model_completion=True)
        return True if z3.is_true(value) else False if z3.is_false(value) else None

    def _ask(self, condition: Term) -> tuple[str, Any]:
        asked = self.paths.products.without(condition)
        self._solver.add(*self.linear[self._told :])
        self._told = len(self.linear)
        self._solver.push()
        self._solver.add(asked)
        try:
            return self.paths.answer(self._solver, [*self.linear, asked], BRANCH_UNITS)
        finally:
            self._solver.pop()


def _negated(term: Term) -> bool:
    """Whether a term is plainly the negative of something, as in a quotient that is rounded up."""
    summands = term.children() if z3.is_add(term) else [term]
    return all(
        z3.is_mul(summand) and z3.is_int_value(summand.arg(0)) and summand.arg(0).as_long() < 0
        for summand in summands
    )
