"""Store traces: valid, the same for the same seed, and reaching every axis and every kind of fault."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from adapters.codec import parse_trace, trace_document
from spec import trace as t
from spec.geometry import Geometry
from tailproof.generate.core import case
from tailproof.generate.episodes import FAILING
from tailproof.generate.store import StoreAxes, store_case
from tailproof.reach.store import STORE_AXES, fault_name, store_axes

CASES = 2000
ROOT = Path(__file__).resolve().parents[2]


@cache
def drawn() -> tuple[t.Trace, ...]:
    """The first cases of one seed."""
    return tuple(store_case(7, index) for index in range(CASES))


def left_failing(trace: t.Trace) -> set[tuple[int, str]]:
    """The gates that still fail after the last step."""
    gates: dict[tuple[int, str], str] = {}
    for step in trace.steps:
        if isinstance(step, t.Gate) and step.action != "newest":
            gates[step.engine, step.kind] = step.action
    return {gate for gate, action in gates.items() if action in FAILING}


def test_every_case_is_valid_and_has_a_store() -> None:
    for trace in drawn():
        t.validate(trace)
        Geometry.of(trace.configuration)
        assert trace.configuration.store != "off"


def test_a_case_survives_the_way_to_a_worker() -> None:
    for trace in drawn()[:200]:
        assert parse_trace(trace_document(trace)) == trace


def test_a_case_is_the_same_whoever_draws_it() -> None:
    assert [store_case(7, index) for index in range(50)] == list(drawn()[:50])
    assert store_case(8, 0) != store_case(7, 0) != store_case(7, 1)
    text = "from tailproof.generate.store import store_case; print(repr(store_case(7, 11)))"
    other = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "5", "PYTHONPATH": str(ROOT)},
    )
    assert other.stdout.strip() == repr(drawn()[11])


def test_the_core_generator_draws_no_store() -> None:
    assert all(case(7, index).configuration.store == "off" for index in range(200))


@pytest.mark.parametrize("axis", STORE_AXES)
def test_each_row_of_the_store_table_is_drawn(axis: str) -> None:
    having = sum(axis in store_axes(trace.configuration) for trace in drawn())
    assert 0.02 * CASES < having < 0.9 * CASES


FEATURES: dict[str, Callable[[t.Configuration], bool]] = {
    "eagle": lambda now: now.eagle,
    "no eagle": lambda now: not now.eagle,
    "fine": lambda now: Geometry.of(now).fine,
    "coarse": lambda now: not Geometry.of(now).fine,
    "dcp": lambda now: now.dcp > 1,
    "replicated": lambda now: any(group.replicated for group in now.groups),
    "draft group": lambda now: any(group.draft for group in now.groups),
    "several attention groups": lambda now: sum(group.kind == "full" for group in now.groups) > 1,
    "several layouts": lambda now: len({g.block for g in now.groups if g.kind == "full"}) > 1,
    "exports": lambda now: any(group.checkpoint_alignment for group in now.groups),
    "chunk ends": lambda now: not any(group.checkpoint_alignment for group in now.groups),
    "dense": lambda now: now.retention is None,
    "sparse": lambda now: bool(now.retention),
    "junctions": lambda now: now.junctions,
    "long prefill": lambda now: now.long_prefill > 0,
    "priority": lambda now: now.policy == "priority",
    "several drafts": lambda now: now.speculative > 1,
    "small budget": lambda now: now.budget < 100,
}


@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_of_the_layout_is_drawn(feature: str) -> None:
    assert sum(FEATURES[feature](trace.configuration) for trace in drawn()) > 0.02 * CASES


def test_nothing_is_drawn_that_is_not_followed_with_a_store() -> None:
    for trace in drawn():
        now = trace.configuration
        assert not any((now.asynchronous, now.events, now.multi_module))
        assert all(group.kind != "window" for group in now.groups)


def test_every_fault_is_drawn() -> None:
    found = Counter(
        name for trace in drawn() for name in {fault_name(step) for step in trace.steps} if name is not None
    )
    impossible = {"gate get full", "gate lookup full", "gate lookup part"}
    gates = {f"gate {kind} {action}" for kind in t.GATE_KINDS for action in t.GATE_ACTIONS} - impossible
    gates.remove("gate put newest")  # Puts never overtake each other, so only loads and lookups are drawn.
    assert set(found) == {*gates, "drop_keys", "reset_store", "kill_master", "restart_master"}
    assert all(count >= 10 for count in found.values()), found


def test_both_engines_meet_every_kind_of_step() -> None:
    kinds = (t.Submit, t.Run, t.Settle, t.ResetLocal, t.Gate)
    seen = {(type(step), step.engine) for trace in drawn() for step in trace.steps if isinstance(step, kinds)}
    assert seen == {(kind, engine) for kind in kinds for engine in (0, 1)}


def test_a_prompt_is_sent_to_the_engine_that_did_not_compute_it() -> None:
    across = 0
    for trace in drawn():
        prompts = {(submit.engine, submit.prompt[0][0]) for submit in trace.submits()}
        across += any((1 - engine, name) in prompts for engine, name in prompts)
    two = sum(trace.configuration.second != "off" for trace in drawn())
    assert across > 0.6 * two


def test_the_master_dies_rarely_once_and_comes_back_soon() -> None:
    killed = 0
    for trace in drawn():
        deaths = [at for at, step in enumerate(trace.steps) if isinstance(step, t.KillMaster)]
        killed += len(deaths)
        assert len(deaths) <= 1
        for at in deaths:
            back = next(i for i in range(at, len(trace.steps)) if isinstance(trace.steps[i], t.RestartMaster))
            between = trace.steps[at + 1 : back]
            assert sum(isinstance(step, t.Submit) for step in between) <= 1
            assert sum(step.steps for step in between if isinstance(step, t.Run)) <= 2
            assert not any(isinstance(step, t.Settle) for step in between)
    assert 0.005 * CASES < killed < 0.04 * CASES


def test_every_engine_settles_after_the_last_that_happens_to_it() -> None:
    for trace in drawn():
        for engine in range(len(trace.configuration.roles)):
            mine = [step for step in trace.steps if getattr(step, "engine", 0) == engine]
            settled = max(at for at, step in enumerate(mine) if isinstance(step, t.Settle))
            assert not any(isinstance(step, t.Submit | t.Run | t.Gate) for step in mine[settled + 1 :])


def test_few_cases_leave_a_gate_failing() -> None:
    failing = sum(bool(left_failing(trace)) for trace in drawn())
    assert 0 < failing < 0.05 * CASES


def test_cases_are_of_moderate_size() -> None:
    """The real system takes milliseconds for an engine step, so a case has some dozens of them."""
    for trace in drawn():
        longest = 200 + 2 * trace.configuration.unit
        assert all(t.prompt_length(submit.prompt) <= longest for submit in trace.submits())
    lengths = [len(trace.steps) for trace in drawn()]
    assert max(lengths) < 60
    assert 12 < sum(lengths) / CASES < 30


def test_requests_are_aborted_and_saves_of_prompts_cross_blocks() -> None:
    assert sum(any(isinstance(step, t.Abort) for step in trace.steps) for trace in drawn()) > 0.1 * CASES
    beyond = 0
    for trace in drawn():
        align = Geometry.of(trace.configuration).align
        beyond += any(t.prompt_length(submit.prompt) > align for submit in trace.submits())
    assert beyond > 0.6 * CASES


def test_axes_limit_what_is_drawn() -> None:
    axes = StoreAxes(roles=(("both", "off"),), lookup_async=0.0, receivers=0.0, master=0.0)
    for index in range(200):
        trace = store_case(1, index, axes)
        assert trace.configuration.roles == ("both",)
        assert not trace.configuration.lookup_async
        assert trace.configuration.receivers == 1
        assert not any(isinstance(step, t.KillMaster) for step in trace.steps)
    always = replace(axes, master=1.0)
    assert all(
        any(isinstance(step, t.KillMaster) for step in store_case(1, index, always).steps)
        for index in range(20)
    )


def test_every_step_of_the_store_is_named_and_no_other() -> None:
    for trace in drawn()[:100]:
        for step in trace.steps:
            assert (fault_name(step) is None) != isinstance(step, t.STORE_STEPS)


@pytest.mark.parametrize("index", [1103, 1370])
def test_a_prompt_cut_inside_an_earlier_request_is_not_lengthened_past_it(index: int) -> None:
    t.validate(store_case(11, index))
