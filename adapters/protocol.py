"""The protocol every adapter speaks: its messages, and what a system must offer."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, TypeVar

import msgspec

from spec.observation import Observation, Outcome
from spec.trace import Configuration, Step

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
