"""The store tier: real engines with the real Mooncake connector on one real store, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from adapters.mooncake.backend import Backend
from adapters.mooncake.gate import GateError
from adapters.mooncake.installation import ServerError
from adapters.protocol import AdapterError, MovedError
from adapters.vllm.names import STORE_NAMES, missing_names
from adapters.vllm.reading import Prefixes
from adapters.vllm.store_engine import StoreEngine
from spec.observation import Entry, Observation
from spec.trace import (
    NAMES,
    Abort,
    Configuration,
    DropKeys,
    Gate,
    KillMaster,
    ResetStore,
    RestartMaster,
    Step,
    Submit,
)

if TYPE_CHECKING:
    from adapters.vllm.core import VllmCore

_backend: Backend | None = None


def backend() -> Backend:
    """The store of this process, started on first use.

    Raises:
        AdapterError: when it cannot be started, with what to do.
    """
    global _backend
    if _backend is None:
        try:
            _backend = Backend()
        except (ServerError, ImportError) as problem:
            raise AdapterError(f"the store tier cannot run: {problem}") from None
    return _backend


class Directory:
    """What the store holds, as entries, in the order in which the keys were first seen; shared by the engines
    of a case. `prefixes` tells which prefix a hash stands for."""

    def __init__(self, store: Backend, prefixes: Prefixes) -> None:
        self._store = store
        self.prefixes = prefixes
        self._held: dict[str, Entry] = {}

    def changes(self) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
        """What the store gained and lost since the last call, read from the master."""
        now = set(self._store.keys())
        new = sorted(((self.entry(key), key) for key in now - self._held.keys()), key=_order)
        gone = tuple(self._held.pop(key) for key in list(self._held) if key not in now)
        self._held.update((key, entry) for entry, key in new)
        return tuple(entry for entry, _ in new), gone

    def entry(self, key: str) -> Entry:
        """The entry that a store key stands for.

        Raises:
            AdapterError: for a key of no known prefix.
        """
        place, _, digest = key.rpartition("@")
        group = int(place.rpartition("@group:")[2])
        request, position = self.prefixes.place(bytes.fromhex(digest))
        return Entry(group, position, request)

    def drop(self, count: int) -> None:
        """The store loses its latest keys."""
        for key in list(reversed(self._held))[:count]:
            self._store.drop(key)


def _order(item: tuple[Entry, str]) -> tuple[int, int, str]:
    entry = item[0]
    return entry.group, entry.position, entry.request


class StoreSession:
    """One or two engines on a store, alive for one trace.

    Raises:
        MovedError: when this vLLM lacks names that the store tier needs.
        AdapterError: when the store cannot be used.
    """

    def __init__(self, system: VllmCore, configuration: Configuration, omit: str) -> None:
        if missing := missing_names(system.release, STORE_NAMES):
            raise MovedError(system.version, missing)
        self._store = backend()
        self._engines: list[StoreEngine] = []
        self._owner: dict[str, StoreEngine] = {}
        try:
            self._store.fresh()
            self._directory = Directory(self._store, Prefixes(configuration.unit, events=False))
            for number, role in enumerate(configuration.roles):
                self._engines.append(
                    StoreEngine(system, configuration, omit, number, role, self._store, self._directory)
                )
        except ServerError as problem:
            self.close()
            raise AdapterError(f"the store tier cannot go on: {problem}") from None
        except BaseException:
            self.close()
            raise
        for engine in self._engines:
            engine.contents = self._engines[0].contents

    def step(self, at: int, step: Step) -> Iterator[Observation]:
        """Run one step of the trace.

        Raises:
            AdapterError: when the adapter cannot follow the target or the store.
        """
        try:
            yield from self._step(at, step)
        except (ServerError, GateError) as problem:
            raise AdapterError(str(problem)) from None

    def _step(self, at: int, step: Step) -> Iterator[Observation]:
        do = NAMES[type(step)]
        if isinstance(step, Submit):
            self._owner[step.id] = self._engines[step.engine]
        if isinstance(step, Gate):
            yield self._engines[step.engine].set_gate(at, step)
        elif isinstance(step, ResetStore):
            yield self._engines[step.engine].reset_store(at)
        elif isinstance(step, DropKeys):
            self._directory.drop(step.count)
            yield self._engines[0].look(at, do)
        elif isinstance(step, KillMaster):
            self._store.kill_master()
            yield self._engines[0].look(at, do)
        elif isinstance(step, RestartMaster):
            self._store.restart_master()
            yield self._engines[0].look(at, do)
        elif isinstance(step, Abort):
            yield from self._owner[step.id].step(at, step)
        else:
            yield from self._engines[step.engine].step(at, step)

    def target_seconds(self) -> float:
        """Seconds spent inside vLLM and the store so far."""
        return sum(engine.target_seconds() for engine in self._engines)

    def units(self) -> tuple[int, int] | None:
        """The hash unit and the grid of hits that vLLM hands to its workers, in tokens (EL2)."""
        return self._engines[0].units()

    def close(self) -> None:
        """End the engines of the case; servers and clients stay for the next one."""
        for engine in self._engines:
            engine.close()
