"""Theorems about margins, hash units and where hits may land (v1/core/kv_cache_utils.py)."""

from __future__ import annotations

from typing import Any

from proofs.assume import assume
from proofs.source import worlds
from proofs.source.lift import Site
from proofs.source.witness import shown
from spec.proof import proof_margin

_FILE = "v1/core/kv_cache_utils.py"
MARGIN = Site(_FILE, "eagle_proof_margin", ("block_size", "hash_block_size", "fine_grained_lookup"))
DCP_BLOCK = Site(_FILE, "resolve_dcp_kv_block_size", ("spec", "dcp_world_size"))
PARTIAL_HITS = Site(
    _FILE,
    "partial_hash_hits_enabled",
    ("kv_cache_groups", "hash_block_size", "dcp_world_size", "manager_classes"),
    needs=(DCP_BLOCK,),
)


def margin_is_the_specs(block: int, unit: int, fine: bool, *, margin: Any) -> None:
    """PM1: what a group that drops needs beyond a hit is M_g."""
    assume(unit >= 1)
    assume(block >= unit)
    found, expected = margin(block, unit, fine), proof_margin(block, unit, True, fine)
    shown(source=found, spec=expected)
    assert found == expected


def dcp_scales_attention_only(block: int, ranks: int, *, dcp_block: Any) -> None:
    """EL2: a block of a sharded attention group spans its size times the ranks, a Mamba block its size."""
    assume(block >= 1)
    assume(ranks >= 1)
    attention = dcp_block(worlds.AttentionSpec(block), ranks)
    mamba = dcp_block(worlds.MambaSpec(block), ranks)
    shown(source=(attention, mamba), spec=(block * ranks, block))
    assert attention == block * ranks
    assert mamba == block


def fine_hits_need_a_smaller_unit(
    attention: int, mamba: int, unit: int, ranks: int, *, partial_hits: Any
) -> None:
    """EL1: hits may land inside a block where the hash unit is smaller than the Mamba block (with DCP, where
    attention blocks span several, also where it is equal), if nothing is known of the managers."""
    assume(unit >= 1)
    assume(mamba >= unit)
    assume(attention >= unit)
    assume(ranks >= 1)
    groups = (worlds.CacheGroup(worlds.AttentionSpec(attention)), worlds.CacheGroup(worlds.MambaSpec(mamba)))
    found = partial_hits(groups, unit, ranks)
    expected = mamba > unit if ranks == 1 else mamba >= unit
    shown(source=found, spec=expected)
    assert found == expected


def fine_hits_need_every_manager(
    attention: int,
    mamba: int,
    unit: int,
    ranks: int,
    one: bool,
    other: bool,
    cacheable: bool,
    *,
    partial_hits: Any,
) -> None:
    """EL1: with the managers known, hits may land inside a block exactly where they might without, and every
    cacheable group's manager looks inside blocks or has blocks of one unit."""
    assume(unit >= 1)
    assume(mamba >= unit)
    assume(attention >= unit)
    assume(ranks >= 1)
    groups = (
        worlds.CacheGroup(worlds.AttentionSpec(attention, True, cacheable)),
        worlds.CacheGroup(worlds.MambaSpec(mamba)),
    )
    managers = (worlds.ManagerClass(one), worlds.ManagerClass(other))
    found = partial_hits(groups, unit, ranks, managers)
    able = other or mamba == unit
    able = able and (not cacheable or one or attention * ranks == unit)
    expected = able and partial_hits(groups, unit, ranks)
    shown(source=found, spec=expected)
    assert found == expected
