"""Names the constructs of Python source that the engine does not run, before it runs any of it."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from types import CodeType

from proofs.symbolic import Unsupported

_REFUSED: dict[type[ast.AST], str] = {
    ast.AsyncFunctionDef: "async function",
    ast.AsyncFor: "async for",
    ast.AsyncWith: "async with",
    ast.Await: "await",
    ast.ClassDef: "class inside a function",
    ast.Global: "global",
    ast.Import: "import inside a function",
    ast.ImportFrom: "import inside a function",
    ast.Match: "match",
    ast.TryStar: "except*",
    ast.With: "with",
}
_TOO_WIDE = ("BaseException", "GeneratorExit")
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def refused(tree: ast.AST) -> Iterator[str]:
    """The constructs in a function's tree that the engine refuses, each as "NAME, line N"."""
    for node in ast.walk(tree):
        name = _REFUSED.get(type(node)) or _refused_detail(node)
        if name is not None:
            yield f"{name}, line {getattr(node, 'lineno', '?')}"


def _refused_detail(node: ast.AST) -> str | None:
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        for index, operator in enumerate(node.ops):
            pair = sides[index : index + 2]
            if isinstance(operator, ast.Is | ast.IsNot) and not any(_is_none(side) for side in pair):
                return "'is' between values"
    if isinstance(node, ast.Try) and node.finalbody:
        return "finally"
    if isinstance(node, ast.ExceptHandler):
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        for kind in caught:
            if kind is None or (isinstance(kind, ast.Name) and kind.id in _TOO_WIDE):
                return "except without a kind of Exception"
    return None


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def check(code: CodeType) -> None:
    """Look through the source of a code object.

    Raises:
        Unsupported: by the name of the first construct that the engine refuses, or when there is no source.
    """
    problem = _problem(code)
    if problem is not None:
        raise Unsupported(problem)


def tree_of(code: CodeType) -> Function:
    """The syntax tree of a function.

    Raises:
        Unsupported: when there is no source.
    """
    found = _trees(code)
    if not found:
        raise Unsupported(f"function {code.co_name} without source")
    return found[0]


def _trees(code: CodeType) -> list[Function]:
    return [
        node
        for node in _functions(code.co_filename)
        if getattr(node, "name", "<lambda>") == code.co_name and _first_line(node) == code.co_firstlineno
    ]


@functools.cache
def _problem(code: CodeType) -> str | None:
    found = _trees(code)
    if not found:
        return f"function {code.co_name} without source"
    return next((problem for node in found for problem in refused(node)), None)


def _first_line(node: Function) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


@functools.cache
def _functions(file: str) -> tuple[Function, ...]:
    text = "".join(linecache.getlines(file))
    return tuple(
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    )
