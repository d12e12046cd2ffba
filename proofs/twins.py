"""Twins: the same function over other globals, so that ordinary source runs on symbolic values unchanged.

A twin shares its original's compiled code. Its globals hold symbolic stand-ins for the built-ins and, in
place of every function that the code names, that function's twin.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NoReturn

import z3

from proofs import constructs
from proofs.assume import assume, every, foretell, implies, refutes
from proofs.cuts import cut, ghost
from proofs.loops import Loop
from proofs.stand_ins import BUILTINS
from proofs.symbolic import SymBool, Unsupported, boolean_term, integer_term, running

OURS = ("spec", "proofs", "reference", "tests")
# Of Python's own functions, those known to do nothing with values but pass them on.
_PASSING_ON = ("dataclasses.replace", "typing.cast")


def symbolic_assume(condition: Any) -> None:
    """`assume` as part of the path's conditions, without a branch for where it does not hold."""
    if type(condition) is SymBool:
        running().assume(condition.term)
    else:
        assume(condition)


def symbolic_implies(condition: Any, conclusion: Any) -> Any:
    """`implies` as one condition, where the two are booleans."""
    one, other = boolean_term(condition), boolean_term(conclusion)
    if one is None or other is None:
        return implies(condition, conclusion)
    return SymBool(z3.Implies(one, other))


def symbolic_refutes(condition: Any, conclusion: Any) -> Any:
    """`refutes` as one condition, where the two are booleans."""
    one, other = boolean_term(condition), boolean_term(conclusion)
    if one is None or other is None:
        return refutes(condition, conclusion)
    return SymBool(z3.Not(z3.And(one, other)))


def symbolic_every(conditions: Iterable[Any]) -> Any:
    """`every` as one condition, where all are booleans."""
    values = tuple(conditions)
    terms = [boolean_term(value) for value in values]
    return every(values) if any(term is None for term in terms) else SymBool(z3.And(terms))


def symbolic_foretell(name: str, value: Any) -> Any:
    """`foretell`: from here on only the paths count on which the foretold number is this one."""
    running().assume(ghost(name).term == integer_term(value))
    return value


class Twins:
    """Makes twins, each function's once.

    `builtins` are the stand-ins to inject; `replaced` maps functions to what runs in their place; `loops` are
    the lemmas by which loops are cut.
    """

    def __init__(
        self,
        builtins: Mapping[str, Any] = BUILTINS,
        replaced: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
        loops: Sequence[Loop] = (),
    ) -> None:
        self._builtins = dict(builtins)
        self._replaced: dict[Callable[..., Any], Callable[..., Any]] = {
            assume: symbolic_assume,
            implies: symbolic_implies,
            refutes: symbolic_refutes,
            every: symbolic_every,
            foretell: symbolic_foretell,
            **(replaced or {}),
        }
        self.loops = tuple(loops)
        self._made: dict[int, tuple[object, Any]] = {}

    def of(self, value: Any) -> Any:
        """The twin of a function, a method or one of our modules; any other value as it is.

        Raises:
            Unsupported: for a function with a construct that the engine does not run.
        """
        known = self._made.get(id(value))
        if known is not None:
            return known[1]
        if isinstance(value, FunctionType):
            if value in self._replaced:
                return self._replaced[value]
            if _is_standard(value):
                return _passed_on(value)
            return self._function(value)
        if isinstance(value, MethodType):
            return MethodType(self.of(value.__func__), value.__self__)
        if isinstance(value, ModuleType):
            return _ModuleTwin(value, self)
        if isinstance(value, tuple) and type(value) is tuple:
            return tuple(self.of(item) for item in value)
        if isinstance(value, type):
            return _checked_class(value)
        return value

    def _function(self, original: FunctionType) -> FunctionType:
        constructs.check(original.__code__)
        lemmas = [loop for loop in self.loops if loop.function is original]
        function = cut(original, lemmas, self.of) if lemmas else original
        scope: dict[str, Any] = {"__builtins__": self._builtins, "__name__": function.__module__}
        cells = tuple(CellType() for _ in function.__closure__ or ())
        twin = FunctionType(function.__code__, scope, function.__name__, None, cells or None)
        self._made[id(original)] = (original, twin)
        for name in _global_names(function.__code__):
            if name in function.__globals__:
                scope[name] = self.of(function.__globals__[name])
        for cell, source in zip(cells, function.__closure__ or (), strict=True):
            cell.cell_contents = self.of(source.cell_contents)
        if function.__defaults__:
            twin.__defaults__ = tuple(self.of(value) for value in function.__defaults__)
        if function.__kwdefaults__:
            twin.__kwdefaults__ = {name: self.of(value) for name, value in function.__kwdefaults__.items()}
        twin.__annotations__ = {}
        return twin


def _is_standard(value: Any) -> bool:
    return (value.__module__ or "").split(".")[0] in sys.stdlib_module_names


def _passed_on(function: FunctionType) -> Callable[..., Any]:
    name = f"{function.__module__}.{function.__qualname__}"
    return function if name in _PASSING_ON else _refused(name)


def _refused(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise Unsupported(f"call of {name}")

    return refuse


class _ModuleTwin:
    def __init__(self, module: ModuleType, twins: Twins) -> None:
        self._module, self._twins = module, twins

    def __getattr__(self, name: str) -> Any:
        return self._twins.of(getattr(self._module, name))


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _checked_class(kind: type) -> Any:
    """A class runs as it is, so its methods must not need more than what symbolic values do exactly: Python's
    own classes written in Python are refused when they are called, ours when they ask for a type."""
    functions = {
        name: value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        for name, value in vars(kind).items()
    }
    written = {name: value for name, value in functions.items() if isinstance(value, FunctionType)}
    if _is_standard(kind):
        own = [name for name in ("__init__", "__new__") if name in written]
        return _refused(f"{kind.__module__}.{kind.__qualname__}") if own else kind
    for name, function in written.items():
        if "type" in function.__code__.co_names and not name.startswith("__"):
            raise Unsupported(f"type of a symbolic value, in {kind.__name__}.{name}")
    return kind


def lifted(tree: ast.Module, scope: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Run definitions taken from somebody's source over a scope of ours, with the stand-ins as built-ins.

    `tree` holds the definitions only, annotations and decorators already off. Returns what they define.

    Raises:
        Unsupported: by name, for a construct that the engine does not run.
    """
    for node in tree.body:
        for problem in constructs.refused(node):
            raise Unsupported(f"{problem} of {file}")
    names: dict[str, Any] = {"__builtins__": dict(BUILTINS), **scope}
    before = set(names)
    exec(compile(tree, file, "exec"), names)
    return {name: value for name, value in names.items() if name not in before}
