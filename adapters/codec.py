"""Traces as documents: JSON without defaults, in which every unknown field is refused, or the notation."""

from __future__ import annotations

import dataclasses
import typing
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from spec.notation import parse
from spec.trace import FORMAT, NAMES, STEPS, Configuration, Step, Trace, TraceError, validate

T = TypeVar("T")
# How a JSON document begins, and no line of the notation.
_JSON = tuple('{["-0123456789')


def trace_document(trace: Trace) -> dict[str, Any]:
    """A trace as plain JSON values; each step is tagged by `do`, defaults are left out."""
    configuration = _without_defaults(trace.configuration)
    configuration["groups"] = [_without_defaults(group) for group in trace.configuration.groups]
    steps = [{"do": NAMES[type(step)], **_without_defaults(step)} for step in trace.steps]
    document: dict[str, Any] = {"format": trace.format}
    if trace.note:
        document["note"] = trace.note
    whole = {**document, "configuration": configuration, "steps": steps}
    # By way of JSON, because `to_builtins` keeps tuples.
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(whole))
    return plain


def parse_trace(document: object) -> Trace:
    """The trace that a text in the notation, a list of its lines, or plain JSON values describe, validated.

    Raises:
        TraceError: with one line that says what is wrong and where.
    """
    if isinstance(document, str):
        return parse(document)
    if isinstance(document, list) and document and all(isinstance(line, str) for line in document):
        return parse("\n".join(document))
    if not isinstance(document, dict):
        raise TraceError("a trace is a JSON object with format, configuration and steps")
    found = document.get("format")
    if type(found) is not int or found != FORMAT:
        raise TraceError(f"format: found {found!r}, this version reads format {FORMAT}")
    _refuse_unknown(document, Trace, "")
    configuration = document.get("configuration")
    _refuse_unknown(configuration, Configuration, "configuration")
    assert isinstance(configuration, dict)
    steps = document.get("steps")
    if not isinstance(steps, list):
        raise TraceError("steps: must be a list")
    trace = Trace(
        configuration=_convert(configuration, Configuration, "configuration"),
        steps=tuple(_parse_step(step, index) for index, step in enumerate(steps)),
        note=_convert(document.get("note", ""), str, "note"),
    )
    validate(trace)
    return trace


def parse_trace_text(text: bytes | str) -> Trace:
    """The trace in a text: in the notation, or as JSON.

    Raises:
        TraceError: also for broken JSON.
    """
    return parse_trace(read_document(text))


def read_document(text: bytes | str) -> object:
    """What a text holds: a JSON value, or where it does not begin like one, the notation of a trace as text.

    Raises:
        TraceError: with one line.
    """
    try:
        plain = text.decode() if isinstance(text, bytes) else text
        return msgspec.json.decode(plain) if plain.lstrip().startswith(_JSON) else plain
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise TraceError(f"not valid JSON: {problem}") from None


def _parse_step(document: object, index: int) -> Step:
    where = f"steps[{index}]"
    if not isinstance(document, dict):
        raise TraceError(f"{where}: a step is a JSON object with a 'do'")
    do = document.get("do")
    if not isinstance(do, str) or do not in STEPS:
        raise TraceError(f"{where}: unknown step {do!r}, use one of {', '.join(STEPS)}")
    kind = STEPS[do]
    values = {name: value for name, value in document.items() if name != "do"}
    _refuse_unknown(values, kind, f"{where} ({do})")
    return _convert(values, kind, f"{where} ({do})")


def _refuse_unknown(document: object, kind: type, where: str) -> None:
    prefix = f"{where}: " if where else ""
    if not isinstance(document, dict):
        raise TraceError(f"{prefix}must be a JSON object")
    known = _fields(kind)
    for name, value in document.items():
        if name not in known:
            raise TraceError(f"{prefix}unknown field {name!r}, known are {', '.join(known)}")
        inner = typing.get_args(known[name])
        if inner and dataclasses.is_dataclass(inner[0]) and kind is not Trace and isinstance(value, list):
            for index, item in enumerate(value):
                _refuse_unknown(item, typing.cast(type, inner[0]), f"{where}.{name}[{index}]")


@lru_cache
def _fields(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _convert(value: object, kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as problem:
        text = str(problem)
        path = text.split("`$", 1)[1].rstrip("`") if "`$" in text else ""
        reason = text.split(" - at `", 1)[0]
        raise TraceError(f"{where}{path}: {reason[:1].lower()}{reason[1:]}") from None


def _without_defaults(value: Any) -> dict[str, Any]:
    return {
        item.name: getattr(value, item.name)
        for item in dataclasses.fields(value)
        if item.default is dataclasses.MISSING or getattr(value, item.name) != item.default
    }
