"""PM: how far beyond a hit the attention KV must be proved present, and how far a lookup may look."""

from __future__ import annotations


def proof_margin(block: int, unit: int, drops: bool, fine: bool) -> int:
    """M_g in tokens: what lookup drops from the attention extent of a group that drops.

    `block` is the group's block size in tokens, scaled by DCP. Fine lookups drop one unit, coarse ones a
    whole block; a group that does not drop has no margin.
    """
    if not drops:
        return 0
    return unit if fine else block


def scan_bound(limit: int, margin: int, hashes: int, unit: int) -> int:
    """PM1, PM5: the last token that the proof scan may ask for.

    The scan is bounded by the hashes that exist, not by the hit limit: proof is only inspected, the hit
    itself stays at or below `limit` after the drop.
    """
    return min(limit + margin, hashes * unit)


def capped_scan_bound(limit: int, margin: int, hashes: int, unit: int) -> int:
    """The rule before 0.32: the scan stopped at the hit limit, below proof that was there."""
    return min(limit, hashes * unit)
