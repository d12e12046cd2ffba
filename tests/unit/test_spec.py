"""The functions of the spec give the numbers of the seeds and of cases worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import permutations

import pytest

from spec.checkpoint import capped_and_dropped_checkpoint, lookahead_checkpoint, resend_checkpoint
from spec.chunking import can_export, exported, junction_stop, must_advance, required_stops
from spec.geometry import Geometry, GeometryError
from spec.lookup import attention_extent, attention_serves, greatest_hit, junction, mamba_serves
from spec.profiles import DROP, LOOKAHEAD, OLD, PROFILES, Profile
from spec.proof import capped_scan_bound, proof_margin, scan_bound
from spec.retention import (
    attention_tail,
    cacheable,
    keeps_chunk_end,
    keeps_export,
    keeps_interval,
    replay_boundaries,
)
from spec.rules import ORDER, RULES, first
from spec.trace import Configuration, Group, prompt_length, prompt_tokens

FULL = Group("full", 896)
MAMBA = Group("mamba", 896)


def layout(*groups: Group, **options: object) -> Geometry:
    """The geometry of the seeds' setting with some of it changed."""
    base = Configuration(groups=groups or (FULL, MAMBA), unit=128, eagle=True, speculative=1)
    return Geometry.of(replace(base, **options))  # type: ignore[arg-type]


def entries(*positions: int) -> Callable[[int], bool]:
    """A membership predicate."""
    return frozenset(positions).__contains__


def hit(
    profile: Profile,
    prompt: int,
    unit: int,
    block: int,
    attention: Iterable[int],
    states: Iterable[int],
    *,
    eagle: bool = True,
) -> int:
    """The hit of one attention and one Mamba group, fine, when these entries are visible."""
    margin = proof_margin(block, unit, eagle and profile.drops, True)
    bound = profile.bound(prompt - 1, margin, profile.hashes(prompt, unit, eagle), unit)
    extent = attention_extent(entries(*attention), block, unit, bound, True)
    held = entries(*states)
    return greatest_hit(
        prompt - 1,
        unit,
        (lambda length: attention_serves(length, margin, extent), lambda length: mamba_serves(length, held)),
    )


# The seeds.


@pytest.mark.rule("CP6")
@pytest.mark.parametrize(
    ("prompt", "unit", "now", "before"),
    [
        (7449, 128, 7296, 7296),
        (7040, 128, 6912, 6784),
        (7296, 128, 7168, 7040),
        (16000, 16, 15984, 15968),
        (16001, 16, 15984, 15984),
        (128, 32, 96, 64),
    ],
)
def test_seed_checkpoints(prompt: int, unit: int, now: int, before: int) -> None:
    assert resend_checkpoint(prompt, unit, True) == now
    assert capped_and_dropped_checkpoint(prompt, unit, True) == before
    assert DROP.checkpoint(prompt, unit, True) == now
    assert OLD.checkpoint(prompt, unit, True) == before


@pytest.mark.rule("CP3")
def test_seed_proof_of_the_incomplete_tail() -> None:
    checkpoint = resend_checkpoint(7449, 128, True)
    margin = proof_margin(7168, 128, True, True)
    assert checkpoint + margin == 7424
    assert scan_bound(7448, margin, 7449 // 128, 128) == 7424
    stored = attention_extent(entries(7168, 7296), 7168, 128, 7424, True)
    assert stored == 7296
    assert not attention_serves(7296, margin, stored)
    assert attention_serves(7296, margin, attention_extent(entries(7168, 7424), 7168, 128, 7424, True))


@pytest.mark.rule("TS1")
def test_seed_incomplete_external_tail() -> None:
    assert hit(DROP, 7449, 128, 7168, (7168, 7296), (7296,)) == 0
    assert hit(DROP, 7449, 128, 7168, (7168, 7424), (7296,)) == 7296


@pytest.mark.rule("PM1")
@pytest.mark.parametrize("block", [896, 7168])
def test_seed_lookup_capped_below_the_proof(block: int) -> None:
    full = range(block, 7040, block)
    assert hit(OLD, 7040, 128, block, (*full, 7040), (6784,)) == 0
    assert capped_scan_bound(7039, 128, 55, 128) // 128 * 128 == 6912
    old_checkpoint_new_scan = replace(OLD, bound=scan_bound)
    assert hit(old_checkpoint_new_scan, 7040, 128, block, (*full, 7040), (6784,)) == 6784
    assert hit(DROP, 7040, 128, block, (*full, 7040), (6912,)) == 6912


@pytest.mark.rule("CP7")
def test_seed_cap_applied_twice() -> None:
    full = range(896, 7296, 896)
    assert hit(OLD, 7296, 128, 896, (*full, 7296), (OLD.checkpoint(7296, 128, True),)) == 7040
    assert hit(DROP, 7296, 128, 896, (*full, 7296), (DROP.checkpoint(7296, 128, True),)) == 7168


@pytest.mark.rule("PM1")
def test_seed_scan_off_by_one_unit() -> None:
    full = range(560, 16000, 560)
    boundaries = replay_boundaries(16000, 560, 560, 16, True)
    assert max(boundaries) == 15120
    states = (15984, *boundaries)
    assert capped_scan_bound(15999, 16, 1000, 16) // 16 * 16 == 15984
    assert hit(OLD, 16000, 16, 560, (*full, 16000), states) == 15120
    assert hit(OLD, 16000, 16, 560, (*full, 16000), (OLD.checkpoint(16000, 16, True), *boundaries)) == 15120
    assert hit(DROP, 16000, 16, 560, (*full, 16000), states) == 15984
    assert 16000 - 15984 == 16
    assert 16000 - 15120 == 880


# The checkpoint and the profiles.


@pytest.mark.rule("CP1")
def test_checkpoint_without_eagle() -> None:
    assert [resend_checkpoint(prompt, 4, False) for prompt in (1, 4, 5, 8, 9)] == [0, 0, 4, 4, 8]
    assert [resend_checkpoint(prompt, 4, True) for prompt in (1, 4, 7, 8, 11, 12)] == [0, 0, 0, 4, 4, 8]
    for prompt in range(1, 40):
        assert capped_and_dropped_checkpoint(prompt, 4, False) == resend_checkpoint(prompt, 4, False)


def test_lookahead_checkpoint() -> None:
    for prompt in range(1, 60):
        for unit in range(1, 9):
            for ahead in range(4):
                position = lookahead_checkpoint(prompt, unit, ahead)
                assert position % unit == 0
                assert 0 <= position <= prompt - 1
                assert position == 0 or position + ahead <= prompt
                assert position + unit > prompt - max(1, ahead)
            assert lookahead_checkpoint(prompt, unit, 1) == resend_checkpoint(prompt, unit, False)


def test_profiles() -> None:
    assert set(PROFILES) == {"old", "drop", "lookahead"}
    assert all(name == profile.name for name, profile in PROFILES.items())
    assert (OLD.drops, DROP.drops, LOOKAHEAD.drops) == (True, True, False)
    assert all(rule_profile in PROFILES for rule in RULES.values() for rule_profile in rule.profiles)
    for profile in PROFILES.values():
        for prompt in range(1, 80):
            for unit in (1, 3, 8):
                for eagle in (False, True):
                    position = profile.checkpoint(prompt, unit, eagle)
                    assert position % unit == 0
                    assert 0 <= position < prompt


@pytest.mark.parametrize("eagle", [False, True])
def test_lookahead_profile_serves_its_own_checkpoint(eagle: bool) -> None:
    for prompt in range(1, 120):
        for unit, block in ((4, 4), (4, 8), (3, 12)):
            checkpoint = LOOKAHEAD.checkpoint(prompt, unit, eagle)
            hashes = LOOKAHEAD.hashes(prompt, unit, eagle) * unit
            assert checkpoint <= hashes
            full = range(block, hashes + 1, block)
            tail = attention_tail(prompt, unit, False)
            assert (
                hit(LOOKAHEAD, prompt, unit, block, (*full, tail), (checkpoint,), eagle=eagle) == checkpoint
            )


def test_lookahead_profile_hashes_cover_the_next_token() -> None:
    assert [LOOKAHEAD.hashes(tokens, 4, True) for tokens in (0, 1, 4, 5, 8, 9)] == [0, 0, 0, 1, 1, 2]
    assert [LOOKAHEAD.hashes(tokens, 4, False) for tokens in (0, 4, 5, 8)] == [0, 1, 1, 2]
    assert [DROP.hashes(tokens, 4, True) for tokens in (0, 3, 4, 8)] == [0, 0, 1, 2]


# Proof margin and scan bound.


@pytest.mark.rule("PM3")
def test_proof_margin() -> None:
    assert proof_margin(896, 128, True, True) == 128
    assert proof_margin(896, 128, True, False) == 896
    assert proof_margin(128, 128, True, True) == 128
    assert proof_margin(896, 128, False, True) == 0
    assert proof_margin(896, 128, False, False) == 0


@pytest.mark.rule("PM5")
def test_scan_asks_within_its_bound_only() -> None:
    for block, unit, bound, fine in ((4, 2, 9, True), (4, 1, 7, True), (6, 2, 20, False), (8, 2, 3, True)):
        for mask in range(1 << 10):
            asked: list[int] = []

            def visible(position: int, mask: int = mask, asked: list[int] = asked) -> bool:
                asked.append(position)
                return bool(mask >> (position - 1) & 1)

            extent = attention_extent(visible, block, unit, bound, fine)
            assert all(0 < position <= bound for position in asked)
            assert all(position % unit == 0 for position in asked)
            assert 0 <= extent <= bound


# Lookup.


@pytest.mark.parametrize(
    ("visible", "bound", "fine", "extent"),
    [
        ((), 40, True, 0),
        ((8, 16), 40, True, 16),
        ((8, 16), 15, True, 8),
        ((8, 16), 16, True, 16),
        ((16,), 40, True, 0),
        ((4,), 40, True, 4),
        ((2, 6), 40, True, 6),
        ((2, 6), 5, True, 2),
        ((2, 6), 40, False, 0),
        ((8, 12), 40, True, 12),
        ((8, 12), 40, False, 8),
        ((8, 12), 11, True, 8),
        ((8, 20), 40, True, 8),
        ((8, 18), 40, True, 8),
        ((8, 16, 18, 22), 21, True, 18),
        ((8, 16, 24), 24, False, 24),
        ((8, 16, 24), 23, False, 16),
    ],
)
def test_attention_extent(visible: tuple[int, ...], bound: int, fine: bool, extent: int) -> None:
    assert attention_extent(entries(*visible), 8, 2, bound, fine) == extent


def _attention(margin: int, extent: int, length: int) -> bool:
    return attention_serves(length, margin, extent)


def _state(held: Callable[[int], bool], length: int) -> bool:
    return mamba_serves(length, held)


@pytest.mark.rule("LK1")
def test_greatest_hit_is_the_greatest_length_that_all_serve() -> None:
    for extent in range(0, 30, 2):
        for margin in (0, 2, 8):
            for states in ((), (2,), (4, 10), (6, 12, 18, 24), tuple(range(2, 30, 2))):
                held = entries(*states)
                found = greatest_hit(21, 2, (partial(_attention, margin, extent), partial(_state, held)))
                fitting = [at for at in (0, *states) if at <= 21 and (at == 0 or at + margin <= extent)]
                assert found == max(fitting)
                assert found % 2 == 0


@pytest.mark.rule("PM2")
def test_greatest_hit_is_on_the_grid_and_within_the_limit() -> None:
    assert greatest_hit(21, 8, (lambda _: True,)) == 16
    assert greatest_hit(7, 8, (lambda _: True,)) == 0
    assert greatest_hit(24, 8, ()) == 24
    assert greatest_hit(0, 8, (lambda length: length == 0,)) == 0


@pytest.mark.rule("LK2")
def test_order_of_groups_with_different_blocks() -> None:
    bound = 48
    small = attention_extent(entries(*range(4, 41, 4)), 4, 2, bound, True)
    large = attention_extent(entries(16, 32, 38), 16, 2, bound, True)
    assert (small, large) == (40, 38)
    held = entries(8, 20, 36, 38)
    groups: list[Callable[[int], bool]] = [
        lambda length: attention_serves(length, 2, small),
        lambda length: attention_serves(length, 2, large),
        lambda length: mamba_serves(length, held),
    ]
    assert {greatest_hit(47, 2, order) for order in permutations(groups)} == {36}


@pytest.mark.rule("LK5")
def test_junction() -> None:
    long = partial(_attention, 4, 24)
    short = partial(_attention, 0, 12)
    assert junction(40, 4, 0, (long,)) == (20, 20)
    assert junction(40, 4, 0, (long, short)) == (12, 20)
    assert junction(40, 4, 12, (long, short)) == (0, 20)
    assert junction(40, 4, 16, (long, short)) == (0, 20)
    assert junction(40, 4, 20, (long, short)) == (0, 0)
    assert junction(18, 4, 0, (long,)) == (16, 16)
    assert junction(18, 4, 0, (long, short)) == (12, 16)
    assert junction(40, 4, 4, (short,)) == (12, 12)


@pytest.mark.rule("LK5")
def test_without_attention_there_is_no_junction() -> None:
    assert junction(40, 4, 0, ()) == (0, 0)


@pytest.mark.rule("LK5")
def test_the_order_of_layouts_does_not_change_the_junction() -> None:
    serves = [partial(_attention, margin, extent) for margin, extent in ((4, 24), (0, 12), (8, 40))]
    assert {junction(38, 4, 4, order) for order in permutations(serves)} == {(12, 32)}


# Chunking.


@pytest.mark.rule("CH3")
@pytest.mark.parametrize(
    ("start", "end", "position", "alignment", "expected"),
    [
        (0, 20, 12, 4, True),
        (0, 20, 12, None, False),
        (0, 20, 12, 8, False),
        (0, 20, 16, 8, True),
        (4, 20, 12, 8, True),
        (2, 20, 12, 4, False),
        (0, 8, 4, 4, False),
        (0, 9, 4, 4, True),
        (8, 17, 12, 4, True),
        (8, 16, 12, 4, False),
        (4, 17, 8, 4, True),
        (0, 20, 0, 4, False),
        (0, 20, 20, 4, False),
        (8, 24, 8, 4, False),
        (9, 25, 16, 1, False),
        (12, 17, 16, 4, False),
        (0, 20, 2, 1, False),
        (4, 25, 16, 6, True),
    ],
)
def test_can_export(start: int, end: int, position: int, alignment: int | None, expected: bool) -> None:
    assert can_export(start, end, position, 4, 8, alignment) is expected


def test_an_export_has_a_column_of_its_own() -> None:
    """The column before the running one lies past the chunk's initial state and is not the running one."""
    for unit, block in ((1, 4), (2, 4), (4, 4), (2, 8)):
        for start in range(24):
            for end in range(start + 1, 40):
                for position in range(end + 2):
                    if can_export(start, end, position, unit, block, unit):
                        column = -(-end // block) - 2
                        assert (start - 1) // block < column < (end - 1) // block
                        assert start < position < end
                        assert (position - start) % unit == 0


@pytest.mark.rule("CH4")
def test_exported() -> None:
    def checkpoint(tokens: int) -> int:
        return resend_checkpoint(tokens, 4, True)

    assert exported(0, 22, 22, 0, 4, 8, 4, checkpoint) == 16
    assert exported(0, 22, 30, 0, 4, 8, 4, checkpoint) == 0
    assert exported(0, 22, 30, None, 4, 8, 4, checkpoint) == 16
    assert exported(0, 22, 30, 16, 4, 8, 4, checkpoint) == 16
    assert exported(0, 22, 22, 0, 4, 8, None, checkpoint) == 0
    assert exported(0, 22, 22, 0, 4, 8, 3, checkpoint) == 0
    assert exported(0, 7, 7, 0, 4, 8, 4, checkpoint) == 0


@pytest.mark.rule("CH1")
def test_junction_stop() -> None:
    assert junction_stop(13, 20, 8, True) == 13
    assert junction_stop(13, 20, 8, False) == 8
    assert junction_stop(13, 12, 8, True) == 8
    assert junction_stop(13, 13, 8, True) == 13
    assert junction_stop(7, 20, 8, False) == 0
    assert junction_stop(0, 20, 8, True) == 0


def _stops(
    prompt: int,
    *,
    start: int = 0,
    tokens: int | None = None,
    can_export: bool = False,
    export: int = 0,
    junction: int = 0,
) -> dict[str, int]:
    return required_stops(
        start=start,
        prompt=prompt,
        tokens=tokens or prompt,
        can_export=can_export,
        export=export,
        junction=junction,
        checkpoint=lambda length: resend_checkpoint(length, 4, True),
        block_checkpoint=lambda length: resend_checkpoint(length, 8, True),
    )


@pytest.mark.rule("CH1")
def test_required_stops_without_export() -> None:
    assert _stops(30) == {"checkpoint": 24, "block": 16}
    assert _stops(30, start=16) == {"checkpoint": 24}
    assert _stops(30, start=24) == {}
    assert _stops(30, junction=8) == {"junction": 8, "checkpoint": 24, "block": 16}
    assert _stops(30, junction=8, start=8) == {"checkpoint": 24, "block": 16}
    assert _stops(7) == {}


@pytest.mark.rule("CP7")
def test_required_stops_of_a_resumed_request_keep_the_checkpoint_of_the_prompt() -> None:
    assert _stops(30, tokens=50) == {"checkpoint": 24, "block": 40}


@pytest.mark.rule("CH1")
def test_required_stops_with_export() -> None:
    assert _stops(30, can_export=True, export=24) == {}
    assert _stops(30, can_export=True) == {"checkpoint": 24}
    assert _stops(30, can_export=True, export=12) == {"checkpoint": 24}
    assert _stops(30, can_export=True, export=24, junction=8) == {"junction": 8}


@pytest.mark.rule("CH1")
def test_an_export_at_the_junction_needs_no_stop_there() -> None:
    assert _stops(30, can_export=True, export=8, junction=8) == {"checkpoint": 24}


@pytest.mark.rule("CH1")
def test_an_export_of_an_earlier_state_does_not_excuse_the_coarse_checkpoint() -> None:
    """Blocks of 8, hits coarse: the chunk [0, 90) of 100 tokens exports 80 and would jump over C = 88."""

    def checkpoint(tokens: int) -> int:
        return resend_checkpoint(tokens, 8, True)

    export = exported(0, 90, 100, None, 8, 8, 8, checkpoint)
    assert (export, checkpoint(100)) == (80, 88)
    stops = required_stops(
        start=0,
        prompt=100,
        tokens=100,
        can_export=True,
        export=export,
        junction=0,
        checkpoint=checkpoint,
        block_checkpoint=checkpoint,
    )
    assert 88 in stops.values()


@pytest.mark.rule("CH2")
def test_must_advance() -> None:
    assert must_advance(1, True)
    assert must_advance(0, False)
    assert not must_advance(0, True)


# Retention.


@pytest.mark.rule("RT2")
@pytest.mark.parametrize("retention", [None, 0, 16, 32])
@pytest.mark.parametrize("eagle", [False, True])
def test_the_checkpoint_is_always_kept(retention: int | None, eagle: bool) -> None:
    for prompt in range(1, 80):
        checkpoint = resend_checkpoint(prompt, 4, eagle)
        kept = keeps_chunk_end(
            checkpoint,
            checkpoint=checkpoint,
            boundaries=replay_boundaries(prompt, 16, 16, 4, eagle),
            junction=0,
            stop=0,
            block=16,
            retention=retention,
        )
        assert kept == (checkpoint > 0)
        assert keeps_export(checkpoint, checkpoint=checkpoint, junction=0, block=16, retention=retention) == (
            checkpoint > 0
        )


@pytest.mark.rule("RT1")
def test_kept_chunk_ends() -> None:
    def kept(retention: int | None, junction: int = 0, stop: int = 0) -> list[int]:
        return [
            at
            for at in range(0, 101, 4)
            if keeps_chunk_end(
                at,
                checkpoint=92,
                boundaries=(64, 80),
                junction=junction,
                stop=stop,
                block=16,
                retention=retention,
            )
        ]

    assert kept(0) == [64, 80, 92]
    assert kept(None) == [16, 32, 48, 64, 80, 92, 96]
    assert kept(32) == [32, 64, 80, 92, 96]
    assert kept(0, junction=44, stop=32) == [32, 64, 80, 92]
    assert kept(0, junction=44, stop=44) == [32, 44, 64, 80, 92]
    assert kept(0, junction=12, stop=0) == [64, 80, 92]


@pytest.mark.rule("CH4")
def test_kept_exports() -> None:
    def kept(retention: int | None, junction: int = 0) -> list[int]:
        return [
            at
            for at in range(0, 101, 4)
            if keeps_export(at, checkpoint=92, junction=junction, block=16, retention=retention)
        ]

    assert kept(0) == [92]
    assert kept(0, junction=44) == [44, 92]
    assert kept(None) == [16, 32, 48, 64, 80, 92, 96]
    assert kept(48) == [48, 92, 96]


def test_keeps_interval() -> None:
    assert [at for at in range(0, 65, 8) if at and keeps_interval(at, 16, None)] == [16, 32, 48, 64]
    assert [at for at in range(0, 65, 8) if at and keeps_interval(at, 16, 32)] == [32, 64]
    assert not any(keeps_interval(at, 16, 0) for at in range(8, 65, 8))


@pytest.mark.parametrize(
    ("prompt", "align", "grid", "eagle", "expected"),
    [
        (7449, 7168, 128, True, (0, 0)),
        (16000, 896, 128, True, (14336, 14336)),
        (7168, 896, 128, True, (5376, 6272)),
        (7169, 896, 128, True, (6272, 6272)),
        (7169, 896, 128, False, (7168,)),
        (7168, 896, 128, False, (6272,)),
        (900, 896, 896, True, (0, 0)),
        (1, 896, 128, False, (0,)),
    ],
)
def test_replay_boundaries(
    prompt: int, align: int, grid: int, eagle: bool, expected: tuple[int, ...]
) -> None:
    assert replay_boundaries(prompt, 896, align, grid, eagle) == expected


def test_attention_tail() -> None:
    assert attention_tail(7040, 128, True) == 7040
    assert attention_tail(7040, 128, False) == 6912
    assert attention_tail(7041, 128, False) == 7040
    assert attention_tail(127, 128, True) == 0


def test_the_tail_is_the_proof_of_the_checkpoint() -> None:
    for prompt in range(1, 100):
        for unit in (1, 3, 8):
            for eagle in (False, True):
                checkpoint = resend_checkpoint(prompt, unit, eagle)
                if checkpoint:
                    margin = proof_margin(24, unit, eagle, True)
                    assert attention_tail(prompt, unit, eagle) == checkpoint + margin


def test_cacheable() -> None:
    assert cacheable(100, 16, 32, True, True) == 100
    assert cacheable(100, 16, 32, False, False) == 96
    assert cacheable(100, 16, 32, True, False) == 100
    assert cacheable(120, 16, 32, True, False) == 112
    assert cacheable(31, 16, 32, True, False) == 0
    assert cacheable(31, 16, 32, False, False) == 0


@pytest.mark.rule("LK1")
@pytest.mark.parametrize("eagle", [False, True])
def test_coarse_checkpoint_is_served_by_what_may_be_published(eagle: bool) -> None:
    """What a coarse layout publishes is enough for its own checkpoint, whatever the block sizes."""
    for first_block, second_block in ((16, 8), (8, 16), (24, 16), (8, 8)):
        geometry = Geometry.of(
            Configuration(
                groups=(Group("full", first_block), Group("full", second_block), Group("mamba", 8)),
                unit=8,
                eagle=eagle,
                speculative=1 if eagle else 0,
            )
        )
        assert not geometry.fine
        for prompt in range(1, 300):
            checkpoint = geometry.checkpoint(prompt)
            for group in geometry.attention:
                reach = cacheable(prompt, group.block, geometry.align, group.drops, False)
                bound = scan_bound(prompt - 1, group.margin, prompt // 8, 8)
                held = entries(*range(group.block, reach + 1, group.block))
                extent = attention_extent(held, group.block, 8, bound, False)
                assert attention_serves(checkpoint, group.margin, extent), (prompt, group)


# Geometry.


def test_the_seeds_layout() -> None:
    geometry = layout()
    assert (geometry.unit, geometry.align, geometry.mamba_block) == (128, 896, 896)
    assert geometry.fine
    assert geometry.grid == 128
    assert [group.margin for group in geometry.groups] == [128, 0]
    assert [group.drops for group in geometry.groups] == [True, False]
    assert geometry.checkpoint(7296) == 7168
    assert geometry.block_checkpoint(7296) == 6272
    assert not geometry.junctions


def test_the_seeds_external_layout() -> None:
    geometry = layout(dcp=8)
    assert [group.block for group in geometry.groups] == [7168, 896]
    assert geometry.align == 7168
    assert geometry.mamba_block == 896
    assert geometry.fine
    assert [group.margin for group in geometry.groups] == [128, 0]
    assert geometry.checkpoint(7449) == 7296


@pytest.mark.rule("EL1")
@pytest.mark.parametrize(
    ("groups", "unit", "dcp", "fine", "grid"),
    [
        ((Group("full", 16), Group("mamba", 16)), 4, 1, True, 4),
        ((Group("full", 16), Group("mamba", 16)), 16, 1, False, 16),
        ((Group("full", 32), Group("mamba", 16)), 16, 1, False, 32),
        ((Group("full", 16), Group("mamba", 32)), 16, 1, True, 16),
        ((Group("full", 16), Group("mamba", 16)), 16, 2, True, 16),
        ((Group("full", 24), Group("mamba", 16)), 8, 1, True, 8),
    ],
)
def test_fine_or_coarse(groups: tuple[Group, ...], unit: int, dcp: int, fine: bool, grid: int) -> None:
    geometry = layout(*groups, unit=unit, dcp=dcp)
    assert geometry.fine is fine
    assert geometry.grid == grid
    for group in geometry.attention:
        assert group.margin == (unit if fine else group.block)


def test_alignment_is_the_common_multiple() -> None:
    assert layout(Group("full", 24), Group("mamba", 16), unit=8).align == 48
    assert layout(Group("full", 3), Group("full", 4), Group("mamba", 5), unit=1).align == 60
    assert layout(Group("full", 3), Group("mamba", 4), unit=1, dcp=2).align == 12


@pytest.mark.rule("CP7")
@pytest.mark.parametrize(
    ("groups", "drops"),
    [
        ((FULL, MAMBA), [True, False]),
        ((FULL, MAMBA, FULL), [True, False, True]),
        ((replace(FULL, draft=True), MAMBA), [True, False]),
        ((FULL, MAMBA, replace(FULL, draft=True)), [True, False, True]),
        ((FULL, MAMBA, Group("full", 1792, draft=True)), [False, False, True]),
        ((Group("full", 1792), MAMBA, replace(FULL, draft=True), FULL), [False, False, True, True]),
    ],
)
def test_which_groups_drop(groups: tuple[Group, ...], drops: list[bool]) -> None:
    geometry = layout(*groups)
    assert [group.drops for group in geometry.groups] == drops
    assert [group.margin for group in geometry.groups] == [128 if drop else 0 for drop in drops]
    assert geometry.checkpoint(7296) == 7168


def test_without_eagle_nothing_drops() -> None:
    geometry = layout(eagle=False, speculative=0)
    assert [group.margin for group in geometry.groups] == [0, 0]
    assert geometry.checkpoint(7296) == 7168
    assert geometry.checkpoint(7297) == 7296


def test_lookahead_layout_has_no_margin() -> None:
    geometry = layout(profile="lookahead", junctions=True)
    assert [group.margin for group in geometry.groups] == [0, 0]
    assert geometry.checkpoint(7296) == 7168
    assert geometry.checkpoint(7297) == 7296
    assert not geometry.junctions


@pytest.mark.parametrize(
    ("options", "junctions"),
    [
        ({"junctions": True}, True),
        ({"junctions": False}, False),
        ({"junctions": True, "unit": 896}, False),
        ({"junctions": True, "eagle": False, "speculative": 0}, False),
    ],
)
def test_junction_checkpoints_are_in_force_only_where_they_can_be(
    options: dict[str, object], junctions: bool
) -> None:
    assert layout(**options).junctions is junctions


def test_groups_keep_their_order_and_kind() -> None:
    geometry = layout(MAMBA, FULL, replace(MAMBA))
    assert [group.index for group in geometry.groups] == [0, 1, 2]
    assert [group.index for group in geometry.attention] == [1]
    assert [group.index for group in geometry.mamba] == [0, 2]
    with_export = layout(FULL, Group("mamba", 896, checkpoint_alignment=64))
    assert [group.checkpoint_alignment for group in with_export.groups] == [None, 64]


NEEDS_BOTH = (
    "configuration.groups: needs at least one full attention group, and Mamba groups of one block size and "
    "one checkpoint style"
)


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        ((), {"unit": 0}, "configuration.unit: must be 1 or more, got 0"),
        ((), {"unit": -128}, "configuration.unit: must be 1 or more, got -128"),
        ((), {"dcp": 0}, "configuration.dcp: must be 1 or more, got 0"),
        ((), {"profile": "new"}, "configuration.profile: 'new' is none of old, drop, lookahead"),
        (
            (FULL, Group("mla", 896)),
            {},
            "configuration.groups[1]: group kind 'mla' is not known, use full, window, mamba",
        ),
        ((Group("full", 0), MAMBA), {}, "configuration.groups[0]: block must be 1 or more, got 0"),
        ((FULL, Group("mamba", -896)), {}, "configuration.groups[1]: block must be 1 or more, got -896"),
        (
            (replace(FULL, draft=True), MAMBA),
            {"eagle": False, "speculative": 0},
            "configuration.groups[0]: a draft group needs eagle (a flag without the model-wide drop)",
        ),
        (
            (FULL, replace(MAMBA, draft=True)),
            {},
            "configuration.groups[1]: a draft model has no Mamba layers, so a Mamba group is no draft",
        ),
        (
            (replace(FULL, checkpoint_alignment=64), MAMBA),
            {},
            "configuration.groups[0]: checkpoint_alignment belongs to Mamba groups only",
        ),
        (
            (FULL, replace(MAMBA, checkpoint_alignment=0)),
            {},
            "configuration.groups[1]: checkpoint_alignment must be 1 or more, got 0",
        ),
        ((FULL,), {}, NEEDS_BOTH),
        ((MAMBA,), {}, NEEDS_BOTH),
        ((FULL, MAMBA, Group("mamba", 448)), {}, NEEDS_BOTH),
        ((FULL, MAMBA, replace(MAMBA, checkpoint_alignment=64)), {}, NEEDS_BOTH),
        ((), {"unit": 100}, "configuration.groups[0]: the unit 100 does not divide the block size 896"),
        (
            (FULL, Group("mamba", 900)),
            {},
            "configuration.groups[1]: the unit 128 does not divide the block size 900",
        ),
        (
            (),
            {"retention": 128},
            "configuration.retention: must be null, 0 or a positive multiple of the alignment 896, got 128",
        ),
        (
            (),
            {"retention": -896},
            "configuration.retention: must be null, 0 or a positive multiple of the alignment 896, got -896",
        ),
        (
            (),
            {"retention": 896, "dcp": 8},
            "configuration.retention: must be null, 0 or a positive multiple of the alignment 7168, got 896",
        ),
        ((), {"speculative": 0}, "configuration.speculative: EAGLE needs at least one speculative token"),
        ((), {"eagle": False}, "configuration.speculative: speculative tokens need eagle here"),
        (
            (Group("full", 4), Group("mamba", 4)),
            {"unit": 4, "speculative": 4},
            "configuration.speculative: 4 draft tokens need a Mamba block of more tokens, got 4",
        ),
    ],
)
def test_refused_layouts(groups: tuple[Group, ...], options: dict[str, object], message: str) -> None:
    with pytest.raises(GeometryError) as refused:
        layout(*groups, **options)
    assert str(refused.value) == message
    assert "\n" not in message


def test_no_groups_are_refused() -> None:
    with pytest.raises(GeometryError, match=r"^configuration\.groups: needs at least one full attention "):
        Geometry.of(Configuration(groups=(), unit=8))


@pytest.mark.parametrize("retention", [None, 0, 896, 1792])
def test_accepted_retentions(retention: int | None) -> None:
    assert layout(retention=retention).align == 896


# Tokens and the registry.


def test_prompt_tokens_of_a_segment_depend_on_its_name_and_place_only() -> None:
    both = prompt_tokens((("a", 5), ("b", 3)))
    assert len(both) == prompt_length((("a", 5), ("b", 3))) == 8
    assert prompt_tokens((("a", 9),))[:5] == both[:5]
    assert prompt_tokens((("b", 3),)) == both[5:]
    assert len(set(prompt_tokens((("a", 1000), ("b", 1000))))) == 2000
    assert min(both) >= 3


def test_the_first_broken_rule_is_named() -> None:
    assert first(["SF2", "CP7", "RT1"]) == "CP7"
    assert [rule for rule, _ in sorted(ORDER.items(), key=lambda item: item[1])] == list(RULES)
    with pytest.raises(KeyError):
        first(["XX1"])


# Hashes that cover what the draft modules read (0.33).


@pytest.mark.parametrize("modules", [1, 2, 3])
def test_lookahead_leaves_room_for_all_that_a_hash_covers(modules: int) -> None:
    options = {"speculative": modules, "multi_module": modules > 1, "profile": "lookahead"}
    geometry = layout(**options)
    assert geometry.hash_lookahead == modules
    assert (geometry.drops, geometry.unfinished) == (False, 0)
    for prompt in range(1, 3000):
        due = max((prompt - modules) // 128 * 128, 0)
        assert geometry.checkpoint(prompt) == geometry.hashed(prompt) == due
        assert attention_tail(prompt, 128, False, modules) == due
        assert geometry.replay_boundaries(prompt, 896) == (due // 896 * 896,)


def test_without_lookahead_hashes_reach_the_last_whole_unit() -> None:
    for geometry in (layout(), layout(eagle=False, speculative=0, profile="lookahead")):
        assert geometry.hash_lookahead == 0
        assert [geometry.hashed(tokens) for tokens in (127, 128, 255, 256)] == [0, 128, 128, 256]


def test_junction_checkpoints_without_a_drop_need_a_marked_group() -> None:
    assert not layout(profile="lookahead", junctions=True).junctions
    assert layout(replace(FULL, draft=True), MAMBA, profile="lookahead", junctions=True).junctions


def test_a_store_keeps_the_drop() -> None:
    with pytest.raises(GeometryError, match="'lookahead' is not in force with a store"):
        layout(profile="lookahead", store="both")
