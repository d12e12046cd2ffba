"""The protocol every adapter speaks: how traces and observations travel, and what a system must offer."""

from __future__ import annotations

import dataclasses
import struct
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, BinaryIO, Protocol, TypeVar

import msgspec

from spec.observation import Observation, Outcome
from spec.trace import FORMAT, NAMES, STEPS, Configuration, Step, Trace, TraceError, validate

T = TypeVar("T")
_HEADER = struct.Struct("<I")


class AdapterError(RuntimeError):
    """The adapter itself cannot go on (never a divergence); the text is one line."""


class MovedError(AdapterError):
    """Private names of the target that the adapter needs are missing; `names` lists them."""

    def __init__(self, version: str, names: list[str]) -> None:
        super().__init__(f"vLLM {version} has moved private names that the adapter needs: {', '.join(names)}")
        self.names = names


@dataclass(frozen=True, slots=True)
class Description:
    """What a worker says of its target: `tiers` maps each tier to "ready" or the reason why not,
    `replaced` lists the parts of the real system that the adapter stands in for, `profiles` the rule sets
    that it runs under with EAGLE (the one it uses by itself first), `lacks` the features that it does not
    have, which are then neither drawn nor judged, `line` the release line ("0.32") whose marks it has, and
    `origin` the absolute path of the package's file that was imported (both empty where there is none)."""

    name: str
    version: str
    tiers: dict[str, str]
    replaced: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ("drop",)
    lacks: tuple[str, ...] = ()
    line: str = ""
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """One case for a worker. `omit` names content-check steps (letters a to i) to leave out, which must
    then be seen as failed reads."""

    trace: dict[str, Any]
    omit: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """A worker's answer: an outcome, or an error of `kind` moved, adapter or trace with one line."""

    outcome: Outcome | None = None
    kind: str | None = None
    message: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a worker: a description, or why it cannot start."""

    description: Description | None = None
    kind: str | None = None
    message: str = ""
    detail: str = ""
    timings: dict[str, float] = field(default_factory=dict)


class Session(Protocol):
    """One configuration of a system, alive for one trace."""

    def step(self, at: int, step: Step) -> Iterator[Observation]:
        """Run one step of the trace; yields one observation per atomic step."""
        ...

    def target_seconds(self) -> float:
        """Seconds spent inside the target so far."""
        ...

    def units(self) -> tuple[int, int] | None:
        """The hash unit and the grid of hits, in tokens, that the target's workers use; None without."""
        ...

    def close(self) -> None:
        """Give up what the case held; called once, however it ended."""
        ...


class System(Protocol):
    """A system under test."""

    def describe(self) -> Description:
        """What it is."""
        ...

    def open(self, configuration: Configuration, omit: str) -> Session:
        """A fresh instance in the given configuration.

        Raises:
            AdapterError: when the adapter cannot drive this configuration.
        """
        ...


def write_message(stream: BinaryIO, message: object) -> None:
    """Send one message: four bytes of length (little endian), then JSON."""
    body = msgspec.json.encode(message)
    stream.write(_HEADER.pack(len(body)) + body)
    stream.flush()


def read_message(stream: BinaryIO, kind: type[T]) -> T | None:
    """Receive one message of dataclass `kind`; None when the stream has ended.

    Raises:
        EOFError: when the stream ends inside a message.
    """
    header = stream.read(_HEADER.size)
    if not header:
        return None
    body = stream.read(_HEADER.unpack(header)[0]) if len(header) == _HEADER.size else b""
    if len(header) < _HEADER.size or len(body) < _HEADER.unpack(header)[0]:
        raise EOFError("the stream ended inside a message")
    return msgspec.json.decode(body, type=kind)


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
    """The trace that plain JSON values describe, validated.

    Raises:
        TraceError: with one line that says what is wrong and where.
    """
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
    """The trace in a JSON text.

    Raises:
        TraceError: also for broken JSON.
    """
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise TraceError(f"not valid JSON: {problem}") from None
    return parse_trace(document)


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
