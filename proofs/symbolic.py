"""Symbolic values: integers and booleans that stand for all values at once, exact as Python has them.

A value holds a Z3 term. An operation builds a term; where Python needs a plain answer (`if`, `and`, `not`,
`while`) the running path decides which side to follow. What a term cannot express is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

import z3

Term = Any


class Unsupported(BaseException):
    """A construct that the engine cannot run exactly; the text names it."""

    def __str__(self) -> str:
        return f"unsupported: {self.args[0]}"


class Path(Protocol):
    """The run of a function that is being explored."""

    def decide(self, condition: Term) -> bool:
        """Which side of a condition this run follows."""

    def assume(self, condition: Term) -> None:
        """Go on only where a condition holds."""

    def fresh(self, name: str) -> Term:
        """An integer that nothing is known about yet."""

    def multiplied(self, one: Term, other: Term) -> None:
        """Take note of a product of two unknowns."""

    def divided(self, dividend: Term, divisor: Term) -> tuple[Term, Term]:
        """Quotient and rest of a division by a positive divisor."""


_running: list[Path] = []


def running() -> Path:
    """The path that is being explored.

    Raises:
        Unsupported: when a symbolic value is used outside an exploration.
    """
    if not _running:
        raise Unsupported("a symbolic value outside an exploration")
    return _running[-1]


class Exploration:
    """Makes a path the running one, for the length of a `with` block."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        _running.append(self._path)

    def __exit__(self, *_: object) -> None:
        _running.pop()


def _refused(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: object) -> NoReturn:
        raise Unsupported(what)

    return refuse


def is_symbolic(value: object) -> bool:
    """Whether a value stands for many values."""
    return type(value) in (SymInt, SymBool)


def integer_term(value: object) -> Term:
    """The integer term of an int, a bool or a symbolic one; None for anything else.

    Raises:
        Unsupported: for a float or a complex number, which no integer term can meet exactly.
    """
    if type(value) is SymInt:
        return value.term
    if type(value) is SymBool:
        return z3.If(value.term, z3.IntVal(1), z3.IntVal(0))
    if isinstance(value, int):
        return z3.IntVal(int(value))
    if isinstance(value, float | complex):
        raise Unsupported(f"{type(value).__name__} with a symbolic integer")
    return None


def boolean_term(value: object) -> Term:
    """The boolean term of a bool or a symbolic one; None for anything else."""
    if type(value) is SymBool:
        return value.term
    return z3.BoolVal(value) if type(value) is bool else None


def _arithmetic(build: Callable[[Term, Term], object]) -> Any:
    def operation(self: SymInt | SymBool, other: object) -> object:
        right = integer_term(other)
        return NotImplemented if right is None else build(integer_term(self), right)

    return operation


def _reflected(build: Callable[[Term, Term], object]) -> Any:
    def operation(self: SymInt | SymBool, other: object) -> object:
        left = integer_term(other)
        return NotImplemented if left is None else build(left, integer_term(self))

    return operation


def _multiplied(one: Term, other: Term) -> SymInt:
    one, other = z3.simplify(one), z3.simplify(other)
    if not z3.is_int_value(one) and not z3.is_int_value(other):
        running().multiplied(one, other)
    return SymInt(one * other)


def _floor(dividend: Term, divisor: Term) -> SymInt:
    return SymInt(_divided(dividend, divisor)[0])


def _modulo(dividend: Term, divisor: Term) -> SymInt:
    return SymInt(_divided(dividend, divisor)[1])


def _both(dividend: Term, divisor: Term) -> tuple[SymInt, SymInt]:
    quotient, rest = _divided(dividend, divisor)
    return SymInt(quotient), SymInt(rest)


def _divided(dividend: Term, divisor: Term) -> tuple[Term, Term]:
    """Quotient and rest as Python has them. Z3's agree for a positive divisor; for a negative one both
    numbers change their sign first, and the rest takes it back."""
    path = running()
    divisor = z3.simplify(divisor)
    positive = path.decide(divisor > 0)
    if not positive and path.decide(divisor == 0):
        raise ZeroDivisionError("integer division or modulo by zero")
    dividend = z3.simplify(dividend)
    while z3.is_app_of(dividend, z3.Z3_OP_ITE) and _has_multiples(dividend, divisor):
        dividend = dividend.arg(1) if path.decide(dividend.arg(0)) else dividend.arg(2)
    whole, rest = _without_multiples(dividend, divisor)
    if not positive:
        quotient, left = _floored(path, -rest, z3.simplify(-divisor))
        return whole + quotient, -left
    quotient, left = _floored(path, rest, divisor)
    return whole + quotient, left


def _floored(path: Path, dividend: Term, divisor: Term) -> tuple[Term, Term]:
    """Quotient and rest by a positive divisor, where Z3's are Python's."""
    dividend = z3.simplify(dividend)
    if z3.is_int_value(divisor) or z3.is_int_value(dividend):
        return dividend / divisor, dividend % divisor
    return path.divided(dividend, divisor)


def _factors(term: Term) -> list[Term]:
    return list(term.children()) if z3.is_mul(term) else [term]


def _taken_out(factors: list[Term], parts: list[Term]) -> list[Term] | None:
    """The factors that are left when all of `parts` are taken out once; None where one is missing."""
    left = list(factors)
    for part in parts:
        place = next((index for index, factor in enumerate(left) if factor.eq(part)), None)
        if place is None:
            return None
        del left[place]
    return left


def _has_multiples(choice: Term, divisor: Term) -> bool:
    """Whether a side of an if-then-else has products with the divisor: then it helps to choose first."""
    return any(not z3.is_int_value(_without_multiples(side, divisor)[0]) for side in choice.children()[1:])


def _without_multiples(dividend: Term, divisor: Term) -> tuple[Term, Term]:
    """`whole` and `rest` with dividend = whole · divisor + rest: products with the divisor are taken out.

    That changes neither result, and Z3 often does not see it by itself.
    """
    spread = z3.simplify(dividend, som=True)
    parts = _factors(divisor)
    whole, rest = [], []
    for summand in spread.children() if z3.is_add(spread) else [spread]:
        left = _taken_out(_factors(summand), parts)
        if left is None or z3.is_int_value(divisor):
            rest.append(summand)
        else:
            whole.append(z3.Product([z3.IntVal(1), *left]))
    if not whole:
        return z3.IntVal(0), dividend
    return z3.Sum(whole), z3.Sum([z3.IntVal(0), *rest])


class _Number:
    """What symbolic integers and booleans share: a boolean counts as 0 or 1, as in Python."""

    __slots__ = ("term",)
    term: Term

    def __init__(self, term: Term) -> None:
        self.term = term

    __add__ = _arithmetic(lambda a, b: SymInt(a + b))
    __radd__ = _reflected(lambda a, b: SymInt(a + b))
    __sub__ = _arithmetic(lambda a, b: SymInt(a - b))
    __rsub__ = _reflected(lambda a, b: SymInt(a - b))
    __mul__ = _arithmetic(_multiplied)
    __rmul__ = _reflected(_multiplied)
    __floordiv__ = _arithmetic(_floor)
    __rfloordiv__ = _reflected(_floor)
    __mod__ = _arithmetic(_modulo)
    __rmod__ = _reflected(_modulo)
    __divmod__ = _arithmetic(_both)
    __rdivmod__ = _reflected(_both)
    __lt__ = _arithmetic(lambda a, b: SymBool(a < b))
    __le__ = _arithmetic(lambda a, b: SymBool(a <= b))
    __gt__ = _arithmetic(lambda a, b: SymBool(a > b))
    __ge__ = _arithmetic(lambda a, b: SymBool(a >= b))
    __eq__ = _arithmetic(lambda a, b: SymBool(a == b))
    __ne__ = _arithmetic(lambda a, b: SymBool(a != b))

    def __neg__(self) -> SymInt:
        return SymInt(-integer_term(self))

    def __pos__(self) -> SymInt:
        return SymInt(integer_term(self))

    def __abs__(self) -> SymInt:
        term = integer_term(self)
        return SymInt(z3.If(term < 0, -term, term))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unsupported(f"attribute {name!r} of a symbolic value")

    __hash__ = _refused("hash of a symbolic value (set member or dict key)")
    __index__ = _refused("symbolic value as an index, a length or an end of a built-in range")
    __int__ = _refused("conversion of a symbolic value by compiled code")
    __float__ = __complex__ = _refused("float of a symbolic value")
    __str__ = __repr__ = __format__ = _refused("text of a symbolic value")
    __truediv__ = __rtruediv__ = _refused("true division")
    __pow__ = __rpow__ = _refused("power")
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refused("shift")
    __round__ = _refused("round of a symbolic value")
    __matmul__ = __rmatmul__ = _refused("matrix product")


class SymInt(_Number):
    """An integer of any size."""

    __slots__ = ()

    # So that isinstance answers as for an int, in code that was not prepared too.
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def __bool__(self) -> bool:
        return running().decide(self.term != 0)

    def __floor__(self) -> SymInt:
        return self

    __ceil__ = __trunc__ = __floor__
    __invert__ = _refused("bit operation ~")
    __and__ = __rand__ = _refused("bit operation &")
    __or__ = __ror__ = _refused("bit operation |")
    __xor__ = __rxor__ = _refused("bit operation ^")


def _logic(build: Callable[[Term, Term], Term], sign: str) -> Any:
    def operation(self: SymBool, other: object) -> object:
        right = boolean_term(other)
        if right is not None:
            return SymBool(build(self.term, right))
        if integer_term(other) is not None:
            raise Unsupported(f"bit operation {sign}")
        return NotImplemented

    return operation


class SymBool(_Number):
    """True or false."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return bool

    def __bool__(self) -> bool:
        return running().decide(self.term)

    __and__ = __rand__ = _logic(z3.And, "&")
    __or__ = __ror__ = _logic(z3.Or, "|")
    __xor__ = __rxor__ = _logic(z3.Xor, "^")
    __invert__ = _refused("bit operation ~")


class SymFunction:
    """An unknown function of one integer: nothing is known of it but that equal arguments give equal results.

    `truth` chooses between a membership predicate and a function to the integers.
    """

    def __init__(self, name: str, truth: bool) -> None:
        self._function = z3.Function(name, z3.IntSort(), z3.BoolSort() if truth else z3.IntSort())
        self._result: type[SymBool | SymInt] = SymBool if truth else SymInt

    @property
    def declaration(self) -> Any:
        """The function's declaration, to look up in a model."""
        return self._function

    def __call__(self, argument: object) -> SymBool | SymInt:
        term = integer_term(argument)
        if term is None:
            raise TypeError("an unknown function takes an integer")
        return self._result(self._function(term))


class SymSequence:
    """A read-only sequence of unknown length and content: `length` a symbolic or plain integer, `item` a
    function of the index. Indexing checks the length as a list does, also for negative indices."""

    def __init__(self, length: Any, item: Callable[[Any], Any]) -> None:
        self.length, self._item = length, item

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            raise Unsupported("slice of a symbolic sequence")
        if index < 0:
            index = index + self.length
        if index < 0 or index >= self.length:
            raise IndexError("sequence index out of range")
        return self._item(index)

    def __iter__(self) -> Iterator[Any]:
        index = 0
        while index < self.length:
            yield self._item(index)
            index += 1

    def __bool__(self) -> bool:
        return bool(self.length > 0)
