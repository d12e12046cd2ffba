"""A pool too small for everything: what is thrown out is a choice, but not whose, nor with no need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reference.cache import Key, Lookup
from reference.engine import SlowEngine
from reference.history import History
from reference.oracle import Oracle
from spec.observation import Admitted, Entry, Failure, Observation, Scheduled
from spec.trace import Configuration, Group, Settle, Submit, Trace
from tailproof.generate.core import case
from tailproof.generate.drawing import Axes
from tailproof.judge.lockstep import compare, divergences, judge
from tailproof.judge.step import Step
from tailproof.targets import opening as targets
from tailproof.targets.opening import Target, open_target

Kinds = list[tuple[str, str]]
# A ends and leaves entries; B computes [0, 16), [16, 18), [18, 20) and decodes.
STEPS = (Submit("A", (("a", 20),)), Settle(), Submit("B", (("b", 20),), outputs=3), Settle())


def traced(blocks: int, *more: Group) -> Trace:
    return Trace(Configuration((Group("full", 4), Group("mamba", 4), *more), 2, blocks=blocks), STEPS)


ROOMY, SMALL = traced(512), traced(14)


def clean(trace: Trace) -> list[Observation]:
    """What the reference does; it has all the memory it wants and only reports the size of the pool."""
    return list(open_target(Target.parse("reference"), print).run(trace).observations)


def found(trace: Trace, seen: list[Observation]) -> Kinds:
    """Rule and kind of all findings of the first step that has any."""
    oracle = Oracle(trace)
    for observation in seen:
        forecast = oracle.forecast(observation)
        findings = [(one.rule, one.kind) for one in judge(Step(observation, forecast, oracle))]
        if findings:
            return findings
        oracle.adopt(observation, forecast)
    return []


def changed(trace: Trace, start: int, **values: object) -> Kinds:
    """What a change of the step in which B computes from `start` brings, the steps after it left out."""
    seen = clean(trace)
    assert found(trace, seen) == []
    at = next(i for i, one in enumerate(seen) if any(c == ("B", start) for c in map(chunk, one.scheduled)))
    seen[at] = replace(seen[at], **values)  # type: ignore[arg-type]
    return found(trace, seen[: at + 1])


def chunk(item: Scheduled) -> tuple[str, int]:
    return item.request, item.start


OF_A = (Entry(0, 4, "A"), Entry(1, 16, "A"))


@pytest.mark.rule("RT1")
@pytest.mark.parametrize("gone", [*((entry,) for entry in OF_A), OF_A])
@pytest.mark.parametrize("start", [0, 18])
def test_what_nobody_holds_may_be_thrown_out_only_where_space_is_needed(
    gone: tuple[Entry, ...], start: int
) -> None:
    lost = [("RT1", "lost")] * len(gone)
    assert changed(SMALL, start, withdrawn=gone, evicted=1, wasted=0) == []
    assert changed(SMALL, start, withdrawn=gone) == []
    # No block was taken with entries in it, so nothing was thrown out for space.
    assert changed(SMALL, start, withdrawn=gone, evicted=0) == lost
    # The pool holds everything, so nothing needs to be thrown out.
    assert changed(ROOMY, start, withdrawn=gone, evicted=1) == lost
    assert changed(ROOMY, start, withdrawn=gone) == lost


@pytest.mark.rule("RT1")
@pytest.mark.parametrize(
    ("entry", "start", "held"),
    [
        (Entry(0, 4, "B"), 16, True),
        (Entry(0, 16, "B"), 16, True),
        (Entry(0, 4, "B"), 20, True),
        # Blocks of a state that the request has moved on from, and of others, are not held.
        (Entry(1, 16, "B"), 18, False),
        (Entry(0, 4, "A"), 16, False),
    ],
)
def test_what_a_running_request_holds_may_never_be_thrown_out(entry: Entry, start: int, held: bool) -> None:
    due = [("RT1", "evicted-in-use")] if held else []
    assert changed(SMALL, start, withdrawn=(entry,), evicted=1, wasted=0) == due
    assert (("RT1", "evicted-in-use") in changed(ROOMY, start, withdrawn=(entry,))) is held


@pytest.mark.rule("RT1")
def test_what_a_preempted_or_ended_request_held_may_be_thrown_out() -> None:
    entry = Entry(0, 4, "B")
    seen = clean(SMALL)
    at = next(i for i, one in enumerate(seen) if any(c == ("B", 16) for c in map(chunk, one.scheduled)))
    preempted = Observation(
        at=3,
        do="settle",
        preempted=("B",),
        withdrawn=(entry,),
        waiting=("B",),
        free=13,
        evicted=1,
        wasted=0,
    )
    assert found(SMALL, [*seen[:at], preempted]) == []
    assert found(SMALL, [*seen[:at], replace(preempted, preempted=(), running=("B",), waiting=())]) == [
        ("RT1", "evicted-in-use")
    ]


@pytest.mark.rule("RT1")
def test_entries_thrown_out_while_other_blocks_hold_none_are_thrown_out_needlessly() -> None:
    needless = [("RT1", "evicted-needlessly")]
    for wasted, due in ((0, []), (1, needless), (3, needless), (None, [])):
        assert changed(SMALL, 0, withdrawn=OF_A[:1], evicted=3, wasted=wasted) == due
    assert changed(ROOMY, 0, evicted=1, wasted=1) == needless


@pytest.mark.rule("CH2")
def test_only_without_room_may_a_step_wait_or_preempt() -> None:
    idle = Observation(at=3, do="settle", running=("B",), free=8)
    back = Observation(at=3, do="settle", preempted=("B",), waiting=("B",), free=13)
    for trace, due in ((SMALL, []), (ROOMY, [("CH2", "stalled")])):
        seen = clean(trace)
        at = next(i for i, one in enumerate(seen) if any(c == ("B", 16) for c in map(chunk, one.scheduled)))
        assert found(trace, [*seen[:at], idle]) == due
        free = trace.configuration.blocks - 1
        kinds = [kind for _, kind in found(trace, [*seen[:at], replace(back, free=free)])]
        assert kinds == (["preempted", "stalled"] if due else [])


@pytest.mark.rule("LV1")
@pytest.mark.parametrize("more", [(), (Group("window", 2, window=5),)])
def test_being_stuck_is_a_finding_once_the_largest_request_fits(more: tuple[Group, ...]) -> None:
    """Attention of 5 + 2 blocks, 5 for the states and a window of 10 + 2, beside the null block."""
    stuck = Observation(at=1, do="settle", running=("A",), failure=Failure("stuck", "planted"))
    enough = next(
        blocks
        for blocks in range(2, 99)
        if found(traced(blocks, *more), [*clean(traced(blocks, *more))[:2], stuck])
    )
    length = 20 + 1 + 1
    need = -(-length // 4) + 2 + 5 + (-(-length // 2) + 2 if more else 0)
    assert enough == need + 1


# A hit after an eviction is the greatest that is left.


class Evicts(SlowEngine):
    """When a request arrives, throws out what earlier ones left in the cache, oldest first, and tells so."""

    most = 3

    def _engine_step(self, at: int, do: str, accept: int) -> Observation:
        arriving = bool(self.waiting) and not self.running
        keys = [key for key in self.owners if key in self.cache.visible][: self.most] if arriving else []
        self.cache.visible.difference_update(keys)
        entries = tuple(self.owners[key] for key in keys)
        observation = super()._engine_step(at, do, accept)
        back = {self.key(one) for one in observation.published}
        lost = {self.key(entry) for entry in entries}

        def gone(item: Admitted) -> tuple[Entry, ...]:
            appeared = {self.key(one) for one in item.appeared}
            return tuple(entry for entry in entries if self.key(entry) not in appeared)

        return replace(
            observation,
            admitted=tuple(replace(item, gone=gone(item)) for item in observation.admitted),
            withdrawn=tuple(entry for entry in entries if self.key(entry) not in back),
            published=tuple(one for one in observation.published if self.key(one) not in lost),
            evicted=len(keys),
            wasted=0,
        )

    def key(self, entry: Entry) -> Key:
        return self.cache.key(entry.group, self.histories[entry.request], entry.position)


class EvictsAndHits(Evicts):
    """As if what was thrown out were still there: the hit is that of before."""

    def lookup(self, history: History) -> Lookup:
        visible = self.cache.visible | set(self.owners)
        return self.cache.lookup(history, visible)


class EvictsAndGivesUp(Evicts):
    """After an eviction nothing is reused any more."""

    def lookup(self, history: History) -> Lookup:
        found = self.cache.lookup(history)
        return replace(found, hit=0, junction=0) if len(self.owners) > len(self.cache.visible) else found


Engine = type[SlowEngine]


def kinds_of(engine: Engine, monkeypatch: pytest.MonkeyPatch, cases: int) -> set[str]:
    """The kinds of the first finding of each case of small pools, on an engine."""
    monkeypatch.setitem(targets.FAULTS, "under-pressure", engine)
    opened = open_target(Target.parse("reference+under-pressure"), print)
    kinds: set[str] = set()
    for index in range(cases):
        trace = case(21, index, Axes(pressure=1.0))
        divergence = compare(trace, opened.run(trace))
        if divergence is not None:
            kinds.add(divergence.finding.kind)
    return kinds


@pytest.mark.rule("LK1")
def test_the_hit_after_an_eviction_is_the_greatest_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kinds_of(EvictsAndHits, monkeypatch, 60) >= {"hit-without-state", "hit-beyond-attention"}
    assert "hit-too-short" in kinds_of(EvictsAndGivesUp, monkeypatch, 60)


@pytest.mark.rule("RT1")
def test_evictions_under_pressure_are_followed_without_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only cases whose pool turns out to hold everything may be judged as if nothing had to go."""
    monkeypatch.setitem(targets.FAULTS, "under-pressure", Evicts)
    opened = open_target(Target.parse("reference+under-pressure"), print)
    evictions = 0
    for index in range(80):
        trace = case(21, index, Axes(pressure=1.0))
        trace = replace(trace, configuration=replace(trace.configuration, blocks=2, events=False))
        outcome = opened.run(trace)
        evictions += sum(bool(one.evicted) for one in outcome.observations)
        assert [one.finding for one in divergences(trace, outcome)] == []
    assert evictions > 100
