"""What a reader of KV events believes to be visible, under both readings of a removal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from reference.cache import Key
from spec.observation import Entry, Event


@dataclass(frozen=True, slots=True)
class Told:
    """What KV events up to a step say. `last` holds the keys whose last event stored them, `counts` how often
    each was stored more than removed: where one prefix lies in two blocks, upstream does not say whether the
    first removal ends it. `broken` are the step's events whose tokens do not belong to their entries."""

    last: frozenset[Key] = frozenset()
    counts: dict[Key, int] = field(default_factory=dict)
    broken: tuple[Event, ...] = ()

    @property
    def surely(self) -> frozenset[Key]:
        """Keys that every reader believes to be visible."""
        return frozenset(key for key in self.last if self.counts.get(key, 0) > 0)

    @property
    def perhaps(self) -> frozenset[Key]:
        """Keys that some reader believes to be visible."""
        return self.last | {key for key, count in self.counts.items() if count > 0}

    def after(self, events: Sequence[Event], key_of: Callable[[Entry], Key]) -> Told:
        """What is believed once `events` were read too, in order."""
        last, counts = set(self.last), dict(self.counts)
        for event in events:
            if event.kind == "cleared":
                last.clear()
                counts.clear()
            for key in map(key_of, event.entries):
                stored = event.kind == "stored"
                counts[key] = max(counts.get(key, 0) + (1 if stored else -1), 0)
                (last.add if stored else last.discard)(key)
        return Told(frozenset(last), counts, tuple(event for event in events if _is_broken(event)))


def _is_broken(event: Event) -> bool:
    """Whether the tokens of a stored event are not those of its entries, each an equal part of them."""
    if event.kind != "stored":
        return False
    if not event.entries:
        return event.tokens > 0
    part, rest = divmod(event.tokens, len(event.entries))
    due = [event.start + part * (index + 1) for index in range(len(event.entries))]
    return rest > 0 or not event.matches or [entry.position for entry in event.entries] != due
