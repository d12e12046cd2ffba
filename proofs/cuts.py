"""Cuts loops: replaces all turns of a loop by one arbitrary turn between two checks of its invariant.

A cut loop first checks the invariant, then forgets what the loop changes, keeps only the invariant, and
runs one turn. At the end of the turn the invariant is checked again, the measure must have fallen, and the
path ends; where the loop's condition fails, the function goes on after the loop.
"""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import z3

from proofs import constructs
from proofs.loops import Loop
from proofs.stand_ins import SymRange
from proofs.symbolic import SymBool, SymInt, Unsupported, running

_CUT = "_cut_loop_"


class InvariantBroken(Exception):
    """A loop's invariant does not hold where it must, or its measure does not fall."""


class TurnDone(BaseException):
    """One arbitrary turn is over, and with it the path."""


def ghost(name: str) -> SymInt:
    """The number that a theorem foretells under `name`."""
    return SymInt(z3.Int(f"foretold {name}"))


def cut(function: FunctionType, loops: Sequence[Loop], twin: Callable[[Any], Any]) -> FunctionType:
    """A copy of `function` with the given loops cut, over the same globals.

    Calling it needs the cuts among its globals; `cutters` makes them, with `twin` preparing the lemmas.

    Raises:
        Unsupported: for a loop whose effects cannot be followed.
    """
    tree = copy.deepcopy(constructs.tree_of(function.__code__))
    if not isinstance(tree, ast.FunctionDef) or function.__closure__:
        raise Unsupported(f"loop lemma for {function.__name__}, which is no plain function")
    tree.decorator_list = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
    tree.returns = None
    names = {argument.arg for argument in ast.walk(tree.args) if isinstance(argument, ast.arg)}
    places = list(_loops(tree.body))
    scope = dict(function.__globals__)
    for loop in sorted(loops, key=lambda loop: -loop.number):
        if loop.number >= len(places):
            raise Unsupported(f"loop lemma for loop {loop.number} of {function.__name__}, which has none")
        body, index = places[loop.number]
        before = names | {
            node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Store)
            and node.lineno < body[index].lineno
        }
        label = f"{_CUT}{loop.number}"
        wanted = [*_plain(loop.invariant), *(_plain(loop.measure) if loop.measure else ())]
        body[index : index + 1] = _cut_statements(tree, body[index], label, before, wanted)
        scope[label] = _Lemma(f"loop {loop.number} of {function.__name__}", loop, twin)
    ast.fix_missing_locations(tree)
    exec(compile(ast.Module([tree], []), function.__code__.co_filename, "exec"), scope)
    made = scope[function.__name__]
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    assert isinstance(made, FunctionType)
    return made


def _plain(lemma: Callable[..., Any]) -> list[str]:
    return [
        name for name, one in inspect.signature(lemma).parameters.items() if one.kind is not one.KEYWORD_ONLY
    ]


def _loops(body: list[ast.stmt]) -> Iterator[tuple[list[ast.stmt], int]]:
    for index, statement in enumerate(body):
        if isinstance(statement, ast.While | ast.For):
            yield body, index
        if isinstance(statement, ast.FunctionDef):
            continue
        for inner in ("body", "orelse", "handlers"):
            block = getattr(statement, inner, [])
            if block and isinstance(block[0], ast.stmt):
                yield from _loops(block)


def _cut_statements(
    tree: ast.FunctionDef, loop: ast.stmt, label: str, before: set[str], wanted: list[str]
) -> list[ast.stmt]:
    assert isinstance(loop, ast.While | ast.For)
    if loop.orelse:
        raise Unsupported("else of a cut loop")
    for node in [inner for statement in loop.body for inner in ast.walk(statement)]:
        effect = isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)
        method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if effect or method or isinstance(node, ast.Nonlocal | ast.Delete | ast.Yield | ast.YieldFrom):
            raise Unsupported(f"effect inside a cut loop, line {getattr(node, 'lineno', '?')}")
    assigned = {
        node.id
        for statement in loop.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    changed = sorted(assigned & before)
    state = "{" + ", ".join(f"{name!r}: {name}" for name in sorted({*changed, *wanted} & before)) + "}"
    targets = ", ".join(changed)
    if isinstance(loop, ast.While):
        head = f"({targets},) = {label}_now.arrive({state})" if changed else f"{label}_now.arrive({state})"
        lines = [f"{label}_now = {label}.enter({changed!r})", f"while True:\n    {head}\n    pass"]
        made = ast.parse("\n".join(lines)).body
        inner = made[1]
        assert isinstance(inner, ast.While)
        stop = ast.If(ast.UnaryOp(ast.Not(), loop.test), [ast.Break()], [])
        inner.body = [inner.body[0], stop, *loop.body]
        return made
    variable = loop.target
    call = loop.iter
    if (
        not isinstance(variable, ast.Name)
        or not isinstance(call, ast.Call)
        or ast.unparse(call.func) != "range"
    ):
        raise Unsupported("loop lemma for a for loop over something else than a range")
    inside = {id(node) for node in ast.walk(loop)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == variable.id and id(node) not in inside:
            raise Unsupported(f"variable {variable.id} of a cut loop outside of it")
    if variable.id in assigned:
        raise Unsupported(f"assignment to {variable.id} inside its loop")
    lines = [
        f"{label}_now = {label}.enter_range({changed!r}, {variable.id!r})",
        f"while True:\n    ({', '.join(['_go', variable.id, *changed])},) = {label}_now.arrive({state})\n"
        "    if not _go: break",
    ]
    made = ast.parse("\n".join(lines)).body
    start = made[0]
    assert isinstance(start, ast.Assign)
    assert isinstance(start.value, ast.Call)
    start.value.args.extend(call.args)
    turn = made[1]
    assert isinstance(turn, ast.While)
    turn.body.extend(loop.body)
    return made


def _keep(condition: Any) -> None:
    if type(condition) is SymBool:
        running().assume(condition.term)
    elif not condition:
        raise TurnDone


class _Lemma:
    """What the rewritten function finds under the loop's label."""

    def __init__(self, where: str, loop: Loop, twin: Callable[[Any], Any]) -> None:
        self.where = where
        self.invariant = twin(loop.invariant)
        self.measure = twin(loop.measure) if loop.measure is not None else None
        self.wanted = _plain(loop.invariant)
        self.measured = _plain(loop.measure) if loop.measure is not None else []
        self.ghosts = [
            name
            for name, one in inspect.signature(loop.invariant).parameters.items()
            if one.kind is one.KEYWORD_ONLY
        ]

    def enter(self, changed: list[str]) -> _Turn:
        if self.measure is None:
            raise Unsupported(f"{self.where} without a measure")
        return _Turn(self, changed)

    def enter_range(self, changed: list[str], variable: str, *ends: Any) -> _RangeTurn:
        return _RangeTurn(self, changed, variable, SymRange(*ends))

    def conditions(self, state: dict[str, Any]) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self.invariant(
            **{name: state[name] for name in self.wanted}, **{name: ghost(name) for name in self.ghosts}
        )
        return found

    def check(self, state: dict[str, Any], when: str) -> None:
        for number, condition in enumerate(self.conditions(state)):
            if not condition:
                raise InvariantBroken(f"condition {number} of the invariant of {self.where} {when}")

    def forget(self, state: dict[str, Any], changed: list[str]) -> None:
        for name in changed:
            kind = type(state[name])
            if kind not in (int, SymInt):
                raise Unsupported(f"{self.where} changes {name}, which is no integer")
            state[name] = SymInt(running().fresh(name))

    def keep(self, state: dict[str, Any]) -> None:
        for condition in self.conditions(state):
            _keep(condition)


class _Turn:
    """One visit of a `while` loop."""

    def __init__(self, lemma: _Lemma, changed: list[str]) -> None:
        self.lemma, self.changed = lemma, changed
        self.measure: Any = None
        self.arrived = False

    def arrive(self, state: dict[str, Any]) -> tuple[Any, ...]:
        lemma = self.lemma
        assert lemma.measure is not None
        if self.arrived:
            lemma.check(state, "after a turn")
            after = lemma.measure(**{name: state[name] for name in lemma.measured})
            if not (self.measure >= 0 and after < self.measure):
                raise InvariantBroken(f"the measure of {lemma.where}")
            raise TurnDone
        self.arrived = True
        lemma.check(state, "before the loop")
        lemma.forget(state, self.changed)
        lemma.keep(state)
        self.measure = lemma.measure(**{name: state[name] for name in lemma.measured})
        return tuple(state[name] for name in self.changed)


class _RangeTurn:
    """One visit of a `for` loop over a range."""

    def __init__(self, lemma: _Lemma, changed: list[str], variable: str, whole: SymRange) -> None:
        self.lemma, self.changed, self.variable, self.whole = lemma, changed, variable, whole
        self.index: Any = None

    def arrive(self, state: dict[str, Any]) -> tuple[Any, ...]:
        lemma, whole = self.lemma, self.whole
        if self.index is not None:
            lemma.check({**state, self.variable: self.index + whole.step}, "after a turn")
            raise TurnDone
        lemma.check({**state, self.variable: whole.start}, "before the loop")
        lemma.forget(state, self.changed)
        index: Any = SymInt(running().fresh(self.variable))
        up = bool(whole.step > 0)
        previous = index - whole.step
        between = (
            (whole.start <= previous) & (previous < whole.stop)
            if up
            else (whole.start >= previous) & (previous > whole.stop)
        )
        _keep((index == whole.start) | (between & ((index - whole.start) % whole.step == 0)))
        lemma.keep({**state, self.variable: index})
        self.index = index
        goes_on = bool(index < whole.stop if up else index > whole.stop)
        return (goes_on, index, *(state[name] for name in self.changed))
