"""Patterns of Python: what looks like this becomes that, with wildcards for what may differ."""

from __future__ import annotations

import ast
import copy
import re

from tailproof.planted.vllm.walking import Made, Place, places

_HOLE = re.compile(r"_[a-z]?")
Bound = dict[str, ast.AST]


class PlaceError(Exception):
    """A place is not found, or is not what it was; one line that says which and why."""


def replaced(function: ast.FunctionDef, find: str, becomes: str, at: tuple[int, int]) -> tuple[Place, Made]:
    """The place of a function that looks like `find`, and what is to stand there. `at` says which of how many
    such places, counted from 1.

    Raises:
        PlaceError: when there are not just so many.
    """
    wanted, made = ast.parse(find).body[0], ast.parse(becomes).body
    expression = isinstance(wanted, ast.Expr) and len(made) == 1 and isinstance(made[0], ast.Expr)
    pattern: ast.AST = wanted.value if expression and isinstance(wanted, ast.Expr) else wanted
    found: list[tuple[Place, Bound]] = []
    for place in places(function):
        bound: Bound = {}
        if _fits(pattern, place.node, bound):
            found.append((place, bound))
    number, of = at
    if len(found) != of:
        raise PlaceError(f"{function.name}: found {len(found)} times, not {of}: {find}")
    place, bound = found[number - 1]
    filled = [_Filled(bound).visit(copy.deepcopy(one)) for one in made]
    return place, filled[0].value if expression else filled


def _fits(pattern: object, node: object, bound: Bound) -> bool:
    """Whether a node looks like a pattern; what wildcards stand for is put into `bound`."""
    if isinstance(pattern, ast.Name) and _HOLE.fullmatch(pattern.id) and isinstance(node, ast.AST):
        if pattern.id != "_" and pattern.id in bound:
            return ast.dump(bound[pattern.id]) == ast.dump(node)
        bound[pattern.id] = node
        return True
    if isinstance(pattern, list):
        return (
            isinstance(node, list)
            and len(pattern) == len(node)
            and all(_fits(one, other, bound) for one, other in zip(pattern, node, strict=True))
        )
    if isinstance(pattern, ast.AST):
        return type(pattern) is type(node) and all(
            _fits(value, getattr(node, field), bound)
            for field, value in ast.iter_fields(pattern)
            if field not in ("ctx", "kind", "type_comment")
        )
    return pattern == node


class _Filled(ast.NodeTransformer):
    """A copy of a pattern with what its wildcards stand for."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """A wildcard, or a plain name."""
        return self._bound.get(node.id, node) if _HOLE.fullmatch(node.id) else node
