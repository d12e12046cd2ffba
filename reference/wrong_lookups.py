"""Names the rule that a hit too short has broken, by the wrong lookup that would have given that hit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from reference.cache import Key, SlowCache
from reference.history import History
from spec.geometry import Geometry
from spec.lookup import attention_extent, greatest_hit
from spec.proof import capped_scan_bound

Hit = Callable[[Geometry, History, set[Key]], int]


@dataclass(frozen=True, slots=True)
class Variant:
    """A lookup with one rule broken: `hit` gives its length in tokens, `rule` and `kind` name it, `reason`
    says how."""

    rule: str
    kind: str
    reason: str
    hit: Hit


def _with(change: Callable[[Geometry], Geometry]) -> Hit:
    def hit(geometry: Geometry, history: History, visible: set[Key]) -> int:
        return SlowCache(change(geometry)).lookup(history, visible).hit

    return hit


def _capped(geometry: Geometry) -> Geometry:
    return replace(geometry, profile=replace(geometry.profile, bound=capped_scan_bound))


def _dropping_twice(geometry: Geometry) -> Geometry:
    groups = tuple(replace(group, margin=2 * group.margin) for group in geometry.groups)
    return replace(geometry, groups=groups)


def _coarse(geometry: Geometry) -> Geometry:
    return replace(geometry, fine=False)


def bounded_by_the_one_before(geometry: Geometry, history: History, visible: set[Key]) -> int:
    """The hit when each attention layout scans only to its margin past what the layout before it could serve:
    its own entries further up, that would serve as proof, are not seen."""
    cache = SlowCache(geometry)
    candidate = history.known - 1
    for layout in dict.fromkeys(group.layout for group in geometry.attention):
        groups = [group for group in geometry.attention if group.layout == layout]
        margin = groups[0].margin
        bound = min(cache.bound(history, groups[0], candidate), candidate + margin)
        extents = [
            attention_extent(
                cache.sees(history, group.index, visible), group.block, geometry.unit, bound, geometry.fine
            )
            for group in groups
        ]
        candidate = min(candidate, max(min(extents) - margin, 0) // geometry.grid * geometry.grid)
    others = [cache.window(history, group, visible) for group in geometry.windows]
    others.extend(cache.states(history, group, visible) for group in geometry.mamba)
    return greatest_hit(candidate, geometry.grid, others)


VARIANTS: tuple[Variant, ...] = (
    Variant(
        "LK2",
        "bounded-by-other-layout",
        "as if one attention layout bounded the proof scan of another",
        bounded_by_the_one_before,
    ),
    Variant("PM1", "scan-capped", "as if the proof scan stopped at P − 1", _with(_capped)),
    Variant("PM3", "double-drop", "as if a group dropped twice", _with(_dropping_twice)),
    Variant("EL1", "coarse-hit", "as if hits could not land inside a block", _with(_coarse)),
)
