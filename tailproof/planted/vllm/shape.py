"""Finds one place in a function by the shape of its syntax, so that no source is quoted.

A `Shape` is a test on a node of the syntax tree together with its own wording; shapes are put together from
the functions below (`call("min")`, `binary("-")`, `.naming("tail")`, `.within(branch())`). A place that is
not found exactly once is refused: a changed target must never be mutated somewhere else.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Parents = tuple[ast.AST, ...]
Test = Callable[[ast.AST, Parents], bool]

SIGNS: dict[str, type[ast.AST]] = {
    "+": ast.Add,
    "-": ast.Sub,
    "*": ast.Mult,
    "//": ast.FloorDiv,
    "%": ast.Mod,
    "|": ast.BitOr,
    "<": ast.Lt,
    "<=": ast.LtE,
    ">": ast.Gt,
    ">=": ast.GtE,
    "==": ast.Eq,
    "!=": ast.NotEq,
    "is": ast.Is,
    "is not": ast.IsNot,
    "in": ast.In,
    "not in": ast.NotIn,
    "and": ast.And,
    "or": ast.Or,
}


class PlaceError(Exception):
    """A place is not found exactly once, or the edit does not fit it; one line that says which and why."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a node must look like: `words` for people, `holds` for the search.

    `place` picks one of several that look alike, `(2, 3)` the second of exactly three in the order of the
    tree; None asks for exactly one.
    """

    words: str
    holds: Test
    place: tuple[int, int] | None = None

    def naming(self, *names: str) -> Shape:
        """Only nodes in which all these identifiers occur (variables, attributes, keywords)."""
        return self._and(f"naming {_list(names)}", lambda node, _: set(names) <= _identifiers(node))

    def without(self, *names: str) -> Shape:
        """Only nodes in which none of these identifiers occurs."""
        return self._and(f"not naming {_list(names)}", lambda node, _: not set(names) & _identifiers(node))

    def within(self, outer: Shape) -> Shape:
        """Only nodes that lie in a node of the shape `outer`."""
        return self._and(
            f"inside {outer.words}",
            lambda _, parents: any(outer.holds(one, parents[:at]) for at, one in enumerate(parents)),
        )

    def outside(self, outer: Shape) -> Shape:
        """Only nodes that do not lie in a node of the shape `outer`."""
        return self._and(
            f"not inside {outer.words}",
            lambda _, parents: not any(outer.holds(one, parents[:at]) for at, one in enumerate(parents)),
        )

    def nth(self, number: int, of: int) -> Shape:
        """The `number`-th of exactly `of` such nodes, counted from 1 in the order of the syntax tree."""
        return Shape(f"{self.words} (number {number} of {of})", self.holds, (number, of))

    def _and(self, words: str, holds: Test) -> Shape:
        first = self.holds
        return Shape(
            f"{self.words} {words}", lambda node, parents: first(node, parents) and holds(node, parents)
        )


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def _identifiers(node: ast.AST) -> set[str]:
    found = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            found.add(one.id)
        elif isinstance(one, ast.Attribute):
            found.add(one.attr)
        elif isinstance(one, ast.keyword) and one.arg:
            found.add(one.arg)
    return found


def last_name(node: ast.AST | None) -> str:
    """The name of a variable, or the last one of an attribute or call; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    return ""


def _fits(shape: Shape | None, node: ast.AST | None, parents: Parents) -> bool:
    return shape is None or (node is not None and shape.holds(node, parents))


def _of(*parts: Shape | None) -> str:
    said = [part.words for part in parts if part is not None]
    return f" of ({'; '.join(said)})" if said else ""


def named(name: str) -> Shape:
    """A variable or attribute with that last name."""
    return Shape(name, lambda node, _: isinstance(node, ast.Name | ast.Attribute) and last_name(node) == name)


def number(value: int) -> Shape:
    """A whole number."""
    return Shape(
        f"the number {value}",
        lambda node, _: isinstance(node, ast.Constant) and node.value == value and type(node.value) is int,
    )


def call(name: str, *arguments: Shape | None) -> Shape:
    """A call of a function or method with that last name; `arguments` for its first positional ones."""

    def holds(node: ast.AST, parents: Parents) -> bool:
        if not isinstance(node, ast.Call) or last_name(node.func) != name or len(node.args) < len(arguments):
            return False
        inner = (*parents, node)
        return all(_fits(shape, one, inner) for shape, one in zip(arguments, node.args, strict=False))

    return Shape(f"a call of {name}{_of(*arguments)}", holds)


def binary(sign: str, left: Shape | None = None, right: Shape | None = None) -> Shape:
    """An operation on two numbers."""

    def holds(node: ast.AST, parents: Parents) -> bool:
        inner = (*parents, node)
        return (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, SIGNS[sign])
            and _fits(left, node.left, inner)
            and _fits(right, node.right, inner)
        )

    return Shape(f"an operation {sign}{_of(left, right)}", holds)


def compare(*signs: str) -> Shape:
    """A comparison with these signs, a chain of them for more than one."""
    kinds = [SIGNS[sign] for sign in signs]
    return Shape(
        f"a comparison {' '.join(signs)}",
        lambda node, _: isinstance(node, ast.Compare) and [type(op) for op in node.ops] == kinds,
    )


def boolean(sign: str, parts: int | None = None) -> Shape:
    """Conditions joined by `and` or `or`; `parts` how many."""
    return Shape(
        f"conditions joined by {sign}",
        lambda node, _: (
            isinstance(node, ast.BoolOp)
            and isinstance(node.op, SIGNS[sign])
            and parts in (None, len(node.values))
        ),
    )


def conditional(test: Shape | None = None, body: Shape | None = None, orelse: Shape | None = None) -> Shape:
    """A conditional expression."""

    def holds(node: ast.AST, parents: Parents) -> bool:
        inner = (*parents, node)
        return (
            isinstance(node, ast.IfExp)
            and _fits(test, node.test, inner)
            and _fits(body, node.body, inner)
            and _fits(orelse, node.orelse, inner)
        )

    return Shape(f"a conditional expression{_of(test, body, orelse)}", holds)


def branch(*names: str) -> Shape:
    """An `if` statement whose condition names all these identifiers."""
    return Shape(
        f"an if about {_list(names)}" if names else "an if",
        lambda node, _: isinstance(node, ast.If) and set(names) <= _identifiers(node.test),
    )


def loop(*names: str) -> Shape:
    """A `for` statement over something that names all these identifiers."""
    return Shape(
        f"a loop over {_list(names)}" if names else "a loop",
        lambda node, _: isinstance(node, ast.For) and set(names) <= _identifiers(node.iter),
    )


def assigned(target: str) -> Shape:
    """A plain assignment to a variable, attribute or item with that last name."""

    def holds(node: ast.AST, _: Parents) -> bool:
        if isinstance(node, ast.Assign):
            return any(last_name(one) == target for one in node.targets)
        return isinstance(node, ast.AnnAssign) and last_name(node.target) == target

    return Shape(f"an assignment to {target}", holds)


def augmented(target: str, sign: str) -> Shape:
    """An assignment like `+=`; `sign` is the part before the equals sign."""
    return Shape(
        f"an assignment {sign}= to {target}",
        lambda node, _: (
            isinstance(node, ast.AugAssign)
            and isinstance(node.op, SIGNS[sign])
            and last_name(node.target) == target
        ),
    )


def doing(name: str) -> Shape:
    """A statement that is a call of that last name and nothing else."""
    return Shape(
        f"a statement calling {name}",
        lambda node, _: (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and last_name(node.value.func) == name
        ),
    )


def returned() -> Shape:
    """A return statement."""
    return Shape("a return", lambda node, _: isinstance(node, ast.Return))


def deletion() -> Shape:
    """A `del` statement."""
    return Shape("a deletion", lambda node, _: isinstance(node, ast.Delete))


def sliced(name: str) -> Shape:
    """A slice of a variable or attribute with that last name."""
    return Shape(
        f"a slice of {name}",
        lambda node, _: (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Slice)
            and last_name(node.value) == name
        ),
    )


def function_of(tree: ast.Module, qualified: str) -> ast.FunctionDef:
    """The one function of that qualified name; classes and outer functions come before dots.

    Raises:
        PlaceError: when there is none, or more than one.
    """
    body: list[ast.stmt] = tree.body
    *outer, name = qualified.split(".")
    for one in outer:
        kinds = [
            node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == one
        ]
        if len(kinds) != 1:
            raise PlaceError(f"{qualified}: {one} is defined {len(kinds)} times, not once")
        body = kinds[0].body
    found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]
    if len(found) != 1:
        raise PlaceError(f"{qualified} is defined {len(found)} times, not once")
    return found[0]


def find(function: ast.FunctionDef, shape: Shape) -> ast.AST:
    """The node of a shape in a function's body.

    Raises:
        PlaceError: when it is not there exactly once, or as often as `nth` says.
    """
    found = [
        node
        for statement in function.body
        for node, parents in _nodes(statement, (function,))
        if shape.holds(node, parents)
    ]
    wanted = shape.place[1] if shape.place else 1
    if len(found) != wanted:
        times = f"{len(found)} times, not {wanted}" if wanted > 1 else f"{len(found)} times, not once"
        raise PlaceError(f"{function.name}: found {times}: {shape.words}")
    return found[shape.place[0] - 1] if shape.place else found[0]


def _nodes(node: ast.AST, parents: Parents) -> Iterator[tuple[ast.AST, Parents]]:
    yield node, parents
    for child in ast.iter_child_nodes(node):
        yield from _nodes(child, (*parents, node))
