"""What a slow engine does with a store, asked by the engine at fixed places; this one has no store."""

from __future__ import annotations

from typing import Any

from reference.history import History
from reference.plan import Plan
from reference.slow_rules import SlowRules
from spec.observation import FailedRead, Finished, Observation


class SlowSide:
    """The side of an engine without a store: blocks are those of its running requests, nothing is loaded,
    saved or waited for."""

    engine: SlowRules

    def __init__(self, engine: SlowRules) -> None:
        self.engine = engine
        self.configuration = engine.configuration
        self.geometry = engine.geometry
        self.cache = engine.cache
        self.histories = engine.histories
        self.expected = engine.expected

    # What it holds.

    def holds_blocks(self) -> bool:
        """Whether any block is held, so that a reset is refused."""
        return bool(self.engine.running)

    def blocks_held(self) -> int:
        """How many blocks are held."""
        return sum(self.engine.blocks_of(history) for history in self.engine.running)

    # The queue.

    def queue(self) -> list[History]:
        """The waiting requests in the order in which they are reached."""
        return list(self.engine.waiting)

    def admit(self, history: History, plan: Plan) -> bool:
        """Let a waiting request begin; False when it must wait and nobody may overtake it."""
        return self.engine.begin(history, self.engine.lookup(history), plan)

    # A step.

    def decided(self, plan: Plan) -> None:
        """The schedule of a step stands; nothing is computed yet."""

    def read(self, group: int, history: History, position: int) -> int | None:
        """The content under an entry that a request reuses."""
        return self.engine.content.get(self.cache.key(group, history, position))

    def adopted(self, history: History, hit: int, failed: list[FailedRead]) -> list[FailedRead]:
        """A request goes on from its hit; the reads that failed, with those of the store."""
        return failed

    def computed(self, history: History, position: int, state: int) -> None:
        """A request's blocks now hold the KV of its token before `position` and the state after it."""

    def conclude(self) -> list[Finished]:
        """The step is computed; the requests that end with it for another reason than their last output."""
        return []

    # Requests that lose their blocks.

    def preempted(self, history: History) -> None:
        """A request was put back to the queue."""

    def ended(self, history: History, reason: str) -> None:
        """A request has ended."""

    def reported(self, history: History, hit: int) -> int:
        """The tokens reported as reused, of those that the engine reports."""
        return hit

    # What is left to do, and what is seen.

    def opens(self) -> bool:
        """Let what is held at the gates go, before a settle; whether anything was."""
        return False

    def unsettled(self) -> bool:
        """Whether anything but requests is left to wait for."""
        return False

    def moved(self, observation: Observation) -> bool:
        """Whether a step brought loads or saves forward."""
        return False

    def seen(self) -> dict[str, Any]:
        """What an observation holds beside what the engine shows; asked once for each."""
        return {}
