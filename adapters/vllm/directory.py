"""What the store holds, as entries: the keys of the master, and which prefixes their hashes stand for."""

from __future__ import annotations

from adapters.mooncake.backend import Backend
from adapters.vllm.reading import Prefixes
from spec.observation import Entry


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
