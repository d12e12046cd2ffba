"""The slow cache: a set of visible entries, and the lookup by trying every length from the top."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from reference.history import History
from spec.geometry import Geometry, GroupGeometry
from spec.lookup import (
    attention_extent,
    attention_serves,
    greatest_hit,
    junction,
    mamba_serves,
    window_serves,
)
from spec.observation import Entry

Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a request may reuse: `hit` and `junction` in tokens (`highest` where attention layouts differ and
    the junction may lie above), and each full attention group's `extents`."""

    hit: int
    junction: int
    extents: tuple[int, ...]
    highest: int = 0


class SlowCache:
    """The prefix cache as the spec sees it. A key is (group, identity of a prefix)."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.visible: set[Key] = set()

    def key(self, group: int, history: History, position: int) -> Key:
        """The key of a request's first `position` tokens in a group."""
        return group, history.number(position, self.geometry.unit)

    def key_of(self, entry: Entry, histories: dict[str, History]) -> Key:
        """The key of an observed entry."""
        return self.key(entry.group, histories[entry.request], entry.position)

    def lookup(self, history: History, visible: set[Key] | None = None, whole: bool = False) -> Lookup:
        """The greatest hit and the junction of a request over a set of entries (LK1, LK5). With `whole` the
        scan for attention may take a block that ends with the request, not only one before its last token."""
        limit = history.known - 1
        geometry = self.geometry
        scan = history.known if whole else limit
        extents = {group.index: self.extent(history, group, scan, visible) for group in geometry.attention}
        layouts = [
            _attention(
                [
                    (group.margin, extents[group.index])
                    for group in geometry.attention
                    if group.layout == layout
                ]
            )
            for layout in dict.fromkeys(group.layout for group in geometry.attention)
        ]
        windows = [self.window(history, group, visible) for group in geometry.windows]
        states = [self.states(history, group, visible) for group in geometry.mamba]
        hit = greatest_hit(limit, geometry.grid, [*layouts, *windows, *states])
        least, highest = junction(limit, geometry.grid, hit, layouts)
        return Lookup(hit, least, tuple(extents.values()), highest)

    def extent(
        self, history: History, group: GroupGeometry, limit: int, visible: set[Key] | None = None
    ) -> int:
        """E_g: how far the group's proof reaches for a request."""
        return attention_extent(
            self.sees(history, group.index, visible),
            group.block,
            self.geometry.unit,
            self.bound(history, group, limit),
            self.geometry.fine,
        )

    def bound(self, history: History, group: GroupGeometry, limit: int) -> int:
        """The scan bound of PM1 for a request in a group."""
        geometry = self.geometry
        hashes = geometry.hashed(history.known) // geometry.unit
        return geometry.profile.bound(limit, group.margin, hashes, geometry.unit)

    def window(
        self, history: History, group: GroupGeometry, visible: set[Key] | None = None
    ) -> Callable[[int], bool]:
        """Which lengths a sliding-window group serves."""
        sees, bound = self.sees(history, group.index, visible), self.bound(history, group, history.known - 1)
        return lambda length: window_serves(length, group.block, group.window, group.margin, bound, sees)

    def states(
        self, history: History, group: GroupGeometry, visible: set[Key] | None = None
    ) -> Callable[[int], bool]:
        """Which lengths a Mamba group serves."""
        sees = self.sees(history, group.index, visible)
        return lambda length: mamba_serves(length, sees)

    def sees(self, history: History, group: int, visible: set[Key] | None = None) -> Callable[[int], bool]:
        """Whether a group holds an entry for the request's first so many tokens."""
        entries = self.visible if visible is None else visible
        unit, numbers = self.geometry.unit, history.numbers
        reach = len(numbers) * unit
        return lambda position: position <= reach and (group, numbers[position // unit - 1]) in entries

    def publish(self, keys: Iterable[Key]) -> None:
        """Make entries visible."""
        self.visible.update(keys)


def _attention(proofs: Sequence[tuple[int, int]]) -> Callable[[int], bool]:
    """Which lengths attention groups of one layout serve together; `proofs` are margin and extent each."""
    return lambda length: all(attention_serves(length, margin, extent) for margin, extent in proofs)
