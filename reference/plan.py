"""One engine step of the reference as it is decided."""

from __future__ import annotations

from dataclasses import dataclass, field

from reference.cache import Key
from spec.observation import Admitted, Counters, Entry, Scheduled


@dataclass(slots=True)
class Plan:
    """One engine step as it is decided: the `budget` left in tokens, what is scheduled and admitted, and the
    entries `published`, of which `fresh` are the keys that were not visible before. `beginners` are requests
    that compute for the first time since they got their blocks."""

    budget: int
    scheduled: list[Scheduled] = field(default_factory=list)
    admitted: list[Admitted] = field(default_factory=list)
    published: dict[Key, Entry] = field(default_factory=dict)
    fresh: set[Key] = field(default_factory=set)
    counters: list[Counters] = field(default_factory=list)
    beginners: set[str] = field(default_factory=set)

    def take(self, item: Scheduled) -> None:
        """Schedule a chunk."""
        self.budget -= item.end - item.start
        self.scheduled.append(item)

    def appeared(self) -> tuple[Entry, ...]:
        """The entries that became visible so far."""
        return tuple(self.published[key] for key in self.fresh)
