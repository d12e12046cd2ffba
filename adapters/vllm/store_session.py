"""The store tier: real engines with the real Mooncake connector on one real store, step by step."""

from __future__ import annotations

from collections.abc import Iterator

from adapters.memory import Content
from adapters.mooncake.backend import Backend
from adapters.mooncake.gate import GateError
from adapters.mooncake.installation import ServerError
from adapters.protocol import AdapterError, MovedError
from adapters.vllm.building import Target
from adapters.vllm.directory import Directory
from adapters.vllm.engine import Engine
from adapters.vllm.names import STORE_NAMES, missing_names
from adapters.vllm.reading import Prefixes
from adapters.vllm.store_side import StoreSide
from spec.observation import Observation
from spec.trace import (
    NAMES,
    STORE_STEPS,
    Abort,
    Configuration,
    DropKeys,
    Gate,
    KillMaster,
    ResetStore,
    Step,
    Submit,
)

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


class StoreSession:
    """One or two engines on a store, alive for one trace.

    Raises:
        MovedError: when this vLLM lacks names that the store tier needs.
        AdapterError: when the store cannot be used.
    """

    def __init__(self, target: Target, configuration: Configuration, omit: str) -> None:
        if missing := missing_names(target.release, STORE_NAMES):
            raise MovedError(target.version, missing)
        self._store = backend()
        self._sides: list[StoreSide] = []
        self._engines: list[Engine] = []
        self._owner: dict[str, Engine] = {}
        contents: dict[str, Content] = {}
        try:
            self._store.fresh()
            self._directory = Directory(self._store, Prefixes(configuration.unit, events=False))
            for number in range(len(configuration.roles)):
                side = StoreSide(configuration, omit, number, self._store, self._directory, contents)
                self._sides.append(side)
                self._engines.append(Engine(target, configuration, omit, side))
        except ServerError as problem:
            self.close()
            raise AdapterError(f"the store tier cannot go on: {problem}") from None
        except BaseException:
            self.close()
            raise

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
        if isinstance(step, Submit):
            self._owner[step.id] = self._engines[step.engine]
        number = getattr(step, "engine", 0)
        engine = self._owner[step.id] if isinstance(step, Abort) else self._engines[number]
        if not isinstance(step, STORE_STEPS):
            yield from engine.step(at, step)
            return
        before = engine.seconds
        if isinstance(step, Gate):
            self._sides[number].set_gate(step)
        elif isinstance(step, ResetStore):
            self._sides[number].reset_store()
        elif isinstance(step, DropKeys):
            self._directory.drop(step.count)
        elif isinstance(step, KillMaster):
            self._store.kill_master()
        else:
            self._store.restart_master()
        yield engine.look(at, NAMES[type(step)], before)

    def target_seconds(self) -> float:
        """Seconds spent inside vLLM and the store so far."""
        return sum(engine.target_seconds() for engine in self._engines)

    def units(self) -> tuple[int, int] | None:
        """The hash unit and the grid of hits that vLLM hands to its workers, in tokens (EL2)."""
        return self._engines[0].units()

    def close(self) -> None:
        """End the engines of the case; servers and clients stay for the next one."""
        for side in self._sides:
            side.close()
