"""The slow engine of the store tier, and one or two of them on one store: a session that runs a trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from reference.engine import SlowEngine
from reference.store_jobs import Shown
from reference.store_loads import StoreLoads
from spec.observation import Observation, Pin, StoreView
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


class StoreEngine(StoreLoads):
    """A slow engine with a store of its own, until it joins another one.

    Order within a step: schedule, forward, saves, loads, lookups, and last what the worker tells of those
    that had ended before the step.
    """

    def join(self, first: StoreEngine, number: int) -> None:
        """Become engine `number` of a case, with the store, requests and prefixes of its first one."""
        self.number, self.role = number, self.configuration.roles[number]
        self.store, self.prefixes = first.store, first.prefixes
        self.histories, self.expected = first.histories, first.expected

    def step(self, at: int, step: Step) -> Iterator[Observation]:
        """Run one step of the trace; those that concern the store alone are shown by this engine."""
        if not isinstance(step, Gate | ResetStore | DropKeys | KillMaster | RestartMaster):
            yield from super().step(at, step)
            return
        if isinstance(step, Gate):
            self.lines[step.kind].act(step.action)
        elif isinstance(step, ResetStore):
            self.reset_store()
        elif isinstance(step, DropKeys):
            self.store.drop(step.count)
        elif isinstance(step, KillMaster):
            self.store.kill()
        else:
            self.store.restart()
        yield self._observe(at, NAMES[type(step)])

    def reset_store(self) -> None:
        """Let saves and lookups that are held end, then empty the store; the gates stay as they were."""
        for kind in ("put", "lookup"):
            line = self.lines[kind]
            kept = line.action
            line.act("release")
            line.action = kept
        self.store.reset()

    def _settle(self, at: int, accept: int) -> Iterator[Observation]:
        held = [line for line in self.lines.values() if line.action == "hold" and line.waiting]
        for line in self.lines.values():
            line.release_held()
        if held:
            yield self._observe(at, "gate")
        yield from super()._settle(at, accept)

    def _unsettled(self) -> bool:
        return bool(super()._unsettled() or self.loads or self.jobs)

    def _moved(self, observation: Observation) -> bool:
        view = observation.store
        assert view is not None
        news = view.loading, view.loaded, view.failed, view.answers, view.transfers, view.reported
        return super()._moved(observation) or any(news)

    def _observe(self, at: int, do: str, **seen: Any) -> Observation:
        shown, self.shown = self.shown, Shown()
        stored, dropped = self.store.changes()
        owned = [block for table in self.tables.values() for block in table]
        pinned = [block for job in self.jobs.values() for block in job.pins]
        view = StoreView(
            loading=tuple(shown.loading),
            loaded=tuple(shown.loaded),
            failed=tuple(shown.failed),
            answers=tuple(shown.answers),
            transfers=tuple(shown.transfers),
            stored=stored,
            dropped=dropped,
            pins=tuple(
                Pin(job.number, job.history.id, len(job.pins)) for job in self.jobs.values() if job.pins
            ),
            reported=tuple(shown.reported),
            miscounted=self.pool.miscounted([*owned, *pinned]),
            held_puts=self.lines["put"].waiting,
            held_gets=self.lines["get"].waiting,
            held_lookups=self.lines["lookup"].waiting,
            alive=self.store.alive,
        )
        return replace(super()._observe(at, do, **seen), engine=self.number, store=view)


class StoreSession:
    """One configuration of the reference with a store, alive for one trace: an engine for each role.

    `engine` is the reference or a planted fault of it; one of the core tier is given the rules of the store.
    """

    def __init__(self, configuration: Configuration, engine: type[SlowEngine] = StoreEngine) -> None:
        kind = _with_store(engine)
        self.engines: list[StoreEngine] = [kind(configuration) for _ in configuration.roles]
        self._owner: dict[str, StoreEngine] = {}
        for number, one in enumerate(self.engines):
            one.join(self.engines[0], number)

    def step(self, at: int, step: Step) -> Iterator[Observation]:
        """Run one step of the trace."""
        if isinstance(step, Submit):
            self._owner[step.id] = self.engines[step.engine]
        number = getattr(step, "engine", 0)
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


def _with_store(engine: type[SlowEngine]) -> type[StoreEngine]:
    if issubclass(StoreEngine, engine):
        return StoreEngine
    if issubclass(engine, StoreEngine):
        return engine
    return type(engine.__name__, (engine, StoreEngine), {})
