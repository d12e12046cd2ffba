"""Each comparison goes red for one change of a right run, and no other comparison with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from reference.oracle import oracles
from spec.geometry import Geometry
from spec.observation import (
    Admitted,
    Entry,
    Event,
    FailedRead,
    Failure,
    Observation,
    Outcome,
    Pin,
    Transfer,
)
from spec.rules import RULES
from spec.trace import Configuration, Gate, Group, ResetLocal, Run, Settle, Submit, Trace
from tailproof.judge.lockstep import compare, exercised, judge
from tailproof.judge.step import COMPARISONS, EXERCISES, Comparison, Step, place, places
from tailproof.targets.opening import Target, open_target

Change = Callable[[Observation], Observation]
Place = Callable[[Observation], object]
Kinds = list[tuple[str, str]]


def clean(trace: Trace) -> list[Observation]:
    """What the reference does."""
    return list(open_target(Target.parse("reference"), print).run(trace).observations)


def steps(trace: Trace, seen: Sequence[Observation]) -> list[Step]:
    """The steps of a run up to the first that has a finding."""
    engines, found = oracles(trace), list[Step]()
    for observation in seen:
        oracle = engines[observation.engine]
        found.append(Step(observation, oracle.forecast(observation), oracle))
        if judge(found[-1]):
            break
        oracle.adopt(observation, found[-1].expected)
    return found


def found(trace: Trace, seen: Sequence[Observation]) -> Kinds:
    """Rule and kind of all findings of the first step that has any."""
    return [(one.rule, one.kind) for one in judge(steps(trace, seen)[-1])]


def changed(trace: Trace, index: int, **values: object) -> Kinds:
    """What a change of one observation brings."""
    seen = clean(trace)
    assert found(trace, seen) == []
    seen[index] = replace(seen[index], **values)  # type: ignore[arg-type]
    return found(trace, seen[: index + 1])


def name(comparison: Comparison) -> str:
    """A comparison by its module and its name."""
    return f"{comparison.__module__.rpartition('.')[2]}.{comparison.__name__}"


# U 2, block 4: C of 20 tokens is 18. 1 A [0, 16), 2 A [16, 18), 3 A [18, 20), 4 A decodes, 5 its last output,
# 7 B [18, 20) and its end.
CORE = Trace(
    Configuration((Group("full", 4), Group("mamba", 4)), 2, events=True),
    (Submit("A", (("a", 20),), outputs=3), Settle(), Submit("B", (("a", 20),)), Settle(), ResetLocal()),
)
# U 4, block 8: C of 20 tokens is 16.
STORED = Trace(
    Configuration((Group("full", 8), Group("mamba", 8)), unit=4, store="both"),
    (
        Gate("put", "hold"),
        Submit("A", (("a", 20),)),
        Run(3),
        Gate("put", "release"),
        Settle(),
        ResetLocal(),
        Submit("B", (("a", 20),)),
        Settle(),
    ),
)


def chunk(seen: Observation) -> tuple[str, int]:
    """Whose chunk a step computes, and from where."""
    item = seen.scheduled[0]
    return item.request, item.start


def computes(request: str, start: int) -> Place:
    return lambda seen: bool(seen.scheduled) and chunk(seen) == (request, start)


def in_store(**values: object) -> Change:
    """Changes what is seen of the store."""

    def change(seen: Observation) -> Observation:
        assert seen.store is not None
        return replace(seen, store=replace(seen.store, **values))  # type: ignore[arg-type]

    return change


def misread(seen: Observation) -> Observation:
    return replace(seen, failed_reads=(FailedRead("B", 0, 3, "kv"),))


def jumps(seen: Observation) -> Observation:
    item = replace(seen.scheduled[0], end=20)
    published = (*(one for one in seen.published if one.group == 0), Entry(0, 20, "A"))
    return replace(seen, scheduled=(item,), published=published, events=None)


def moved(seen: Observation) -> Observation:
    item = seen.scheduled[0]
    return replace(seen, scheduled=(replace(item, start=item.start + 1),))


def with_admission(**values: object) -> Change:
    def change(seen: Observation) -> Observation:
        return replace(seen, admitted=(replace(seen.admitted[0], **values),))  # type: ignore[arg-type]

    return change


def miscounted(seen: Observation) -> Observation:
    assert seen.counters is not None
    return replace(seen, counters=replace(seen.counters, requests=7))


def told_more(seen: Observation) -> Observation:
    return replace(seen, events=(*(seen.events or ()), Event("stored", (Entry(1, 12, "A"),), 8, 4)))


def unpublished(seen: Observation) -> Observation:
    return replace(seen, published=seen.published[1:], events=None)


def misreported(seen: Observation) -> Observation:
    return replace(seen, finished=(replace(seen.finished[0], cached=4),))


STATE = Entry(1, 16, "A")
WRONG_LOAD = Transfer("get", (STATE,), wrong=(STATE,))
PLANTS: dict[str, tuple[Trace, Place, Change, str]] = {
    "lookup.local_hits": (
        CORE,
        computes("B", 18),
        with_admission(appeared=(Entry(1, 18, "A"),)),
        "SF3 same-step",
    ),
    "lookup.junctions": (CORE, computes("B", 18), with_admission(junction=18), "LK5 junction"),
    "lookup.external_hits": (
        STORED,
        lambda seen: seen.store and seen.store.loading,
        in_store(loading=(Admitted("B", 0, 12, 0),)),
        "LK4 external-too-short",
    ),
    "chunks.spans": (CORE, computes("A", 16), moved, "CH5 contiguous"),
    "chunks.stops": (CORE, computes("A", 16), jumps, "CP7 jumped-checkpoint"),
    "entries.visible_entries": (
        CORE,
        computes("A", 0),
        unpublished,
        "RT1 missing-full",
    ),
    "entries.lost_entries": (
        CORE,
        lambda seen: seen.do == "submit" and seen.at == 2,
        lambda seen: replace(seen, withdrawn=(Entry(1, 18, "A"),)),
        "RT1 lost",
    ),
    "content.reads": (CORE, computes("B", 18), misread, "SF1 kv-of-hit"),
    "content.loads": (
        STORED,
        lambda seen: seen.store and any(one.kind == "get" for one in seen.store.transfers),
        in_store(transfers=(WRONG_LOAD,)),
        "SF2 loaded-wrong",
    ),
    "saves.puts": (
        STORED,
        lambda seen: seen.store and any(one.kind == "get" for one in seen.store.transfers),
        in_store(transfers=(Transfer("put", (STATE,)),)),
        "TS3 put-again",
    ),
    "saves.keys": (
        STORED,
        lambda seen: seen.store and seen.store.reported,
        in_store(stored=(Entry(0, 4, "A"),)),
        "TS1 key-unexpected",
    ),
    "pins.pins": (
        STORED,
        lambda seen: seen.store and seen.store.pins and not seen.scheduled,
        in_store(pins=(Pin(0, "A", 4, True), Pin(1, "A", 2, True))),
        "LT2 pin-changed",
    ),
    "pins.reference_counts": (
        STORED,
        lambda seen: seen.store and seen.scheduled,
        in_store(miscounted=1),
        "LT1 miscounted",
    ),
    "pins.quiescence": (
        CORE,
        lambda seen: seen.do == "submit" and seen.at == 2,
        lambda seen: replace(seen, free=3),
        "LT3 free-blocks",
    ),
    "endings.ends": (CORE, computes("B", 18), misreported, "AC1 cached"),
    "endings.loads": (
        STORED,
        lambda seen: seen.store and seen.store.loaded,
        in_store(loaded=()),
        "LV2 load-unreported",
    ),
    "endings.progress": (
        CORE,
        computes("A", 16),
        lambda seen: replace(seen, scheduled=(), published=(), events=None),
        "CH2 stalled",
    ),
    "endings.reset": (
        CORE,
        lambda seen: seen.do == "reset_local",
        lambda seen: replace(seen, reset=False, withdrawn=()),
        "LT4 reset",
    ),
    "told.counters": (CORE, computes("B", 18), miscounted, "AC2 counted-requests"),
    "told.events": (CORE, computes("B", 18), told_more, "AC3 event-in-vain"),
}


@pytest.mark.parametrize("comparison", COMPARISONS, ids=name)
def test_each_comparison_alone_goes_red_for_a_change_of_its_own(comparison: Comparison) -> None:
    trace, where, change, kind = PLANTS[name(comparison)]
    seen = clean(trace)
    assert found(trace, seen) == []
    index = next(index for index, one in enumerate(seen) if where(one))
    seen[index] = change(seen[index])
    (*before, last) = steps(trace, seen)
    assert len(before) == index
    red = {name(one): [f"{found.rule} {found.kind}" for found in one(last)] for one in COMPARISONS}
    assert {one: kinds for one, kinds in red.items() if kinds} == {name(comparison): [kind]}


def test_every_comparison_has_its_change() -> None:
    assert {name(comparison) for comparison in COMPARISONS} == PLANTS.keys()
    assert len(COMPARISONS) == len(PLANTS)


# What a run as a whole, and a run that broke off, can show.


@pytest.mark.rule("EL2")
def test_units_are_compared_for_a_run_as_a_whole() -> None:
    divergence = compare(CORE, Outcome(tuple(clean(CORE)), units=(4, 2)))
    assert divergence is not None
    assert (divergence.rule, divergence.finding.kind) == ("EL2", "worker-units")


# B loads nothing: its get fails in step 9, and it waits to be computed anew.
FAILING = Trace(
    replace(STORED.configuration, load_failures="recompute"),
    (*STORED.steps[:-2], Gate("get", "fail"), *STORED.steps[-2:]),
)


@pytest.mark.rule("LV2")
@pytest.mark.parametrize(
    ("trace", "kind", "due"),
    [
        (FAILING, "stuck", "LV2 stuck"),
        (FAILING, "hang", "LV1 hang"),
        (FAILING, "exception", "LV1 exception"),
        (STORED, "stuck", "LV1 stuck"),
    ],
)
def test_a_hang_breaks_lv2_exactly_where_a_request_waits_whose_load_failed(
    trace: Trace, kind: str, due: str
) -> None:
    seen = clean(trace)
    assert found(trace, seen) == []
    index = next(i for i, one in enumerate(seen) if one.store and (one.store.loaded or one.store.failed))
    stuck = Observation(at=seen[index].at, do="settle", waiting=("B",), failure=Failure(kind, "planted"))
    assert [f"{rule} {name}" for rule, name in found(trace, [*seen[: index + 1], stuck])] == [due]
    if due.startswith("LV2"):
        # Once the request has started again, its failed load holds nothing up any more.
        again = next(i for i, one in enumerate(seen) if i > index and one.admitted)
        assert found(trace, [*seen[: again + 1], stuck]) == [("LV1", "stuck")]


@pytest.mark.rule("CH2")
def test_a_step_that_schedules_nothing_breaks_ch2_also_after_a_failed_load() -> None:
    seen = clean(FAILING)
    index = next(i for i, one in enumerate(seen) if one.admitted and one.admitted[0].request == "B")
    before = seen[index - 1]
    assert before.store is not None
    assert before.store.failed == ("B",)
    idle = replace(seen[index], scheduled=(), admitted=(), published=(), running=(), waiting=("B",))
    idle = replace(idle, counters=before.counters, store=replace(before.store, failed=()))
    assert ("CH2", "stalled") in found(FAILING, [*seen[:index], idle])


# The registers.


@pytest.mark.parametrize("rule", [rule.id for rule in RULES.values() if rule.tiers])
def test_a_rule_that_runs_can_show_is_compared_and_counted(rule: str) -> None:
    compared, counted = places(rule)
    assert compared
    assert counted
    assert all(one.startswith("tailproof/judge/") for one in (*compared, *counted))


def test_a_rule_that_no_run_shows_is_compared_nowhere() -> None:
    assert [places(rule.id) for rule in RULES.values() if not rule.tiers if any(places(rule.id))] == []


@pytest.mark.parametrize("comparison", COMPARISONS, ids=name)
def test_a_comparison_is_marked_with_what_it_finds(comparison: Comparison) -> None:
    rule = PLANTS[name(comparison)][3].partition(" ")[0]
    assert place(comparison) in places(rule)[0]


def test_what_is_counted_is_marked() -> None:
    for trace in (CORE, STORED, FAILING):
        for step in steps(trace, clean(trace)):
            for counter in EXERCISES:
                assert all(place(counter) in places(rule)[1] for rule in counter(step))
            assert set(exercised(step)) == {rule for counter in EXERCISES for rule in counter(step)}


# Reads.

FULL, MAMBA, EXPORTING = Group("full", 4), Group("mamba", 4), Group("mamba", 4, checkpoint_alignment=2)


def prompt(length: int, *groups: Group, unit: int = 2, **options: object) -> Trace:
    """One prompt of that length, read to its end and a little further."""
    configuration = replace(Configuration(groups, unit), **options)  # type: ignore[arg-type]
    return Trace(configuration, (Submit("A", (("a", length),), outputs=4), Settle()))


def step_of(trace: Trace, request: str, start: int) -> int:
    """The index of the observation in which a request's chunk begins at `start`."""
    return next(i for i, seen in enumerate(clean(trace)) if computes(request, start)(seen))


@pytest.mark.rule("SF1")
@pytest.mark.parametrize("group", [0, 1])
def test_a_block_that_holds_a_state_past_the_end_is_stale(group: int) -> None:
    trace = prompt(18, FULL, Group("window", 2, window=5), MAMBA)
    read = FailedRead("A", group, 18, "stale")
    assert changed(trace, step_of(trace, "A", 16), failed_reads=(read,)) == [("SF1", "stale-bytes")]


# Exports. A prompt of 20 tokens is one chunk: 18 is exported into the block that would hold the state at 16.


def test_the_exporting_prompt_is_one_chunk_that_exports_its_checkpoint() -> None:
    first = clean(prompt(20, FULL, EXPORTING))[1]
    assert [(item.start, item.end) for item in first.scheduled] == [(0, 20)]
    assert [entry.position for entry in first.published if entry.group == 1] == [18]


@pytest.mark.rule("CH4")
def test_a_block_end_is_transient_in_the_step_of_its_export_and_later() -> None:
    trace = prompt(20, FULL, EXPORTING)
    late = step_of(trace, "A", 20)
    assert changed(trace, late, published=(Entry(1, 16, "A"),)) == [("CH4", "transient")]
    seen = clean(trace)[1].published
    assert changed(trace, 1, published=(*seen, Entry(1, 16, "A"))) == [("CH4", "transient")]
    # What was registered for tokens that this step was to compute is not what the export left behind.
    again = changed(
        trace,
        late,
        scheduled=(),
        running=(),
        waiting=("A",),
        preempted=("A",),
        published=(Entry(1, 16, "A"),),
    )
    assert [one for one in again if one[0] in ("CH3", "CH4")] == [("CH3", "stray-state")]
    # Another block end was never in memory.
    assert changed(trace, late, published=(Entry(1, 12, "A"),)) == [("CH3", "stray-state")]


@pytest.mark.rule("RT1")
def test_what_is_lost_beside_a_stray_entry_is_found_too() -> None:
    trace = prompt(20, FULL, EXPORTING)
    late = step_of(trace, "A", 20)
    gone = (Entry(1, 18, "A"),)
    assert changed(trace, late, withdrawn=gone) == [("RT1", "lost")]
    beside = changed(trace, late, withdrawn=gone, published=(Entry(1, 12, "A"),))
    assert beside == [("RT1", "lost"), ("CH3", "stray-state")]


@pytest.mark.rule("CP7")
def test_a_missing_checkpoint_beside_a_stray_state_was_registered_elsewhere() -> None:
    trace = prompt(20, FULL, EXPORTING)
    seen = tuple(entry for entry in clean(trace)[1].published if entry.group == 0)
    assert changed(trace, 1, published=seen) == [("RT2", "missing-checkpoint")]
    for position, kind in ((12, ("CH3", "stray-state")), (16, ("CH4", "transient"))):
        due = ("CP7", "registered-elsewhere") if kind[0] == "CH3" else ("RT2", "missing-checkpoint")
        assert set(changed(trace, 1, published=(*seen, Entry(1, position, "A")))) == {due, kind}


# Coarse hits. With units of 4, blocks of 8 over Mamba blocks of 4 and EAGLE, C of 22 tokens is 8 on the grid
# of hits and would be 16 on that of the units.

EAGLE: dict[str, object] = {"eagle": True, "speculative": 1}


@pytest.mark.rule("CH3")
def test_a_checkpoint_on_the_unit_is_stray_where_hits_are_coarse_and_due_where_they_are_fine() -> None:
    coarse = prompt(22, Group("full", 8), Group("mamba", 4, checkpoint_alignment=4), unit=4, **EAGLE)
    geometry = Geometry.of(coarse.configuration)
    assert (geometry.fine, geometry.checkpoint(22)) == (False, 8)
    stray = (*clean(coarse)[1].published, Entry(1, 16, "A"))
    assert changed(coarse, 1, published=stray) == [("CH3", "stray-state")]
    fine = prompt(22, Group("full", 8), Group("mamba", 8, checkpoint_alignment=4), unit=4, **EAGLE)
    geometry = Geometry.of(fine.configuration)
    assert (geometry.fine, geometry.checkpoint(22)) == (True, 16)
    assert Entry(1, 16, "A") in [entry for one in clean(fine) for entry in one.published]


# Kinds do not depend on the setting.


@pytest.mark.rule("RT2")
@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("modules", [False, True])
def test_a_missing_checkpoint_has_one_kind_in_all_settings(draft: bool, modules: bool) -> None:
    groups = replace(FULL, draft=draft), MAMBA
    trace = prompt(21, *groups, eagle=True, speculative=3, multi_module=modules)
    checkpoint = Entry(1, Geometry.of(trace.configuration).checkpoint(21), "A")
    seen = clean(trace)
    at = next(i for i, one in enumerate(seen) if checkpoint in one.published)
    left = tuple(entry for entry in seen[at].published if entry != checkpoint)
    assert changed(trace, at, published=left) == [("RT2", "missing-checkpoint")]


@pytest.mark.rule("RT1")
@pytest.mark.parametrize(("block", "retention"), [(2, 0), (2, None), (4, 0)])
def test_a_missing_window_has_one_kind_in_all_settings(block: int, retention: int | None) -> None:
    trace = prompt(20, FULL, MAMBA, Group("window", block, window=4), retention=retention)
    seen = clean(trace)
    at = next(i for i, one in enumerate(seen) if any(entry.group == 2 for entry in one.published))
    left = tuple(entry for entry in seen[at].published if entry.group != 2)
    assert set(changed(trace, at, published=left)) == {("RT1", "missing-window")}


@pytest.mark.rule("CH1")
@pytest.mark.parametrize("full", [4, 8])
def test_a_jumped_stop_is_named_after_the_stop_alone(full: int) -> None:
    trace = prompt(30, Group("full", full), Group("mamba", 8))
    index = step_of(trace, "A", 24)
    seen = clean(trace)[index]
    item = seen.scheduled[0]
    assert item.end == 28
    attention = tuple(entry for entry in seen.published if entry.group == 0)
    assert changed(trace, index, scheduled=(replace(item, end=30),), published=attention) == [
        ("CP7", "jumped-checkpoint")
    ]


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
