"""What a system tells about itself, made wrong in one place of a clean run: units, counters, KV events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from reference.oracle import Oracle
from spec.observation import Counters, Entry, Event, Observation, Outcome
from spec.trace import Configuration, Group, ResetLocal, Run, Settle, Submit, Trace
from tailproof.judge.lockstep import compare, judge
from tailproof.judge.step import Step
from tailproof.targets.opening import Target, open_target

Change = Callable[[Observation], Observation]
Place = Callable[[Observation], object]
# A is read from the start twice, since a reset preempts it; B reuses what A left.
TRACE = Trace(
    Configuration((Group("full", 4), Group("mamba", 4), Group("window", 2, window=6)), 2, events=True),
    (
        Submit("A", (("a", 19),), outputs=3),
        Run(4),
        ResetLocal(running=True),
        Settle(),
        Submit("B", (("a", 19),)),
        Settle(),
    ),
)


def clean() -> list[Observation]:
    """What the reference does."""
    return list(open_target(Target.parse("reference"), print).run(TRACE).observations)


def first(held: Place) -> int:
    """The first engine step for which `held` is true."""
    return next(index for index, seen in enumerate(clean()) if seen.do in ("run", "settle") and held(seen))


def found(seen: list[Observation]) -> list[tuple[str, str]]:
    """Rule and kind of all findings of the first step that has any."""
    oracle = Oracle(TRACE)
    for observation in seen:
        forecast = oracle.forecast(observation)
        findings = [(one.rule, one.kind) for one in judge(Step(observation, forecast, oracle))]
        if findings:
            return findings
        oracle.adopt(observation, forecast)
    return []


def changed(index: int, change: Change) -> list[tuple[str, str]]:
    """What a change of one observation brings."""
    seen = clean()
    assert found(seen) == []
    seen[index] = change(seen[index])
    divergence = compare(TRACE, Outcome(tuple(seen)))
    assert divergence is None or divergence.index >= index
    return found(seen)


def publishing(group: int, inside: bool = False) -> Place:
    """Whether a step stores an entry of a group (at a block end, or inside a block)."""
    block = TRACE.configuration.groups[group].block

    def held(seen: Observation) -> bool:
        return any(
            entry.group == group and (entry.position % block > 0) == inside
            for event in seen.events or ()
            for entry in event.entries
        )

    return held


def with_events(change: Callable[[list[Event]], list[Event]]) -> Change:
    """Changes the events of a step."""
    return lambda seen: replace(seen, events=tuple(change(list(seen.events or ()))))


def altered(group: int, **values: object) -> Change:
    """Changes the first event of a group."""

    def change(events: list[Event]) -> list[Event]:
        at = next(index for index, event in enumerate(events) if event.entries[0].group == group)
        events[at] = replace(events[at], **values)  # type: ignore[arg-type]
        return events

    return with_events(change)


# Counters.


@pytest.mark.rule("AC2")
@pytest.mark.parametrize("name", [field.name for field in fields(Counters)])
@pytest.mark.parametrize("place", ["first admission", "second admission", "none"])
@pytest.mark.parametrize("by", [1, -1])
def test_each_counter_that_moves_by_another_number_is_found(name: str, place: str, by: int) -> None:
    index = {
        "first admission": first(lambda seen: seen.admitted),
        "second admission": first(lambda seen: seen.do == "settle" and seen.admitted),
        "none": first(lambda seen: not seen.admitted),
    }[place]

    def change(seen: Observation) -> Observation:
        assert seen.counters is not None
        return replace(seen, counters=replace(seen.counters, **{name: getattr(seen.counters, name) + by}))

    assert changed(index, change) == [("AC2", f"counted-{name}")]


@pytest.mark.rule("AC2")
def test_the_counters_of_new_and_resumed_requests_are_apart() -> None:
    counted = [seen.counters for seen in clean() if seen.admitted]
    assert counted == [
        Counters(requests=1, queries=19),
        Counters(preempted_requests=1, preempted_queries=21),
        Counters(requests=1, queries=19, hits=18),
    ]


@pytest.mark.rule("AC2")
def test_counters_that_are_not_kept_are_not_compared() -> None:
    seen = [replace(one, counters=None) for one in clean()]
    assert found(seen) == []


# Events.


@pytest.mark.rule("AC3")
@pytest.mark.parametrize(
    ("name", "place", "change", "kind"),
    [
        ("tokens too many", publishing(0), altered(0, tokens=9), "event-tokens"),
        ("tokens too few", publishing(0), altered(0, tokens=3), "event-tokens"),
        ("another parent", publishing(0), altered(0, start=1), "event-tokens"),
        ("other tokens", publishing(0), altered(0, matches=False), "event-tokens"),
        ("other tokens of a state", publishing(1), altered(1, matches=False), "event-tokens"),
        ("other tokens of a window", publishing(2), altered(2, matches=False), "event-tokens"),
        ("blocks of states left out", publishing(1), altered(1, tokens=2), "event-skips-blocks"),
        ("blocks of a window left out", publishing(2), altered(2, start=0), "event-skips-blocks"),
        (
            "tokens of no entry",
            publishing(0),
            with_events(lambda events: [*events, Event("stored", (), 4, 4)]),
            "event-without-entries",
        ),
        (
            "not told of attention",
            publishing(0),
            with_events(lambda events: [one for one in events if one.entries[0].group != 0]),
            "event-missing",
        ),
        (
            "not told of a state",
            publishing(1),
            with_events(lambda events: [one for one in events if one.entries[0].group != 1]),
            "event-missing",
        ),
        ("told of nothing", publishing(0), with_events(lambda events: []), "event-missing"),
        (
            "removed though visible",
            publishing(0),
            with_events(lambda events: [*events, Event("removed", events[-1].entries)]),
            "event-missing",
        ),
        (
            "cleared though visible",
            publishing(0),
            with_events(lambda events: [*events, Event("cleared")]),
            "event-missing",
        ),
        (
            "told of what is not there",
            publishing(0),
            with_events(lambda events: [*events, Event("stored", (Entry(2, 6, "A"),), 4, 2)]),
            "event-in-vain",
        ),
        (
            "told of another group",
            publishing(0),
            with_events(lambda events: [*events, Event("stored", (Entry(1, 4, "A"),), 0, 4)]),
            "event-in-vain",
        ),
        (
            "not told of a reset",
            lambda seen: seen.events and seen.events[0].kind == "cleared",
            with_events(lambda events: events[1:]),
            "event-in-vain",
        ),
    ],
)
def test_each_wrong_event_is_found(name: str, place: Place, change: Change, kind: str) -> None:
    assert changed(first(place), change) == [("AC3", kind)]


@pytest.mark.rule("AC3")
def test_an_entry_inside_a_block_is_told_with_the_tokens_since_the_block_began() -> None:
    index = first(publishing(0, inside=True))
    assert changed(index, lambda seen: seen) == []
    whole = [event for event in clean()[index].events or () if event.entries[0].group == 0]
    assert [(one.start, one.tokens, one.entries[0].position) for one in whole] == [(16, 2, 18)]


@pytest.mark.rule("AC3")
def test_one_event_may_tell_of_several_blocks() -> None:
    """The reference tells one entry at a time; vLLM joins those of one chunk and group."""
    index = first(publishing(0))
    seen = clean()
    blocks = [event.entries[0] for event in seen[index].events or () if event.entries[0].group == 0]
    blocks.sort(key=lambda entry: entry.position)
    assert len(blocks) > 1

    def joined(events: list[Event]) -> list[Event]:
        others = [event for event in events if event.entries[0].group != 0]
        return [*others, Event("stored", tuple(blocks), 0, blocks[-1].position)]

    assert changed(index, with_events(joined)) == []
    assert changed(index, with_events(lambda events: [*joined(events)[:-1], *joined(events)])) == []


@pytest.mark.rule("AC3")
def test_one_prefix_in_two_blocks_is_judged_by_what_all_readers_believe() -> None:
    """Stored twice and removed once, an entry may be visible or not."""
    index = first(publishing(0))

    def twice(events: list[Event]) -> list[Event]:
        return [*events, events[0], Event("removed", events[0].entries)]

    assert changed(index, with_events(twice)) == []
    twice_gone = [*twice(list(clean()[index].events or ())), Event("removed", ())]
    assert changed(index, with_events(lambda events: twice_gone)) == []
    thrice = with_events(lambda events: [*twice(events), Event("removed", events[0].entries)])
    assert changed(index, thrice) == [("AC3", "event-missing")]


@pytest.mark.rule("AC3")
def test_an_entry_thrown_out_without_an_event_is_told_in_vain() -> None:
    """In a pool too small for everything, so that its loss alone is no finding."""
    small = replace(TRACE, configuration=replace(TRACE.configuration, blocks=20))
    seen = list(open_target(Target.parse("reference"), print).run(small).observations)
    last = len(seen) - 1
    gone = Entry(1, 18, "A")
    for events, kinds in (((), ["event-in-vain"]), ((Event("removed", (gone,)),), [])):
        step = replace(seen[last], withdrawn=(gone,), events=(*(seen[last].events or ()), *events))
        divergence = compare(small, Outcome((*seen[:last], step)))
        assert ([divergence.finding.kind] if divergence else []) == kinds


# Units.


@pytest.mark.rule("EL2")
@pytest.mark.parametrize("units", [(4, 4), (2, 4), (4, 2), (1, 2)])
def test_workers_with_other_units_are_found_before_anything_runs(units: tuple[int, int]) -> None:
    divergence = compare(TRACE, Outcome(tuple(clean()), units=units))
    assert divergence is not None
    assert (divergence.rule, divergence.finding.kind, divergence.index) == ("EL2", "worker-units", 0)
    assert compare(TRACE, Outcome(tuple(clean()), units=(2, 2))) is None
