"""Theorems about the Mooncake connector's lookups and tail saves (its coordinator, scheduler and data)."""

from __future__ import annotations

from typing import Any

from proofs.assume import assume
from proofs.source import worlds
from proofs.source.containers import choose
from proofs.source.interface import CDIV, CHECKPOINT
from proofs.source.lift import Site
from proofs.source.witness import shown
from spec.checkpoint import resend_checkpoint
from spec.proof import proof_margin
from spec.tail import completes, tail_blocks, tail_key, tail_span

_FOLDER = "distributed/kv_transfer/kv_connector/v1/mooncake/store"
LOOKUP = Site(f"{_FOLDER}/coordinator.py", "MooncakeStoreCoordinator.align_lookup_length", ("self", "length"))
TAIL_PUTS = Site(
    f"{_FOLDER}/scheduler.py",
    "_partial_tail_non_mamba_puts",
    ("coord", "req_meta", "block_sizes"),
    needs=(CDIV, CHECKPOINT),
)
SAVE = Site(
    f"{_FOLDER}/data.py",
    "ReqMeta.from_request_tracker",
    (
        "tracker",
        "block_size",
        "load_spec",
        "skip_save",
        "block_hashes",
        "save_partial_tail",
        "num_prompt_tokens",
    ),
    needs=(CDIV,),
)


def lookup_length_is_on_the_grid(length: int, unit: int, align: int, fine: bool, *, lookup: Any) -> None:
    """PM2: a lookup asks for the greatest length on the grid of hits, at most the one it was given."""
    assume(length >= 0)
    assume(unit >= 1)
    assume(align >= unit)
    grid = unit if fine else align
    found = lookup(worlds.Store(unit, align, fine), length)
    shown(source=found, spec=length // grid * grid)
    assert found == length // grid * grid
    assert length - grid < found <= length


def tail_puts_are_the_specs(
    prompt: int,
    unit: int,
    times: int,
    blocks: int,
    completed: int,
    drops: bool,
    index: int,
    *,
    puts: Any,
    eagle: bool,
) -> None:
    """TS1, TS2: the save that covers the prompt puts exactly the blocks of the spec's tail, each under its
    clipped end, once the proof is computed.

    The attention block is `times` units and L is `blocks` of it; `index` is any block.
    """
    assume(prompt >= 1)
    assume(unit >= 1)
    assume(times >= 1)
    assume(blocks >= 1)
    assume(completed >= prompt)
    assume(index >= 0)
    block = times * unit
    align = blocks * block
    margin = proof_margin(block, unit, eagle and drops, True)
    store = worlds.Store(
        unit, align, use_eagle=eagle, eagle_proof_margin_by_group={0: margin} if eagle and drops else {}
    )
    table = worlds.BlockIds(-(-completed // block))
    request = worlds.SaveRequest(
        prompt, completed, worlds.Hashes(completed // unit), (table, None), publish_partial_tail=True
    )
    choose(index)
    found = [put for put in puts(store, request, [block, block]) if put.block_id == index + 1]
    span = tail_span(prompt, completed, unit, align, margin, eagle)
    touched = tail_blocks(span, block)
    due = touched.start <= index < touched.end
    shown(source=tuple(put.num_tokens for put in found), spec=(tail_key(index, span, block),) if due else ())
    assert len(found) == (1 if due else 0)
    for put in found:
        assert put.group_id == 0
        assert put.num_tokens == tail_key(index, span, block)
        assert put.num_tokens <= completed


def one_save_publishes_the_tail(prompt: int, block: int, first: int, second: int, *, save: Any) -> None:
    """TS7: of two saves one after the other the tail is published by the one that completes the prompt, with
    or without a full block of its own."""
    assume(prompt >= 1)
    assume(block >= 1)
    assume(first >= 0)
    assume(second >= first)
    tracker = worlds.Tracker(first, 0, False)
    before = save(tracker, block, None, False, None, True, prompt)
    tracker.token_len = second
    after = save(tracker, block, None, False, None, True, prompt)
    found = (
        before is not None and before.publish_partial_tail,
        after is not None and after.publish_partial_tail,
    )
    expected = (completes(0, first, prompt), completes(first, second, prompt))
    shown(source=found, spec=expected)
    assert found[0] == expected[0]
    assert found[1] == expected[1]


def tail_belongs_to_the_prompt(prompt: int, unit: int, completed: int, *, puts: Any, eagle: bool) -> None:
    """TS6, CP7: how far a resumed request has computed says nothing about its tail; it ends at the C of the
    prompt; one block holds all."""
    assume(prompt >= 1)
    assume(unit >= 1)
    assume(completed >= prompt)
    block = completed * unit
    store = worlds.Store(unit, block, use_eagle=eagle)
    request = worlds.SaveRequest(
        prompt,
        completed,
        worlds.Hashes(completed // unit),
        (worlds.BlockIds(1), None),
        publish_partial_tail=True,
    )
    choose(0)
    found = tuple(put.num_tokens for put in puts(store, request, [block, block]))
    position = resend_checkpoint(prompt, unit, eagle)
    expected = (position,) if position > 0 else ()
    shown(source=found, spec=expected)
    assert len(found) == len(expected)
    assert all(one == other for one, other in zip(found, expected, strict=True))
