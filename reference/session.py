"""A session of the reference: runs a trace on one slow engine, or on several with one store."""

from __future__ import annotations

from collections.abc import Iterator

from reference.engine import SlowEngine
from reference.store import SlowStore
from reference.store_side import StoreSide
from spec.observation import Observation
from spec.trace import NAMES, STORE_STEPS, Abort, Configuration, Step, Submit

Fault = type[SlowEngine] | type[StoreSide]


class SlowSession:
    """One configuration of the reference, alive for one trace: an engine for each role.

    `fault` is a planted fault, of the engine or of its store side; one of the store side cannot show where
    there is no store.
    """

    def __init__(self, configuration: Configuration, fault: Fault = SlowEngine) -> None:
        kind = fault if issubclass(fault, SlowEngine) else SlowEngine
        side = fault if issubclass(fault, StoreSide) else StoreSide
        store = SlowStore()
        self.engines = [kind(configuration) for _ in configuration.roles]
        self.sides: list[StoreSide] = []
        self._owner: dict[str, SlowEngine] = {}
        for number, engine in enumerate(self.engines):
            engine.join(self.engines[0])
            if configuration.store != "off":
                engine.side = side(engine, number, store)
                self.sides.append(engine.side)

    def step(self, at: int, step: Step) -> Iterator[Observation]:
        """Run one step of the trace."""
        number = getattr(step, "engine", 0)
        if isinstance(step, STORE_STEPS):
            self.sides[number].act(step)
            yield self.engines[number].observe(at, NAMES[type(step)])
            return
        if isinstance(step, Submit):
            self._owner[step.id] = self.engines[number]
        engine = self._owner[step.id] if isinstance(step, Abort) else self.engines[number]
        yield from engine.step(at, step)

    def target_seconds(self) -> float:
        """Seconds spent in the engines; all of them."""
        return self.engines[0].target_seconds()

    def units(self) -> tuple[int, int] | None:
        """The hash unit and the grid of hits in use."""
        return self.engines[0].units()

    def close(self) -> None:
        """Nothing is held."""
