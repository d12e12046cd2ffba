"""Theorems about what is kept and published of a prompt (v1/core: coordinator and managers)."""

from __future__ import annotations

from typing import Any

from proofs.assume import assume
from proofs.source import worlds
from proofs.source.interface import CDIV, CHECKPOINT, ROUND_DOWN, VALID
from proofs.source.lift import Site
from proofs.source.witness import shown
from spec.checkpoint import resend_checkpoint
from spec.chunking import can_export
from spec.retention import attention_tail, cacheable, keeps_interval, replay_boundaries

_COORDINATOR = "v1/core/kv_cache_coordinator.py"
_MANAGERS = "v1/core/single_type_kv_cache_manager.py"
BOUNDARIES = Site(
    _COORDINATOR, "replay_boundaries", ("num_prompt_tokens", "scheduler_block_size", "use_eagle")
)
ALIGN = Site(
    _COORDINATOR, "HybridKVCacheCoordinator._align_cacheable", ("self", "num_tokens"), needs=(ROUND_DOWN,)
)
CACHEABLE = Site(
    _COORDINATOR,
    "HybridKVCacheCoordinator.get_num_cacheable_tokens",
    ("self", "num_computed_tokens", "kv_cache_group_id"),
)
MASK = Site(
    _MANAGERS,
    "MambaManager.reachable_block_mask",
    (
        "cls",
        "start_block",
        "end_block",
        "alignment_tokens",
        "kv_cache_spec",
        "use_eagle",
        "retention_interval",
        "reachable_boundaries",
        "dcp_world_size",
        "final_segment_end_block",
    ),
)
ATTENTION_TAIL = Site(
    _MANAGERS, "FullAttentionManager._cache_partial_tail_block", ("self", "request", "num_tokens")
)
STATE_TAIL = Site(
    _MANAGERS,
    "MambaManager._cache_partial_tail_block",
    ("self", "request", "num_tokens", "retention_interval"),
    needs=(CDIV, CHECKPOINT),
)
NEEDS_EXPORT = Site(
    _MANAGERS,
    "MambaManager._needs_internal_checkpoint",
    ("self", "request_id", "query_start", "query_end", "checkpoint_position", "prefill_end"),
    needs=(CDIV, VALID),
)


class _Coordinator(worlds.Coordinator):
    """A coordinator whose rounding is the target's own."""

    def __init__(self, align: Any, fine: bool, size: int, unfinished: int, manager: Any) -> None:
        super().__init__(fine, size, unfinished, (manager,))
        self._align = align

    def _align_cacheable(self, num_tokens: int) -> Any:
        return self._align(self, num_tokens)


def cacheable_is_the_specs(
    tokens: int,
    block: int,
    align: int,
    unfinished: int,
    drops: bool,
    fine: bool,
    *,
    published: Any,
    rounded: Any,
) -> None:
    """RT1: a group publishes as many of its computed tokens as the spec lets it, and its proof block."""
    assume(tokens >= 0)
    assume(block >= 1)
    assume(align >= block)
    assume(unfinished >= 0)
    manager = worlds.PublishingManager(drops, block)
    found = published(_Coordinator(rounded, fine, align, unfinished, manager), tokens, 0)
    expected = cacheable(tokens, block, align, drops, fine, unfinished)
    shown(source=found, spec=expected)
    assert found == expected


def mamba_publishes_what_is_computed(
    tokens: int, block: int, unfinished: int, *, published: Any, rounded: Any, modules: bool
) -> None:
    """RT2: with EAGLE and no group marked as draft, when all groups drop, a Mamba group still publishes
    every state it has: draft modules rewrite attention KV only. `modules`: several draft modules."""
    assume(tokens >= 0)
    assume(block >= 1)
    assume(unfinished >= 1)
    held_back = unfinished if modules else 0
    manager = worlds.PublishingManager(True, block)
    found = published(_Coordinator(rounded, True, block, held_back, manager), tokens, 0)
    shown(source=found, spec=cacheable(tokens, block, block, False, True))
    assert found == cacheable(tokens, block, block, False, True)


def mask_keeps_the_interval(
    segment: int, place: int, block: int, per: int, unit: int, *, mask: Any, retention: str
) -> None:
    """RT1: the retention interval keeps a block exactly where the spec says.

    The block, asked about by itself, ends `place` blocks after the end of a segment of `per` blocks.
    `retention` is dense (every block), boundaries (none by itself), block (a segment is one block) or
    interval (it is several).
    """
    assume(segment >= 0)
    assume(place >= 0)
    assume(place < per)
    assume(unit >= 1)
    assume(block >= unit)
    assume(per >= 1)
    if retention == "interval":
        assume(per >= 2)
    first = segment * per + place - 1
    assume(first >= 0)
    interval = {"dense": None, "boundaries": 0, "block": block, "interval": per * block}[retention]
    kept = mask(None, first, first + 1, unit, worlds.MambaSpec(block), False, interval)
    found = kept is None or kept[0]
    expected = keeps_interval((segment * per + place) * block, block, interval)
    shown(source=found, spec=expected)
    assert found == expected


def mask_keeps_replay_boundaries(
    prompt: int, index: int, block: int, times: int, *, mask: Any, boundaries: Any, eagle: bool
) -> None:
    """RT1: with retention 0 and coarse hits the only block ends kept are the replay boundaries."""
    assume(prompt >= 1)
    assume(index >= 0)
    assume(block >= 1)
    assume(times >= 1)
    align = times * block
    kept = mask(
        None, index, index + 1, align, worlds.MambaSpec(block), False, 0, boundaries(prompt, align, eagle)
    )
    found = kept[0]
    expected = (index + 1) * block in replay_boundaries(prompt, block, align, align, eagle)
    shown(source=found, spec=expected)
    assert found == expected


def attention_tail_is_the_specs(
    prompt: int, tokens: int, unit: int, block: int, drops: bool, *, register: Any
) -> None:
    """PM1: attention registers the prompt's last hash boundary that a resend can use, once it is computed."""
    assume(prompt >= 1)
    assume(unit >= 1)
    assume(block > unit)
    assume(tokens >= 0)
    pool = worlds.BlockPool(unit)
    manager = worlds.Manager(
        block_size=block,
        block_pool=pool,
        kv_cache_spec=worlds.AttentionSpec(block),
        req_to_blocks={"r": worlds.Blocks(-(-tokens // block))},
        use_eagle=drops,
        drop_eagle_checkpoint_block=drops,
        cache_hit_alignment_tokens=unit,
    )
    register(manager, worlds.Request(prompt, prompt, 0), tokens)
    boundary = attention_tail(prompt, unit, drops)
    due = 0 < boundary <= tokens and boundary % block != 0
    shown(source=tuple(at for _, at in pool.registered), spec=(boundary,) if due else ())
    assert len(pool.registered) == (1 if due else 0)
    for index, at in pool.registered:
        assert at == boundary
        assert index == boundary // block


def state_is_registered_at_the_checkpoint(
    prompt: int, tokens: int, unit: int, block: int, *, register: Any, eagle: bool, fits: bool
) -> None:
    """CP7: of the states at chunk ends, registration keeps under a hash inside a block exactly the one at C,
    by the model-wide drop flag. `fits`: the chunk ends at a block end (registered as a full block too)."""
    assume(prompt >= 1)
    assume(unit >= 1)
    assume(block > unit)
    assume(tokens >= 1)
    assume(tokens % unit == 0)
    assume((tokens % block == 0) == fits)
    pool = worlds.BlockPool(unit)
    manager = worlds.Manager(
        block_size=block,
        block_pool=pool,
        kv_cache_spec=worlds.MambaSpec(block),
        req_to_blocks={"r": worlds.Blocks(-(-tokens // block))},
        use_eagle=False,
        drop_eagle_checkpoint_block=eagle,
        cache_hit_alignment_tokens=unit,
    )
    register(manager, worlds.Request(prompt, prompt, 0), tokens, 0)
    position = resend_checkpoint(prompt, unit, eagle)
    shown(source=tuple(at for _, at in pool.registered), spec=(position,) if tokens == position else ())
    assert len(pool.registered) == (1 if tokens == position else 0)
    for index, at in pool.registered:
        assert at == position
        assert index == -(-position // block) - 1


def reservation_is_the_specs(
    start: int,
    end: int,
    position: int,
    prefill_end: int,
    unit: int,
    block: int,
    alignment: int,
    exports: bool,
    *,
    needs: Any,
) -> None:
    """CP7: the manager reserves a block for an export exactly where the spec lets a chunk that ends the
    prefill export it, on a table that reaches to the chunk's start."""
    assume(unit >= 1)
    assume(block >= unit)
    assume(alignment >= 1)
    assume(start >= 0)
    assume(end > start)
    assume(prefill_end >= end)
    manager = worlds.Manager(
        block_size=block,
        block_pool=worlds.BlockPool(unit),
        kv_cache_spec=worlds.MambaSpec(block, "align", alignment),
        req_to_blocks={"r": worlds.Blocks(-(-start // block))},
        use_eagle=False,
        drop_eagle_checkpoint_block=False,
        cache_hit_alignment_tokens=unit,
        has_prefill_checkpoint_blocks=exports,
    )
    found = needs(manager, "r", start, end, position, prefill_end)
    expected = exports and end >= prefill_end and can_export(start, end, position, unit, block, alignment)
    shown(source=found, spec=expected)
    assert found == expected
