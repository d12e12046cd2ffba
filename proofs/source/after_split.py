"""Theorems about what becomes of a split chunk: the reservation for draft modules, the worker's export."""

from __future__ import annotations

from typing import Any

from proofs.assume import assume
from proofs.source import worlds
from proofs.source.interface import CDIV, CHECKPOINT, VALID
from proofs.source.lift import Site
from proofs.source.scheduling import assume_chunk, scheduler_of
from proofs.source.witness import shown
from spec.checkpoint import resend_checkpoint
from spec.chunking import exported

RESERVE = Site(
    "v1/core/sched/scheduler.py",
    "Scheduler._reserve_prefill_lookahead",
    ("self", "request", "num_computed_tokens", "num_new_tokens"),
)
WORKER = Site(
    "model_executor/layers/mamba/checkpoint.py",
    "compute_mamba_prefill_checkpoints",
    (
        "seq_lens",
        "query_lens",
        "hash_block_size",
        "mamba_block_size",
        "checkpoint_alignment",
        "drop_eagle_block",
        "cache_hit_alignment_tokens",
    ),
    needs=(CDIV, CHECKPOINT, VALID),
)


def reservation_leaves_the_lookahead(tokens: int, start: int, new: int, ahead: int, *, reserve: Any) -> None:
    """CH2: the reservation takes nothing unless the chunk would end too near to the prefill's end for the
    draft modules, and then leaves them what they read, or gives the chunk up."""
    assume(start >= 0)
    assume(new >= 0)
    assume(start + new <= tokens)
    assume(ahead >= 0)
    scheduler = scheduler_of(1, 1, 1, 1, 0, True, None, False, True, ahead)
    taken = reserve(scheduler, worlds.Request(tokens, tokens, start), start, new)
    rest = tokens - start - taken
    shown(source=taken, spec=new)
    assert 0 <= taken <= new
    assert taken == 0 or rest == 0 or rest >= ahead
    if ahead <= 1 or not 0 < tokens - start - new < ahead:
        assert taken == new


def reservation_keeps_the_split_advancing(
    prompt: int,
    unit: int,
    times: int,
    start: int,
    budget: int,
    ahead: int,
    *,
    split: Any,
    reserve: Any,
    eagle: bool,
    modules: bool,
) -> None:
    """LV1: a chunk that has a whole budget advances, also after the reservation for draft modules has had its
    say. `modules`: several draft modules read up to `ahead` tokens (at most a block)."""
    assume(unit >= 1)
    assume(times >= 1)
    assume(start >= 0)
    assume(start < prompt)
    block = times * unit
    reads = ahead if modules else 1
    assume(ahead >= 2)
    assume(ahead <= block)
    assume(budget >= block + ahead)
    new = min(prompt - start, budget)
    scheduler = scheduler_of(unit, block, block, budget, 0, eagle, None, False, True, reads)
    request = worlds.Request(prompt, prompt, start)
    cut = split(scheduler, request, new)
    taken = reserve(scheduler, request, start, cut)
    shown(source=(cut, taken), spec="at least 1")
    assert taken >= 1


def worker_exports_the_specs(
    start: int,
    end: int,
    unit: int,
    block: int,
    alignment: int,
    fine: bool,
    align: int,
    exports: bool,
    *,
    worker: Any,
    eagle: bool,
) -> None:
    """CP7: a worker exports the C of its chunk's end, on the grid of hits, into the column before the running
    one, where the spec lets it, and nothing else."""
    assume(unit >= 1)
    assume(block >= unit)
    assume(align >= block)
    assume(alignment >= 1)
    assume(start >= 0)
    assume(end > start)
    by = alignment if exports else None
    grid = unit if fine else align
    offsets, columns = worker([end], [end - start], unit, block, by, eagle, grid)
    expected = exported(
        start, end, end, None, unit, block, by, lambda tokens: resend_checkpoint(tokens, grid, eagle)
    )
    shown(source=(offsets[0], columns[0]), spec=expected)
    assert offsets[0] == (expected - start if expected else 0)
    assert columns[0] == (-(-end // block) - 2 if expected else -1)


def split_and_worker_agree(
    prompt: int,
    unit: int,
    block: int,
    start: int,
    new: int,
    budget: int,
    alignment: int,
    *,
    split: Any,
    worker: Any,
    eagle: bool,
) -> None:
    """CP7: where the split lets a chunk of a fresh prompt pass C, the worker's own rule exports C from it."""
    assume_chunk(prompt, unit, block, start, new, budget, 0, eagle)
    assume(alignment >= 1)
    scheduler = scheduler_of(unit, block, block, budget, 0, eagle, alignment, False, True)
    end = start + split(scheduler, worlds.Request(prompt, prompt, start), new)
    position = resend_checkpoint(prompt, unit, eagle)
    if start < position < end:
        offsets, _ = worker([end], [end - start], unit, block, alignment, eagle, unit)
        shown(source=offsets[0], spec=position - start)
        assert offsets[0] == position - start
