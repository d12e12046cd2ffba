"""Operators that make the smallest changes to a function: where each applies, and what stands there instead.

An operator takes a place in the syntax tree and yields what may stand there instead. `edits` walks a function
and numbers what each operator makes, in the order of the tree; the number ends a mutant's name.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tailproof.planted.vllm.walking import Made, Place, places, written

_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_FLIPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}
_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
# Calls that are what an operator is: a choice among their arguments, or a number.
_CHOICES = ("min", "max")
_NUMBERS = ("min", "max", "len", "cdiv", "sum")
_TRUTHS = ("any", "all", "bool", "isinstance")
_FLAG = re.compile(r"^_?(use|is|has|needs?|enable|drop|skip|do|allow|delay|replace|save|load)_|enabled$")
_COUNT = re.compile(
    r"^_?num_|(^|_)(tokens?|length|position|start|end|boundary|offset|cnt|idx|index|column|col|id)$"
)


Operator = Callable[[Place], Iterator[Made]]


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """What the `ordinal`-th application of an operator in a function changes. `shape` is a digest of what
    stood there and what stands there now: the same ordinal of another source has another one."""

    operator: str
    ordinal: int
    place: Place
    made: Made
    before: str
    after: str

    @property
    def shape(self) -> str:
        """Eight hex digits."""
        return digest(self.before, self.after)


def digest(*texts: str) -> str:
    """Eight hex digits for some texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:8]


def edits(function: ast.FunctionDef, operators: dict[str, Operator] | None = None) -> Iterator[Edit]:
    """All edits that the operators make in a function; one that changes nothing, or the same as one before
    it at the same place, is left out."""
    counts: Counter[str] = Counter()
    for place in places(function):
        before = written(place.node)
        seen = {before}
        for name, operator in (operators or OPERATORS).items():
            for made in operator(place):
                after = written(made)
                if after in seen:
                    continue
                seen.add(after)
                counts[name] += 1
                yield Edit(name, counts[name], place, made, before, after)


def last_name(node: ast.AST) -> str:
    """The name of a variable, or the last one of an attribute or call; "" for anything else."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _chooses(call: ast.Call) -> bool:
    """Whether it is min or max of two or more numbers."""
    several = len(call.args) > 1 and not call.keywords
    return several and last_name(call) in _CHOICES and not _starred(call)


def _starred(call: ast.Call) -> bool:
    return any(isinstance(one, ast.Starred) for one in call.args)


def _without(values: list[ast.expr], index: int) -> list[ast.expr]:
    return [one for at, one in enumerate(values) if at != index]


def drop(place: Place) -> Iterator[Made]:
    """The statement does nothing. One that alone binds a name stays: to read it would fail at once."""
    node = place.node
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    plain = isinstance(node, ast.Assign | ast.AnnAssign)
    if plain and any(isinstance(one, ast.Name) and one.id in place.once for one in targets):
        return
    if isinstance(node, ast.stmt):
        yield ast.Pass()


def branch(place: Place) -> Iterator[Made]:
    """Of a condition one branch stays, whether it holds or not."""
    if isinstance(place.node, ast.If):
        yield place.node.body
        if place.node.orelse:
            yield place.node.orelse
    elif isinstance(place.node, ast.IfExp):
        yield place.node.body
        yield place.node.orelse


def operand(place: Place) -> Iterator[Made]:
    """One operand is left out: of an operation, joined conditions, min and max; the bounds of a slice."""
    node = place.node
    if isinstance(node, ast.BinOp):
        yield node.left
        yield node.right
    elif isinstance(node, ast.BoolOp):
        for index in range(len(node.values)):
            left = _without(node.values, index)
            yield left[0] if len(left) == 1 else ast.BoolOp(node.op, left)
    elif isinstance(node, ast.Call) and _chooses(node):
        for index in range(len(node.args)):
            left = _without(node.args, index)
            yield left[0] if len(left) == 1 else ast.Call(node.func, left, [])
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        yield node.value


def only(place: Place) -> Iterator[Made]:
    """Of three or more conditions or arguments of min and max one is left."""
    node = place.node
    values = node.values if isinstance(node, ast.BoolOp) else []
    if isinstance(node, ast.Call) and _chooses(node):
        values = node.args
    yield from values if len(values) > 2 else ()


def negate(place: Place) -> Iterator[Made]:
    """A condition becomes its opposite."""
    node = place.node
    if place.field not in ("test", "ifs") or isinstance(place.parent, ast.While):
        return
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.expr):
        yield ast.UnaryOp(ast.Not(), node)


def sign(place: Place) -> Iterator[Made]:
    """+ and -, * and //, `and` and `or` change places."""
    node = place.node
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _FLIPPED:
        made = copy.copy(node)
        made.op = _FLIPPED[type(node.op)]()
        yield made
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)


def compare(place: Place) -> Iterator[Made]:
    """One sign of a comparison takes in, or leaves out, equality, or is turned round."""
    node = place.node
    if not isinstance(node, ast.Compare):
        return
    for index, op in enumerate(node.ops):
        number = isinstance(op, ast.Eq) and _number(node.comparators[index]) is not None
        for other in (_COMPARED[type(op)], *((ast.GtE, ast.LtE) if number else ())):
            made = copy.copy(node)
            made.ops = [*node.ops[:index], other(), *node.ops[index + 1 :]]
            yield made


def shift(place: Place) -> Iterator[Made]:
    """A number is one more or one less; of a sum only the whole is."""
    node = place.node
    number = _number(node)
    if number is not None and not isinstance(place.parent, ast.UnaryOp):
        # To add or to subtract nothing is to leave the operand out.
        added = place.field == "right" and _in_sum(place)
        yield from (_constant(number + by) for by in (1, -1) if not (added and number + by == 0))
    elif _counts(node) and not isinstance(node, ast.Constant) and not _in_sum(place):
        assert isinstance(node, ast.expr)
        yield ast.BinOp(node, ast.Add(), ast.Constant(1))
        yield ast.BinOp(node, ast.Sub(), ast.Constant(1))


def constant(place: Place) -> Iterator[Made]:
    """A truth holds always or never, a number is 0, a list empty: where it is kept, passed on or returned."""
    node = place.node
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        return
    kept = place.field in ("value", "args", "elts")
    if not kept or isinstance(place.parent, ast.Attribute | ast.Subscript | ast.Expr):
        return
    if isinstance(getattr(node, "ctx", None), ast.Store):
        return
    name = last_name(node) if isinstance(node, ast.Name | ast.Attribute) else ""
    if _truth(node) or _FLAG.search(name):
        yield ast.Constant(False)
        yield ast.Constant(True)
    elif isinstance(node, ast.List | ast.ListComp):
        yield ast.List([], ast.Load())
    elif isinstance(node, ast.BinOp) or _COUNT.search(name):
        yield ast.Constant(0)


def swap(place: Place) -> Iterator[Made]:
    """Two neighbouring arguments of a call change places."""
    node = place.node
    if not isinstance(node, ast.Call) or _starred(node) or last_name(node) in (*_CHOICES, *_TRUTHS):
        return
    for index in range(len(node.args) - 1):
        made = copy.copy(node)
        made.args = list(node.args)
        made.args[index : index + 2] = reversed(node.args[index : index + 2])
        yield made


def _number(node: ast.AST) -> int | None:
    """A whole number that is written out."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return None if inner is None else -inner
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _constant(number: int) -> ast.expr:
    return ast.Constant(number) if number >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-number))


def _counts(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, _ARITHMETIC) and not isinstance(node.left, ast.List | ast.Constant)
    return isinstance(node, ast.Call) and last_name(node) in _NUMBERS and isinstance(node.func, ast.Name)


def _in_sum(place: Place) -> bool:
    return isinstance(place.parent, ast.BinOp) and isinstance(place.parent.op, ast.Add | ast.Sub)


def _truth(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return last_name(node) in _TRUTHS
    return isinstance(node, ast.Compare | ast.BoolOp) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    )


OPERATORS: dict[str, Operator] = {
    one.__name__: one for one in (drop, branch, operand, only, negate, sign, compare, shift, constant, swap)
}
