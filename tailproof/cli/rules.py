"""What the registry says of a rule, and all its places: definition, theorems, comparisons, faults."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tailproof.judge.lockstep  # noqa: F401 - all comparisons register
from proofs import theorems
from proofs.wrong import WRONG
from spec.rules import RULES, Rule
from tailproof.cli import documents
from tailproof.judge import step
from tailproof.known import model
from tailproof.planted.reference import MUTANTS
from tailproof.planted.reference_store import STORE_MUTANTS

WIDTH = 80
_ROOT = Path(__file__).resolve().parents[2]
_INDENT = " " * 5
_ITEM, _DEEPER = _INDENT + " " * 2, _INDENT + " " * 4


@dataclass(frozen=True, slots=True)
class Place:
    """Where `name` is defined: `file` from the top folder, and line. `wrong` are the wrong variants that a
    theorem refutes, `command` lets a planted fault be found."""

    file: str
    line: int
    name: str
    wrong: tuple[str, ...] = ()
    command: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"


@dataclass(frozen=True, slots=True)
class Places:
    """All places of one rule; `exercised` is what tells that a step would have shown it to be broken,
    `planted` faults are by tier."""

    definition: tuple[Place, ...]
    theorems: tuple[Place, ...]
    comparisons: tuple[Place, ...]
    exercised: tuple[Place, ...]
    planted: Mapping[str, tuple[Place, ...]]
    known: tuple[model.KnownFault, ...]


def places(rule: Rule, known: model.Baseline) -> Places:
    """Where a rule is defined, proved, compared, exercised, broken on purpose and known to be broken."""
    compared, exercised = step.places(rule.id)
    return Places(
        definition=tuple(_defined(pkgutil.resolve_name(name)) for name in rule.definition),
        theorems=tuple(
            _defined(getattr(theorems, name), wrong=tuple(variant for variant, _ in WRONG.get(name, ())))
            for name in rule.theorems
        ),
        comparisons=tuple(map(_read, compared)),
        exercised=tuple(map(_read, exercised)),
        planted={
            "core": tuple(_planted(rule, MUTANTS[name], name, "core") for name in rule.faults),
            "store": tuple(_planted(rule, STORE_MUTANTS[name], name, "store") for name in rule.store_faults),
        },
        known=tuple(fault for fault in known.faults if rule.id in fault.rules),
    )


def _defined(value: Callable[..., object] | property, name: str = "", wrong: tuple[str, ...] = ()) -> Place:
    """The place of a function, method, property or class, under its own name or another."""
    found = value.fget if isinstance(value, property) else value
    assert found is not None
    file = Path(inspect.getsourcefile(found) or "").resolve()
    line = _lines(file)[found.__qualname__]
    return Place(file.relative_to(_ROOT).as_posix(), line, name or found.__qualname__, wrong)


@cache
def _lines(file: Path) -> dict[str, int]:
    """The line of every function and class of a file; `inspect` would read the file anew for each class."""
    found: dict[str, int] = {}

    def gather(body: Iterable[ast.stmt], inside: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[inside + node.name] = node.lineno
            if isinstance(node, ast.ClassDef):
                gather(node.body, f"{inside}{node.name}.")

    gather(ast.parse(file.read_text(encoding="utf-8")).body, "")
    return found


def _read(text: str) -> Place:
    """A place from "file:line name"."""
    where, name = text.split(" ", 1)
    file, line = where.rsplit(":", 1)
    return Place(file, int(line), name)


def _planted(rule: Rule, fault: type, name: str, tier: str) -> Place:
    place = _defined(fault, name)
    return Place(place.file, place.line, name, command=_hunt(rule, name, tier))


def _hunt(rule: Rule, name: str, tier: str) -> str:
    return f"tailproof fuzz --target reference+{name}{_tier(tier)} --rule {rule.id} --seconds 10"


def _tier(tier: str) -> str:
    return "" if tier == "core" else f" --tier {tier}"


def rule_lines(ids: Iterable[str] = ()) -> Iterator[str]:
    """All rules in short; or rules, in the order given, each with all its places."""
    wanted = tuple(ids)
    if not wanted:
        for rule in RULES.values():
            yield from _wrapped(rule.statement, f"{rule.id:<5}", _INDENT)
        yield ""
        yield "tailproof rules ID… tells why, and where a rule is defined, proved, compared"
        yield "and broken on purpose."
        return
    known = model.load()
    for index, name in enumerate(wanted):
        if index:
            yield ""
        yield from _long(RULES[name], places(RULES[name], known))


def _long(rule: Rule, found: Places) -> Iterator[str]:
    yield from _wrapped(rule.statement, f"{rule.id:<5}", _INDENT)
    yield from _wrapped(f"why: {rule.reason}", _INDENT, _DEEPER)
    yield from _wrapped(f"source: {rule.source}", _INDENT, _DEEPER)
    yield from _section("definition", map(str, found.definition))
    yield from _section(
        "theorems",
        (f"{place}, refutes the wrong variants {', '.join(place.wrong)}" for place in found.theorems),
    )
    yield from _section("comparisons", map(str, found.comparisons))
    yield from _section("exercised", map(str, found.exercised))
    for tier, planted in found.planted.items():
        yield from _section(f"planted faults, tier {tier}", map(str, planted))
        if planted:
            yield f"{_ITEM}each is found by"
            yield from _command(_hunt(rule, "NAME", tier), _DEEPER)
    if found.known:
        yield f"{_INDENT}known faults:"
    for fault in found.known:
        yield from _wrapped(f"{fault.id}, {_span(fault)}: {fault.title}", _ITEM, _DEEPER)
        yield f"{_DEEPER}{_file_of(fault)}"
    yield f"{_INDENT}checked by:"
    if rule.theorems:
        yield from _command(f"tailproof prove {rule.id}", _ITEM)
    for tier in rule.tiers:
        yield from _command(f"tailproof fuzz{_tier(tier)} --rule {rule.id}", _ITEM)


def _section(title: str, items: Iterable[str]) -> Iterator[str]:
    for index, item in enumerate(items):
        if not index:
            yield f"{_INDENT}{title}:"
        yield from _wrapped(item, _ITEM, _DEEPER)


def _wrapped(text: str, first: str, rest: str, width: int = WIDTH) -> list[str]:
    """A text with a hanging indent; paths and names stay whole."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _command(words: str, indent: str) -> Iterator[str]:
    """A command that can be copied, also where it takes several lines."""
    whole = len(indent + words) <= WIDTH
    *lines, last = [indent + words] if whole else _wrapped(words, indent, f"{indent}  ", WIDTH - 2)
    yield from (f"{line} \\" for line in lines)
    yield last


def _span(fault: model.KnownFault) -> str:
    lines = fault.first if fault.first == fault.last else f"{fault.first} to {fault.last}"
    return f"{lines}, mended since" if fault.mended else lines


def _file_of(fault: model.KnownFault) -> str:
    return (model.FAULTS / f"{fault.id}.toml").resolve().relative_to(_ROOT).as_posix()


def rule_controls(rule: Rule) -> list[str]:
    """The negative controls of a rule: planted faults, and wrong variants that its theorems refute."""
    wrong = [f"{theorem}/{name}" for theorem in rule.theorems for name, _ in WRONG.get(theorem, ())]
    return [*(f"reference+{fault}" for fault in (*rule.faults, *rule.store_faults)), *wrong]


def rules_document(ids: Iterable[str] = ()) -> dict[str, Any]:
    """Rules, all without ids, as the contract has it."""
    known = model.load()
    return {
        "format": documents.FORMAT,
        "rules": [
            {
                **documents.part(rule, "id family statement reason source profiles definition theorems"),
                "targets": rule.tiers,
                "controls": rule_controls(rule),
                "places": _places_document(places(rule, known)),
            }
            for rule in (RULES[name] for name in (tuple(ids) or RULES))
        ],
    }


def _places_document(found: Places) -> dict[str, Any]:
    place = "file line name"
    return {
        "definition": [documents.part(one, place) for one in found.definition],
        "theorems": [documents.part(one, f"{place} wrong") for one in found.theorems],
        "comparisons": [documents.part(one, place) for one in found.comparisons],
        "exercised": [documents.part(one, place) for one in found.exercised],
        "planted": [
            {**documents.part(one, place), "tier": tier, "command": one.command}
            for tier, planted in found.planted.items()
            for one in planted
        ],
        "known": [
            {**documents.part(one, "id title first last mended"), "file": _file_of(one)}
            for one in found.known
        ],
    }
