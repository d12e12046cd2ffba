"""Shrinking traces with a store: valid at every step, always an end, and down to what matters."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from spec.geometry import Geometry
from spec.notation import parse
from spec.trace import (
    STORE_STEPS,
    Abort,
    Configuration,
    DropKeys,
    Gate,
    KillMaster,
    ResetStore,
    RestartMaster,
    Run,
    Settle,
    Step,
    Submit,
    Trace,
    validate,
)
from tailproof.generate.store import store_case
from tailproof.shrink.requests import reshaped
from tailproof.shrink.search import measure, shrink
from tailproof.shrink.store import of_engine, on_one_engine, plainer_store, repaired

LONG = 60.0


# Every step there is, on two engines with every mode of the store.
BUSY = parse("""
    groups full 8, mamba 8 export 4
    unit 4, eagle, speculative 1, store producer, second consumer
    lookup_async, decode_saves, receivers 2, load_failures fail
    submit a prompt p:30 outputs 3
    gate put hold; run 3 accept 1; reset_local running; gate put release; settle accept 1
    gate get part engine 1; gate lookup hold engine 1
    submit b prompt p:30 q:9 outputs 2 engine 1
    run 2 engine 1; gate lookup newest engine 1; gate get release engine 1; drop_keys 9
    submit c prompt @b:40 r:3 engine 1
    abort b; kill_master; run accept 1 engine 1; restart_master; reset_store engine 1
    settle engine 1; settle
""")
RUNS = parse("submit a prompt p:9; run 2; run 3 engine 1; run engine 1", BUSY)
PLAIN = parse("groups full 8, mamba 8 export 4; unit 4; submit a prompt p:9; settle")


def has(kind: type[Step]) -> Callable[[Trace], bool]:
    """Whether a trace has a step of that kind."""
    return lambda trace: any(isinstance(step, kind) for step in trace.steps)


def test_what_always_fails_needs_no_store() -> None:
    small = shrink(BUSY, lambda trace: True, LONG)
    assert small.configuration == parse("groups full 1, mamba 1; unit 1; run").configuration
    assert len(small.steps) == 1


@pytest.mark.parametrize(
    ("name", "holds", "due"),
    [
        ("a store", lambda now: now.store != "off", {"store": "both"}),
        ("the role", lambda now: now.store == "producer", {"store": "producer"}),
        ("a second engine", lambda now: now.second != "off", {"store": "both", "second": "both"}),
        (
            "another role there",
            lambda now: now.second == "consumer",
            {"store": "both", "second": "consumer"},
        ),
        ("lookup_async", lambda now: now.lookup_async, {"lookup_async": True}),
        ("decode_saves", lambda now: now.decode_saves, {"decode_saves": True}),
        ("receivers", lambda now: now.receivers > 1, {"receivers": 2}),
        ("load_failures", lambda now: now.load_failures == "fail", {"load_failures": "fail"}),
    ],
)
def test_only_the_mode_that_matters_stays(
    name: str, holds: Callable[[Configuration], bool], due: dict[str, object]
) -> None:
    def fails(trace: Trace) -> bool:
        return trace.configuration.store != "off" and holds(trace.configuration)

    now = shrink(BUSY, fails, LONG).configuration
    modes = ("store", "second", "lookup_async", "decode_saves", "receivers", "load_failures")
    plain = Configuration((), 1, store="both")
    assert {mode: getattr(now, mode) for mode in modes} == {
        mode: getattr(plain, mode) for mode in modes
    } | due
    assert not now.eagle


@pytest.mark.parametrize(
    "kind", [Gate, DropKeys, ResetStore, KillMaster, RestartMaster], ids=lambda kind: kind.__name__
)
def test_only_the_step_that_matters_stays(kind: type[Step]) -> None:
    small = shrink(BUSY, has(kind), LONG)
    (only,) = [step for step in small.steps if isinstance(step, STORE_STEPS)]
    assert isinstance(only, kind)
    assert len(small.steps) == 1
    if isinstance(only, DropKeys):
        assert only.count == 1
    if isinstance(only, Gate):
        assert only.action in ("hold", "fail", "release")
        assert only.engine == 0
    assert small.configuration.second == "off"


def test_a_held_gate_goes_together_with_what_opens_it() -> None:
    """Neither may go alone under this predicate."""

    def fails(trace: Trace) -> bool:
        balance = sum(
            {"hold": 1, "release": -1}.get(step.action, 0)
            for step in trace.steps
            if isinstance(step, Gate) and step.kind == "put"
        )
        return balance == 0 and has(Submit)(trace)

    assert not has(Gate)(shrink(BUSY, fails, LONG))


def test_the_death_of_the_master_goes_together_with_its_return() -> None:
    def fails(trace: Trace) -> bool:
        return has(KillMaster)(trace) == has(RestartMaster)(trace) and has(DropKeys)(trace)

    small = shrink(BUSY, fails, LONG)
    assert not has(KillMaster)(small)


def test_one_engine_alone() -> None:
    first, second = of_engine(BUSY, 0), of_engine(BUSY, 1)
    assert [submit.id for submit in first.submits()] == ["a"]
    assert [submit.id for submit in second.submits()] == ["b", "c"]
    assert (first.configuration.roles, second.configuration.roles) == (("producer",), ("consumer",))
    for trace in (first, second, on_one_engine(BUSY)):
        validate(trace)
        assert all(getattr(step, "engine", 0) == 0 for step in trace.steps)
    assert Abort("b") not in first.steps
    assert Abort("b") in second.steps


def test_runs_of_different_engines_are_not_joined() -> None:
    joined = [candidate for candidate in reshaped(RUNS) if len(candidate.steps) == 3]
    assert parse("submit a prompt p:9; run 2; run 4 engine 1", BUSY) in joined
    assert not any(Run(5) in candidate.steps for candidate in joined)


def test_settles_stay_at_their_engine() -> None:
    trace = parse("submit a prompt p:9 engine 1; run 2 engine 1", BUSY)
    assert next(reshaped(trace)) == parse("submit a prompt p:9 engine 1; settle; settle engine 1", BUSY)
    assert parse("submit a prompt p:9 engine 1; settle engine 1", BUSY) in list(reshaped(trace))


@pytest.mark.parametrize("store", ["", ", store both", ", store both, lookup_async"])
def test_repairs_leave_out_what_cannot_be(store: str) -> None:
    plain = parse(f"groups full 8, mamba 8 export 4; unit 4{store}; run").configuration
    steps = tuple(replace(one, accept=0) if isinstance(one, Run | Settle) else one for one in BUSY.steps)
    trace = repaired(Trace(plain, steps))
    validate(trace)
    assert has(Gate)(trace) == bool(store)


def test_a_trace_without_a_store_has_no_such_candidates() -> None:
    assert list(plainer_store(PLAIN)) == []
    assert repaired(PLAIN) == PLAIN


@pytest.mark.parametrize("seed", range(12))
def test_every_candidate_is_valid_and_every_success_plainer(seed: int) -> None:
    """Under predicates without rhyme or reason too, so that the search has an end whatever happens."""
    trace = BUSY if seed == 0 else store_case(seed, seed)
    taken = [measure(trace)]

    def fails(candidate: Trace) -> bool:
        validate(candidate)
        Geometry.of(candidate.configuration)
        verdict = zlib.crc32(repr((seed, candidate)).encode()) % 3 == 0
        if verdict:
            taken.append(measure(candidate))
        return verdict

    small = shrink(trace, fails, LONG)
    assert all(later < earlier for earlier, later in pairwise(taken[:-1]))
    assert measure(small) == taken[-1] <= taken[-2:][0]
    assert all(number >= 0 for sizes in taken for number in sizes)
