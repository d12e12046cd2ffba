"""CP: where the one Mamba state that serves a resend of a prompt must lie."""

from __future__ import annotations


def resend_checkpoint(prompt: int, unit: int, eagle: bool) -> int:
    """C(P, U, eagle), the resend checkpoint in tokens (CP1–CP6; source: seeds, core pull request).

    Without EAGLE the last token is left to recompute, so the cap is P − 1. With EAGLE the drop of one
    unit already leaves tokens to recompute, so the cap is P and one unit is dropped.
    """
    if eagle:
        return max(prompt // unit * unit - unit, 0)
    return (prompt - 1) // unit * unit


def capped_and_dropped_checkpoint(prompt: int, unit: int, eagle: bool) -> int:
    """The rule before 0.32: with EAGLE it applied the cap at P − 1 and the drop (CP6 compares both)."""
    capped = (prompt - 1) // unit * unit
    return max(capped - unit, 0) if eagle else capped


def lookahead_checkpoint(prompt: int, unit: int, lookahead: int) -> int:
    """Modified in 0.33: the hash of a unit covers `lookahead` more tokens, so nothing is dropped."""
    return max((prompt - max(1, lookahead)) // unit * unit, 0)
