"""The table of the store: each row and column by an example, what is exercised, and how it is shown."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from reference.oracle import oracles
from spec.observation import Observation
from spec.rules import RULES
from spec.trace import (
    Abort,
    Configuration,
    DropKeys,
    Gate,
    Group,
    KillMaster,
    ResetLocal,
    ResetStore,
    RestartMaster,
    Run,
    Settle,
    Step,
    Submit,
    Trace,
)
from tailproof.judge.lockstep import exercised
from tailproof.judge.step import Step as Judged
from tailproof.reach.store import (
    STORE_AXES,
    STORE_PHASES,
    STORE_TAGS,
    StoreReach,
    fault_name,
    store_axes,
    store_lines,
)
from tailproof.targets.opening import Target, open_target

PLAIN = Configuration((Group("full", 8), Group("mamba", 8)), unit=4, budget=100, store="both")
EAGLE = replace(PLAIN, eagle=True, speculative=1, junctions=True)
EXPORTS = replace(PLAIN, groups=(Group("full", 8), Group("mamba", 8, checkpoint_alignment=4)))
ASYNC = replace(PLAIN, lookup_async=True)
TWO = replace(PLAIN, second="consumer")
HELD_PUTS, HELD_GETS = Gate("put", "hold"), Gate("get", "hold")


def arrives(name: str, length: int = 22, outputs: int = 1, engine: int = 0) -> Submit:
    """A request whose prompt is like that of any other."""
    return Submit(name, (("p", length),), outputs, engine=engine)


STORED: tuple[Step, ...] = (arrives("A"), Settle(), ResetLocal())
RESENT: tuple[Step, ...] = (*STORED, arrives("B"), Settle())
LOADING: tuple[Step, ...] = (*STORED, HELD_GETS, arrives("B"), Run(2))

ROWS: dict[str, Configuration] = {
    "store both": PLAIN,
    "store producer": replace(PLAIN, store="producer"),
    "store consumer": replace(PLAIN, store="consumer"),
    "store producer + consumer": replace(TWO, store="producer"),
    "store both + both": replace(PLAIN, second="both"),
    "store consumer + both": replace(PLAIN, store="consumer", second="both"),
    "lookups beside the schedule": ASYNC,
    "lookups in the schedule": PLAIN,
    "decode saves": replace(PLAIN, decode_saves=True),
    "loads on several threads": replace(PLAIN, receivers=2),
    "failed loads end their request": replace(PLAIN, load_failures="fail"),
    "failed loads are computed anew": PLAIN,
}

COLUMNS: dict[str, Trace] = {
    "load inside a block": Trace(PLAIN, RESENT),
    "load at a block end": Trace(
        PLAIN, (arrives("A", 17), Settle(), ResetLocal(), arrives("B", 17), Settle())
    ),
    "load on top of a local hit": Trace(
        PLAIN, (*STORED, arrives("B", 9), Settle(), arrives("C"), Settle())
    ),
    "load reported": Trace(PLAIN, RESENT),
    "load failed": Trace(PLAIN, (*STORED, Gate("get", "fail"), arrives("B"), Run(2))),
    "load of a request that has ended": Trace(PLAIN, (*LOADING, Abort("B"), Settle())),
    "loaded request scheduled": Trace(PLAIN, RESENT),
    "aborted while loading": Trace(PLAIN, (*LOADING, Abort("B"))),
    "lookup answered": Trace(PLAIN, RESENT),
    "lookup failed": Trace(PLAIN, (Gate("lookup", "fail"), arrives("A"), Run())),
    "put made": Trace(PLAIN, STORED),
    "put of a state": Trace(PLAIN, STORED),
    "put of a part of a block": Trace(PLAIN, STORED),
    "put while decoding": Trace(replace(PLAIN, decode_saves=True), (arrives("A", 14, 8), Settle())),
    "put failed": Trace(PLAIN, (Gate("put", "fail"), *STORED)),
    "put of some keys only": Trace(EXPORTS, (Gate("put", "part"), *STORED)),
    "get made": Trace(PLAIN, RESENT),
    "get failed": Trace(PLAIN, (*STORED, Gate("get", "raise"), arrives("B"), Run(2))),
    "job reported": Trace(PLAIN, STORED),
    "blocks pinned while others compute": Trace(
        PLAIN,
        (HELD_PUTS, arrives("A"), Run(2), Submit("B", (("q", 9),)), Run(2), Submit("C", (("r", 9),)), Run(2)),
    ),
    "ended with its save under way": Trace(PLAIN, (HELD_PUTS, arrives("A"), Run(4))),
    "aborted with its save under way": Trace(
        PLAIN, (HELD_PUTS, arrives("A", outputs=20), Run(4), Abort("A"))
    ),
    "preempted with its save under way": Trace(
        PLAIN, (HELD_PUTS, arrives("A", outputs=20), Run(4), ResetLocal(running=True))
    ),
    "reset refused for a load or a save": Trace(PLAIN, (HELD_PUTS, arrives("A"), Run(4), ResetLocal())),
    "puts held": Trace(PLAIN, (HELD_PUTS, arrives("A"), Run(2))),
    "gets held": Trace(PLAIN, LOADING),
    "several gets held": Trace(
        replace(PLAIN, receivers=2), (*STORED, HELD_GETS, arrives("B"), arrives("C"), Run(2))
    ),
    "lookups held": Trace(ASYNC, (*STORED, Gate("lookup", "hold"), arrives("B"), Run(2))),
    "keys lost": Trace(PLAIN, (*STORED, DropKeys(1))),
    "store emptied": Trace(PLAIN, (*STORED, ResetStore())),
    "step without the master": Trace(PLAIN, (KillMaster(), arrives("A"), Run(), RestartMaster())),
    "prompt resumed and saved": Trace(
        PLAIN, (arrives("A", outputs=9), Run(5), ResetLocal(running=True), Settle())
    ),
    "prompt with a junction saved": Trace(
        EAGLE,
        (
            Submit("A", (("p", 30), ("a", 10))),
            Settle(),
            Submit("B", (("p", 30), ("b", 10))),
            Settle(),
        ),
    ),
}  # fmt: skip


def followed(trace: Trace) -> tuple[StoreReach, Counter[str]]:
    """What the reference reaches on a trace, and the rules that could have been seen broken."""
    reach, rules = StoreReach(), Counter[str]()
    reach.case(trace)
    engines = oracles(trace)
    for seen in open_target(Target.parse("reference"), print).run(trace).observations:
        oracle = engines[seen.engine]
        due = oracle.forecast(seen)
        reach.step(trace, seen, due)
        rules.update(exercised(Judged(seen, due, oracle)))
        oracle.adopt(seen, due)
    return reach, rules


@pytest.mark.parametrize("axis", STORE_AXES)
def test_each_row_has_a_configuration_that_counts_in_it(axis: str) -> None:
    assert axis in store_axes(ROWS[axis])
    assert any(axis not in store_axes(other) for other in ROWS.values())


def test_without_a_store_there_are_no_rows() -> None:
    assert store_axes(replace(PLAIN, store="off")) == ()


@pytest.mark.parametrize("phase", STORE_PHASES)
def test_each_column_has_a_trace_that_reaches_it(phase: str) -> None:
    reach, _ = followed(COLUMNS[phase])
    assert reach.totals[phase]
    for axis in STORE_AXES:
        counted = axis in store_axes(COLUMNS[phase].configuration)
        assert (reach.counts[axis][phase] > 0) == counted


@pytest.mark.parametrize("phase", STORE_PHASES)
def test_no_column_is_reached_by_every_trace(phase: str) -> None:
    plain = Trace(replace(PLAIN, store="consumer"), (arrives("A", 3), Settle()))
    reach, _ = followed(plain)
    assert not reach.totals[phase]


def test_a_case_keeps_nothing_of_the_case_before_it() -> None:
    reach = StoreReach()
    for trace in (Trace(PLAIN, LOADING), Trace(PLAIN, (arrives("B"), Abort("B")))):
        reach.case(trace)
        engines = oracles(trace)
        for seen in open_target(Target.parse("reference"), print).run(trace).observations:
            due = engines[seen.engine].forecast(seen)
            reach.step(trace, seen, due)
            engines[seen.engine].adopt(seen, due)
    assert reach.totals["aborted while loading"] == 0
    assert reach.totals["store both"] == 2


def test_an_observation_without_a_store_counts_nothing() -> None:
    trace = Trace(replace(PLAIN, store="off"), (arrives("A"), Settle()))
    reach = StoreReach()
    reach.case(trace)
    assert (
        reach.step(trace, Observation(1, "settle"), oracles(trace)[0].forecast(Observation(0, "submit")))
        == []
    )
    assert not any(reach.totals.values())


# What counts as exercised


RULE_TRACES: dict[str, Trace] = {
    "LK4": Trace(PLAIN, RESENT),
    "TS1": Trace(PLAIN, STORED),
    "TS2": Trace(PLAIN, STORED),
    "TS3": Trace(PLAIN, STORED),
    "TS4": Trace(PLAIN, STORED),
    "TS5": COLUMNS["prompt with a junction saved"],
    "TS6": COLUMNS["prompt resumed and saved"],
    "TS7": Trace(PLAIN, STORED),
    "LT1": COLUMNS["blocks pinned while others compute"],
    "LT2": Trace(PLAIN, STORED),
    "LT3": Trace(PLAIN, STORED),
    "LT4": Trace(PLAIN, STORED),
    "SF1": Trace(PLAIN, RESENT),
    "SF2": Trace(PLAIN, RESENT),
    "AC1": Trace(PLAIN, RESENT),
    "LV1": Trace(PLAIN, STORED),
    "LV2": COLUMNS["load failed"],
}
OF_THE_STORE = ("LK4", "TS1", "TS2", "TS3", "TS4", "TS5", "TS6", "TS7", "LT1", "LT2", "LV2")


@pytest.mark.parametrize("rule", RULE_TRACES)
def test_a_rule_is_exercised_where_it_could_be_seen_broken(rule: str) -> None:
    assert rule in RULES
    assert followed(RULE_TRACES[rule])[1][rule]


@pytest.mark.parametrize("rule", OF_THE_STORE)
def test_a_rule_of_the_store_is_not_exercised_without_one(rule: str) -> None:
    trace = RULE_TRACES[rule]
    steps = tuple(step for step in trace.steps if fault_name(step) is None)
    without = Trace(replace(trace.configuration, store="off"), steps)
    assert not followed(without)[1][rule]


def test_saves_are_not_exercised_where_they_cannot_be() -> None:
    """A consumer saves no prompt, one unit has no tail, and after a put that failed nothing is due."""
    for trace in (
        Trace(replace(PLAIN, store="consumer"), STORED),
        Trace(PLAIN, (arrives("A", 4), Settle())),
        Trace(PLAIN, (Gate("put", "fail"), *STORED)),
    ):
        rules = followed(trace)[1]
        assert not any(rules[rule] for rule in ("TS1", "TS5", "TS6", "TS7", "TS3")), trace


def test_a_request_under_way_is_no_rest() -> None:
    """While blocks are pinned or a load holds some, the free count says nothing."""
    assert not followed(Trace(PLAIN, LOADING[3:]))[1]["LT3"] > 2
    held = followed(Trace(PLAIN, (HELD_PUTS, arrives("A"), Run(3), Submit("B", (("q", 3),)))))
    open_gate = followed(Trace(PLAIN, (arrives("A"), Run(4), Submit("B", (("q", 3),)))))
    assert held[1]["LT3"] < open_gate[1]["LT3"]


# How it is shown


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (Gate("put", "hold"), "gate put hold"),
        (DropKeys(3), "drop_keys"),
        (ResetStore(), "reset_store"),
        (KillMaster(), "kill_master"),
        (RestartMaster(), "restart_master"),
        (ResetLocal(), None),
        (Run(), None),
    ],
)
def test_the_names_of_faults(step: Step, name: str | None) -> None:
    assert fault_name(step) == name


def test_the_lines_name_every_tag_and_the_cells_that_were_not_met() -> None:
    reach = followed(Trace(PLAIN, RESENT))[0]
    reach.case(Trace(ROWS["decode saves"], RESENT))
    lines = list(store_lines(reach))
    assert all(any(tag in line for line in lines) for tag in STORE_TAGS)
    assert any(line.startswith("  empty: decode saves × ") for line in lines)
    assert not any("store consumer ×" in line for line in lines)
    assert max(map(len, lines)) <= 110


def test_tags_are_told_apart() -> None:
    assert len(set(STORE_TAGS)) == len(STORE_TAGS)
