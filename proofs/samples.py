"""Sampling: the values that Hypothesis draws for each theorem, and its verdict on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from proofs.assume import Discarded
from spec.checkpoint import resend_checkpoint
from spec.lifetime import EVENTS

Arguments = tuple[Any, ...]
LARGE = 10**9


class Entries:
    """A membership predicate over the multiples of `unit`, one bit each; prints as a list of positions."""

    def __init__(self, unit: int, mask: int) -> None:
        self.unit, self.mask = unit, mask

    def __call__(self, position: int) -> bool:
        index, rest = divmod(position, self.unit)
        return rest == 0 and index >= 1 and bool(self.mask >> (index - 1) & 1)

    def __repr__(self) -> str:
        return str([self.unit * (bit + 1) for bit in range(self.mask.bit_length()) if self.mask >> bit & 1])


class Shift:
    """A function of a position: another one, a fixed way off, and never below 0; prints as what it does."""

    def __init__(self, by: int, cycle: int = 1) -> None:
        self.by, self.cycle = by, cycle

    def __call__(self, position: int) -> int:
        return max(position + self.by - position % self.cycle, 0)

    def __repr__(self) -> str:
        return f"p → max(p + {self.by} - p % {self.cycle}, 0)"


prompts = st.integers(1, LARGE)
units = st.one_of(st.integers(1, 4096), st.integers(1, LARGE))
small = st.integers(0, 3)


@st.composite
def aligned_prompts(draw: st.DrawFn) -> tuple[int, int]:
    """A prompt and a unit, often with the prompt a few tokens beside a multiple of the unit."""
    unit = draw(units)
    near = draw(st.integers(1, 5)) * unit + draw(st.integers(-2, 2))
    return max(draw(st.one_of(prompts, st.just(near))), 1), unit


@st.composite
def _groups(draw: st.DrawFn, count: int, steps: int = 12) -> Arguments:
    """A limit, a grid and so many predicates on it."""
    grid = draw(st.integers(1, LARGE))
    limit = draw(st.integers(0, steps * grid - 1))
    masks = st.one_of(st.integers(0, (1 << steps) - 1), st.just((1 << steps) - 1))
    return limit, grid, *(Entries(grid, draw(masks)) for _ in range(count))


@st.composite
def _longer_hits(draw: st.DrawFn) -> Arguments:
    limit, grid, states, added = draw(_groups(2))
    lengths = st.integers(0, 13).map(lambda index: index * grid)
    before = (draw(lengths), draw(lengths))
    longer = (before[0] + draw(lengths), before[1] + draw(st.integers(0, 5)))
    return limit, grid, before, longer, (draw(lengths), draw(small)), states, added


@st.composite
def _extents(draw: st.DrawFn) -> Arguments:
    unit = draw(st.integers(1, LARGE))
    block = unit * draw(st.integers(1, 5))
    bound = draw(st.integers(0, 15 * unit))
    # All entries but a few, and few entries more: so that extents are long and end anywhere.
    missing = st.lists(st.integers(0, 14), max_size=3).map(lambda bits: (1 << 15) - 1 - _mask(bits))
    masks = st.one_of(missing, st.integers(0, (1 << 15) - 1))
    few = st.lists(st.integers(0, 14), max_size=2).map(_mask)
    return block, unit, bound, draw(st.booleans()), Entries(unit, draw(masks)), Entries(unit, draw(few))


def _mask(bits: list[int]) -> int:
    return sum(1 << bit for bit in set(bits))


@st.composite
def _turns(draw: st.DrawFn) -> Arguments:
    candidate, grid, states = draw(_groups(1))
    if draw(st.booleans()):
        candidate, grid, states = draw(st.integers(0, 12)), draw(st.integers(1, 4)), Entries(1, states.mask)
    return candidate, grid, grid * draw(st.integers(0, 12)), states


@st.composite
def _hits_in_bounds(draw: st.DrawFn) -> Arguments:
    limit, margin, unit = draw(st.integers(0, LARGE)), draw(st.integers(0, LARGE)), draw(units)
    hashes = draw(st.integers(0, LARGE))
    bound = min(limit + margin, hashes * unit)
    extent = draw(st.one_of(st.integers(0, bound), st.integers(0, 3).map(lambda above: bound + above)))
    near = max(extent - margin, 0)
    return limit, margin, hashes, unit, extent, draw(st.integers(max(near - 2, 0), near + 1))


@st.composite
def _asked_units(draw: st.DrawFn) -> Arguments:
    limit, margin, unit = draw(st.integers(0, LARGE)), draw(st.integers(0, LARGE)), draw(units)
    hashes = draw(st.integers(0, LARGE))
    asked = draw(st.integers(1, max(min(limit + margin, hashes * unit) // unit, 1)))
    return limit, margin, hashes, unit, asked


@st.composite
def _chunks(draw: st.DrawFn, stops: int) -> Arguments:
    start, block = draw(st.integers(0, 60)), draw(st.integers(1, 12))
    tokens = start + draw(st.integers(1, 60))
    budget = draw(st.integers(1, 60))
    maximum = budget + draw(st.sampled_from((0, 0, 1, 7)))
    places = st.integers(0, tokens + 3)
    moving = Shift(draw(st.integers(-9, 3)), draw(st.integers(1, 5)))
    return start, tokens, budget, maximum, block, *(draw(places) for _ in range(stops - 1)), moving


@st.composite
def _stops(draw: st.DrawFn) -> Arguments:
    prompt = draw(st.integers(1, 60))
    tokens, start = prompt + draw(st.integers(0, 40)), draw(st.integers(0, 90))
    checkpoint = Shift(-1, draw(st.integers(1, 9)))
    near = st.one_of(st.integers(0, 90), st.just(checkpoint(prompt)))
    block = Shift(-1, draw(st.integers(1, 20)))
    lookahead = draw(st.sampled_from((0, 0, 1, 4)))
    return start, prompt, tokens, draw(st.booleans()), draw(near), draw(near), lookahead, checkpoint, block


@st.composite
def _exports(draw: st.DrawFn) -> Arguments:
    unit = draw(st.integers(1, 200))
    block, start = unit * draw(st.integers(1, 6)), unit * draw(st.integers(0, 30))
    end = start + draw(st.integers(1, 6 * block))
    prefill_end = end + draw(st.sampled_from((0, 0, 1, unit)))
    alignment = draw(st.sampled_from((1, unit, 2 * unit)))
    kept, retention, eagle = draw(st.booleans()), draw(st.sampled_from((0, 0, block))), draw(st.booleans())
    exports = draw(st.sampled_from((True, True, True, False)))
    return start, end, prefill_end, kept, retention, unit, block, exports, alignment, eagle


@st.composite
def _tails(draw: st.DrawFn) -> tuple[int, int, int, int, bool, bool]:
    """Prompt, U, B and how many blocks L has, and two flags."""
    prompt, unit = draw(aligned_prompts())
    unit = min(unit, max(prompt // draw(st.integers(1, 40)), 1))
    return (
        prompt,
        unit,
        unit * draw(st.integers(1, 12)),
        draw(st.integers(1, 9)),
        draw(st.booleans()),
        draw(st.booleans()),
    )


@st.composite
def _tail_keys(draw: st.DrawFn) -> Arguments:
    prompt, unit, block, blocks, eagle, drops = draw(_tails())
    end = resend_checkpoint(prompt, unit, eagle) + (unit if eagle and drops else 0)
    key = draw(st.sampled_from((end, end // block * block, max(end // block - draw(small), 0) * block)))
    return prompt, unit, block, blocks, eagle, drops, key


@st.composite
def _tail_blocks(draw: st.DrawFn) -> Arguments:
    prompt, unit, block, blocks, eagle, drops = draw(_tails())
    position, align = resend_checkpoint(prompt, unit, eagle), blocks * block
    first = position // align * align // block
    last = (position + unit) // block
    return prompt, unit, block, blocks, eagle, drops, draw(st.integers(first, max(last, first)))


@st.composite
def _longer_prefixes(draw: st.DrawFn) -> Arguments:
    prompt, unit, block, blocks, eagle, _ = draw(_tails())
    longer = resend_checkpoint(prompt, unit, eagle) + unit * draw(st.integers(1, 4))
    return prompt, unit, block, blocks * block, eagle, longer


@st.composite
def _tail_tokens(draw: st.DrawFn) -> Arguments:
    prompt, unit, block, blocks, eagle, drops = draw(_tails())
    return prompt, unit, blocks * block, block, eagle, drops, draw(st.integers(0, prompt))


@st.composite
def _resumed(draw: st.DrawFn) -> Arguments:
    prompt, unit, block, blocks, eagle, drops = draw(_tails())
    horizon = prompt + draw(st.one_of(small, st.integers(0, 5 * unit)))
    return prompt, horizon, unit, block * blocks, unit if eagle and drops else 0, eagle


@st.composite
def _steps(draw: st.DrawFn) -> Arguments:
    start = draw(st.integers(0, 40))
    middle = start + draw(st.integers(0, 20))
    return start, middle, middle + draw(st.integers(0, 20)), draw(st.integers(1, 60))


@st.composite
def _pools(draw: st.DrawFn) -> Arguments:
    """Block, flags and job of a sound pool, and how many other blocks are free. Few owners and pins, so that
    events often free the block or find it free."""
    waiting, few = draw(small), st.sampled_from((0, 0, 1, 1, 2, 3))
    begun = 1 if waiting else draw(st.integers(0, 1))
    released = begun if not waiting else 0
    owners, pins = draw(few), begun - released + draw(few)
    count = owners + pins
    return (
        (owners, pins, count),
        count == 0,
        draw(st.booleans()),
        (waiting, begun, released),
        draw(st.integers(0, LARGE)),
    )


def _with(first: st.SearchStrategy[Arguments], *more: st.SearchStrategy[Any]) -> st.SearchStrategy[Arguments]:
    return st.tuples(first, *more).map(lambda drawn: (*drawn[0], *drawn[1:]))


_EVENTS = st.integers(0, len(EVENTS) - 1)
DRAWN: Mapping[str, st.SearchStrategy[Arguments]] = {
    "cp1_on_the_grid": _with(aligned_prompts(), st.booleans()),
    "cp2_leaves_tokens": _with(aligned_prompts(), st.booleans()),
    "cp3_proof_fits": _with(aligned_prompts()),
    "cp4_maximal": _with(
        aligned_prompts(), st.booleans(), st.one_of(st.integers(1, 4), st.integers(1, LARGE))
    ),
    "cp5_safe_for_extension": st.tuples(
        aligned_prompts(), st.one_of(st.integers(0, 4), st.integers(0, LARGE)), st.booleans()
    ).map(lambda drawn: (drawn[0][0], drawn[1], drawn[0][1], drawn[2])),
    "cp6_against_the_old_rule": _with(aligned_prompts()),
    "pm1_scan_reaches_the_proof": st.tuples(aligned_prompts(), st.integers(1, 64), st.booleans()).map(
        lambda drawn: (*drawn[0], drawn[0][1] * drawn[1], drawn[2])
    ),
    "pm2_hit_within_the_limit": _hits_in_bounds(),
    "pm4_state_only_shortens": _turns(),
    "pm5_hash_exists": _asked_units(),
    "lk1_fixed_point": _groups(3),
    "lk2_order_of_groups": _with(_groups(3), st.booleans()),
    "lk3_longer_extent": _extents(),
    "lk3_longer_hit": _longer_hits(),
    "ch1_no_stop_is_jumped": _chunks(3),
    "ch1_stop_unless_exported": _stops(),
    "ch2_advances": _chunks(2),
    "ch3_export_inside_its_chunk": _exports(),
    "ts1_every_proof_key_is_saved": _tail_keys(),
    "ts1_external_hit_is_the_local_one": _longer_prefixes(),
    "ts6_original_prompt_decides": _resumed(),
    "ts7_no_gap": _tail_tokens(),
    "ts7_keys_are_asked_for": _tail_blocks(),
    "ts7_one_step_publishes": _steps(),
    "lt1_pinned_block_is_kept": _with(_pools(), _EVENTS, small),
    "lt2_pin_released_once": _with(_pools(), _EVENTS, small),
    "lt3_free_count_returns": _with(_pools(), _EVENTS, small),
    "lt4_any_moment": _with(_pools(), st.integers(0, 2), st.booleans()),
}


@dataclass(frozen=True, slots=True)
class Sampled:
    """How many draws there were, in how many the theorem said something, and one on which it fails."""

    drawn: int
    told: int
    failure: Arguments | None = None

    @property
    def verdict(self) -> str:
        """no counterexample, refuted, or why nothing was learnt."""
        if self.failure is not None:
            return "refuted: " + ", ".join(map(repr, self.failure))
        if not self.told:
            return "not run: no draw met the assumptions"
        return f"no counterexample ({self.told} of {self.drawn} draws)"


def sample(theorem: Callable[..., object], drawn: st.SearchStrategy[Arguments], examples: int) -> Sampled:
    """Run a theorem on drawn values, the same ones every time."""
    count = told = 0
    failure: Arguments | None = None

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn)
    def run(arguments: Arguments) -> None:
        nonlocal count, told, failure
        count += 1
        try:
            theorem(*arguments)
        except Discarded:
            return
        except Exception:
            failure = arguments
            raise
        told += 1

    try:
        run()
    except Exception:
        if failure is None:
            raise
    return Sampled(count, told, failure)
