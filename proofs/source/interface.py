"""Theorems about the checkpoint's position and validity (v1/kv_cache_interface.py)."""

from __future__ import annotations

from typing import Any

from proofs.assume import assume
from proofs.source.lift import Site
from proofs.source.witness import shown
from proofs.theorems.kinds import Checkpoint
from spec.checkpoint import resend_checkpoint
from spec.chunking import can_export

_MATH = "utils/math_utils.py"
CDIV = Site(_MATH, "cdiv", ("a", "b"))
ROUND_DOWN = Site(_MATH, "round_down", ("x", "y"))
_FILE = "v1/kv_cache_interface.py"
CHECKPOINT = Site(
    _FILE, "get_mamba_prefill_checkpoint_position", ("num_tokens", "hash_block_size", "drop_eagle_block")
)
VALID = Site(
    _FILE,
    "is_mamba_prefill_checkpoint_valid",
    (
        "query_start",
        "query_end",
        "checkpoint_position",
        "hash_block_size",
        "mamba_block_size",
        "checkpoint_alignment",
    ),
    needs=(CDIV,),
)


def checkpoint_is_the_specs(prompt: int, unit: int, eagle: bool, *, checkpoint: Checkpoint) -> None:
    """CP7: the position that everything in vLLM asks for is C."""
    assume(unit >= 1)
    assume(prompt >= 1)
    found, expected = checkpoint(prompt, unit, eagle), resend_checkpoint(prompt, unit, eagle)
    shown(source=found, spec=expected)
    assert found == expected


def validity_is_the_specs(
    start: int, end: int, position: int, unit: int, block: int, alignment: int, exports: bool, *, valid: Any
) -> None:
    """CH3: a backend may export a checkpoint exactly where the spec lets it."""
    assume(unit >= 1)
    assume(block >= unit)
    assume(alignment >= 1)
    assume(start >= 0)
    assume(end > start)
    by = alignment if exports else None
    found = valid(start, end, position, unit, block, by)
    expected = can_export(start, end, position, unit, block, by)
    shown(source=found, spec=expected)
    assert found == expected


def valid_export_is_inside(
    start: int, end: int, position: int, unit: int, block: int, alignment: int, *, valid: Any
) -> None:
    """CH3: a valid export lies inside its chunk, a unit past the start, on the backend's alignment, and its
    column lies between that of the initial state and the running one."""
    assume(unit >= 1)
    assume(block >= unit)
    assume(alignment >= 1)
    assume(start >= 0)
    assume(end > start)
    found = valid(start, end, position, unit, block, alignment)
    shown(source=found, spec=start + unit <= position < end)
    if found:
        assert start + unit <= position < end
        assert (position - start) % alignment == 0
        column = -(-end // block) - 2
        assert column > (start - 1) // block
        assert column >= 0
