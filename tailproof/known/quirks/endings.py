"""Wrong variants of CH2 and LV1: steps that schedule nothing, again and again.

Source: vllm/v1/core/sched/scheduler.py, `_reserve_prefill_lookahead` and `_free_encoder_inputs`.
"""

from __future__ import annotations

from collections.abc import Callable

from reference.history import History
from tailproof.judge.findings import Finding
from tailproof.judge.step import Step
from tailproof.known.quirks import split
from tailproof.known.quirks.case import Case, quirk
from tailproof.known.quirks.loads import blocks_of


def _idle(finding: Finding) -> bool:
    return finding.kind in ("stalled", "stuck")


def _waits(case: Case, history: History, wrong: frozenset[str]) -> bool:
    """Whether the split gives a request no token, whatever is left of the budget."""
    step = case.step
    start, junction = history.computed, history.junction
    if history.state == "waiting":
        found = step.cache.lookup(history)
        start, junction = found.hit, found.junction
    prefill = split.Prefill.of(history, start, junction)
    if start >= prefill.end:
        return False
    asked = min(step.configuration.budget, prefill.tokens - start)
    return split.split_end(step.geometry, step.configuration, prefill, asked, wrong) <= start


@quirk("endings.reserve_after")
def reserves_after_the_split(case: Case, finding: Finding) -> bool:
    """What draft modules read ahead is kept free after the split has placed a chunk's end: where the two
    leave nothing of the chunk, the request gets no token, in this step and in all that follow."""
    if not _idle(finding) or case.step.geometry.lookahead < 2:
        return False

    def right(wrong: frozenset[str]) -> bool:
        return nothing_moves(case.step, lambda one: _waits(case, one, wrong))

    return case.due_to("endings.reserve_after", right)


def nothing_moves(step: Step, waits: Callable[[History], bool]) -> bool:
    """Whether nothing can ever end, given which requests wait. Those that run and do not wait lack the blocks
    that the others hold. The queue has no free place, or lacks these blocks, or somebody in it waits (its
    order is not observed)."""
    live = [one for one in step.oracle.live() if one.produced < one.submit.outputs]
    # Who was preempted in this very step does not run any more.
    running = [one for one in live if one.id in step.observation.running]
    queue = [one for one in live if one.id in step.observation.waiting]
    waiting = [one for one in running if waits(one)]
    room = step.configuration.blocks - 1 - sum(blocks_of(step, one.known) for one in waiting)
    moving = [one for one in running if one not in waiting]
    if not live or any(not waiting or blocks_of(step, one.known) <= room for one in moving):
        return False
    full = len(running) >= step.configuration.live
    # In a pool that does not hold everything those that wait hold what the queue needs.
    blocked = bool(waiting) and not step.expected.roomy
    return full or blocked or not queue or any(waits(one) for one in queue)


@quirk("endings.media_kept_for_the_next_token")
def keeps_media_for_the_next_token(case: Case, finding: Finding) -> bool:
    """An encoded item of media is kept until draft modules have passed it, which needs the token after it;
    where the next item begins there or one token on, and the encoder cannot keep both, neither happens."""
    lookahead, room = case.step.geometry.lookahead, case.step.configuration.encoder
    if not _idle(finding) or not lookahead or not room:
        return False
    kept: dict[str, int] = {}
    near: dict[str, int] = {}
    for history in case.step.oracle.live():
        at = history.computed
        for name, start, length in history.submit.media:
            if start < at < start + length + lookahead:
                kept[name] = length
            elif at <= start <= at + lookahead:
                near[name] = length
    return any(name not in kept and sum(kept.values()) + length > room for name, length in near.items())
