"""Findings that are named after what is special about their step: each planted, and not without that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from reference.oracle import Oracle
from spec.geometry import Geometry
from spec.observation import Entry, FailedRead, Failure, Observation, Outcome
from spec.trace import Configuration, Group, Settle, Submit, Trace
from tailproof.judge.lockstep import compare, judge
from tailproof.targets import Target, open_target

Kinds = list[tuple[str, str]]


def clean(trace: Trace) -> list[Observation]:
    """What the reference does."""
    return list(open_target(Target.parse("reference"), print).run(trace).observations)


def found(trace: Trace, seen: Sequence[Observation]) -> Kinds:
    """Rule and kind of all findings of the first step that has any."""
    oracle = Oracle(trace)
    for observation in seen:
        forecast = oracle.forecast(observation)
        findings = [(one.rule, one.kind) for one in judge(oracle, observation, forecast)]
        if findings:
            return findings
        oracle.adopt(observation, forecast)
    return []


def changed(trace: Trace, index: int, **values: object) -> Kinds:
    """What a change of one observation brings."""
    seen = clean(trace)
    assert found(trace, seen) == []
    seen[index] = replace(seen[index], **values)  # type: ignore[arg-type]
    return found(trace, seen[: index + 1])


def prompt(length: int, *groups: Group, unit: int = 2, **options: object) -> Trace:
    """One prompt of that length, read to its end and a little further."""
    configuration = replace(Configuration(groups, unit), **options)  # type: ignore[arg-type]
    return Trace(configuration, (Submit("A", (("a", length),), outputs=4), Settle()))


def step_of(trace: Trace, request: str, start: int) -> int:
    """The index of the observation in which a request's chunk begins at `start`."""
    for index, seen in enumerate(clean(trace)):
        if any((item.request, item.start) == (request, start) for item in seen.scheduled):
            return index
    raise AssertionError(f"{request} has no chunk at {start}")


FULL, MAMBA, EXPORTING = Group("full", 4), Group("mamba", 4), Group("mamba", 4, checkpoint_alignment=2)
EAGLE: dict[str, object] = {"eagle": True, "speculative": 1}


@pytest.mark.rule("SF1")
@pytest.mark.parametrize("group", [0, 1])
def test_a_block_that_holds_a_state_past_the_end_is_stale(group: int) -> None:
    trace = prompt(18, FULL, Group("window", 2, window=5), MAMBA)
    read = FailedRead("A", group, 18, "stale")
    assert changed(trace, step_of(trace, "A", 16), failed_reads=(read,)) == [("SF1", "stale-bytes")]


# Exports. A prompt of 20 tokens is one chunk: 18 is exported into the block that would hold the state at 16.


def test_the_exporting_prompt_is_one_chunk_that_exports_its_checkpoint() -> None:
    trace = prompt(20, FULL, EXPORTING)
    first = clean(trace)[1]
    assert [(item.start, item.end) for item in first.scheduled] == [(0, 20)]
    assert [entry.position for entry in first.published if entry.group == 1] == [18]


@pytest.mark.rule("CH4")
def test_a_block_end_that_becomes_visible_after_an_export_took_its_place_is_promoted() -> None:
    trace = prompt(20, FULL, EXPORTING)
    late = step_of(trace, "A", 20)
    assert changed(trace, late, published=(Entry(1, 16, "A"),)) == [("CH4", "promoted-after-export")]
    # In the step of the export itself it is transient, and another block end was never in memory.
    seen = clean(trace)[1].published
    assert changed(trace, 1, published=(*seen, Entry(1, 16, "A"))) == [("CH4", "transient")]
    assert changed(trace, late, published=(Entry(1, 12, "A"),)) == [("CH3", "mid-chunk")]


@pytest.mark.rule("RT1")
def test_an_entry_lost_as_its_block_is_registered_anew_is_lost_to_another_key() -> None:
    trace = prompt(20, FULL, EXPORTING)
    late = step_of(trace, "A", 20)
    gone, stray = (Entry(1, 18, "A"),), (Entry(1, 16, "A"),)
    assert changed(trace, late, withdrawn=gone, published=stray) == [
        ("CH4", "promoted-after-export"),
        ("RT1", "lost-to-another-key"),
    ]
    seen = clean(trace)
    seen[late] = replace(seen[late], withdrawn=gone, published=stray)
    divergence = compare(trace, Outcome(tuple(seen)))
    assert (divergence and divergence.finding.kind) == "lost-to-another-key"
    # Lost alone, or beside a stray entry that takes no other's block, it is just lost.
    assert changed(trace, late, withdrawn=gone) == [("RT1", "lost")]
    beside = changed(trace, late, withdrawn=gone, published=(Entry(1, 12, "A"),))
    assert beside == [("CH3", "mid-chunk"), ("RT1", "lost")]


# Coarse hits. With units of 4, blocks of 8 over Mamba blocks of 4 and EAGLE, C of 22 tokens is 8 on the grid
# of hits and would be 16 on that of the units.

COARSE = prompt(22, Group("full", 8), Group("mamba", 4, checkpoint_alignment=4), unit=4, **EAGLE)


@pytest.mark.rule("CH3")
def test_a_checkpoint_on_the_unit_where_hits_are_coarse_is_named() -> None:
    geometry = Geometry.of(COARSE.configuration)
    assert (geometry.fine, geometry.checkpoint(22)) == (False, 8)
    seen = clean(COARSE)[1]
    assert [(item.start, item.end) for item in seen.scheduled] == [(0, 22)]
    for position, kind in ((16, "hash-boundary-when-coarse"), (12, "mid-chunk")):
        stray = Entry(1, position, "A")
        assert changed(COARSE, 1, published=(*seen.published, stray)) == [("CH3", kind)]


@pytest.mark.rule("CH3")
def test_where_hits_are_fine_the_same_checkpoint_is_due() -> None:
    trace = prompt(22, Group("full", 8), Group("mamba", 8, checkpoint_alignment=4), unit=4, **EAGLE)
    geometry = Geometry.of(trace.configuration)
    assert (geometry.fine, geometry.checkpoint(22)) == (True, 16)
    assert Entry(1, 16, "A") in [entry for one in clean(trace) for entry in one.published]


# Draft modules. Three of them: a stop within three tokens of the end is none, and a scheduler that keeps the
# distance cannot go on. 18 tokens have their checkpoint at 16.

MODULES: dict[str, object] = {"eagle": True, "speculative": 3, "multi_module": True}


@pytest.mark.rule("LV1")
@pytest.mark.parametrize(
    ("length", "options", "kind"),
    [
        (18, MODULES, "stuck-in-lookahead"),
        (19, MODULES, "stuck"),
        (18, {**MODULES, "multi_module": False}, "stuck"),
    ],
)
def test_being_stuck_before_the_last_stop_is_named_after_the_draft_modules(
    length: int, options: dict[str, object], kind: str
) -> None:
    trace = prompt(length, FULL, MAMBA, unit=2, **options)
    seen = clean(trace)
    assert found(trace, seen) == []
    before = next(at for at, one in enumerate(seen) if one.scheduled and one.scheduled[0].end == 12)
    stuck = Observation(at=1, do="settle", running=("A",), failure=Failure("stuck", "planted"))
    assert found(trace, [*seen[: before + 1], stuck]) == [("LV1", kind)]
    crash = replace(stuck, failure=Failure("crash", "planted"))
    assert found(trace, [*seen[: before + 1], crash]) == [("LV1", "crash")]


@pytest.mark.rule("LV1")
@pytest.mark.parametrize(
    ("groups", "options", "kind"),
    [
        ((FULL, MAMBA), MODULES, "exception-schedule-unfinished"),
        ((replace(FULL, draft=True), MAMBA), MODULES, "exception-schedule"),
        ((FULL, MAMBA), {**MODULES, "multi_module": False}, "exception-schedule"),
    ],
)
def test_an_exception_while_tokens_are_unfinished_and_no_group_is_marked_is_named(
    groups: tuple[Group, ...], options: dict[str, object], kind: str
) -> None:
    trace = prompt(20, *groups, unit=2, **options)
    assert changed(trace, 1, failure=Failure("exception", "planted", place="schedule")) == [("LV1", kind)]


@pytest.mark.rule("RT2")
@pytest.mark.parametrize(
    ("groups", "options", "kind"),
    [
        ((FULL, MAMBA), MODULES, "missing-checkpoint-unfinished"),
        ((replace(FULL, draft=True), MAMBA), MODULES, "missing-checkpoint"),
        ((FULL, MAMBA), EAGLE, "missing-checkpoint"),
    ],
)
def test_a_missing_checkpoint_is_named_after_unfinished_tokens(
    groups: tuple[Group, ...], options: dict[str, object], kind: str
) -> None:
    trace = prompt(21, *groups, unit=2, **options)
    checkpoint = Geometry.of(trace.configuration).checkpoint(21)
    seen = clean(trace)
    at = next(i for i, one in enumerate(seen) if Entry(1, checkpoint, "A") in one.published)
    left = tuple(entry for entry in seen[at].published if entry != Entry(1, checkpoint, "A"))
    assert changed(trace, at, published=left) == [("RT2", kind)]


@pytest.mark.rule("RT1")
@pytest.mark.parametrize(
    ("block", "retention", "kind"),
    [
        (2, 0, "missing-window-sparse"),
        (2, None, "missing-window"),
        (4, 0, "missing-window"),
    ],
)
def test_a_missing_window_entry_is_named_after_sparse_retention_where_hits_are_fine(
    block: int, retention: int | None, kind: str
) -> None:
    trace = prompt(20, FULL, MAMBA, Group("window", block, window=4), retention=retention)
    seen = clean(trace)
    at = next(i for i, one in enumerate(seen) if any(entry.group == 2 for entry in one.published))
    left = tuple(entry for entry in seen[at].published if entry.group != 2)
    assert set(changed(trace, at, published=left)) == {("RT1", kind)}


# Blocks smaller than the Mamba block: vLLM splits on the smallest block of all groups.


@pytest.mark.rule("CH1")
@pytest.mark.parametrize(
    ("full", "kind"), [(8, "jumped-checkpoint"), (4, "jumped-checkpoint-smallest-block")]
)
def test_a_stop_that_is_jumped_is_named_after_a_smaller_block(full: int, kind: str) -> None:
    trace = prompt(30, Group("full", full), Group("mamba", 8), unit=2)
    index = step_of(trace, "A", 24)
    seen = clean(trace)[index]
    item = seen.scheduled[0]
    assert item.end == 28
    attention = tuple(entry for entry in seen.published if entry.group == 0)
    assert changed(trace, index, scheduled=(replace(item, end=30),), published=attention) == [("CP7", kind)]


# Several attention layouts: the junction lies between what all and what one of them could serve.

LAYOUTS = Trace(
    Configuration((FULL, Group("full", 8), MAMBA), 2),
    (
        Submit("A", (("a", 20),)),
        Settle(),
        Submit("B", (("a", 14), ("b", 10))),
        Settle(),
        Submit("C", (("a", 20), ("c", 9))),
        Settle(),
    ),
)


def with_junction(request: str, junction: int) -> Kinds:
    """What another junction at the admission of a request brings, the publications of its step aside."""
    index = next(i for i, one in enumerate(clean(LAYOUTS)) if request in [a.request for a in one.admitted])
    (item,) = clean(LAYOUTS)[index].admitted
    found_there = changed(LAYOUTS, index, admitted=(replace(item, junction=junction),))
    return [one for one in found_there if one[0] == "LK5"]


@pytest.mark.rule("LK5")
def test_a_junction_between_the_layouts_is_accepted_and_one_outside_is_found() -> None:
    """B shares 14 tokens: blocks of 8 reach 8, those of 4 reach 12. C hits 18, and blocks of 4 reach 20."""
    for request, accepted, refused in (("B", (8, 10, 12), (0, 4, 6, 14)), ("C", (0, 20), (22,))):
        assert [with_junction(request, at) for at in accepted] == [[]] * len(accepted)
        assert [with_junction(request, at) for at in refused] == [[("LK5", "junction")]] * len(refused)


@pytest.mark.rule("LK5")
@pytest.mark.parametrize(("name", "junction"), [("B", 9), ("B", 11), ("C", 4), ("C", 18), ("C", 19)])
def test_a_junction_off_the_grid_or_not_above_the_hit_is_found(name: str, junction: int) -> None:
    assert with_junction(name, junction) == [("LK5", "junction")]
