"""LT: what may happen to one block and to one store job that pins it, step by step.

The block and the job are arbitrary ones among any number. What the others do shows here only as owners and
pins of the block that come and go, and as `others`, whether some other block is held.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Block:
    """A block: `owners` requests that hold it, `pins` store jobs that read it, `count` the pool's reference
    count, whether it is `free` to hand out, and whether a prefix-cache key names it (`cached`)."""

    owners: int
    pins: int
    count: int
    free: bool
    cached: bool


@dataclass(frozen=True, slots=True)
class Job:
    """An asynchronous save of the block: `waiting` ranks have not reported yet, `begun` and `released` count
    how often its pin was taken and given back."""

    waiting: int
    begun: int
    released: int


@dataclass(frozen=True, slots=True)
class Pool:
    """The block and the job, `free_blocks` of the whole pool, and whether `others` hold a block."""

    block: Block
    job: Job
    free_blocks: int
    others: bool


EVENTS = (
    "allocate",
    "reuse",
    "release",
    "abort",
    "preempt",
    "pin",
    "report",
    "other pin",
    "other report",
    "cache",
    "reset",
)


def possible(pool: Pool, event: str, ranks: int) -> bool:
    """Whether an event can happen now; `ranks` are the ranks of a new job, or those that report together.

    A rank reports once, with success or failure alike.
    """
    block, job = pool.block, pool.job
    if event == "allocate":
        return block.free
    if event in ("release", "abort", "preempt", "cache"):
        return block.owners > 0
    if event == "pin":
        return job.begun == 0 and block.owners > 0 and ranks > 0
    if event == "report":
        return job.begun > job.released and 0 < ranks <= job.waiting
    if event == "other pin":
        return block.owners > 0
    if event == "other report":
        return block.pins > job.begun - job.released
    if event == "reuse":
        return block.cached
    return event == "reset"


def step(pool: Pool, event: str, ranks: int) -> Pool:
    """The pool after a possible event (LT1–LT4)."""
    job = pool.job
    if event == "allocate":
        return _taken(replace(pool, block=replace(pool.block, cached=False)), owners=1, pins=0)
    if event == "reuse":
        return _taken(pool, owners=1, pins=0)
    if event in ("release", "abort", "preempt"):
        return _taken(pool, owners=-1, pins=0)
    if event == "pin":
        return _taken(replace(pool, job=Job(ranks, 1, job.released)), owners=0, pins=1)
    if event == "report":
        left = replace(pool, job=replace(job, waiting=job.waiting - ranks))
        return _taken(_released(left), owners=0, pins=-1) if job.waiting == ranks else left
    if event == "other pin":
        return _taken(pool, owners=0, pins=1)
    if event == "other report":
        return _taken(pool, owners=0, pins=-1)
    if event == "cache":
        return replace(pool, block=replace(pool.block, cached=True))
    return reset(pool)


def reset(pool: Pool) -> Pool:
    """LT4: a reset empties the cache when no block is held, and does nothing otherwise."""
    if pool.others or pool.block.count > 0:
        return pool
    return replace(pool, block=replace(pool.block, cached=False))


def _released(pool: Pool) -> Pool:
    return replace(pool, job=replace(pool.job, released=pool.job.released + 1))


def _taken(pool: Pool, owners: int, pins: int) -> Pool:
    """The pool with so many owners and pins of the block more; the free count follows the block's flag."""
    block = pool.block
    count = block.count + owners + pins
    free = count == 0
    return replace(
        pool,
        block=Block(block.owners + owners, block.pins + pins, count, free, block.cached),
        free_blocks=pool.free_blocks + int(free) - int(block.free),
    )


def sound(pool: Pool) -> bool:
    """LT1, LT2: what holds at every moment: the count is owners plus pins, the block is free exactly when the
    count is 0, and the job holds its pin exactly while a rank has not reported."""
    block, job = pool.block, pool.job
    holds = job.begun - job.released
    return (
        block.owners >= 0
        and block.pins >= 0
        and block.count == block.owners + block.pins
        and block.free == (block.count == 0)
        and 0 <= job.released <= job.begun <= 1
        and job.waiting >= 0
        and (holds == 1) == (job.waiting > 0)
        and block.pins >= holds
    )
