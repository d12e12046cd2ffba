"""Finds functions in a target's source tree and makes them runnable by themselves, nothing imported.

A lifted function is the target's own body: its decorators and annotations are taken off, set displays and
repeated lists go through `proofs.source.containers`, and its free names are other lifted functions or what
`proofs.source.worlds` puts in their place. Where a function is not what a theorem expects, the reason is
told as `Moved`.
"""

from __future__ import annotations

import ast
import builtins
import copy
import dis
import linecache
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from proofs.source.containers import distinct, repeated

VERSION_FILE = "_version.py"


class Moved(Exception):
    """A function is not where, or not what, a theorem expects; the text says why, in one line."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a function stands: `file` inside the package, qualified `name`, and its parameters in order.

    `needs` are the functions of the target that its body calls by their plain names.
    """

    file: str
    name: str
    parameters: tuple[str, ...]
    needs: tuple[Site, ...] = ()

    @property
    def short(self) -> str:
        """The name without its class."""
        return self.name.rpartition(".")[2]


class SourceTree:
    """The Python files of one version of the target's package, read when they are asked for.

    `root` is the package's own folder, `subject` the target's name as reports show it.
    """

    def __init__(self, root: Path, subject: str) -> None:
        self.root, self.subject = root, subject
        self._trees: dict[str, ast.Module] = {}

    def tree(self, file: str) -> ast.Module:
        """The syntax tree of a file.

        Raises:
            Moved: when there is no such file, or it is no Python that this interpreter reads.
        """
        if file not in self._trees:
            path = self.root / file
            try:
                self._trees[file] = ast.parse(path.read_text(encoding="utf-8"))
            except OSError:
                raise Moved(f"there is no file {file}") from None
            except (SyntaxError, ValueError) as problem:
                raise Moved(f"{file} cannot be parsed: {problem}") from None
        return self._trees[file]

    def version(self) -> str:
        """The version that the package states, "" when it states none."""
        try:
            tree = self.tree(VERSION_FILE)
        except Moved:
            return ""
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                names = {target.id for target in node.targets if isinstance(target, ast.Name)}
                if "__version__" in names and isinstance(node.value.value, str):
                    return node.value.value
        return ""

    def find(self, site: Site) -> ast.FunctionDef:
        """The definition of a function.

        Raises:
            Moved: with the reason: file absent, function absent, parameters changed.
        """
        body: list[ast.stmt] = self.tree(site.file).body
        *classes, name = site.name.split(".")
        for part in classes:
            kinds = [node for node in body if isinstance(node, ast.ClassDef) and node.name == part]
            if not kinds:
                raise Moved(f"{site.file} has no class {part}")
            body = kinds[-1].body
        found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]
        if not found:
            raise Moved(f"{site.file} has no function {site.name}")
        arguments = found[-1].args
        names = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        if arguments.vararg is not None or arguments.kwarg is not None or tuple(names) != site.parameters:
            raise Moved(f"{site.name} takes ({', '.join(names)}), not ({', '.join(site.parameters)})")
        return found[-1]

    def lift(self, site: Site, scope: Mapping[str, Any]) -> FunctionType:
        """The function, ready to run on plain values; a twin of it runs on symbolic ones.

        Raises:
            Moved: as `find`, for what it calls too, and when its body names something unknown.
        """
        known: dict[str, Any] = {
            **scope,
            **{need.short: self.lift(need, scope) for need in site.needs},
            distinct.__name__: distinct,
            repeated.__name__: repeated,
        }
        tree = _bare(self.find(site))
        text = ast.unparse(tree) + "\n"
        file = f"<{self.subject}: {site.file}: {site.name}: {abs(hash(text)):x}>"
        # So that the engine and tracebacks find the source.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        names: dict[str, Any] = {**known, "__name__": "proofs.source.lifted"}
        exec(compile(text, file, "exec"), names)
        function = names[site.short]
        assert isinstance(function, FunctionType)
        missing = sorted(name for name in _free_names(function.__code__) if not _has(names, name))
        if missing:
            raise Moved(f"{site.name} names {', '.join(missing)}, which this theorem does not know")
        return function


class _Containers(ast.NodeTransformer):
    """Sends what needs a hash or a plain length of its items through our own containers."""

    def visit_Set(self, node: ast.Set) -> ast.AST:
        self.generic_visit(node)
        return ast.Call(ast.Name(distinct.__name__, ast.Load()), node.elts, [])

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mult) and isinstance(node.left, ast.List) and len(node.left.elts) == 1:
            return ast.Call(ast.Name(repeated.__name__, ast.Load()), [node.left.elts[0], node.right], [])
        return node


def _bare(definition: ast.FunctionDef) -> ast.FunctionDef:
    """A copy without docstring, decorators and annotations, its containers replaced."""
    tree = copy.deepcopy(definition)
    tree.decorator_list, tree.returns = [], None
    if ast.get_docstring(tree, clean=False) is not None:
        tree.body = tree.body[1:] or [ast.Pass()]
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    _Containers().visit(tree)
    return ast.fix_missing_locations(tree)


def _free_names(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _free_names(constant)


def _has(names: Mapping[str, Any], name: str) -> bool:
    return name in names or hasattr(builtins, name)
