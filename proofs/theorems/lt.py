"""LT: theorems about one arbitrary block and one arbitrary store job; each is a step from any sound moment.

Steps, blocks, jobs and ranks are unbounded: the others show only as owners and pins that come and go.
"""

from __future__ import annotations

from proofs.assume import assume
from proofs.theorems.kinds import Possible, Reset, Step
from spec.lifetime import EVENTS, Block, Job, Pool, possible, reset, sound, step


def _pool(
    block: tuple[int, int, int], free: bool, cached: bool, job: tuple[int, int, int], rest: int
) -> Pool:
    """Any moment at which the pool is sound; `rest` blocks beside this one are free."""
    assume(rest >= 0)
    pool = Pool(
        Block(block[0], block[1], block[2], free, cached),
        Job(job[0], job[1], job[2]),
        rest + int(free),
        False,
    )
    assume(sound(pool))
    return pool


def _event(number: int) -> str:
    for index, name in enumerate(EVENTS):
        if number == index:
            return name
    assume(False)
    return ""


def lt1_pinned_block_is_kept(
    block: tuple[int, int, int],
    free: bool,
    cached: bool,
    job: tuple[int, int, int],
    rest: int,
    event: int,
    ranks: int,
    *,
    happens: Step = step,
    allowed: Possible = possible,
) -> None:
    """LT1: after any event count, flag and free count still agree, and a pinned block was not handed out.

    `block` is owners, pins and count, `job` waiting, begun and released, `event` a number into `EVENTS`.
    """
    pool = _pool(block, free, cached, job, rest)
    name = _event(event)
    assume(allowed(pool, name, ranks))
    after = happens(pool, name, ranks)
    assert after.block.owners >= 0
    assert after.block.pins >= 0
    assert after.block.count == after.block.owners + after.block.pins
    assert after.block.free == (after.block.count == 0)
    if after.block.pins > 0:
        assert not after.block.free
    if pool.block.pins > 0:
        assert name != "allocate"


def lt2_pin_released_once(
    block: tuple[int, int, int],
    free: bool,
    cached: bool,
    job: tuple[int, int, int],
    rest: int,
    event: int,
    ranks: int,
    *,
    happens: Step = step,
    allowed: Possible = possible,
) -> None:
    """LT2: a job's pin is given back when its last rank reports, at no other moment, and never twice."""
    pool = _pool(block, free, cached, job, rest)
    name = _event(event)
    assume(allowed(pool, name, ranks))
    after = happens(pool, name, ranks)
    assert 0 <= after.job.released <= after.job.begun <= 1
    assert after.job.released >= pool.job.released
    assert after.job.waiting >= 0
    assert (after.job.begun > after.job.released) == (after.job.waiting > 0)
    if after.job.released > pool.job.released:
        assert name == "report"
        assert ranks == pool.job.waiting
        assert after.block.pins == pool.block.pins - 1
    if after.job.begun > after.job.released:
        assert after.block.pins >= 1


def lt3_free_count_returns(
    block: tuple[int, int, int],
    free: bool,
    cached: bool,
    job: tuple[int, int, int],
    rest: int,
    event: int,
    ranks: int,
    *,
    happens: Step = step,
    allowed: Possible = possible,
) -> None:
    """LT3: the free count counts the block exactly while it is free, so once nothing is held it is back."""
    pool = _pool(block, free, cached, job, rest)
    name = _event(event)
    assume(allowed(pool, name, ranks))
    after = happens(pool, name, ranks)
    assert after.free_blocks == rest + int(after.block.free)
    if after.block.owners == 0 and after.block.pins == 0:
        assert after.block.free
        assert after.free_blocks == rest + 1


def lt4_any_moment(
    block: tuple[int, int, int],
    free: bool,
    cached: bool,
    job: tuple[int, int, int],
    rest: int,
    event: int,
    others: bool,
    *,
    happens: Step = step,
    resets: Reset = reset,
) -> None:
    """LT4: abort and preemption leave pins alone; a reset empties the cache exactly when no block is held.

    `event` 0 is an abort, 1 a preemption, anything else a reset; `others`: another block is held.
    """
    before = _pool(block, free, cached, job, rest)
    pool = Pool(before.block, before.job, before.free_blocks, others)
    if event == 0 or event == 1:
        assume(pool.block.owners > 0)
        after = happens(pool, "abort" if event == 0 else "preempt", 0)
        assert after.block.owners == pool.block.owners - 1
        assert after.block.cached == pool.block.cached
    else:
        after = resets(pool)
        held = others or pool.block.owners > 0 or pool.block.pins > 0
        assert after.block.cached == (pool.block.cached and held)
        assert after.block.owners == pool.block.owners
        assert after.free_blocks == pool.free_blocks
    assert after.block.pins == pool.block.pins
    assert after.job.waiting == pool.job.waiting
    assert after.job.released == pool.job.released
    assert sound(after)
