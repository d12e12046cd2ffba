"""Wrong variants of what chunks, tail saves and block lifetimes are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from spec.chunking import can_export, required_stops
from spec.lifetime import Block, Job, Pool, possible, reset, step
from spec.proof import capped_scan_bound
from spec.split import chunk_end
from spec.tail import Span, is_saved, tail_blocks, tail_span

Wrong = dict[str, tuple[tuple[str, dict[str, Callable[..., object]]], ...]]
StopsAt = Callable[[int], Iterable[int]]


def _deaf(start: int, tokens: int, budget: int, maximum: int, block: int, stops: StopsAt) -> int:
    return min(start + budget, tokens)


def _looks_once(start: int, tokens: int, budget: int, maximum: int, block: int, stops: StopsAt) -> int:
    """Shortens the chunk once and does not ask what the shorter one must stop at."""
    end = min(start + budget, tokens)
    return min([stop for stop in stops(end) if start < stop < end], default=end)


def _first_listed(start: int, tokens: int, budget: int, maximum: int, block: int, stops: StopsAt) -> int:
    """Takes the first stop of the list, which need not be the nearest."""
    end = min(start + budget, tokens)
    return next((stop for stop in stops(end) if start < stop < end), end)


def _aligned_or_nothing(
    start: int, tokens: int, budget: int, maximum: int, block: int, stops: StopsAt
) -> int:
    """Waits for a whole block, also where no step will ever have the budget for one."""
    end = chunk_end(start, tokens, budget, maximum, block, stops)
    return end if end % block == 0 or end == tokens else start


def _stops_where_it_is(start: int, tokens: int, budget: int, maximum: int, block: int, stops: StopsAt) -> int:
    end = chunk_end(start, tokens, budget, maximum, block, stops)
    return min([stop for stop in stops(end) if start <= stop], default=end) if start == 0 else end


def _checkpoint_of_all_tokens(**known: object) -> dict[str, int]:
    return required_stops(**{**known, "prompt": known["tokens"]})  # type: ignore[arg-type]


def _without_junction(**known: object) -> dict[str, int]:
    return required_stops(**{**known, "junction": 0})  # type: ignore[arg-type]


def _exports_count_for_all(**known: object) -> dict[str, int]:
    """Takes a backend that can export for one that exports whatever is needed."""
    stops = required_stops(**known)  # type: ignore[arg-type]
    return {} if known["can_export"] else stops


def _stops_too_late(**known: object) -> dict[str, int]:
    """Lets a draft module's lookahead excuse one position too many."""
    assert isinstance(known["lookahead"], int)
    return required_stops(**{**known, "lookahead": known["lookahead"] + 1})  # type: ignore[arg-type]


def _anywhere(
    start: int,
    end: int,
    prefill_end: int,
    retention: int | None,
    unit: int,
    block: int,
    alignment: int | None,
    checkpoint: Callable[[int], int],
) -> int:
    """Exports the checkpoint wherever the chunk is."""
    return checkpoint(end) if alignment is not None else 0


def _into_the_running_column(
    start: int,
    end: int,
    prefill_end: int,
    retention: int | None,
    unit: int,
    block: int,
    alignment: int | None,
    checkpoint: Callable[[int], int],
) -> int:
    position = checkpoint(end)
    fits = alignment is not None and start + unit <= position < end and (position - start) % alignment == 0
    return position if fits else 0


def _from_every_chunk(
    start: int,
    end: int,
    prefill_end: int,
    retention: int | None,
    unit: int,
    block: int,
    alignment: int | None,
    checkpoint: Callable[[int], int],
) -> int:
    """Exports also where no block is reserved for it."""
    position = checkpoint(end)
    return position if can_export(start, end, position, unit, block, alignment) else 0


def _without_proof(prompt: int, horizon: int, unit: int, align: int, margin: int, eagle: bool) -> Span:
    return tail_span(prompt, horizon, unit, align, 0, eagle)


def _checkpoint_only(prompt: int, horizon: int, unit: int, align: int, margin: int, eagle: bool) -> Span:
    """Saves the proof, and what lies between the last boundary and the checkpoint not."""
    span = tail_span(prompt, horizon, unit, align, margin, eagle)
    return Span(span.end - margin, span.end)


def _of_the_horizon(prompt: int, horizon: int, unit: int, align: int, margin: int, eagle: bool) -> Span:
    return tail_span(horizon, horizon, unit, align, margin, eagle)


def _from_the_next_boundary(
    prompt: int, horizon: int, unit: int, align: int, margin: int, eagle: bool
) -> Span:
    span = tail_span(prompt, horizon, unit, align, margin, eagle)
    return Span(span.start + align, span.end)


def _through_the_prompt(prompt: int, horizon: int, unit: int, align: int, margin: int, eagle: bool) -> Span:
    """Saves one unit more than the proof, which may not be computed or hashed."""
    span = tail_span(prompt, horizon, unit, align, margin, eagle)
    return Span(span.start, span.end + unit)


def _short_of_the_checkpoint(prompt: int, align: int) -> Span:
    return Span(0, max(prompt // align * align - align, 0))


def _full_blocks_only(key: int, normal: Span, tail: Span, block: int) -> bool:
    return key % block == 0 and is_saved(key, normal, tail, block)


def _no_margin(block: int, unit: int, drops: bool, fine: bool) -> int:
    return 0


def _unclipped_key(index: int, span: Span, block: int) -> int:
    return (index + 1) * block


def _key_of_the_start(index: int, span: Span, block: int) -> int:
    return min(index * block, span.end)


def _one_block_less(span: Span, block: int) -> Span:
    touched = tail_blocks(span, block)
    return Span(touched.start, touched.end - 1)


def _every_later_save(start: int, end: int, prompt: int) -> bool:
    return end >= prompt


def _only_on_the_dot(start: int, end: int, prompt: int) -> bool:
    return end == prompt


def _uncounted_pin(pool: Pool, event: str, ranks: int) -> Pool:
    """A pin is noted and the reference count forgotten."""
    if event == "pin":
        block = replace(pool.block, pins=pool.block.pins + 1)
        return replace(pool, block=block, job=Job(ranks, 1, pool.job.released))
    return step(pool, event, ranks)


def _freed_by_its_owner(pool: Pool, event: str, ranks: int) -> Pool:
    """The last owner frees the block whatever pins it."""
    after = step(pool, event, ranks)
    if event == "release" and after.block.owners == 0:
        return replace(after, block=replace(after.block, free=True))
    return after


def _hands_out_unowned(pool: Pool, event: str, ranks: int) -> bool:
    """Takes a block without owners for a free one."""
    return pool.block.owners == 0 if event == "allocate" else possible(pool, event, ranks)


def _first_report_releases(pool: Pool, event: str, ranks: int) -> Pool:
    if event == "report":
        return step(replace(pool, job=replace(pool.job, waiting=ranks)), event, ranks)
    return step(pool, event, ranks)


def _failure_keeps_the_pin(pool: Pool, event: str, ranks: int) -> Pool:
    """The last report ends the job but, say because it failed, the pin stays noted as held."""
    after = step(pool, event, ranks)
    return replace(after, job=replace(after.job, released=pool.job.released)) if event == "report" else after


def _late_reports_count(pool: Pool, event: str, ranks: int) -> bool:
    """Lets ranks report that have reported before."""
    if event == "report":
        return pool.job.begun > 0 and ranks > 0
    return possible(pool, event, ranks)


def _stale_free_count(pool: Pool, event: str, ranks: int) -> Pool:
    after = step(pool, event, ranks)
    return replace(after, free_blocks=pool.free_blocks) if event == "abort" else after


def _reuse_from_the_free_list(pool: Pool, event: str, ranks: int) -> Pool:
    """A cached block that is reused is not taken off the free list's count."""
    after = step(pool, event, ranks)
    return replace(after, free_blocks=pool.free_blocks) if event == "reuse" else after


def _drops_pins(pool: Pool, event: str, ranks: int) -> Pool:
    """Abort takes the block back from the job too."""
    after = step(pool, event, ranks)
    if event == "abort":
        count = after.block.owners
        return replace(after, block=Block(after.block.owners, 0, count, count == 0, after.block.cached))
    return after


def _resets_at_once(pool: Pool) -> Pool:
    return replace(pool, block=replace(pool.block, cached=False))


def _resets_own_block_only(pool: Pool) -> Pool:
    return reset(replace(pool, others=False))


def _never_resets(pool: Pool) -> Pool:
    return pool


WRONG: Wrong = {
    "ch1_no_stop_is_jumped": (
        ("deaf", {"end_of": _deaf}),
        ("looks-once", {"end_of": _looks_once}),
        ("first-listed", {"end_of": _first_listed}),
    ),
    "ch1_stop_unless_exported": (
        ("checkpoint-of-all-tokens", {"stops": _checkpoint_of_all_tokens}),
        ("without-junction", {"stops": _without_junction}),
        ("short-of-the-lookahead", {"stops": _stops_too_late}),
        ("exports-count-for-all", {"stops": _exports_count_for_all}),
    ),
    "ch2_advances": (
        ("aligned-or-nothing", {"end_of": _aligned_or_nothing}),
        ("stops-where-it-is", {"end_of": _stops_where_it_is}),
    ),
    "ch3_export_inside_its_chunk": (
        ("anywhere", {"export": _anywhere}),
        ("into-the-running-column", {"export": _into_the_running_column}),
        ("from-every-chunk", {"export": _from_every_chunk}),
    ),
    "ts1_every_proof_key_is_saved": (
        ("without-proof", {"tail": _without_proof}),
        ("checkpoint-only", {"tail": _checkpoint_only}),
        ("full-blocks-only", {"saved": _full_blocks_only}),
    ),
    "ts1_external_hit_is_the_local_one": (
        ("without-proof", {"tail": _without_proof}),
        ("capped-lookup", {"bound": capped_scan_bound}),
        ("no-margin", {"margin": _no_margin}),
    ),
    "ts6_original_prompt_decides": (("of-the-horizon", {"tail": _of_the_horizon}),),
    "ts7_no_gap": (
        ("checkpoint-only", {"tail": _checkpoint_only}),
        ("from-the-next-boundary", {"tail": _from_the_next_boundary}),
        ("through-the-prompt", {"tail": _through_the_prompt}),
        ("short-of-the-checkpoint", {"normal": _short_of_the_checkpoint}),
    ),
    "ts7_keys_are_asked_for": (
        ("unclipped-key", {"key_of": _unclipped_key}),
        ("key-of-the-start", {"key_of": _key_of_the_start}),
        ("one-block-less", {"indices": _one_block_less}),
    ),
    "ts7_one_step_publishes": (
        ("every-later-save", {"published": _every_later_save}),
        ("only-on-the-dot", {"published": _only_on_the_dot}),
    ),
    "lt1_pinned_block_is_kept": (
        ("uncounted-pin", {"happens": _uncounted_pin}),
        ("freed-by-its-owner", {"happens": _freed_by_its_owner}),
        ("hands-out-unowned", {"allowed": _hands_out_unowned}),
    ),
    "lt2_pin_released_once": (
        ("first-report-releases", {"happens": _first_report_releases}),
        ("failure-keeps-the-pin", {"happens": _failure_keeps_the_pin}),
        ("late-reports-count", {"allowed": _late_reports_count}),
    ),
    "lt3_free_count_returns": (
        ("stale-free-count", {"happens": _stale_free_count}),
        ("reuse-from-the-free-list", {"happens": _reuse_from_the_free_list}),
    ),
    "lt4_any_moment": (
        ("drops-pins", {"happens": _drops_pins}),
        ("resets-at-once", {"resets": _resets_at_once}),
        ("resets-own-block-only", {"resets": _resets_own_block_only}),
        ("never-resets", {"resets": _never_resets}),
    ),
}
