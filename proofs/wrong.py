"""Wrong variants: for every theorem, planted faults of the functions it is about, which it must refute."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from proofs import wrong_steps
from spec.checkpoint import capped_and_dropped_checkpoint, resend_checkpoint
from spec.fixed_point import fixed_point, shortened
from spec.lookup import attention_extent, greatest_hit
from spec.proof import capped_scan_bound, scan_bound

Predicate = Callable[[int], bool]


def _rounds_up(prompt: int, unit: int, eagle: bool) -> int:
    return -(-prompt // unit) * unit if not eagle else resend_checkpoint(prompt, unit, eagle)


def _last_token(prompt: int, unit: int, eagle: bool) -> int:
    return prompt - 1 if not eagle else resend_checkpoint(prompt, unit, eagle)


def _unclipped(prompt: int, unit: int, eagle: bool) -> int:
    return prompt // unit * unit - unit if eagle else resend_checkpoint(prompt, unit, eagle)


def _whole_prompt(prompt: int, unit: int, eagle: bool) -> int:
    return prompt // unit * unit if not eagle else resend_checkpoint(prompt, unit, eagle)


def _one_unit_low(prompt: int, unit: int, eagle: bool) -> int:
    return max(resend_checkpoint(prompt, unit, eagle) - unit, 0)


def _one_unit_high(prompt: int, unit: int, eagle: bool) -> int:
    return resend_checkpoint(prompt, unit, eagle) + unit


def _without_drop(prompt: int, unit: int, eagle: bool) -> int:
    return resend_checkpoint(prompt, unit, False)


def _proof_from_the_next_token(prompt: int, unit: int, eagle: bool) -> int:
    """Takes the hash of the unit after P for one that exists, where P lacks one token of it."""
    return max((prompt + 1) // unit * unit - unit, 0) if eagle else resend_checkpoint(prompt, unit, eagle)


def _keeps_aligned_prompts_only(prompt: int, unit: int, eagle: bool) -> int:
    return resend_checkpoint(prompt, unit, eagle) if prompt % unit == 0 else 0


def _no_margin(block: int, unit: int, drops: bool, fine: bool) -> int:
    return 0


def _margin_forgotten(limit: int, margin: int, hashes: int, unit: int) -> int:
    return scan_bound(limit, 0, hashes, unit)


def _one_hash_short(limit: int, margin: int, hashes: int, unit: int) -> int:
    return scan_bound(limit, margin, hashes - 1, unit)


def _unbounded_by_hashes(limit: int, margin: int, hashes: int, unit: int) -> int:
    return limit + margin


def _unbounded_by_limit(limit: int, margin: int, hashes: int, unit: int) -> int:
    return hashes * unit


def _margin_twice(limit: int, margin: int, hashes: int, unit: int) -> int:
    return scan_bound(limit, 2 * margin, hashes, unit)


def _one_token_past_the_limit(limit: int, margin: int, hashes: int, unit: int) -> int:
    return scan_bound(limit + 1, margin, hashes, unit)


def _hashes_rounded_up(limit: int, margin: int, hashes: int, unit: int) -> int:
    return min(limit + margin, hashes * unit + unit)


def _serves_without_margin(length: int, margin: int, extent: int) -> bool:
    return length == 0 or length <= extent


def _serves_one_token_short(length: int, margin: int, extent: int) -> bool:
    return length == 0 or length + margin <= extent + 1


def _one_pass(limit: int, grid: int, serves: Iterable[Predicate]) -> int:
    """Each group shortens the candidate in its turn and none is asked again."""
    length = limit // grid * grid
    for serve in serves:
        while not serve(length):
            length -= grid
    return length


def _first_group_decides(limit: int, grid: int, serves: Iterable[Predicate]) -> int:
    return greatest_hit(limit, grid, tuple(serves)[:1])


def _all_but_the_last(limit: int, grid: int, serves: Iterable[Predicate]) -> int:
    return greatest_hit(limit, grid, tuple(serves)[:-1])


def _least_hit(limit: int, grid: int, serves: Iterable[Predicate]) -> int:
    """Tried from the bottom: the first length that every group serves."""
    groups = tuple(serves)
    length = grid
    while length <= limit:
        if all(serve(length) for serve in groups):
            return length
        length += grid
    return 0


def _lowest_interior_entry(visible: Predicate, block: int, unit: int, bound: int, fine: bool) -> int:
    full = attention_extent(visible, block, unit, bound, False)
    position = full + unit
    while fine and position < full + block and position <= bound:
        if visible(position):
            return position
        position += unit
    return full


def _steps_back(visible: Predicate, block: int, unit: int, bound: int, fine: bool) -> int:
    """After a second full block the walk gives one up, and never looks inside a block."""
    full = attention_extent(visible, block, unit, bound, False)
    return full - block if full > block else attention_extent(visible, block, unit, bound, fine)


def _lengthens(candidate: int, grid: int, serves: Predicate) -> int:
    """A state beyond the candidate makes the hit longer."""
    length = candidate // grid * grid + grid
    return length if serves(length) else shortened(candidate, grid, serves)


def _gives_up(candidate: int, grid: int, serves: Predicate) -> int:
    """Falls back to nothing where the candidate itself is not served."""
    length = candidate // grid * grid
    return length if serves(length) else 0


def _off_the_grid(candidate: int, grid: int, serves: Predicate) -> int:
    return candidate if serves(candidate) else shortened(candidate, grid, serves)


def _last_group_unasked(limit: int, grid: int, serves: Iterable[Predicate]) -> int:
    return fixed_point(limit, grid, tuple(serves)[:-1])


WRONG: dict[str, tuple[tuple[str, dict[str, Callable[..., object]]], ...]] = {
    "cp1_on_the_grid": (
        ("off-grid", {"checkpoint": _last_token}),
        ("negative", {"checkpoint": _unclipped}),
        ("whole-prompt", {"checkpoint": _whole_prompt}),
    ),
    "cp2_leaves_tokens": (
        ("rounds-up", {"checkpoint": _rounds_up}),
        ("whole-prompt", {"checkpoint": _whole_prompt}),
        ("no-drop", {"checkpoint": _without_drop}),
        ("cap-and-drop", {"checkpoint": capped_and_dropped_checkpoint}),
    ),
    "cp3_proof_fits": (
        ("no-drop", {"checkpoint": _without_drop}),
        ("proof-from-the-next-token", {"checkpoint": _proof_from_the_next_token}),
    ),
    "cp4_maximal": (
        ("cap-and-drop", {"checkpoint": capped_and_dropped_checkpoint}),
        ("one-unit-low", {"checkpoint": _one_unit_low}),
    ),
    "cp5_safe_for_extension": (
        ("aligned-prompts-only", {"checkpoint": _keeps_aligned_prompts_only}),
        ("one-unit-high", {"checkpoint": _one_unit_high}),
        ("proof-from-the-next-token", {"checkpoint": _proof_from_the_next_token}),
    ),
    "cp6_against_the_old_rule": (
        ("unchanged", {"checkpoint": capped_and_dropped_checkpoint}),
        ("one-unit-high", {"checkpoint": _one_unit_high}),
        ("new-before", {"before": resend_checkpoint}),
    ),
    "pm1_scan_reaches_the_proof": (
        ("capped-at-the-limit", {"bound": capped_scan_bound}),
        ("margin-forgotten", {"bound": _margin_forgotten}),
        ("one-hash-short", {"bound": _one_hash_short}),
        ("no-margin", {"margin": _no_margin}),
        ("checkpoint-too-high", {"checkpoint": _one_unit_high}),
    ),
    "pm2_hit_within_the_limit": (
        ("unbounded-by-the-limit", {"bound": _unbounded_by_limit}),
        ("margin-twice", {"bound": _margin_twice}),
        ("one-token-past-the-limit", {"bound": _one_token_past_the_limit}),
        ("served-without-margin", {"serves": _serves_without_margin}),
        ("served-one-token-short", {"serves": _serves_one_token_short}),
    ),
    "pm5_hash_exists": (
        ("unbounded-by-hashes", {"bound": _unbounded_by_hashes}),
        ("hashes-rounded-up", {"bound": _hashes_rounded_up}),
    ),
    "lk2_order_of_groups": (
        ("one-pass", {"hit": _one_pass}),
        ("first-group-decides", {"hit": _first_group_decides}),
        ("all-but-the-last", {"hit": _all_but_the_last}),
    ),
    "lk3_longer_extent": (
        ("lowest-interior-entry", {"extent": _lowest_interior_entry}),
        ("steps-back", {"extent": _steps_back}),
    ),
    "lk3_longer_hit": (("least-hit", {"hit": _least_hit}),),
    "pm4_state_only_shortens": (
        ("lengthens", {"turn": _lengthens}),
        ("gives-up", {"turn": _gives_up}),
        ("off-the-grid", {"turn": _off_the_grid}),
    ),
    "lk1_fixed_point": (
        ("one-pass", {"fixed": _one_pass}),
        ("last-group-unasked", {"fixed": _last_group_unasked}),
        ("least-hit", {"hit": _least_hit}),
    ),
    **wrong_steps.WRONG,
}
