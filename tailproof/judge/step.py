"""One step as comparisons see it, and the register of comparisons and of what exercises each rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from reference.cache import Key, SlowCache
from reference.forecast import Forecast
from reference.history import History
from reference.oracle import Oracle
from spec.geometry import Geometry
from spec.observation import Entry, Observation, StoreView
from spec.rules import ORDER
from spec.trace import Configuration
from tailproof.judge.findings import Finding

ENGINE_STEPS = ("run", "settle")
_NO_STORE = StoreView()
Found = TypeVar("Found", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Step:
    """An observation, what it must agree with, and the oracle as it was before it: comparisons read the
    requests and the cache from there and change nothing."""

    observation: Observation
    expected: Forecast
    oracle: Oracle

    @property
    def geometry(self) -> Geometry:
        """The layout."""
        return self.oracle.geometry

    @property
    def configuration(self) -> Configuration:
        """The setting."""
        return self.oracle.configuration

    @property
    def cache(self) -> SlowCache:
        """The engine's own cache, as it was before the step."""
        return self.oracle.cache

    @property
    def histories(self) -> dict[str, History]:
        """All requests."""
        return self.oracle.histories

    @property
    def view(self) -> StoreView:
        """What was seen of the store; nothing without one."""
        return self.observation.store or _NO_STORE

    def key(self, entry: Entry) -> Key:
        """The key of an observed entry."""
        return self.cache.key_of(entry, self.histories)

    def kind(self, entry: Entry) -> str:
        """The kind of an entry's group: full, window or mamba."""
        return self.geometry.groups[entry.group].kind

    def begins(self, history: History, entry: Entry) -> bool:
        """Whether a request begins, now or later, with the prefix of an entry."""
        return history.shares(self.histories[entry.request], entry.position, self.geometry.unit)

    def place(self, entry: Entry) -> str:
        """An entry of the cache in words."""
        name = {"full": "attention", "window": "sliding-window", "mamba": "Mamba"}[self.kind(entry)]
        return f"the {name} entry of group {entry.group} at {entry.position} of request {entry.request!r}"

    def published(self) -> dict[Key, Entry]:
        """What became visible."""
        return {self.key(entry): entry for entry in self.observation.published}

    def withdrawn(self) -> dict[Key, Entry]:
        """What vanished."""
        return {self.key(entry): entry for entry in self.observation.withdrawn}


Comparison = Callable[[Step], Iterator[Finding]]
COMPARISONS: list[Comparison] = []
EXERCISES: list[Callable[[Step], Iterator[str]]] = []
_JUDGES: dict[str, list[Callable[..., object]]] = {}
_EXERCISED: dict[str, list[Callable[..., object]]] = {}


def judges(*rules: str, of: str = "step") -> Callable[[Found], Found]:
    """Marks a comparison with the rules that it can find broken. `of` says what it compares: every "step",
    one "part" of what such a comparison goes through, a "run" as a whole, or its "end", a run that broke
    off."""

    def marked(function: Found) -> Found:
        for rule in rules:
            assert rule in ORDER, rule
            _JUDGES.setdefault(rule, []).append(function)
        if of == "step":
            COMPARISONS.append(function)  # type: ignore[arg-type]
        return function

    return marked


def exercises(*rules: str) -> Callable[[Found], Found]:
    """Marks what tells that a step would have shown one of these rules to be broken; without a step in which
    it was exercised a rule has not held, it was not observed."""

    def marked(function: Found) -> Found:
        for rule in rules:
            assert rule in ORDER, rule
            _EXERCISED.setdefault(rule, []).append(function)
        EXERCISES.append(function)  # type: ignore[arg-type]
        return function

    return marked


def places(rule: str) -> tuple[list[str], list[str]]:
    """Where a rule is compared, and where it is counted as exercised, as file, line and name."""
    return [place(one) for one in _JUDGES.get(rule, ())], [place(one) for one in _EXERCISED.get(rule, ())]


def place(function: Callable[..., object] | type) -> str:
    """Where a function or class of ours is defined: file from the top folder, line and name."""
    root = Path(__file__).resolve().parents[2]
    file = Path(inspect.getsourcefile(function) or "").resolve().relative_to(root)
    return f"{file.as_posix()}:{inspect.getsourcelines(function)[1]} {function.__qualname__}"
