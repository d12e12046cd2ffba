"""Wrong variants of RT for attention and windows: which of their entries vLLM keeps, and under which key.

Source: vllm/v1/core/single_type_kv_cache_manager.py and kv_cache_coordinator.py, as in `registration`.
"""

from __future__ import annotations

from reference.forecast import ChunkForecast
from spec.geometry import GroupGeometry
from spec.lookup import window_blocks
from spec.retention import attention_tail, window_boundaries
from tailproof.judge.findings import Finding
from tailproof.judge.saves import learned_junction
from tailproof.judge.step import Step
from tailproof.known.quirks.case import Case, Wrong, quirk
from tailproof.known.quirks.registration import chunk_of, unregistered, visible_after


@quirk("attention.window_boundaries")
def keeps_windows_of_boundaries(case: Case, finding: Finding) -> bool:
    """Sparse retention keeps the windows of the replay boundaries and the junction, not that of the resend
    checkpoint."""
    return _window_unkept(case, finding, "attention.window_boundaries")


def _window_unkept(case: Case, finding: Finding, name: str) -> bool:
    entry, step = finding.entry, case.step
    if finding.kind != "missing-window" or entry is None:
        return False
    chunk = chunk_of(case, entry)
    if chunk is None:
        return False
    group = step.geometry.groups[entry.group]
    right = lambda wrong: entry.position not in _windows(step, chunk, group, entry.position, wrong)  # noqa: E731
    return case.due_to(name, right)


def _windows(step: Step, chunk: ChunkForecast, group: GroupGeometry, near: int, wrong: Wrong) -> set[int]:
    """Block ends that a sliding-window group keeps, of those around `near`, with these mistakes."""
    geometry, history = step.geometry, chunk.history
    ends: tuple[int, ...] = geometry.replay_boundaries(history.prompt, geometry.grid)
    if "attention.boundaries_past_hashes" in wrong and not geometry.drops:
        ends = ((history.prompt - 1) // geometry.grid * geometry.grid,)
    kept = [*ends, learned_junction(chunk, step.expected)]
    past = "attention.boundaries_past_hashes" in wrong and geometry.hash_lookahead > 1
    if "attention.window_boundaries" not in wrong and not past:
        kept.append(geometry.checkpoint(history.prompt))
    lengths = window_boundaries(
        max(near - group.margin, 1),
        near + group.window + group.block,
        kept=tuple(kept),
        grid=geometry.grid,
        retention=step.configuration.retention,
    )
    return {
        end for length in lengths for end in window_blocks(length, group.block, group.window, group.margin)
    }


@quirk("attention.boundaries_past_hashes")
def keeps_boundaries_past_hashes(case: Case, finding: Finding) -> bool:
    """Where a hash covers several tokens to come, states and windows are kept for P − 1, past the last length
    that a resend of the prompt can name."""
    if case.step.geometry.hash_lookahead < 2:
        return False
    name = "attention.boundaries_past_hashes"
    return unregistered(case, finding, name) or _window_unkept(case, finding, name)


@quirk("attention.tail_past_hashes")
def moves_the_tail_past_hashes(case: Case, finding: Finding) -> bool:
    """Where a hash covers several tokens to come, the attention entry of the prompt's tail is moved on to the
    hash boundary below P − 1 as soon as that has a hash."""
    entry, step = finding.entry, case.step
    if finding.kind not in ("evicted-in-use", "missing-full", "lost") or entry is None:
        return False
    geometry, history = step.geometry, step.histories[entry.request]
    group = geometry.groups[entry.group]
    tail = attention_tail(history.prompt, geometry.unit, group.drops, geometry.hash_lookahead)
    if geometry.hash_lookahead < 2 or entry.position != tail:
        return False
    end = -(-tail // group.block) * group.block
    most = min((history.prompt - 1) // geometry.unit * geometry.unit, end)
    visible = visible_after(step)
    return any(
        step.cache.key(entry.group, history, moved) in visible
        for moved in range(tail + geometry.unit, most + 1, geometry.unit)
    )
