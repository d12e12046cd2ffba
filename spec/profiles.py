"""Profiles: named sets of rule variants, one per way in which an implementation changed the rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spec.checkpoint import capped_and_dropped_checkpoint, lookahead_checkpoint, resend_checkpoint
from spec.proof import capped_scan_bound, scan_bound


@dataclass(frozen=True, slots=True)
class Profile:
    """A rule set. `checkpoint(tokens, unit, eagle)` and `bound(limit, margin, hashes, unit)` are the
    variants in force; `drops` tells whether EAGLE lookups drop; `lookahead` how many tokens past its unit
    a hash covers for each draft module (0 or 1: with multi-module MTP all that the modules read ahead)."""

    name: str
    statement: str
    checkpoint: Callable[[int, int, bool], int]
    bound: Callable[[int, int, int, int], int]
    drops: bool = True
    lookahead: int = 0

    def hashes(self, tokens: int, unit: int, eagle: bool) -> int:
        """How many hashes exist for `tokens` tokens."""
        return max(tokens - (self.lookahead if eagle else 0), 0) // unit


def _without_drop(tokens: int, unit: int, eagle: bool) -> int:
    return lookahead_checkpoint(tokens, unit, 1 if eagle else 0)


OLD = Profile(
    "old",
    "vLLM 0.30 and 0.31: the proof scan stops at P − 1 and the checkpoint applies cap and drop.",
    capped_and_dropped_checkpoint,
    capped_scan_bound,
)
DROP = Profile(
    "drop",
    "vLLM 0.32, and later with a connector: EAGLE lookups drop one unit, proof may reach past the limit.",
    resend_checkpoint,
    scan_bound,
)
LOOKAHEAD = Profile(
    "lookahead",
    "Modified in 0.33 (without a connector): hashes cover the next token too, so EAGLE drops nothing.",
    _without_drop,
    scan_bound,
    drops=False,
    lookahead=1,
)
PROFILES: dict[str, Profile] = {profile.name: profile for profile in (OLD, DROP, LOOKAHEAD)}
