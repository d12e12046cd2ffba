"""Shrinking traces with a store: valid at every step, always an end, and down to what matters."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from itertools import pairwise

import pytest

from spec.geometry import Geometry
from spec.trace import (
    STORE_STEPS,
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
    validate,
)
from tailproof.generate.store import store_case
from tailproof.shrink.requests import reshaped
from tailproof.shrink.search import measure, shrink
from tailproof.shrink.store import of_engine, on_one_engine, plainer_store, repaired

LONG = 60.0


def busy() -> Trace:
    """A trace with every step there is, on two engines with every mode of the store."""
    configuration = Configuration(
        (Group("full", 8), Group("mamba", 8, checkpoint_alignment=4)),
        unit=4,
        eagle=True,
        speculative=1,
        store="producer",
        second="consumer",
        lookup_async=True,
        decode_saves=True,
        receivers=2,
        load_failures="fail",
    )
    steps: tuple[Step, ...] = (
        Submit("a", (("p", 30),), 3),
        Gate("put", "hold"),
        Run(3, 1),
        ResetLocal(running=True),
        Gate("put", "release"),
        Settle(1),
        Gate("get", "part", 1),
        Gate("lookup", "hold", 1),
        Submit("b", (("p", 30), ("q", 9)), 2, engine=1),
        Run(2, engine=1),
        Gate("lookup", "newest", 1),
        Gate("get", "release", 1),
        DropKeys(9),
        Submit("c", (("@b", 40), ("r", 3)), engine=1),
        Abort("b"),
        KillMaster(),
        Run(1, engine=1),
        RestartMaster(),
        ResetStore(1),
        Settle(engine=1),
        Settle(),
    )
    trace = Trace(configuration, steps)
    validate(trace)
    return trace


def has(kind: type[Step]) -> Callable[[Trace], bool]:
    """Whether a trace has a step of that kind."""
    return lambda trace: any(isinstance(step, kind) for step in trace.steps)


def test_what_always_fails_needs_no_store() -> None:
    small = shrink(busy(), lambda trace: True, LONG)
    assert small.configuration == Configuration((Group("full", 1), Group("mamba", 1)), 1)
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

    now = shrink(busy(), fails, LONG).configuration
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
    small = shrink(busy(), has(kind), LONG)
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

    assert not has(Gate)(shrink(busy(), fails, LONG))


def test_the_death_of_the_master_goes_together_with_its_return() -> None:
    def fails(trace: Trace) -> bool:
        return has(KillMaster)(trace) == has(RestartMaster)(trace) and has(DropKeys)(trace)

    small = shrink(busy(), fails, LONG)
    assert not has(KillMaster)(small)


def test_one_engine_alone() -> None:
    first, second = of_engine(busy(), 0), of_engine(busy(), 1)
    assert [submit.id for submit in first.submits()] == ["a"]
    assert [submit.id for submit in second.submits()] == ["b", "c"]
    assert (first.configuration.roles, second.configuration.roles) == (("producer",), ("consumer",))
    for trace in (first, second, on_one_engine(busy())):
        validate(trace)
        assert all(getattr(step, "engine", 0) == 0 for step in trace.steps)
    assert Abort("b") not in first.steps
    assert Abort("b") in second.steps


def test_runs_of_different_engines_are_not_joined() -> None:
    now = busy().configuration
    trace = Trace(now, (Submit("a", (("p", 9),)), Run(2), Run(3, engine=1), Run(1, engine=1)))
    joined = [candidate for candidate in reshaped(trace) if len(candidate.steps) == 3]
    assert Trace(now, (*trace.steps[:2], Run(4, engine=1))) in joined
    assert not any(Run(5) in candidate.steps for candidate in joined)


def test_settles_stay_at_their_engine() -> None:
    now = busy().configuration
    trace = Trace(now, (Submit("a", (("p", 9),), engine=1), Run(2, engine=1)))
    first = next(reshaped(trace))
    assert first.steps == (trace.steps[0], Settle(), Settle(engine=1))
    assert any(candidate.steps == (trace.steps[0], Settle(engine=1)) for candidate in reshaped(trace))


def test_repairs_leave_out_what_cannot_be() -> None:
    for changed in (
        Configuration(busy().configuration.groups, 4),
        Configuration(busy().configuration.groups, 4, store="both"),
        Configuration(busy().configuration.groups, 4, store="both", lookup_async=True),
    ):
        trace = repaired(Trace(changed, tuple(_without_drafts(step) for step in busy().steps)))
        validate(trace)
        assert has(Gate)(trace) == (changed.store != "off")


def _without_drafts(step: Step) -> Step:
    if isinstance(step, Run):
        return Run(step.steps, 0, step.engine)
    return Settle(0, step.engine) if isinstance(step, Settle) else step


def test_a_trace_without_a_store_has_no_such_candidates() -> None:
    plain = Trace(Configuration(busy().configuration.groups, 4), (Submit("a", (("p", 9),)), Settle()))
    assert list(plainer_store(plain)) == []
    assert repaired(plain) == plain


@pytest.mark.parametrize("seed", range(12))
def test_every_candidate_is_valid_and_every_success_plainer(seed: int) -> None:
    """Under predicates without rhyme or reason too, so that the search has an end whatever happens."""
    trace = busy() if seed == 0 else store_case(seed, seed)
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
