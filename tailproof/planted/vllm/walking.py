"""Walks a function's syntax tree: the places where something else may stand, and what stands around them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

Made = ast.AST | list[ast.stmt]

# Statements that only check or tell: no mutant of theirs says anything about what is cached.
_SILENT = (ast.Assert, ast.Raise, ast.Pass, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
_TOLD = re.compile(r"^(logger|logging)\.")


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A node where it stands: in `field` of `parent`, at `index` of a list there (-1: in no list). `once` are
    the names that the function binds in one place only; `words` is what the statement and those around it
    are about, to tell which tier runs it."""

    node: ast.AST
    parent: ast.AST
    field: str
    index: int
    once: frozenset[str]
    words: tuple[str, ...]

    @contextmanager
    def holding(self, made: Made) -> Iterator[None]:
        """The tree with something else in this place, put back at the end."""
        held = getattr(self.parent, self.field)
        if self.index < 0:
            setattr(self.parent, self.field, made)
        else:
            new = made if isinstance(made, list) else [made]
            setattr(self.parent, self.field, [*held[: self.index], *new, *held[self.index + 1 :]])
        try:
            yield
        finally:
            setattr(self.parent, self.field, held)


def written(made: Made) -> str:
    """Syntax as text."""
    return "\n".join(map(ast.unparse, made)) if isinstance(made, list) else ast.unparse(made)


def places(function: ast.FunctionDef) -> Iterator[Place]:
    """The places of a function in the order of its tree, without those that only check or tell, and without
    functions inside it."""
    nodes = list(ast.walk(function))
    bound = Counter(one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))
    bound.update(one.arg for one in nodes if isinstance(one, ast.arg))
    once = frozenset(name for name, count in bound.items() if count == 1)
    for index, statement in enumerate(function.body):
        yield from _walk(Place(statement, function, "body", index, once, ()))


def _walk(place: Place) -> Iterator[Place]:
    node = place.node
    outer = words = place.words
    if isinstance(node, ast.stmt):
        if isinstance(node, _SILENT) or (isinstance(node, ast.Expr) and _says(node.value)):
            return
        words = (*words, _about(node))
    elif isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.stmt | ast.expr):
        yield Place(node, place.parent, place.field, place.index, place.once, words)
    for field, value in ast.iter_fields(node):
        if field == "annotation":
            continue
        # What an `else` does is not what its condition is about.
        inner = outer if field == "orelse" and isinstance(node, ast.If) else words
        for index, one in enumerate(value) if isinstance(value, list) else ((-1, value),):
            if isinstance(one, ast.AST):
                yield from _walk(Place(one, node, field, index, place.once, inner))


def _says(value: ast.expr) -> bool:
    called = isinstance(value, ast.Call) and _TOLD.match(ast.unparse(value.func))
    return isinstance(value, ast.Constant) or bool(called)


def _about(statement: ast.stmt) -> str:
    """The condition or the range of a compound statement, what a simple one assigns to or calls."""
    parts: list[ast.expr] = []
    if isinstance(statement, ast.If | ast.While):
        parts = [statement.test]
    elif isinstance(statement, ast.For):
        parts = [statement.iter]
    elif isinstance(statement, ast.Assign):
        parts = statement.targets
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
        parts = [statement.target]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        parts = [statement.value.func]
    return " ".join(map(ast.unparse, parts))
