"""Theorems about where prefill chunks end (v1/core/sched/scheduler.py).

Each is proved for every style: with and without EAGLE, exports and junctions, for any long-prefill threshold
(0: none) and any budget of a step. `unit` is U, and U divides the Mamba block; a chunk begins at `start` and
may take `new` tokens.
"""

from __future__ import annotations

from typing import Any

from proofs.assume import assume
from proofs.source import worlds
from proofs.source.interface import CHECKPOINT, VALID
from proofs.source.lift import Site
from proofs.source.witness import shown
from proofs.theorems.kinds import Checkpoint
from spec.checkpoint import resend_checkpoint
from spec.chunking import can_export, junction_stop

_FILE = "v1/core/sched/scheduler.py"
SPLIT = Site(
    _FILE,
    "Scheduler._mamba_block_aligned_split",
    ("self", "request", "num_new_tokens", "num_new_local_computed_tokens", "num_external_computed_tokens"),
    needs=(CHECKPOINT, VALID),
)


def scheduler_of(
    unit: int,
    block: int,
    align: int,
    budget: int,
    threshold: int,
    eagle: bool,
    alignment: int | None,
    exact: bool,
    fine: bool,
    ahead: int = 0,
) -> worlds.Scheduler:
    """A scheduler of U `unit`, Mamba block `block`, L `align`; draft modules read `ahead` tokens ahead."""
    return worlds.Scheduler(
        cache_config=worlds.CacheConfig(block),
        scheduler_config=worlds.SchedulerConfig(threshold),
        max_num_scheduled_tokens=budget,
        use_eagle_block_drop=eagle,
        hash_block_size=unit,
        block_size=align,
        mamba_partial_cache_hit=fine,
        mamba_has_prefill_checkpoint_blocks=alignment is not None,
        mamba_prefill_checkpoint_alignment=alignment,
        mamba_shared_prefix_checkpoint=exact,
        num_prefill_lookahead=ahead,
    )


def coarser_checkpoint_is_lower(
    prompt: int, unit: int, times: int, *, checkpoint: Checkpoint, eagle: bool
) -> None:
    """CP7: the checkpoint on a coarser grid is never above C. The theorems about the split assume it of the
    Mamba block, since it is slow to see there."""
    assume(unit >= 1)
    assume(times >= 1)
    assume(prompt >= 1)
    coarse, fine = checkpoint(prompt, times * unit, eagle), checkpoint(prompt, unit, eagle)
    shown(source=coarse, spec=fine)
    assert coarse <= fine
    assert resend_checkpoint(prompt, times * unit, eagle) <= resend_checkpoint(prompt, unit, eagle)


def assume_chunk(
    prompt: int, unit: int, block: int, start: int, new: int, budget: int, threshold: int, eagle: bool
) -> None:
    """A chunk of a fresh prompt that may take up to `new` tokens."""
    assume(unit >= 1)
    assume(block >= unit)
    assume(block % unit == 0)
    assume(start >= 0)
    assume(new >= 1)
    assume(start + new <= prompt)
    assume(new <= budget)
    assume(threshold >= 0)
    assume(resend_checkpoint(prompt, block, eagle) <= resend_checkpoint(prompt, unit, eagle))


def split_passes_no_checkpoint(
    prompt: int,
    unit: int,
    block: int,
    start: int,
    new: int,
    budget: int,
    threshold: int,
    alignment: int,
    *,
    split: Any,
    eagle: bool,
    exports: bool,
) -> None:
    """CP7: a chunk of a fresh prompt passes C only where it completes the prompt and exports C. Without a
    junction."""
    assume_chunk(prompt, unit, block, start, new, budget, threshold, eagle)
    assume(alignment >= 1)
    by = alignment if exports else None
    scheduler = scheduler_of(unit, block, block, budget, threshold, eagle, by, False, True)
    end = start + split(scheduler, worlds.Request(prompt, prompt, start), new)
    position = resend_checkpoint(prompt, unit, eagle)
    shown(source=(start, end), spec=position)
    if start < position < end:
        assert end == prompt
        assert can_export(start, end, position, unit, block, by)


def split_advances(
    prompt: int,
    unit: int,
    block: int,
    start: int,
    new: int,
    budget: int,
    threshold: int,
    alignment: int,
    *,
    split: Any,
    eagle: bool,
    exports: bool,
) -> None:
    """CH2: a chunk takes no more than it may. It advances where it may take all that a step ever gives, where
    it reaches the next block end, or where it completes the prompt. It ends at the prompt's end, at a block
    end or at C, or has taken all it may inside one block. Without a junction."""
    assume_chunk(prompt, unit, block, start, new, budget, threshold, eagle)
    assume(alignment >= 1)
    by = alignment if exports else None
    scheduler = scheduler_of(unit, block, block, budget, threshold, eagle, by, False, True)
    taken = split(scheduler, worlds.Request(prompt, prompt, start), new)
    end = start + taken
    shown(source=taken, spec=new)
    assert 0 <= taken <= new
    following = (start // block + 1) * block
    whole = new == (min(budget, threshold) if threshold > 0 else budget)
    if taken == 0:
        assert not whole
        assert start + new < following
        assert start + new < prompt
    elif end != prompt and end != resend_checkpoint(prompt, unit, eagle) and end % block:
        assert taken == new
        assert end < following


def _check_stops(
    split: Any,
    prompt: int,
    unit: int,
    block: int,
    start: int,
    new: int,
    budget: int,
    threshold: int,
    alignment: int | None,
    junction: int,
    eagle: bool,
    exact: bool,
) -> None:
    """Run a chunk; it may not pass the junction's stop, nor C unless it completes the prompt, nor, where
    nothing is exported, the last block end that a lookup could use, or the next one from inside a block."""
    assume_chunk(prompt, unit, block, start, new, budget, threshold, eagle)
    assume(junction >= 0)
    assume(junction < prompt)
    assume(junction % unit == 0)
    position = resend_checkpoint(prompt, unit, eagle)
    if alignment is not None:
        assume(alignment >= 1)
        assume(junction <= position)
    scheduler = scheduler_of(unit, block, block, budget, threshold, eagle, alignment, exact, True)
    taken = split(scheduler, worlds.Request(prompt, prompt, start, junction), new)
    end = start + taken
    stop = junction_stop(junction, prompt, block, exact)
    last = resend_checkpoint(prompt, block, eagle)
    shown(source=(start, end), spec=(position, stop, last))
    assert 0 <= taken <= new
    if alignment is not None:
        assert not start < stop < end
        if start < position < end:
            assert end == prompt
    else:
        assert not start < stop < end
        assert not start < position < end
        assert not start < last < end
        assert end <= (start // block + 1) * block or start % block == 0


def split_stops(
    prompt: int,
    unit: int,
    block: int,
    start: int,
    new: int,
    budget: int,
    threshold: int,
    alignment: int,
    junction: int,
    *,
    split: Any,
    eagle: bool,
    exports: bool,
) -> None:
    """CH1: with junction checkpoints on, a chunk of a fresh prompt passes no required stop. With exports the
    junction lies no higher than C; what holds beyond is said by a theorem of its own."""
    by = alignment if exports else None
    _check_stops(split, prompt, unit, block, start, new, budget, threshold, by, junction, eagle, True)


def split_stops_below_the_junction(
    prompt: int,
    unit: int,
    block: int,
    blocks: int,
    offset: int,
    new: int,
    budget: int,
    junction: int,
    *,
    split: Any,
    eagle: bool,
    exports: bool,
    inside: bool,
) -> None:
    """CH1: with the junction rounded down to a block end, a chunk of a fresh prompt passes no required stop.
    It begins after `blocks` blocks, or `inside` the next one at `offset`; with exports, here to
    any token, that is another theorem, and the junction lies no higher than C."""
    assume(block >= 1)
    assume(blocks >= 0)
    assume(offset >= 1)
    assume(offset < block)
    start = blocks * block + offset if inside else blocks * block
    by = 1 if exports else None
    _check_stops(split, prompt, unit, block, start, new, budget, 0, by, junction, eagle, False)


def split_passes_no_checkpoint_when_cut(
    prompt: int, unit: int, times: int, start: int, alignment: int, junction: int, *, split: Any, exact: bool
) -> None:
    """CP7: with EAGLE, exports and a junction anywhere, a chunk still passes C only where it exports C."""
    assume(unit >= 1)
    assume(times >= 1)
    assume(start >= 0)
    assume(start < prompt)
    assume(alignment >= 1)
    assume(junction >= 0)
    assume(junction < prompt)
    assume(junction % unit == 0)
    block = times * unit
    scheduler = scheduler_of(unit, block, block, prompt, 0, True, alignment, exact, True)
    end = start + split(scheduler, worlds.Request(prompt, prompt, start, junction), prompt - start)
    position = resend_checkpoint(prompt, unit, True)
    shown(source=(start, end), spec=position)
    if start < position < end:
        assert end == prompt
        assert can_export(start, end, position, unit, block, alignment)


def split_stops_at_the_junction_from_inside(
    prompt: int, unit: int, times: int, start: int, alignment: int, junction: int, *, split: Any, eagle: bool
) -> None:
    """CH1: with exports, a chunk that begins inside a block does not pass the block end below a junction."""
    assume(unit >= 1)
    assume(times >= 1)
    assume(start >= 0)
    assume(start < prompt)
    assume(start % unit == 0)
    assume(alignment >= 1)
    assume(junction >= 0)
    assume(junction < prompt)
    assume(junction % unit == 0)
    block = times * unit
    scheduler = scheduler_of(unit, block, block, prompt, 0, eagle, alignment, False, True)
    end = start + split(scheduler, worlds.Request(prompt, prompt, start, junction), prompt - start)
    stop = junction_stop(junction, prompt, block, False)
    shown(source=(start, end), spec=stop)
    assert not start < stop < end or stop == resend_checkpoint(prompt, unit, eagle)


def split_keeps_the_prompts_checkpoint(
    prompt: int, outputs: int, unit: int, times: int, start: int, budget: int, *, split: Any, eagle: bool
) -> None:
    """CP7: a resumed request, which prefills its outputs too, still stops at the C of its prompt."""
    assume(unit >= 1)
    assume(times >= 2)
    assume(start >= 0)
    assume(start < prompt)
    assume(outputs >= 0)
    assume(budget >= 1)
    block = times * unit
    tokens = prompt + outputs
    new = min(tokens - start, budget)
    scheduler = scheduler_of(unit, block, block, budget, 0, eagle, None, False, True)
    end = start + split(scheduler, worlds.Request(prompt, tokens, start), new)
    position = resend_checkpoint(prompt, unit, eagle)
    shown(source=(start, end), spec=position)
    assert not start < position < end


def split_stops_on_the_grid_of_hits(
    prompt: int, block: int, times: int, start: int, budget: int, *, split: Any, eagle: bool, single: bool
) -> None:
    """CP7: with coarse hits, which land on L only, no chunk passes the C of that grid. `single`: L is the
    Mamba block itself, else it is `times` of it."""
    assume(block >= 1)
    assume(times >= 1)
    assume(start >= 0)
    assume(start < prompt)
    assume(budget >= 1)
    align = block if single else times * block
    new = min(prompt - start, budget)
    scheduler = scheduler_of(block, block, align, budget, 0, eagle, None, False, False)
    end = start + split(scheduler, worlds.Request(prompt, prompt, start), new)
    position = resend_checkpoint(prompt, align, eagle)
    shown(source=(start, end), spec=position)
    assert not start < position < end
