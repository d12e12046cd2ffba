"""Edits of one place in a syntax tree, each the smallest change that its name says."""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Callable
from typing import TypeVar

from tailproof.planted.vllm.shape import SIGNS, PlaceError, Shape, find, function_of

Made = ast.AST | list[ast.stmt]
Edit = Callable[[ast.AST], Made]
Kind = TypeVar("Kind")


def becomes(text: str) -> Edit:
    """The place becomes an expression of ours."""
    return lambda node: ast.parse(text, mode="eval").body


def does(text: str) -> Edit:
    """The place, a statement, becomes statements of ours."""
    return lambda node: ast.parse(text).body


def dropped(node: ast.AST) -> Made:
    """The place, a statement, does nothing."""
    return ast.Pass()


def followed(text: str) -> Edit:
    """After the place, a statement, come statements of ours."""
    return lambda node: [_statement(node), *ast.parse(text).body]


def preceded(text: str) -> Edit:
    """Before the place, a statement, come statements of ours."""
    return lambda node: [*ast.parse(text).body, _statement(node)]


def sign(text: str) -> Edit:
    """The operator becomes another one."""

    def edit(node: ast.AST) -> Made:
        made = copy.copy(node)
        if isinstance(made, ast.Compare):
            if len(made.ops) != 1:
                raise PlaceError("the comparison is a chain: say which sign")
            made.ops = [_operator(text, ast.cmpop)]
        elif isinstance(made, ast.BinOp | ast.AugAssign):
            made.op = _operator(text, ast.operator)
        elif isinstance(made, ast.BoolOp):
            made.op = _operator(text, ast.boolop)
        else:
            raise PlaceError(f"{_kind(node)} has no sign")
        return made

    return edit


def shifted(by: int) -> Edit:
    """A number becomes larger or smaller."""

    def edit(node: ast.AST) -> Made:
        signs = ast.Add() if by > 0 else ast.Sub()
        return ast.BinOp(_expression(node), signs, ast.Constant(abs(by)))

    return edit


def opposite(node: ast.AST) -> Made:
    """A condition becomes its opposite."""
    return ast.UnaryOp(ast.Not(), _expression(node))


def kept(*path: str | int) -> Edit:
    """Only a part of the place is left: fields and indices from it (`kept("args", 0)`, `kept("body")`)."""

    def edit(node: ast.AST) -> Made:
        found = _part(node, path)
        if isinstance(found, list):
            return [_statement(one) for one in found]
        if not isinstance(found, ast.AST):
            raise PlaceError(f"{_kind(node)} has no part {path}")
        return found

    return edit


def part(*path: str | int, edit: Edit) -> Edit:
    """Only a part of the place is edited."""

    def edited(node: ast.AST) -> Made:
        made = copy.deepcopy(node)
        holder, last = _part(made, path[:-1]), path[-1]
        inner = _part(holder, (last,))
        if not isinstance(inner, ast.AST):
            raise PlaceError(f"{_kind(node)} has no part {path}")
        if isinstance(holder, list) and isinstance(last, int):
            holder[last] = edit(inner)
        else:
            setattr(holder, str(last), edit(inner))
        return made

    return edited


def less(index: int) -> Edit:
    """Conditions joined by and/or without one of them."""

    def edit(node: ast.AST) -> Made:
        if not isinstance(node, ast.BoolOp) or not -len(node.values) <= index < len(node.values):
            raise PlaceError(f"{_kind(node)} has no condition {index}")
        left = [value for at, value in enumerate(node.values) if at != index % len(node.values)]
        return left[0] if len(left) == 1 else ast.BoolOp(node.op, left)

    return edit


def renamed(old: str, new: str) -> Edit:
    """The one variable, attribute or keyword of that name in the place gets another name."""

    def edit(node: ast.AST) -> Made:
        made = copy.deepcopy(node)
        hits = 0
        for one in ast.walk(made):
            if isinstance(one, ast.Name) and one.id == old:
                one.id = new
                hits += 1
            elif isinstance(one, ast.Attribute) and one.attr == old:
                one.attr = new
                hits += 1
        if hits != 1:
            raise PlaceError(f"{old} occurs {hits} times in the place, not once")
        return made

    return edit


def _part(node: object, path: tuple[str | int, ...]) -> object:
    for step in path:
        if isinstance(node, list) and isinstance(step, int) and -len(node) <= step < len(node):
            node = node[step]
        elif isinstance(node, ast.AST) and isinstance(step, str) and hasattr(node, step):
            node = getattr(node, step)
        else:
            raise PlaceError(f"there is no part {step!r}")
    return node


def _operator(text: str, kind: type[Kind]) -> Kind:
    made = SIGNS[text]()
    if not isinstance(made, kind):
        raise PlaceError(f"{text} is no sign that fits there")
    return made


def _kind(node: ast.AST) -> str:
    return type(node).__name__


def _statement(node: object) -> ast.stmt:
    if not isinstance(node, ast.stmt):
        raise PlaceError("the place is no statement")
    return node


def _expression(node: ast.AST) -> ast.expr:
    if not isinstance(node, ast.expr):
        raise PlaceError("the place is no expression")
    return node


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: Made) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> Made:
        if node is self._old:
            return self._new
        visited: Made = self.generic_visit(node)
        return visited


def edited(text: str, function: str, shape: Shape, edit: Edit) -> str:
    """A module's source in which one function is written anew, with the one place edited in it.

    Raises:
        PlaceError: when the place is not found exactly once, the edit does not fit, or it changes nothing.
    """
    definition = function_of(ast.parse(text), function)
    before = ast.unparse(definition)
    node = find(definition, shape)
    _Replace(node, edit(node)).visit(definition)
    after = ast.unparse(ast.fix_missing_locations(definition))
    if after == before:
        raise PlaceError(f"{function}: the edit changes nothing: {shape.words}")
    lines = text.splitlines(keepends=True)
    first, last = span(definition)
    written = textwrap.indent(after, " " * definition.col_offset) + "\n"
    return "".join((*lines[:first], written, *lines[last:]))


def span(definition: ast.FunctionDef) -> tuple[int, int]:
    """The lines of a function with its decorators, from the first (counted from 0) to past the last one."""
    assert definition.end_lineno is not None
    first = min(definition.lineno, *(one.lineno for one in definition.decorator_list), definition.end_lineno)
    return first - 1, definition.end_lineno
