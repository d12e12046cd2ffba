"""The store side of a slow engine as a whole: what is let go, left to do and seen of it."""

from __future__ import annotations

from typing import Any

from reference.store_jobs import Shown
from reference.store_loads import StoreLoads
from spec.observation import Observation, Pin, StoreView
from spec.trace import DropKeys, Gate, KillMaster, ResetStore, RestartMaster

StoreStep = Gate | ResetStore | DropKeys | KillMaster | RestartMaster


class StoreSide(StoreLoads):
    """That of one engine.

    Order within a step: schedule, forward, saves, loads, lookups, and last what the worker tells of those
    that had ended before the step.
    """

    def act(self, step: StoreStep) -> None:
        """Do what a step of the trace does to the gates of this engine or to the store."""
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

    def reset_store(self) -> None:
        """Let saves and lookups that are held end, then empty the store; the gates stay as they were."""
        for kind in ("put", "lookup"):
            line = self.lines[kind]
            kept = line.action
            line.act("release")
            line.action = kept
        self.store.reset()

    def opens(self) -> bool:
        """Let what is held at the gates go, before a settle; whether anything was."""
        held = [line for line in self.lines.values() if line.action == "hold" and line.waiting]
        for line in self.lines.values():
            line.release_held()
        return bool(held)

    def unsettled(self) -> bool:
        """Whether loads or saves are left to wait for."""
        return bool(self.loads or self.jobs)

    def moved(self, observation: Observation) -> bool:
        """Whether a step brought loads or saves forward."""
        view = observation.store
        assert view is not None
        news = view.loading, view.loaded, view.failed, view.answers, view.transfers, view.reported
        return any(news)

    def seen(self) -> dict[str, Any]:
        """What has happened of the store since this was last asked."""
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
        return {"engine": self.number, "store": view}
