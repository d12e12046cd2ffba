"""The functions of the spec give the numbers of the seeds and of cases worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import permutations, product

import pytest

from spec.checkpoint import capped_and_dropped_checkpoint, lookahead_checkpoint, resend_checkpoint
from spec.chunking import can_export, exported, junction_stop, must_advance, required_stops
from spec.geometry import Geometry, GeometryError
from spec.lookup import attention_extent, attention_serves, greatest_hit, junction, mamba_serves
from spec.profiles import DROP, LOOKAHEAD, OLD, PROFILES, Profile
from spec.proof import capped_scan_bound, proof_margin, scan_bound
from spec.retention import attention_tail, cacheable, keeps_chunk_end, keeps_export, replay_boundaries
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
    *states: int,
    eagle: bool = True,
) -> int:
    """The hit of one attention and one Mamba group, fine, when these entries are visible."""
    margin = proof_margin(block, unit, eagle and profile.drops, True)
    bound = profile.bound(prompt - 1, margin, profile.hashes(prompt, unit, eagle), unit)
    extent = attention_extent(entries(*attention), block, unit, bound, True)
    groups = (
        partial(attention_serves, margin=margin, extent=extent),
        partial(mamba_serves, visible=entries(*states)),
    )
    return greatest_hit(prompt - 1, unit, groups)


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
    assert hit(DROP, 7449, 128, 7168, (7168, 7296), 7296) == 0
    assert hit(DROP, 7449, 128, 7168, (7168, 7424), 7296) == 7296


@pytest.mark.rule("PM1")
@pytest.mark.parametrize("block", [896, 7168])
def test_seed_lookup_capped_below_the_proof(block: int) -> None:
    attention = (*range(block, 7040, block), 7040)
    assert hit(OLD, 7040, 128, block, attention, 6784) == 0
    assert capped_scan_bound(7039, 128, 55, 128) // 128 * 128 == 6912
    assert hit(replace(OLD, bound=scan_bound), 7040, 128, block, attention, 6784) == 6784
    assert hit(DROP, 7040, 128, block, attention, 6912) == 6912


@pytest.mark.rule("CP7")
def test_seed_cap_applied_twice() -> None:
    for profile, found in ((OLD, 7040), (DROP, 7168)):
        states = profile.checkpoint(7296, 128, True)
        assert hit(profile, 7296, 128, 896, (*range(896, 7296, 896), 7296), states) == found


@pytest.mark.rule("PM1")
def test_seed_scan_off_by_one_unit() -> None:
    attention = (*range(560, 16000, 560), 16000)
    boundaries = replay_boundaries(16000, 560, 560, 16, True)
    assert max(boundaries) == 15120
    assert capped_scan_bound(15999, 16, 1000, 16) // 16 * 16 == 15984
    assert hit(OLD, 16000, 16, 560, attention, 15984, *boundaries) == 15120
    assert hit(OLD, 16000, 16, 560, attention, OLD.checkpoint(16000, 16, True), *boundaries) == 15120
    assert hit(DROP, 16000, 16, 560, attention, 15984, *boundaries) == 15984


# The checkpoint and the profiles.


@pytest.mark.rule("CP1")
def test_checkpoint_without_eagle() -> None:
    assert [resend_checkpoint(prompt, 4, False) for prompt in (1, 4, 5, 8, 9)] == [0, 0, 4, 4, 8]
    assert [resend_checkpoint(prompt, 4, True) for prompt in (1, 4, 7, 8, 11, 12)] == [0, 0, 0, 4, 4, 8]
    for prompt in range(1, 40):
        assert capped_and_dropped_checkpoint(prompt, 4, False) == resend_checkpoint(prompt, 4, False)


def test_lookahead_checkpoint() -> None:
    for prompt, unit, ahead in product(range(1, 60), range(1, 9), range(4)):
        position = lookahead_checkpoint(prompt, unit, ahead)
        assert position % unit == 0
        assert 0 <= position <= prompt - 1
        assert position == 0 or position + ahead <= prompt
        assert position + unit > prompt - max(1, ahead)
        assert lookahead_checkpoint(prompt, unit, 1) == resend_checkpoint(prompt, unit, False)


def test_profiles() -> None:
    assert {name: profile.name for name, profile in PROFILES.items()} == {name: name for name in PROFILES}
    assert {name: profile.drops for name, profile in PROFILES.items()} == {
        "old": True,
        "drop": True,
        "lookahead": False,
    }
    assert all(set(rule.profiles) <= set(PROFILES) for rule in RULES.values())
    for profile, prompt, unit, eagle in product(PROFILES.values(), range(1, 80), (1, 3, 8), (False, True)):
        position = profile.checkpoint(prompt, unit, eagle)
        assert position % unit == 0
        assert 0 <= position < prompt


@pytest.mark.parametrize("eagle", [False, True])
def test_lookahead_profile_serves_its_own_checkpoint(eagle: bool) -> None:
    for prompt, (unit, block) in product(range(1, 120), ((4, 4), (4, 8), (3, 12))):
        checkpoint = LOOKAHEAD.checkpoint(prompt, unit, eagle)
        hashes = LOOKAHEAD.hashes(prompt, unit, eagle) * unit
        assert checkpoint <= hashes
        attention = (*range(block, hashes + 1, block), attention_tail(prompt, unit, False))
        assert hit(LOOKAHEAD, prompt, unit, block, attention, checkpoint, eagle=eagle) == checkpoint


def test_lookahead_profile_hashes_cover_the_next_token() -> None:
    assert [LOOKAHEAD.hashes(tokens, 4, True) for tokens in (0, 1, 4, 5, 8, 9)] == [0, 0, 0, 1, 1, 2]
    assert [LOOKAHEAD.hashes(tokens, 4, False) for tokens in (0, 4, 5, 8)] == [0, 1, 1, 2]
    assert [DROP.hashes(tokens, 4, True) for tokens in (0, 3, 4, 8)] == [0, 0, 1, 2]


# Proof margin and scan bound.


@pytest.mark.rule("PM3")
@pytest.mark.parametrize(
    ("block", "drops", "fine", "margin"),
    [
        (896, True, True, 128),
        (896, True, False, 896),
        (128, True, True, 128),
        (896, False, True, 0),
        (896, False, False, 0),
    ],
)
def test_proof_margin(block: int, drops: bool, fine: bool, margin: int) -> None:
    assert proof_margin(block, 128, drops, fine) == margin


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
    ("visible", "fine", "extents"),
    [
        ((), True, {40: 0}),
        ((8, 16), True, {40: 16, 15: 8, 16: 16}),
        ((16,), True, {40: 0}),
        ((4,), True, {40: 4}),
        ((2, 6), True, {40: 6, 5: 2}),
        ((2, 6), False, {40: 0}),
        ((8, 12), True, {40: 12, 11: 8}),
        ((8, 12), False, {40: 8}),
        ((8, 20), True, {40: 8}),
        ((8, 18), True, {40: 8}),
        ((8, 16, 18, 22), True, {21: 18}),
        ((8, 16, 24), False, {24: 24, 23: 16}),
    ],
)
def test_attention_extent(visible: tuple[int, ...], fine: bool, extents: dict[int, int]) -> None:
    """Blocks of 8 tokens, units of 2; the extents by scan bound."""
    assert {bound: attention_extent(entries(*visible), 8, 2, bound, fine) for bound in extents} == extents


@pytest.mark.rule("PM2")
def test_greatest_hit_is_on_the_grid_and_within_the_limit() -> None:
    assert greatest_hit(21, 8, (lambda _: True,)) == 16
    assert greatest_hit(7, 8, (lambda _: True,)) == 0
    assert greatest_hit(24, 8, ()) == 24
    assert greatest_hit(0, 8, (lambda length: length == 0,)) == 0


@pytest.mark.rule("LK5")
def test_junction() -> None:
    long, short, third = (
        partial(attention_serves, margin=m, extent=e) for m, e in ((4, 24), (0, 12), (8, 40))
    )
    assert junction(40, 4, 0, (long,)) == (20, 20)
    assert junction(18, 4, 0, (long,)) == (16, 16)
    assert junction(18, 4, 0, (long, short)) == (12, 16)
    assert junction(40, 4, 4, (short,)) == (12, 12)
    found = {hit: junction(40, 4, hit, (long, short)) for hit in (0, 12, 16, 20)}
    assert found == {0: (12, 20), 12: (0, 20), 16: (0, 20), 20: (0, 0)}
    assert junction(40, 4, 0, ()) == (0, 0), "without attention there is none"
    assert {junction(38, 4, 4, order) for order in permutations((long, short, third))} == {(12, 32)}


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
    for (unit, block), start, length in product(((1, 4), (2, 4), (4, 4), (2, 8)), range(24), range(1, 30)):
        end = start + length
        for position in (at for at in range(end + 2) if can_export(start, end, at, unit, block, unit)):
            assert (start - 1) // block < -(-end // block) - 2 < (end - 1) // block
            assert start < position < end
            assert (position - start) % unit == 0


@pytest.mark.rule("CH4")
@pytest.mark.parametrize(
    ("end", "prefill_end", "retention", "alignment", "position"),
    [
        (22, 22, 0, 4, 16),
        (22, 30, 0, 4, 0),
        (22, 30, None, 4, 16),
        (22, 30, 16, 4, 16),
        (22, 22, 0, None, 0),
        (22, 22, 0, 3, 0),
        (7, 7, 0, 4, 0),
    ],
)
def test_exported(
    end: int, prefill_end: int, retention: int | None, alignment: int | None, position: int
) -> None:
    assert (
        exported(
            0, end, prefill_end, retention, 4, 8, alignment, partial(resend_checkpoint, unit=4, eagle=True)
        )
        == position
    )


@pytest.mark.rule("CH1")
def test_junction_stop() -> None:
    assert junction_stop(13, 20, 8, True) == 13
    assert junction_stop(13, 20, 8, False) == 8
    assert junction_stop(13, 12, 8, True) == 8
    assert junction_stop(13, 13, 8, True) == 13
    assert junction_stop(7, 20, 8, False) == 0
    assert junction_stop(0, 20, 8, True) == 0


def _stops(prompt: int, unit: int = 4, **options: int) -> dict[str, int]:
    """The required stops of a chunk from 0, with units of 4 and blocks of 8."""
    settled = {"start": 0, "tokens": prompt, "can_export": False, "export": 0, "junction": 0, **options}
    checkpoint, block = (partial(resend_checkpoint, unit=of, eagle=True) for of in (unit, 8))
    return required_stops(prompt=prompt, checkpoint=checkpoint, block_checkpoint=block, **settled)  # type: ignore[arg-type]


@pytest.mark.rule("CH1")
def test_required_stops_without_export() -> None:
    assert _stops(30) == {"checkpoint": 24, "block": 16}
    assert _stops(30, start=16) == {"checkpoint": 24}
    assert _stops(30, start=24) == _stops(7) == {}
    assert _stops(30, junction=8) == {"junction": 8, "checkpoint": 24, "block": 16}
    assert _stops(30, junction=8, start=8) == {"checkpoint": 24, "block": 16}
    assert _stops(30, tokens=50) == {"checkpoint": 24, "block": 40}, "resumed: C of the prompt"


@pytest.mark.rule("CH1")
def test_required_stops_with_export() -> None:
    assert _stops(30, can_export=True, export=24) == {}
    assert _stops(30, can_export=True) == _stops(30, can_export=True, export=12) == {"checkpoint": 24}
    assert _stops(30, can_export=True, export=24, junction=8) == {"junction": 8}
    assert _stops(30, can_export=True, export=8, junction=8) == {"checkpoint": 24}


@pytest.mark.rule("CH1")
def test_an_export_of_an_earlier_state_does_not_excuse_the_coarse_checkpoint() -> None:
    """Blocks of 8, hits coarse: the chunk [0, 90) of 100 tokens exports 80 and would jump over C = 88."""
    checkpoint = partial(resend_checkpoint, unit=8, eagle=True)
    export = exported(0, 90, 100, None, 8, 8, 8, checkpoint)
    assert (export, checkpoint(100)) == (80, 88)
    assert 88 in _stops(100, unit=8, can_export=True, export=export).values()


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
        settled = {"checkpoint": 92, "boundaries": (64, 80), "junction": junction, "stop": stop, "block": 16}
        return [at for at in range(0, 101, 4) if keeps_chunk_end(at, retention=retention, **settled)]  # type: ignore[arg-type]

    assert kept(0) == kept(0, junction=12, stop=0) == [64, 80, 92]
    assert kept(None) == [16, 32, 48, 64, 80, 92, 96]
    assert kept(32) == [32, 64, 80, 92, 96]
    assert kept(0, junction=44, stop=32) == [32, 64, 80, 92]
    assert kept(0, junction=44, stop=44) == [32, 44, 64, 80, 92]


@pytest.mark.rule("CH4")
def test_kept_exports() -> None:
    def kept(retention: int | None, junction: int = 0) -> list[int]:
        settled = {"checkpoint": 92, "junction": junction, "block": 16, "retention": retention}
        return [at for at in range(0, 101, 4) if keeps_export(at, **settled)]  # type: ignore[arg-type]

    assert kept(0) == [92]
    assert kept(0, junction=44) == [44, 92]
    assert kept(None) == [16, 32, 48, 64, 80, 92, 96]
    assert kept(48) == [48, 92, 96]


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
    found = {
        prompt: (attention_tail(prompt, 128, True), attention_tail(prompt, 128, False))
        for prompt in (127, 7040, 7041)
    }
    assert found == {127: (0, 0), 7040: (7040, 6912), 7041: (7040, 7040)}
    for prompt, unit, eagle in product(range(1, 100), (1, 3, 8), (False, True)):
        if checkpoint := resend_checkpoint(prompt, unit, eagle):
            margin = proof_margin(24, unit, eagle, True)
            assert attention_tail(prompt, unit, eagle) == checkpoint + margin, "it is the proof of C"


@pytest.mark.parametrize(
    ("tokens", "drops", "fine", "expected"),
    [
        (100, True, True, 100),
        (100, False, False, 96),
        (100, True, False, 100),
        (120, True, False, 112),
        (31, True, False, 0),
        (31, False, False, 0),
    ],
)
def test_cacheable(tokens: int, drops: bool, fine: bool, expected: int) -> None:
    assert cacheable(tokens, 16, 32, drops, fine) == expected


@pytest.mark.rule("LK1")
@pytest.mark.parametrize("eagle", [False, True])
@pytest.mark.parametrize("blocks", [(16, 8), (8, 16), (24, 16), (8, 8)])
def test_coarse_checkpoint_is_served_by_what_may_be_published(eagle: bool, blocks: tuple[int, int]) -> None:
    """What a coarse layout publishes is enough for its own checkpoint, whatever the block sizes."""
    groups = (*(Group("full", block) for block in blocks), Group("mamba", 8))
    geometry = layout(*groups, unit=8, eagle=eagle, speculative=int(eagle))
    assert not geometry.fine
    for prompt, group in product(range(1, 300), geometry.attention):
        reach = cacheable(prompt, group.block, geometry.align, group.drops, False)
        bound = scan_bound(prompt - 1, group.margin, prompt // 8, 8)
        extent = attention_extent(
            entries(*range(group.block, reach + 1, group.block)), group.block, 8, bound, False
        )
        assert attention_serves(geometry.checkpoint(prompt), group.margin, extent), (prompt, group)


# Geometry.


def test_the_seeds_layout() -> None:
    for geometry, blocks in ((layout(), [896, 896]), (layout(dcp=8), [7168, 896])):
        assert [group.block for group in geometry.groups] == blocks
        assert (geometry.unit, geometry.align, geometry.mamba_block) == (128, blocks[0], 896)
        assert (geometry.fine, geometry.grid, geometry.junctions) == (True, 128, False)
        assert [(group.margin, group.drops) for group in geometry.groups] == [(128, True), (0, False)]
        assert (geometry.checkpoint(7296), geometry.checkpoint(7449)) == (7168, 7296)
    assert layout().block_checkpoint(7296) == 6272


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


@pytest.mark.parametrize(
    "options",
    [{"eagle": False, "speculative": 0}, {"profile": "lookahead", "junctions": True}],
    ids=["no EAGLE", "lookahead"],
)
def test_without_a_drop_there_is_no_margin(options: dict[str, object]) -> None:
    geometry = layout(**options)
    assert [group.margin for group in geometry.groups] == [0, 0]
    assert (geometry.checkpoint(7296), geometry.checkpoint(7297)) == (7168, 7296)
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
    "groups: needs at least one full attention group, and Mamba groups of one block size and "
    "one checkpoint style"
)
MULTIPLE = "retention: must be null, 0 or a positive multiple of the alignment"
DIVIDES = "does not divide the block size"
NO_MAMBA = "groups[1]: a draft model has no Mamba layers, so a Mamba group is no draft"


@pytest.mark.parametrize(
    ("message", "groups", "options"),
    [
        ("unit: must be 1 or more, got 0", (), {"unit": 0}),
        ("unit: must be 1 or more, got -128", (), {"unit": -128}),
        ("dcp: must be 1 or more, got 0", (), {"dcp": 0}),
        ("profile: 'new' is none of old, drop, lookahead", (), {"profile": "new"}),
        ("groups[1]: group kind 'mla' is not known, use full, window, mamba", (FULL, Group("mla", 896)), {}),
        ("groups[0]: block must be 1 or more, got 0", (Group("full", 0), MAMBA), {}),
        ("groups[1]: block must be 1 or more, got -896", (FULL, Group("mamba", -896)), {}),
        (
            "groups[0]: a draft group needs eagle (a flag without the model-wide drop)",
            (replace(FULL, draft=True), MAMBA),
            {"eagle": False, "speculative": 0},
        ),
        (NO_MAMBA, (FULL, replace(MAMBA, draft=True)), {}),
        (
            "groups[0]: checkpoint_alignment belongs to Mamba groups only",
            (replace(FULL, checkpoint_alignment=64), MAMBA),
            {},
        ),
        (
            "groups[1]: checkpoint_alignment must be 1 or more, got 0",
            (FULL, replace(MAMBA, checkpoint_alignment=0)),
            {},
        ),
        (NEEDS_BOTH, (FULL,), {}),
        (NEEDS_BOTH, (MAMBA,), {}),
        (NEEDS_BOTH, (FULL, MAMBA, Group("mamba", 448)), {}),
        (NEEDS_BOTH, (FULL, MAMBA, replace(MAMBA, checkpoint_alignment=64)), {}),
        (f"groups[0]: the unit 100 {DIVIDES} 896", (), {"unit": 100}),
        (f"groups[1]: the unit 128 {DIVIDES} 900", (FULL, Group("mamba", 900)), {}),
        (f"{MULTIPLE} 896, got 128", (), {"retention": 128}),
        (f"{MULTIPLE} 896, got -896", (), {"retention": -896}),
        (f"{MULTIPLE} 7168, got 896", (), {"retention": 896, "dcp": 8}),
        ("speculative: EAGLE needs at least one speculative token", (), {"speculative": 0}),
        ("speculative: speculative tokens need eagle here", (), {"eagle": False}),
        (
            "speculative: 4 draft tokens need a Mamba block of more tokens, got 4",
            (Group("full", 4), Group("mamba", 4)),
            {"unit": 4, "speculative": 4},
        ),
    ],
)
def test_refused_layouts(message: str, groups: tuple[Group, ...], options: dict[str, object]) -> None:
    with pytest.raises(GeometryError) as refused:
        layout(*groups, **options)
    assert str(refused.value) == f"configuration.{message}"


def test_no_groups_are_refused() -> None:
    with pytest.raises(GeometryError, match=NEEDS_BOTH):
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
