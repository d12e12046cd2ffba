"""The notation of a trace: printed and read as lines of words, one word for each field of `spec.trace`.

A line is a note, the groups, settings, or a step. `;` also ends a line, and what follows `#` is a comment. A
field is its name and its value, a switch its name alone, and what has its default is left out:

    groups full 4, mamba 4 export 2
    unit 2, eagle, speculative 1, retention dense
    submit A prompt a:40 b:7 outputs 2
    run 3 accept 1
    settle

The tables are derived from the dataclasses, so a field cannot be forgotten.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import textwrap
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from spec.trace import (
    FORMAT,
    NAMES,
    STEPS,
    Configuration,
    Group,
    Step,
    Trace,
    TraceError,
    validate,
)

# Fields whose value stands without their name.
BARE = frozenset({"kind", "block", "id", "steps", "action", "count"})
# Fields that go by another word, and what a missing value is called.
WORDS = {"checkpoint_alignment": "export", "window": "sliding_window"}
NOTHING = {"retention": "dense"}
WIDTH = 100

_SCAN = re.compile(r'\s+|#.*|(?P<end>;)|(?P<token>,|(?:"(?:[^"\\]|\\.)*"|[^\s",;#])+)|(?P<bad>.)')
_PLAIN = re.compile(r"[A-Za-z0-9_@./|-]+")
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_ITEM = re.compile(r'("(?:[^"\\]|\\.)*"|[^\s":]+):(-?[0-9]{1,18})(?:\+(-?[0-9]{1,18}))?')
_PLACE = re.compile(r"(configuration\.(\w+)|steps\[\d+\])(?: \(\w+\))?")


class NotationError(TraceError):
    """A text that is no trace; the one line says where, what is wrong, and what to write instead."""


@dataclass(frozen=True, slots=True)
class Word:
    """A field in the notation: its `name` in the dataclass, its `word`, whether its value stands alone
    (`bare`), what a value looks like (`shape`), how it is written, and how read off what follows."""

    name: str
    word: str
    bare: bool
    shape: str
    default: Any
    write: Callable[[Any], str]
    read: Callable[[list[str]], Any]

    @property
    def required(self) -> bool:
        """Whether the field has no default."""
        return self.default is dataclasses.MISSING

    @property
    def usage(self) -> str:
        """How it stands in a line, in brackets where it may be left out."""
        text = self.name.upper() if self.bare else f"{self.word} {self.shape}".rstrip()
        return text if self.required else f"[{text}]"


@lru_cache
def words(kind: Any) -> dict[str, Word]:
    """The words of a dataclass, in the order of its fields."""
    types = typing.get_type_hints(kind)
    found = [_word(field, types[field.name]) for field in dataclasses.fields(kind)]
    return {one.word: one for one in found}


def _word(field: dataclasses.Field[Any], kind: Any) -> Word:
    nothing = NOTHING.get(field.name)
    silent = (False,) if kind is bool else (None,) if kind in (int | None, str | None) and not nothing else ()
    if silent and field.default not in silent:
        raise TypeError(f"{field.name}: what is left out must be off or None, or have a word for it")
    shape, write, read = _SHAPES[kind]

    def written(value: Any) -> str:
        return nothing if value is None and nothing else write(value)

    def taken(tokens: list[str]) -> Any:
        return (tokens.pop(0) and None) if nothing and tokens[:1] == [nothing] else read(tokens)

    word, shape = WORDS.get(field.name, field.name), f"{shape}|{nothing}" if nothing else shape
    return Word(field.name, word, field.name in BARE, shape, field.default, written, taken)


def usage(kind: Any) -> str:
    """How the fields of a dataclass are written, as a pattern."""
    return " ".join(word.usage for word in words(kind).values())


def spelled(text: str) -> str:
    """A name as it is written: in quotes where it has more than letters, digits and `_@./|-`."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _name(token: str) -> str:
    if not token.startswith('"'):
        return token
    try:
        found = json.loads(token)
    except ValueError:
        found = None
    if not isinstance(found, str):
        raise NotationError(f"{token} is no name in quotes")
    return found


def _take(tokens: list[str], wanted: str) -> str:
    if not tokens or tokens[0] == ",":
        raise NotationError(f"wants {wanted}, but nothing follows")
    return tokens.pop(0)


def _text(tokens: list[str]) -> str:
    return _name(_take(tokens, "a name"))


def _number(tokens: list[str]) -> int:
    token = _take(tokens, "a number")
    if not _NUMBER.fullmatch(token):
        raise NotationError(f"wants a number, found {token}")
    return int(token)


def _items(parts: int, shape: str) -> tuple[str, Callable[[Any], str], Callable[[list[str]], Any]]:
    def write(items: Any) -> str:
        return " ".join(f"{spelled(name)}:{'+'.join(map(str, numbers))}" for name, *numbers in items)

    def read(tokens: list[str]) -> Any:
        found = []
        while tokens and (match := _ITEM.fullmatch(tokens[0])):
            numbers = [int(part) for part in match.groups()[1:] if part is not None]
            if len(numbers) != parts:
                raise NotationError(f"wants {shape}, found {tokens[0]}")
            found.append((_name(match[1]), *numbers))
            del tokens[0]
        if not found:
            raise NotationError(f"wants {shape}, found {tokens[0] if tokens else 'nothing'}")
        return tuple(found)

    return f"{shape}...", write, read


def _groups(tokens: list[str]) -> tuple[Group, ...]:
    found: list[Group] = []
    while tokens:
        end = tokens.index(",") if "," in tokens else len(tokens)
        mine, tokens[: end + 1] = tokens[:end], []
        times = int(mine.pop()[1:]) if mine and re.fullmatch(r"x[0-9]{1,3}", mine[-1]) else 1
        found += [Group(**_fields(mine, Group, "a group"))] * times
    return tuple(found)


def _written_groups(groups: tuple[Group, ...]) -> str:
    runs: list[tuple[Group, int]] = []
    for group in groups:
        times = runs.pop()[1] if runs and runs[-1][0] == group else 0
        runs.append((group, times + 1))
    return ", ".join(_written(group) + (f" x{times}" if times > 1 else "") for group, times in runs)


_SHAPES: dict[Any, tuple[str, Callable[[Any], str], Callable[[list[str]], Any]]] = {
    bool: ("", lambda value: "", lambda tokens: True),
    int: ("N", str, _number),
    int | None: ("N", str, _number),
    str: ("NAME", spelled, _text),
    str | None: ("NAME", spelled, _text),
    tuple[tuple[str, int], ...]: _items(1, "NAME:TOKENS"),
    tuple[tuple[str, int, int], ...]: _items(2, "NAME:START+TOKENS"),
    tuple[Group, ...]: ("GROUP [xN], ...", _written_groups, _groups),
}


def _written(value: Any) -> str:
    return " ".join(_clauses(value))


def _clauses(value: Any) -> Iterator[str]:
    """The fields of a dataclass that have not their default."""
    kind: Any = type(value)
    for word in words(kind).values():
        found = getattr(value, word.name)
        if word.required or found != word.default:
            text = word.write(found)
            # A bare value must not look like a word.
            text = json.dumps(text) if word.bare and text in words(kind) else text
            yield text if word.bare else f"{word.word} {text}".rstrip()


def step_line(step: Step) -> str:
    """A step, as one line."""
    return f"{NAMES[type(step)]} {_written(step)}".rstrip()


def setting_line(configuration: Configuration) -> str:
    """A setting, as one line."""
    groups, *settings = _clauses(configuration)
    return f"{groups}; {', '.join(settings)}"


def lines(trace: Trace) -> list[str]:
    """A trace in the notation, line by line."""
    found = [f"format {trace.format}"] if trace.format != FORMAT else []
    found += [f"note {_note(line)}".rstrip() for line in trace.note.split("\n") if trace.note]
    groups, *settings = _clauses(trace.configuration)
    found += [groups, *_wrapped(settings)]
    return [*found, *map(step_line, trace.steps)]


def _wrapped(clauses: list[str]) -> list[str]:
    whole = ", ".join(clause.replace(" ", "\0") for clause in clauses)
    folded = textwrap.wrap(whole, WIDTH, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in folded]


def _note(line: str) -> str:
    plain = line.isprintable() and line == line.strip() and not line.startswith('"')
    return line if plain else json.dumps(line)


def text(trace: Trace) -> str:
    """A trace in the notation."""
    return "\n".join(lines(trace)) + "\n"


def parse(source: str, before: Trace | None = None) -> Trace:
    """The trace that a text describes, validated. What the text leaves out is as in the trace `before`: all
    steps where it has none, and the setting, which its own settings change, where it names no groups.

    Raises:
        NotationError: with one line that says where, what is wrong and what to write.
    """
    return _Reader(before).read(source)


class _Reader:
    """What has been read so far, and where it stood."""

    def __init__(self, before: Trace | None) -> None:
        self._before = before
        self._values: dict[str, Any] = {}
        self._notes: list[str] = []
        self._steps: list[Step] = []
        self._places: dict[str, int] = {}

    def read(self, source: str) -> Trace:
        """The whole text."""
        last = 0
        for last, line in enumerate(source.split("\n"), start=1):
            known = len(self._steps)
            try:
                self._line(line.strip())
            except NotationError as problem:
                raise NotationError(f"line {last}: {problem}") from None
            for name in self._values:
                self._places.setdefault(f"configuration.{name}", last)
            self._places |= {f"steps[{index}]": last for index in range(known, len(self._steps))}
        try:
            trace = self._whole()
            validate(trace)
        except TraceError as problem:
            place = _PLACE.match(str(problem))
            reason = str(problem)[place.end() :].lstrip(": ") if place else str(problem)
            about = f"{place[2]} " if place and place[2] else ""
            at = self._places.get(place[1], last) if place else last
            raise NotationError(f"line {at}: {about}{reason}") from None
        return trace

    def _whole(self) -> Trace:
        steps, note = tuple(self._steps), "\n".join(self._notes)
        if self._before is None or "groups" in self._values:
            _complete(self._values, Configuration, "the setting")
            setting = Configuration(**self._values)
        else:
            setting = dataclasses.replace(self._before.configuration, **self._values)
        if not steps and self._before is not None:
            steps = self._before.steps
        return Trace(setting, steps, note=note)

    def _line(self, line: str) -> None:
        if line == "note" or line.startswith("note "):
            rest = line.removeprefix("note").strip()
            self._notes.append(_name(rest))
            return
        for tokens in _statements(line):
            self._statement(tokens)

    def _statement(self, tokens: list[str]) -> None:
        first = tokens[0]
        if first in STEPS:
            self._steps.append(STEPS[first](**_fields(tokens[1:], STEPS[first], first)))
        elif first == "format":
            if (number := _number(tokens[1:])) != FORMAT:
                raise NotationError(f"format {number} is not supported, this version reads format {FORMAT}")
        elif first in words(Configuration):
            if self._steps:
                raise NotationError(f"{first} is part of the setting, write it before the first step")
            found = _read(tokens, Configuration, "the setting")
            if twice := next(iter(found.keys() & self._values), None):
                raise NotationError(f"{twice} has been said before, keep one of them")
            self._values |= found
        else:
            known = *STEPS, *words(Configuration), "note", "format"
            near = difflib.get_close_matches(first, known, 1)
            hint = f"did you mean {near[0]}" if near else f"use one of {', '.join(known)}"
            raise NotationError(f"no line begins with {first}, {hint}")


def _statements(line: str) -> Iterator[list[str]]:
    """The tokens of each statement of a line."""
    tokens: list[str] = []
    for match in _SCAN.finditer(line):
        if match["bad"]:
            raise NotationError("a quote is not closed")
        if match["token"]:
            tokens.append(match["token"])
        elif match["end"] and tokens:
            yield tokens
            tokens = []
    if tokens:
        yield tokens


def _fields(tokens: list[str], kind: type, what: str) -> dict[str, Any]:
    """As `_read`, and complete."""
    found = _read(tokens, kind, what)
    _complete(found, kind, what)
    return found


def _complete(found: dict[str, Any], kind: type, what: str) -> None:
    for word in words(kind).values():
        if word.required and word.name not in found:
            raise NotationError(f"{what} needs {word.word}, write {usage(kind)}")


def _read(tokens: list[str], kind: type, what: str) -> dict[str, Any]:
    """The fields of a dataclass that tokens tell of: bare values in their order, others behind their word."""
    table = words(kind)
    bare = [word for word in table.values() if word.bare]
    rest, found = list(tokens), {}
    while rest:
        if rest[0] == ",":
            del rest[0]
            continue
        word = table.get(rest[0])
        if word is not None and not word.bare:
            del rest[0]
        elif bare:
            word = bare.pop(0)
        else:
            raise NotationError(f"{what} does not know {rest[0]}, write {usage(kind) or 'nothing'}")
        if word.name in found:
            raise NotationError(f"{word.word} is said twice, keep one of them")
        try:
            found[word.name] = word.read(rest)
        except NotationError as problem:
            raise NotationError(f"{what}: {word.word} {problem}") from None
    return found
