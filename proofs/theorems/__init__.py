"""Theorems: each derived rule once, as plain functions that assume and assert, for every engine to run.

A theorem takes integers, booleans, small tuples of them and membership predicates; its keyword-only
parameters name the functions of the spec that it is about, so that a wrong variant can be planted. Lengths
are in tokens. `proofs.loops` tells how loops are stated.
"""

from __future__ import annotations

from proofs.theorems.ch import (
    ch1_no_stop_is_jumped,
    ch1_stop_unless_exported,
    ch2_advances,
    ch3_export_inside_its_chunk,
)
from proofs.theorems.cp import (
    cp1_on_the_grid,
    cp2_leaves_tokens,
    cp3_proof_fits,
    cp4_maximal,
    cp5_safe_for_extension,
    cp6_against_the_old_rule,
)
from proofs.theorems.lk import lk1_fixed_point, lk2_order_of_groups, lk3_longer_extent, lk3_longer_hit
from proofs.theorems.lt import (
    lt1_pinned_block_is_kept,
    lt2_pin_released_once,
    lt3_free_count_returns,
    lt4_any_moment,
)
from proofs.theorems.pm import (
    pm1_scan_reaches_the_proof,
    pm2_hit_within_the_limit,
    pm4_state_only_shortens,
    pm5_hash_exists,
)
from proofs.theorems.ts import (
    ts1_every_proof_key_is_saved,
    ts1_external_hit_is_the_local_one,
    ts6_original_prompt_decides,
    ts7_keys_are_asked_for,
    ts7_no_gap,
    ts7_one_step_publishes,
)

__all__ = [
    "ch1_no_stop_is_jumped",
    "ch1_stop_unless_exported",
    "ch2_advances",
    "ch3_export_inside_its_chunk",
    "cp1_on_the_grid",
    "cp2_leaves_tokens",
    "cp3_proof_fits",
    "cp4_maximal",
    "cp5_safe_for_extension",
    "cp6_against_the_old_rule",
    "lk1_fixed_point",
    "lk2_order_of_groups",
    "lk3_longer_extent",
    "lk3_longer_hit",
    "lt1_pinned_block_is_kept",
    "lt2_pin_released_once",
    "lt3_free_count_returns",
    "lt4_any_moment",
    "pm1_scan_reaches_the_proof",
    "pm2_hit_within_the_limit",
    "pm4_state_only_shortens",
    "pm5_hash_exists",
    "ts1_every_proof_key_is_saved",
    "ts1_external_hit_is_the_local_one",
    "ts6_original_prompt_decides",
    "ts7_keys_are_asked_for",
    "ts7_no_gap",
    "ts7_one_step_publishes",
]
