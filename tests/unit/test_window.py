"""Sliding windows, replicated draft groups and draft modules: the spec's functions against plain counting."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from reference.cache import SlowCache
from reference.history import History, Prefixes
from spec.checkpoint import resend_checkpoint
from spec.chunking import required_stops
from spec.geometry import Geometry
from spec.lookup import window_blocks, window_serves
from spec.retention import cacheable, window_boundaries
from spec.trace import Configuration, Group, Submit

FULL, MAMBA = Group("full", 16), Group("mamba", 16)


def layout(*groups: Group, **options: object) -> Geometry:
    """The geometry of an EAGLE layout of blocks of 16 and units of 4 with some of it changed."""
    base = Configuration(groups=groups or (FULL, MAMBA), unit=4, eagle=True, speculative=1)
    return Geometry.of(replace(base, **options))  # type: ignore[arg-type]


# Lookup.


def blocks_of_tokens(first: int, end: int, block: int) -> set[int]:
    """The ends of the blocks that hold tokens [first, end)."""
    return {token // block * block + block for token in range(max(first, 0), end)}


@pytest.mark.rule("LK1")
@pytest.mark.parametrize("block", [1, 2, 3, 8])
def test_a_window_needs_the_blocks_of_the_tokens_that_the_next_token_attends_to(block: int) -> None:
    for window in range(2, 30):
        for length in range(block, 12 * block, block):
            below = window_blocks(length, block, window, 0)
            assert set(below) == blocks_of_tokens(length - window + 1, length, block)
            assert len(set(below)) == len(below)
            assert window_blocks(length, block, window, block) == (length + block, *below)


def test_blocks_of_a_window_by_hand() -> None:
    assert window_blocks(20, 4, 2, 0) == (20,)
    assert window_blocks(20, 4, 5, 0) == (20,)
    assert window_blocks(20, 4, 6, 0) == (20, 16)
    assert window_blocks(20, 4, 100, 0) == (20, 16, 12, 8, 4)
    assert window_blocks(8, 4, 9, 4) == (12, 8, 4)


@pytest.mark.rule("LK1")
def test_a_window_serves_what_it_holds_completely() -> None:
    rng = random.Random(3)
    for _ in range(4000):
        block, window = rng.choice((1, 2, 4)), rng.randint(2, 14)
        margin = rng.choice((0, block))
        bound = rng.randint(0, 40)
        held = frozenset(end for end in range(block, 45, block) if rng.random() < 0.7)
        for length in range(41):
            due = length == 0 or (
                length % block == 0
                and length + margin <= bound
                and blocks_of_tokens(length - window + 1, length + margin, block) <= held
            )
            assert window_serves(length, block, window, margin, bound, held.__contains__) == due


@pytest.mark.rule("PM1")
def test_a_window_asks_for_nothing_past_its_bound() -> None:
    asked: list[int] = []

    def visible(position: int) -> bool:
        asked.append(position)
        return True

    assert window_serves(12, 4, 9, 4, 16, visible)
    assert sorted(asked) == [8, 12, 16]
    asked.clear()
    assert not window_serves(12, 4, 9, 4, 15, visible)
    assert asked == []
    assert not window_serves(10, 4, 9, 0, 40, visible)
    assert asked == []


def test_every_window_block_that_is_missing_costs_the_hit() -> None:
    """A cache of one window group: the hit is 24 with all that it needs, and lower without any one of it."""
    geometry = layout(FULL, MAMBA, Group("window", 4, window=10))
    (window,) = geometry.windows
    assert (window.margin, geometry.fine) == (4, True)
    cache = SlowCache(geometry)
    history = History.of(Submit("A", (("a", 30),)), Prefixes(4), {})
    full = {cache.key(0, history, position) for position in (16, 28)}
    states = {cache.key(1, history, position) for position in range(4, 29, 4)}
    needed = window_blocks(24, 4, 10, 4)
    assert needed == (28, 24, 20, 16)
    held = {cache.key(2, history, position) for position in needed}
    assert cache.lookup(history, full | states | held).hit == 24
    for key in held:
        assert cache.lookup(history, full | states | held - {key}).hit < 24
    without_margin = held - {cache.key(2, history, 28)} | {cache.key(2, history, 12)}
    assert cache.lookup(history, full | states | without_margin).hit == 20


# Retention.


@pytest.mark.rule("RT1")
def test_window_boundaries_are_the_kept_lengths_and_the_interval() -> None:
    rng = random.Random(5)
    for _ in range(2000):
        grid = rng.choice((1, 2, 4, 8))
        retention = rng.choice((None, 0, grid, 2 * grid, 5 * grid))
        kept = tuple(rng.randint(0, 60) for _ in range(3))
        first = rng.randint(1, 60)
        last = first + rng.randint(-2, 30)
        due = set()
        for length in range(first, last + 1):
            dense = length % grid == 0 if retention is None else retention > 0 and length % retention == 0
            if dense or any(at // grid * grid == length for at in kept):
                due.add(length)
        assert window_boundaries(first, last, kept=kept, grid=grid, retention=retention) == due


def test_window_boundaries_by_hand() -> None:
    kept = (13, 24, 0)
    assert window_boundaries(1, 30, kept=kept, grid=4, retention=0) == {12, 24}
    assert window_boundaries(13, 30, kept=kept, grid=4, retention=0) == {24}
    assert window_boundaries(1, 30, kept=kept, grid=4, retention=16) == {12, 16, 24}
    assert window_boundaries(5, 13, kept=kept, grid=4, retention=None) == {8, 12}


@pytest.mark.rule("RT1")
def test_what_draft_modules_still_rewrite_is_not_cacheable() -> None:
    assert cacheable(100, 16, 32, True, True, 2) == 98
    assert cacheable(1, 16, 32, True, True, 2) == 0
    assert cacheable(100, 16, 32, False, True, 2) == 100
    assert cacheable(100, 16, 32, False, False, 2) == 96
    assert cacheable(113, 16, 32, True, False, 2) == 111
    assert cacheable(120, 16, 32, True, False, 2) == 112
    # All 96 tokens are computed, the block that ends there is not final.
    assert cacheable(96, 16, 32, True, False, 2) == 80
    assert cacheable(32, 16, 32, True, False, 2) == 16
    assert cacheable(31, 16, 32, True, False, 2) == 0


@pytest.mark.rule("RT1")
def test_more_unfinished_tokens_never_make_more_cacheable() -> None:
    for tokens in range(200):
        for drops in (False, True):
            for fine in (False, True):
                reach = [cacheable(tokens, 8, 24, drops, fine, unfinished) for unfinished in range(5)]
                assert reach == sorted(reach, reverse=True)
                assert all(at <= max(tokens - (left if drops else 0), 0) for left, at in enumerate(reach)), (
                    tokens
                )


# Chunking.


def stops(prompt: int, lookahead: int, *, tokens: int | None = None, junction: int = 0) -> dict[str, int]:
    """The stops of a prompt read from its start, units of 4 and Mamba blocks of 8, with EAGLE."""
    return required_stops(
        start=0,
        prompt=prompt,
        tokens=tokens or prompt,
        can_export=False,
        export=0,
        junction=junction,
        checkpoint=lambda length: resend_checkpoint(length, 4, True),
        block_checkpoint=lambda length: resend_checkpoint(length, 8, True),
        lookahead=lookahead,
    )


@pytest.mark.rule("CH1")
def test_a_stop_too_near_to_the_end_for_the_draft_modules_is_none() -> None:
    assert stops(32, 0) == {"checkpoint": 28, "block": 24}
    assert stops(32, 1) == stops(32, 4) == stops(32, 0)
    assert stops(32, 5) == {"block": 24}
    assert stops(32, 8) == {"block": 24}
    assert stops(32, 9) == {}
    assert stops(32, 5, junction=27) == {"junction": 27, "block": 24}
    assert stops(32, 6, junction=27) == {"block": 24}


@pytest.mark.rule("CH1")
def test_the_distance_counts_to_the_end_of_the_tokens_and_a_stop_at_the_end_stays() -> None:
    """A resumed request is longer than its prompt; a stop that is the end itself needs nothing after it."""
    assert stops(32, 5, tokens=36) == {"checkpoint": 28, "block": 24}
    assert stops(32, 5, tokens=33) == {"checkpoint": 28, "block": 24}
    assert stops(32, 6, tokens=33) == {"block": 24}
    assert stops(32, 5, junction=32)["junction"] == 32


# Geometry.


@pytest.mark.rule("EL1")
@pytest.mark.parametrize(
    ("groups", "fine", "margins"),
    [
        ((FULL, MAMBA, Group("window", 4, window=9)), True, [4, 0, 4]),
        ((FULL, MAMBA, Group("window", 8, window=9)), False, [16, 0, 8]),
        ((FULL, MAMBA, Group("window", 16, window=9)), False, [16, 0, 16]),
        ((FULL, MAMBA, Group("window", 4, window=9), Group("window", 8, window=9)), False, [16, 0, 4, 8]),
        ((FULL, Group("mamba", 4), Group("window", 4, window=9)), False, [16, 0, 4]),
        ((replace(FULL, draft=True), MAMBA, Group("window", 4, window=9)), True, [4, 0, 0]),
        ((FULL, MAMBA, Group("window", 4, window=9, draft=True)), True, [0, 0, 4]),
        (
            (FULL, MAMBA, Group("window", 4, window=9, draft=True), Group("window", 4, window=9)),
            True,
            [0, 0, 4, 4],
        ),
        (
            (FULL, MAMBA, Group("window", 4, window=9, draft=True), Group("window", 4, window=10)),
            True,
            [0, 0, 4, 0],
        ),
    ],
)
def test_windows_in_a_layout(groups: tuple[Group, ...], fine: bool, margins: list[int]) -> None:
    geometry = layout(*groups)
    assert geometry.fine is fine
    assert [group.margin for group in geometry.groups] == margins
    assert [group.drops for group in geometry.groups] == [margin > 0 for margin in margins]
    assert [group.kind for group in geometry.windows] == [g.kind for g in groups if g.kind == "window"]
    assert [group.window for group in geometry.groups] == [group.window or 0 for group in groups]
    assert [group.index for group in geometry.attention] == [0]


def test_a_window_counts_for_alignment_and_smallest_block() -> None:
    geometry = layout(FULL, MAMBA, Group("window", 12, window=9))
    assert (geometry.align, geometry.grid, geometry.smallest) == (48, 48, 12)


@pytest.mark.parametrize(
    ("options", "lookahead", "unfinished"),
    [
        ({"eagle": False, "speculative": 0}, 0, 0),
        ({}, 1, 0),
        ({"speculative": 3}, 1, 0),
        ({"speculative": 2, "multi_module": True}, 2, 1),
        ({"speculative": 5, "multi_module": True}, 5, 4),
    ],
)
def test_how_far_the_draft_model_reads_ahead(
    options: dict[str, object], lookahead: int, unfinished: int
) -> None:
    geometry = layout(junctions=True, **options)
    assert (geometry.lookahead, geometry.unfinished) == (lookahead, unfinished)
    assert geometry.junctions is (lookahead == 1)


def test_the_smallest_block_is_not_scaled_by_context_parallel_ranks() -> None:
    geometry = layout(Group("full", 8), MAMBA, dcp=4)
    assert [group.block for group in geometry.groups] == [32, 16]
    assert geometry.smallest == 8


def test_a_layout_is_annotated_when_a_group_is_marked_as_draft() -> None:
    assert not layout().annotated
    assert layout(replace(FULL, draft=True), MAMBA).annotated
    assert layout(FULL, MAMBA, Group("full", 16, draft=True, replicated=True), dcp=2).annotated


@pytest.mark.rule("EL1")
def test_a_replicated_group_is_not_scaled_and_has_a_layout_of_its_own() -> None:
    draft = Group("full", 16, draft=True)
    scaled = layout(FULL, MAMBA, draft, dcp=4)
    assert [group.block for group in scaled.groups] == [64, 16, 64]
    assert [group.drops for group in scaled.groups] == [True, False, True]
    whole = layout(FULL, MAMBA, replace(draft, replicated=True), dcp=4)
    assert [group.block for group in whole.groups] == [64, 16, 16]
    assert [group.drops for group in whole.groups] == [False, False, True]
    assert [group.replicated for group in whole.groups] == [False, False, True]
    assert len({group.layout for group in whole.groups}) == 3
    # Without context-parallel ranks the block is the same, the layout is not: the target's group keeps out.
    alone = layout(FULL, MAMBA, replace(draft, replicated=True))
    assert [(group.block, group.margin) for group in alone.attention] == [(16, 0), (16, 4)]
