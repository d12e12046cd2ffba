"""The wrong variants themselves: what each foretells, what they remember of a run, when one is named."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reference.cache import SlowCache
from reference.history import History, Prefixes
from reference.oracle import oracles
from reference.publish import publications
from spec.chunking import junction_stop, required_stops
from spec.geometry import Geometry, GeometryError
from spec.observation import Entry, FailedRead, Finished, Observation, Outcome
from spec.trace import Configuration, Gate, Group, ResetLocal, Run, Settle, Submit, Trace
from tailproof.judge.findings import Finding
from tailproof.judge.lockstep import divergences
from tailproof.judge.step import Step
from tailproof.known.explain import ROOMS, Explanations, Known
from tailproof.known.model import Baseline, BaselineError, KnownFault, Upstream, load
from tailproof.known.quirks.case import QUIRKS, Case
from tailproof.known.quirks.lookup import short_window_run
from tailproof.known.quirks.split import Prefill, split_end
from tailproof.known.quirks.witness import Witness
from tailproof.targets.opening import Target, open_target

Wrong = frozenset[str]
NONE: Wrong = frozenset()
EAGLE: dict[str, object] = {"eagle": True, "speculative": 1}


def full(block: int, **options: object) -> Group:
    return Group("full", block, **options)  # type: ignore[arg-type]


def mamba(block: int, alignment: int | None = None) -> Group:
    return Group("mamba", block, checkpoint_alignment=alignment)


def window(block: int, tokens: int) -> Group:
    return Group("window", block, window=tokens)


def setting(*groups: Group, unit: int, **options: object) -> Configuration:
    return Configuration(groups, unit, **options)  # type: ignore[arg-type]


# The split.


@st.composite
def layouts(draw: st.DrawFn) -> Configuration:
    """Layouts of all kinds: fine and coarse, with exports, drafts and several draft modules."""
    unit = draw(st.sampled_from((1, 2, 4)))
    blocks = st.sampled_from([unit * times for times in (1, 2, 3, 4)])
    groups = [full(draw(blocks)), mamba(draw(blocks), draw(st.sampled_from((None, 1, unit, 2 * unit))))]
    if draw(st.booleans()):
        groups.append(draw(st.one_of(st.builds(full, blocks), st.builds(window, blocks, st.integers(2, 20)))))
    drafts = draw(st.sampled_from((0, 1, 2, 3)))
    configuration = setting(
        *groups,
        unit=unit,
        eagle=drafts > 0,
        speculative=drafts,
        multi_module=drafts > 1 and draw(st.booleans()),
        junctions=draw(st.booleans()),
        retention=draw(st.sampled_from((0, None))),
        budget=draw(st.sampled_from((8, 64))),
        profile=draw(st.sampled_from(("", "lookahead"))) or Configuration(tuple(groups), unit).profile,
    )
    try:
        Geometry.of(configuration)
    except GeometryError:
        assume(False)
    return configuration


def jumped(configuration: Configuration, history: History, start: int, asked: int, wrong: Wrong) -> list[str]:
    """The required stops that a split jumps over, and what it leaves to draft modules."""
    geometry = Geometry.of(configuration)
    prefill = Prefill.of(history, start, history.junction)
    end = split_end(geometry, configuration, prefill, asked, wrong)
    assert start <= end <= start + asked
    if end == start:
        return []
    left = publications(configuration, geometry, history, start, end, 0)
    exported = (geometry.mamba[0].index, left.export) in left.must
    stops = required_stops(
        start=start,
        prompt=history.prompt,
        tokens=history.known,
        can_export=geometry.mamba[0].checkpoint_alignment is not None,
        export=left.export if exported else 0,
        junction=junction_stop(history.junction, history.prompt, geometry.mamba_block, geometry.junctions),
        checkpoint=geometry.checkpoint,
        block_checkpoint=geometry.block_checkpoint,
        lookahead=geometry.lookahead,
    )
    near = ["lookahead"] if 0 < history.known - end < geometry.lookahead else []
    return near + [name for name, stop in stops.items() if start < stop < end]


@given(layouts(), st.integers(12, 40) | st.integers(1, 12), st.integers(0, 3), st.data())
@settings(max_examples=150, deadline=None)
def test_a_split_without_mistakes_jumps_over_no_stop(
    configuration: Configuration, prompt: int, produced: int, data: st.DataObject
) -> None:
    geometry = Geometry.of(configuration)
    prefixes = Prefixes(configuration.unit, geometry.hash_lookahead)
    history = History.of(Submit("A", (("a", prompt),), outputs=4), prefixes, {})
    history.produce(produced, prefixes)
    history.told = history.produced
    history.junction = data.draw(st.sampled_from(range(0, history.known, geometry.grid)), "junction")
    for start in range(history.prefill_end):
        most = min(configuration.budget, history.known - start)
        for asked in {most, (most + 1) // 2}:
            assert jumped(configuration, history, start, asked, NONE) == []


FINE = setting(full(4), mamba(4), unit=1)
COARSE_SPLIT = setting(full(2), mamba(2), window(4, 2), unit=1)
EXPORTING = setting(full(8), mamba(8, 4), unit=4)
SMALL = setting(full(2), mamba(8), unit=2)
MODULES = setting(full(8), mamba(8), unit=2, eagle=True, speculative=3, multi_module=True)
CUT = setting(full(8), mamba(8, 4), unit=4, **EAGLE)


@pytest.mark.parametrize(
    ("mistake", "configuration", "prefill", "right", "wrong"),
    [
        # The grid of hits is 4, the last Mamba block end 6.
        ("split.block_grid", COARSE_SPLIT, Prefill(0, 7, 7, 0), 4, 6),
        # The checkpoint of the prompt is 1, the last block end of what there is 4.
        ("split.present_length", FINE, Prefill(0, 2, 6, 0), 1, 4),
        # Above that block end the checkpoint is a stop all the same.
        ("split.present_length", FINE, Prefill(4, 6, 8, 0), 5, 5),
        # Counted from 4, no block of 8 ends at 8.
        ("split.floor_from_start", EXPORTING, Prefill(4, 17, 17, 8), 8, 17),
        # Where a block begins both count alike.
        ("split.floor_from_start", EXPORTING, Prefill(8, 40, 40, 16), 16, 16),
        # The junction cuts at 16, past the checkpoint 12. The chunk cut so exports nothing.
        ("split.export_before_cut", CUT, Prefill(0, 18, 18, 16), 8, 16),
        # Uncut the chunk exports.
        ("split.export_before_cut", CUT, Prefill(0, 18, 18, 0), 18, 18),
        # The last end of a block of 2 is 28, of a block of 8 it is 24.
        ("split.smallest_block", SMALL, Prefill(0, 30, 30, 0), 24, 28),
        # A stop at 8 leaves one token, three are read ahead: nothing is left of a chunk that begins at 7.
        ("endings.reserve_after", MODULES, Prefill(0, 9, 9, 0), 6, 6),
        ("endings.reserve_after", MODULES, Prefill(6, 9, 9, 0), 9, 6),
        ("endings.reserve_after", MODULES, Prefill(7, 9, 9, 0), 9, 7),
    ],
)
def test_each_mistake_alone_has_its_effect(
    mistake: str, configuration: Configuration, prefill: Prefill, right: int, wrong: int
) -> None:
    geometry, asked = Geometry.of(configuration), prefill.tokens - prefill.start
    ends = [split_end(geometry, configuration, prefill, asked, one) for one in (NONE, frozenset({mistake}))]
    assert ends == [right, wrong]


def test_mistakes_add_up() -> None:
    """From 4 on blocks of 8 end at 12; that the chunk exports is decided before the junction cuts it."""
    prefill, geometry = Prefill(4, 40, 40, 16), Geometry.of(EXPORTING)
    names = ("split.export_before_cut", "split.floor_from_start")
    ends = [split_end(geometry, EXPORTING, prefill, 36, frozenset(names[:count])) for count in range(3)]
    assert ends == [8, 16, 12]


def test_a_split_ends_decoding_where_it_is_asked_to() -> None:
    for start, asked in ((20, 1), (21, 4)):
        assert split_end(Geometry.of(FINE), FINE, Prefill(start, 20, 22, 0), asked, NONE) == start + asked


# Lookups.


@dataclass(frozen=True, slots=True)
class Cache:
    """One request of `prompt` tokens and the entries of its own prefix that are visible, by group."""

    configuration: Configuration
    prompt: int
    entries: Mapping[int, Sequence[int]]

    def hits(self) -> tuple[int, int]:
        """The right hit, and that of a lookup that aligns a short run twice."""
        geometry = Geometry.of(self.configuration)
        history = History.of(Submit("A", (("a", self.prompt),)), Prefixes(self.configuration.unit), {})
        cache = SlowCache(geometry)
        visible = {cache.key(group, history, at) for group, places in self.entries.items() for at in places}
        kept = set(visible)
        found = cache.lookup(history, visible).hit, short_window_run(geometry, history, visible)
        assert visible == kept
        return found


ATTENTION = {0: (8, 16, 24), 1: (8, 16), 2: (4, 8, 12, 16, 20)}


def coarse(tokens: int, block: int = 4, **options: object) -> Configuration:
    return setting(full(8), mamba(8), window(block, tokens), unit=2, **(options or EAGLE))


@pytest.mark.parametrize(
    ("cache", "right", "wrong"),
    [
        # The window of 20 tokens would need five blocks, 16 tokens are all there are: one alignment is lost.
        (Cache(coarse(20), 26, ATTENTION), 16, 8),
        # The state below is not there, so more than one is.
        (Cache(coarse(20), 26, {**ATTENTION, 1: (16,)}), 16, 0),
        # A window of 13 tokens is full with three blocks, so nothing is lost.
        (Cache(coarse(13), 26, ATTENTION), 16, 16),
        # Nor is anything where the blocks of the window are those that hits land on, or where nothing drops.
        (Cache(coarse(20, 8), 26, {0: (8, 16, 24), 1: (8, 16), 2: (8, 16, 24)}), 16, 16),
        (Cache(coarse(20, eagle=False), 26, ATTENTION), 16, 16),
        (Cache(coarse(20), 26, {0: (8,), 1: (8,), 2: (4,)}), 0, 0),
    ],
)
def test_a_short_run_of_a_window_is_aligned_twice(cache: Cache, right: int, wrong: int) -> None:
    assert cache.hits() == (right, wrong)


# What a quirk is asked.


def case(*wrong: str) -> Case:
    """A case in which these quirks are in force; nothing else of it is looked at."""
    return Case(None, (), Witness(), frozenset(wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("in_force", "right", "due"),
    [
        # It is right with the quirk alone, or only beside another that is in force too.
        ({"q"}, [{"q"}], True),
        ({"q", "r"}, [{"q"}], True),
        ({"q", "r"}, [{"q", "r"}], True),
        # It is right without any, only with one that is not in force, or with the other alone.
        ({"q"}, [set(), {"q"}], False),
        ({"r"}, [{"q"}], False),
        ({"q", "r"}, [{"r"}, {"q", "r"}], False),
        ({"q"}, [], False),
    ],
)
def test_a_finding_is_due_to_a_quirk_that_makes_it_right(
    in_force: set[str], right: list[set[str]], due: bool
) -> None:
    assert case(*in_force).due_to("q", lambda wrong: wrong in right) is due


# What is remembered of a run.


def observed(trace: Trace) -> list[Observation]:
    """What the reference does."""
    return list(open_target(Target.parse("reference"), print).run(trace).observations)


def followed(trace: Trace, seen: Sequence[Observation], until: int | None = None) -> tuple[Witness, Step]:
    """What a witness knows once it has seen a run, and the last step of that."""
    witness, engines = Witness(), oracles(trace)
    for observation in seen[:until]:
        oracle = engines[observation.engine]
        step = Step(observation, oracle.forecast(observation), oracle)
        witness.follow(step)
        oracle.adopt(observation, step.expected)
    return witness, step


def ask(name: str, *prompt: tuple[str, int], **options: object) -> Submit:
    return Submit(name, prompt, **options)  # type: ignore[arg-type]


# A leaves the state at 1, B begins there, exports 18 in place of 16, and ends at 20.
EXTENDED = Trace(
    setting(full(4), mamba(4, 1), unit=1),
    (ask("A", ("a", 2)), Settle(), ask("B", ("a", 2), ("b", 18)), Settle(), ResetLocal()),
)


def at(trace: Trace, seen: Sequence[Observation], request: str, start: int) -> int:
    """The index of the step in which a request's chunk begins there."""
    return next(
        i for i, one in enumerate(seen) if (request, start) in [(s.request, s.start) for s in one.scheduled]
    )


def test_a_witness_knows_which_block_ends_were_run_past_and_displaced() -> None:
    seen = observed(EXTENDED)
    index = at(EXTENDED, seen, "B", 1)
    witness, step = followed(EXTENDED, seen, index + 1)
    key = lambda position: step.cache.key(1, step.histories["B"], position)  # noqa: E731
    assert witness.overrun == {key(4): 1}
    assert witness.displaced == {key(16): key(19)}
    assert {name: (one.scheduled.start, one.scheduled.end) for name, one in witness.chunks.items()} == {
        "A": (1, 2),
        "B": (1, 20),
    }
    assert not witness.late
    witness, _ = followed(EXTENDED, seen)
    assert (witness.overrun, witness.displaced) == ({}, {})


def test_a_block_end_that_a_chunk_ends_at_later_was_not_run_past() -> None:
    again = (ask("C", ("a", 2), ("b", 3), ("c", 9)), Settle())
    trace = replace(EXTENDED, steps=(*EXTENDED.steps[:-1], *again))
    seen = observed(trace)
    index = at(trace, seen, "C", 1)
    assert [one.position for one in seen[index].published if one.group == 1] == [4]
    before, _ = followed(trace, seen, index)
    after, _ = followed(trace, seen, index + 1)
    assert (len(before.overrun), len(after.overrun)) == (1, 0)


def test_a_witness_knows_what_became_visible_late() -> None:
    """The state at 8 appears in the step after the one that computed it, and again when another chunk ends
    there."""
    trace = Trace(
        setting(full(4), mamba(4), unit=4, budget=8, retention=None),
        (ask("A", ("a", 20)), Settle(), ask("B", ("a", 20)), Settle()),
    )
    seen = observed(trace)
    first, second = at(trace, seen, "A", 0), at(trace, seen, "A", 8)
    late = Entry(1, 8, "A")
    assert late in seen[first].published
    seen[first] = replace(seen[first], published=tuple(one for one in seen[first].published if one != late))
    seen[second] = replace(seen[second], published=(*seen[second].published, late))
    witness, step = followed(trace, seen, second + 1)
    assert witness.late == {step.key(late)}
    witness, _ = followed(trace, seen, first + 1)
    assert not witness.late


STORED = setting(full(3), mamba(3), unit=1, store="both")
LOADING = Trace(
    STORED, (ask("A", ("a", 2), outputs=3), Run(3), ResetLocal(running=True), ask("B", ("b", 2)), Settle())
)


def test_a_witness_knows_which_requests_a_reset_preempted_and_which_of_them_load() -> None:
    seen = observed(LOADING)
    reset = next(i for i, one in enumerate(seen) if one.do == "reset_local")
    assert followed(LOADING, seen, reset)[0].reset == set()
    assert followed(LOADING, seen, reset + 1)[0].reset == {"A"}
    # It outlasts an arrival, and ends with the next step of the engine.
    assert followed(LOADING, seen, reset + 2)[0].reset == {"A"}
    witness, step = followed(LOADING, seen, reset + 3)
    assert [item.request for item in step.view.loading] == ["A"]
    assert (witness.reset, witness.reset_loads) == (set(), {"A"})


def test_a_load_that_no_reset_came_before_is_none_of_a_reset() -> None:
    plain = replace(LOADING, steps=(ask("A", ("a", 2)), Settle(), ResetLocal(), ask("B", ("a", 2)), Settle()))
    witness, _ = followed(plain, observed(plain))
    assert witness.reset_loads == set()


FAILING = Trace(
    STORED, (ask("A", ("a", 2)), Settle(), ResetLocal(), Gate("get", "fail"), ask("B", ("a", 2)), Settle())
)


def test_a_witness_counts_the_loads_that_failed_in_a_row() -> None:
    seen = observed(FAILING)
    failed = next(i for i, one in enumerate(seen) if one.store and one.store.failed)
    assert followed(FAILING, seen, failed + 1)[0].failures == {"B": 1}
    again = [*seen[: failed + 1], seen[failed - 1], seen[failed]]
    assert followed(FAILING, again)[0].failures == {"B": 2}
    store = again[-1].store
    assert store is not None
    loaded = [*again[:-1], replace(again[-1], store=replace(store, failed=(), loaded=("B",)))]
    assert followed(FAILING, loaded)[0].failures == {}
    # Once it computes, what failed before is over.
    assert followed(FAILING, seen, failed + 2)[0].failures == {}


# Which fault explains a finding.


def fault(name: str, *quirks: str, rules: Sequence[str], **values: object) -> KnownFault:
    """A known fault of release line 0.32."""
    return KnownFault(
        id=name,
        title="",
        effect="",
        where=(),
        first="0.32",
        last="0.32",
        rules=tuple(rules),
        quirks=quirks,
        reach="",
        expires=values.pop("expires", datetime.date(2999, 1, 1)),  # type: ignore[arg-type]
        upstream=Upstream(state=""),
        happens="",
        **values,  # type: ignore[arg-type]
    )


# Coarse hits: the split without mistakes ends at 4, that of the quirk at 6.
JUMPS = Trace(COARSE_SPLIT, (ask("A", ("a", 7)), Settle()))


def jumping() -> Outcome:
    """The run in which A computes [0, 6) and no more."""
    seen = observed(JUMPS)
    (item,) = seen[1].scheduled
    kept = tuple(one for one in seen[1].published if one.group != 1)
    changed = replace(seen[1], scheduled=(replace(item, end=6),), published=kept)
    return Outcome((seen[0], changed))


def names(
    *faults: KnownFault, line: str = "0.32", today: datetime.date | None = None
) -> list[tuple[str, str]]:
    """Rule of each finding of that run, and the fault that explains it."""
    baseline = Baseline(faults, **({"today": today} if today else {}))
    run = divergences(JUMPS, jumping(), explainer=Known(baseline, line).explainer())
    return [(one.rule, one.fault) for one in run]


GRID = fault("grid", "split.block_grid", rules=["CP7"])


def test_a_fault_explains_what_its_quirk_makes_right() -> None:
    assert names() == [("CP7", "")]
    assert names(fault("other", "split.smallest_block", rules=["CP7"])) == [("CP7", "")]
    assert names(GRID) == [("CP7", "grid")]


def test_a_fault_explains_only_findings_of_its_rules() -> None:
    assert names(fault("grid", "split.block_grid", rules=["CH1", "LK1"])) == [("CP7", "")]


def test_the_first_fault_that_explains_a_finding_names_it() -> None:
    second = fault("second", "split.present_length", "split.block_grid", rules=["CP7"])
    assert names(GRID, second) == [("CP7", "grid")]
    assert names(second, GRID) == [("CP7", "second")]


def test_a_fault_that_has_expired_or_is_of_another_line_explains_nothing() -> None:
    old = replace(GRID, expires=datetime.date(2026, 1, 1))
    assert names(old, today=datetime.date(2026, 1, 1)) == [("CP7", "grid")]
    assert names(old, today=datetime.date(2026, 1, 2)) == [("CP7", "")]
    assert names(GRID, line="0.33") == [("CP7", "")]
    assert names(GRID, line="") == [("CP7", "")]


def test_a_quirk_that_there_is_not_is_refused() -> None:
    with pytest.raises(BaselineError) as problem:
        Known(Baseline((fault("odd", "split.nothing", rules=["CP7"]),)))
    assert str(problem.value) == "odd: there is no quirk 'split.nothing'"


def test_every_quirk_is_used_by_a_fault_and_stands_in_a_room() -> None:
    faults = load().faults
    used = {name for one in faults for name in one.quirks}
    assert used == QUIRKS.keys()
    assert {function.__module__ for function in QUIRKS.values()} == {room.__name__ for room in ROOMS}
    assert all(function.__doc__ for function in QUIRKS.values())


def test_a_known_fault_is_found_by_its_id() -> None:
    known = Known(Baseline((GRID,)), "0.32")
    assert known.fault("grid") is GRID
    assert known.fault("") is None


# B resumes inside the block of A, and reads a copy of it that is wrong.
COPIED = Trace(
    setting(full(4), mamba(4), unit=2),
    (
        ask("A", ("a", 7)),
        ask("B", ("a", 7), ("b", 1), outputs=1),
        ask("C", ("a", 7), ("b", 1), ("c", 1)),
        Settle(),
    ),
)
CHAINED = fault("chained", "copies.chained", rules=["SF1"])


@pytest.mark.parametrize(("ended", "due"), [("C", "chained"), ("B", "")])
def test_a_wrong_output_follows_from_a_wrong_read_of_the_same_request_alone(ended: str, due: str) -> None:
    seen = observed(COPIED)
    index = at(COPIED, seen, "C", 6)
    step = seen[index]
    finished = (Finished(ended, "length", (-1,), 6),)
    step = replace(step, failed_reads=(FailedRead("C", 0, 4, "kv"),), finished=finished)
    outcome = Outcome((*seen[:index], step))
    explainer = Explanations((CHAINED,))
    found = {one.finding.kind: one.fault for one in divergences(COPIED, outcome, explainer=explainer)}
    assert (found["kv-of-hit"], found["output"]) == ("chained", due)


def test_what_follows_from_an_unknown_read_is_unknown() -> None:
    findings = [Finding("SF1", "kv-of-hit", "", "A"), Finding("SF4", "output", "", "A")]
    step = followed(EXTENDED, observed(EXTENDED), 1)[1]
    assert Explanations(()).explain(step, findings) == ["", ""]
    assert Explanations(()).explain(step, []) == []
