"""All planted faults of vLLM by name: those that operators make, those of the table, what is known of each.

A generated one is called `function:operator:ordinal`. A record of it carries the digest of what it changes,
`name@shape`: in another version's source the same ordinal may be another place, which is then refused.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tailproof.planted.vllm.operators import OPERATORS, digest, edits
from tailproof.planted.vllm.patterns import PlaceError, replaced
from tailproof.planted.vllm.walking import Made, Place, written

_FOLDER = Path(__file__).parent


class MutantError(Exception):
    """There is no such mutant, or it is another one than was kept; one line that says so."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of vLLM that matters: its file, its qualified name, the tier that runs it."""

    file: str
    name: str
    tier: str


@dataclass(frozen=True, slots=True)
class Semantic:
    """A row of the table: what in a function becomes what, the rules that may see it, what it breaks."""

    name: str
    function: str
    find: str
    becomes: str
    rules: tuple[str, ...]
    breaks: str
    at: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Records:
    """What is known of single mutants, by `name@shape`: why no run can tell some from the original, why some
    stay unseen, and the rule that sees those of the fixed sample."""

    equivalent: dict[str, str]
    hole: dict[str, str]
    sample: dict[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Mutant:
    """One single-place change of a function. `before` and `after` are what stands there; `rules`, of those of
    the table only, may be named when it is seen, and `breaks` says what it breaks."""

    name: str
    file: str
    function: str
    tier: str
    place: Place
    made: Made
    tree: ast.Module
    rules: tuple[str, ...] = ()
    breaks: str = ""

    @property
    def generated(self) -> bool:
        """Whether an operator made it."""
        return ":" in self.name

    @property
    def before(self) -> str:
        """What stands there."""
        return written(self.place.node)

    @property
    def after(self) -> str:
        """What stands there instead."""
        return written(self.made)

    @property
    def key(self) -> str:
        """The name with the digest of what is changed."""
        return f"{self.name}@{digest(self.before, self.after)}"

    def source(self) -> str:
        """The text of the changed module.

        Raises:
            MutantError: when it is that of the original.
        """
        original = ast.unparse(self.tree)
        with self.place.holding(self.made):
            text = ast.unparse(ast.fix_missing_locations(self.tree))
        if text == original:
            raise MutantError(f"{self.name}: the edit changes nothing: {self.before}")
        return text + "\n"


@lru_cache
def _table(file: str) -> dict[str, Any]:
    return tomllib.loads((_FOLDER / file).read_text(encoding="utf-8"))


@lru_cache
def functions() -> dict[str, Function]:
    """The functions that matter, by qualified name."""
    return {
        name: Function(file["path"], name, file.get("tier", "core"))
        for file in _table("places.toml")["file"]
        for name in file["functions"]
    }


@lru_cache
def semantic() -> dict[str, Semantic]:
    """The rows of the table, by name."""
    rows = ({"at": (1, 1), **row} for row in _table("semantic.toml")["mutant"])
    return {
        row["name"]: Semantic(**row | {"rules": tuple(row["rules"]), "at": tuple(row["at"])}) for row in rows
    }


@lru_cache
def records() -> Records:
    """What is known of single mutants."""
    return Records(**_table("records.toml"))


@lru_cache
def _module(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError) as problem:
        raise MutantError(f"{path}: {problem}") from None


def function_of(tree: ast.Module, qualified: str) -> ast.FunctionDef:
    """The function of that qualified name; classes and outer functions come before dots. Of several that an
    overload declares the last one counts.

    Raises:
        MutantError: when there is none.
    """
    body: list[ast.stmt] = tree.body
    found: ast.ClassDef | ast.FunctionDef | None = None
    for part in qualified.split("."):
        kinds = [one for one in body if isinstance(one, ast.ClassDef | ast.FunctionDef) and one.name == part]
        if not kinds:
            raise MutantError(f"{qualified} is not defined")
        found = kinds[-1]
        body = found.body
    if not isinstance(found, ast.FunctionDef):
        raise MutantError(f"{qualified} is no function")
    return found


@lru_cache
def mutants_of(package: Path, name: str) -> tuple[Mutant, ...]:
    """The mutants of one function: those that the operators make, in their order, and those of the table.

    `package` is the folder of the vllm package.

    Raises:
        MutantError: when the function is not there, or a row of the table does not fit it.
    """
    place = functions()[name]
    tree = _module(package / place.file)
    function = function_of(tree, name)
    made = [
        Mutant(
            f"{name}:{edit.operator}:{edit.ordinal}",
            place.file,
            name,
            _tier(edit.place.words, place.tier),
            edit.place,
            edit.made,
            tree,
        )
        for edit in edits(function)
        if not _outside(edit.place.words)
    ]
    for row in (one for one in semantic().values() if one.function == name):
        try:
            at, new = replaced(function, row.find, row.becomes, row.at)
        except PlaceError as problem:
            raise MutantError(f"{row.name}: {place.file}: {problem}") from None
        made.append(Mutant(row.name, place.file, name, place.tier, at, new, tree, row.rules, row.breaks))
    return tuple(made)


def _tier(words: tuple[str, ...], tier: str) -> str:
    return "store" if _any("store").search("\n".join(words)) else tier


def _outside(words: tuple[str, ...]) -> bool:
    return bool(_any("outside").search("\n".join(words)))


@lru_cache
def _any(kind: str) -> re.Pattern[str]:
    return re.compile("|".join(_table("places.toml")[kind]), re.MULTILINE)


def all_mutants(package: Path) -> Iterator[Mutant]:
    """All mutants, function by function."""
    for name in functions():
        yield from mutants_of(package, name)


def check_name(name: str) -> None:
    """Refuse what can be no mutant's name, without looking at the source.

    Raises:
        MutantError: the line names some that are near.
    """
    function, *rest = name.partition("@")[0].split(":")
    if not rest and function not in semantic():
        _refuse(name, [*semantic(), *functions()])
    if rest and function not in functions():
        _refuse(name, list(functions()))
    if rest and (len(rest) != 2 or rest[0] not in OPERATORS or not rest[1].isdecimal()):
        raise MutantError(
            f"{name!r} is no fault of vLLM: use {function}:OPERATOR:NUMBER with {', '.join(OPERATORS)}"
        )


def mutant(package: Path, name: str) -> Mutant:
    """The mutant of that name, or of that `name@shape`.

    Raises:
        MutantError: when there is none (the line names some that are near), or it has another shape.
    """
    check_name(name)
    plain, _, shape = name.partition("@")
    function = semantic()[plain].function if plain in semantic() else plain.partition(":")[0]
    found = {one.name: one for one in mutants_of(package, function)}
    if plain not in found:
        _refuse(plain, list(found))
    one = found[plain]
    if shape and one.key != name:
        raise MutantError(f"{plain} is another place in this source: kept was {name}, it is {one.key}")
    return one


def _refuse(name: str, names: list[str]) -> None:
    near = difflib.get_close_matches(name, names, 3, 0.4) or names[:3]
    raise MutantError(f"no fault of vLLM is called {name!r}; near are {', '.join(near)}")


def by_hash(mutants: list[Mutant]) -> list[Mutant]:
    """In an order that is chance, but always the same: the first ones are a sample."""
    return sorted(mutants, key=lambda one: hashlib.sha256(one.key.encode()).digest())


def moved(package: Path, keys: list[str]) -> list[str]:
    """A line for each kept `name@shape` that this source does not have so."""
    lines = []
    for key in keys:
        try:
            mutant(package, key)
        except MutantError as problem:
            lines.append(str(problem))
    return lines
