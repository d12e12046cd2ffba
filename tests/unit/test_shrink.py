"""Shrinking: small, plain, valid, the same rule broken, and always an end."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from spec.geometry import Geometry
from spec.notation import parse
from spec.trace import (
    Abort,
    Configuration,
    ResetLocal,
    Run,
    Settle,
    Submit,
    Trace,
    TraceError,
    prompt_length,
    validate,
)
from tailproof.generate.core import case
from tailproof.judge.lockstep import compare
from tailproof.shrink import search as module
from tailproof.shrink.requests import tidied, without_requests
from tailproof.shrink.search import measure, shrink
from tailproof.shrink.settings import rescaled
from tailproof.targets.opening import Target, open_target
from tailproof.targets.worker import TargetProblem

LONG = 60.0
PLAIN = parse("groups full 8, mamba 8; unit 4; run")
MINIMUM = parse("groups full 1, mamba 1; unit 1; run").configuration
Key = tuple[str, str] | None


def finder(fault: str) -> Callable[[Trace], Key]:
    """What rule a trace breaks on a planted fault, and how."""
    opened = open_target(Target.parse(f"reference+{fault}"), lambda line: None)

    def finding(trace: Trace) -> Key:
        divergence = compare(trace, opened.run(trace))
        return divergence and (divergence.rule, divergence.finding.kind)

    return finding


def tokens(trace: Trace) -> int:
    """Prompt tokens of all requests."""
    return sum(prompt_length(submit.prompt) for submit in trace.submits())


def requests(trace: Trace) -> int:
    """How many requests arrive."""
    return sum(1 for _ in trace.submits())


def busy() -> Trace:
    """A trace with everything in it: 21 requests, a next turn, aborts, a reset, a salt, priorities, counted
    runs, and a setting with most features on."""
    steps: list[object] = []
    for index in range(20):
        shared = (("a", 50 + index), (f"p{index}", 9 + index % 5))
        steps.append(Submit(f"r{index}", shared, 1 + index % 4, index % 3, "s" if index == 7 else None))
        steps.append((Run(2, 1), Settle(2), Abort(f"r{index}"), Run(1))[index % 4])
        if index == 11:
            steps.append(ResetLocal(running=True))
    steps.append(Submit("turn", (("@r3", 55), ("new", 20)), 3))
    steps.append(Settle(1))
    configuration = parse("""
        groups full 8, mamba 8 export 4, full 8 draft
        unit 4, eagle, speculative 3, dcp 4, retention 64, junctions, blocks 900, budget 40, long_prefill 24
        live 4, policy priority, asynchronous, events
        run
    """).configuration
    trace = Trace(configuration, tuple(steps))  # type: ignore[arg-type]
    validate(trace)
    Geometry.of(configuration)
    return trace


@pytest.mark.parametrize(
    ("fault", "most_requests", "most_steps", "most_tokens"),
    [
        ("scan-capped", 2, 4, 8),
        ("stale-state", 2, 4, 8),
        ("publishes-transient", 1, 2, 12),
        ("leaks-block", 1, 2, 1),
        ("runs-past-junction", 3, 5, 24),
        ("ignores-salt", 2, 4, 8),
        ("reset-keeps-entries", 1, 3, 6),
        ("preempts-freely", 2, 3, 4),
        ("never-finishes", 2, 4, 6),
    ],
)
def test_a_known_fault_is_shrunk_to_the_essentials(
    fault: str, most_requests: int, most_steps: int, most_tokens: int
) -> None:
    finding = finder(fault)
    trace, key = next(
        (trace, key) for trace in (case(1, index) for index in range(400)) if (key := finding(trace))
    )
    small = shrink(trace, lambda candidate: finding(candidate) == key, LONG)
    assert finding(small) == key
    assert requests(small) <= most_requests
    assert len(small.steps) <= most_steps
    assert tokens(small) <= most_tokens
    assert shrink(small, lambda candidate: finding(candidate) == key, LONG) == small


def test_twenty_requests_become_two() -> None:
    """Only a resend of a prompt that ends on the grid shows the capped scan."""
    finding = finder("scan-capped")
    others = [f"submit r{index} prompt p{index}:{41 + 3 * index} outputs 2" for index in range(20)]
    head = "groups full 16, mamba 16; unit 8, eagle, speculative 1, blocks 1000, junctions"
    first, second = "submit x prompt q:64; settle", "submit y prompt q:64; settle"
    trace = parse("; ".join([head, *others[:10], "settle", first, *others[10:], "run 4", second]))
    assert finding(trace) == ("PM1", "scan-capped")
    small = shrink(trace, lambda candidate: finding(candidate) == ("PM1", "scan-capped"), LONG)
    assert finding(small) == ("PM1", "scan-capped")
    assert (requests(small), len(small.steps), small.configuration.unit) == (2, 4, 1)
    assert tokens(small) <= 8


def test_what_always_fails_shrinks_to_the_minimum() -> None:
    small = shrink(busy(), lambda trace: True, LONG)
    assert small.configuration == MINIMUM
    assert small.steps in ((Settle(),), (Submit("A", (("a", 1),)),))


def test_what_never_fails_again_is_left_as_it_is() -> None:
    assert shrink(busy(), lambda trace: False, LONG) == busy()


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("eagle", lambda now: now.eagle),
        ("speculative", lambda now: now.speculative > 1),
        ("junctions", lambda now: now.junctions),
        ("dcp", lambda now: now.dcp > 1),
        ("dense", lambda now: now.retention is None or now.retention > 0),
        ("blocks", lambda now: now.blocks != 512),
        ("budget", lambda now: now.budget <= 40),
        ("long_prefill", lambda now: now.long_prefill > 2),
        ("live", lambda now: now.live < 6),
        ("policy", lambda now: now.policy == "priority"),
        ("asynchronous", lambda now: now.asynchronous),
        ("events", lambda now: now.events),
        ("exports", lambda now: any(group.checkpoint_alignment for group in now.groups)),
        ("draft", lambda now: any(group.draft for group in now.groups)),
    ],
)
def test_only_the_feature_that_matters_stays_on(name: str, holds: Callable[[Configuration], bool]) -> None:
    small = shrink(busy(), lambda trace: holds(trace.configuration), LONG).configuration
    assert holds(small)
    off = {
        "eagle": {"eagle": True, "speculative": 1},
        "speculative": {"eagle": True, "speculative": 2},
        "dense": {"retention": None},
        "dcp": {"dcp": 2},
        "blocks": {"blocks": 2},
        "budget": {"budget": 1},
        "long_prefill": {"long_prefill": 3},
        "live": {"live": 1},
        "policy": {"policy": "priority"},
        "exports": {},
        "draft": {"eagle": True, "speculative": 1},
    }.get(name, {name: True})
    assert replace(small, groups=(), unit=1) == Configuration((), 1, **off)  # type: ignore[arg-type]
    assert len(small.groups) == 2
    assert sum(group.draft for group in small.groups) == (name == "draft")
    assert sum(group.checkpoint_alignment is not None for group in small.groups) == (name == "exports")


def test_windows_modules_and_replicated_groups_go_when_they_do_not_matter() -> None:
    windowed = parse(
        "groups full 8, mamba 8, window 8 sliding_window 24; unit 8; submit A prompt a:30; settle"
    )
    assert shrink(windowed, lambda trace: True, LONG).configuration.groups == MINIMUM.groups
    kept = shrink(
        windowed, lambda trace: any(group.kind == "window" for group in trace.configuration.groups), LONG
    )
    assert [group.window for group in kept.configuration.groups if group.kind == "window"] == [2]
    several = (
        "groups full 8, mamba 8, full 8 draft replicated; unit 8, eagle, speculative 3, multi_module, dcp 2"
    )
    modules = parse(several, windowed)
    small = shrink(modules, lambda trace: trace.configuration.eagle, LONG).configuration
    assert replace(small, groups=()) == Configuration((), 1, eagle=True, speculative=1)
    assert [group.kind for group in small.groups] == ["full", "mamba"]
    assert not any(group.draft for group in small.groups)
    replicated = shrink(
        modules,
        lambda trace: any(group.replicated for group in trace.configuration.groups),
        LONG,
    )
    assert not replicated.configuration.multi_module


def test_lengths_are_found_exactly() -> None:
    def long_prompt(trace: Trace) -> bool:
        return any(prompt_length(submit.prompt) >= 37 for submit in trace.submits())

    small = shrink(busy(), long_prompt, LONG)
    assert [submit.prompt for submit in small.submits()] == [(("a", 37),)]
    assert len(small.steps) == 1


def test_positions_keep_their_place_when_sizes_shrink() -> None:
    trace = parse("groups full 8, mamba 8; unit 4, retention 16; submit A prompt a:17 b:6 outputs 2; settle")
    small = rescaled(trace, 4, 1, proportional=False)
    assert small == parse("groups full 2, mamba 2; unit 1, retention 4; submit A prompt a:4 b:1; settle")
    near = rescaled(trace, 4, 2, proportional=True)
    assert next(near.submits()).prompt == (("a", 9), ("b", 3))


def test_a_next_turn_outlives_the_request_that_it_continues() -> None:
    trace = parse("submit A prompt a:20 outputs 5; settle; submit B prompt @A:23 b:4; settle", PLAIN)
    without = without_requests(trace, frozenset("A"))
    assert without == parse('submit B prompt a:20 "outputs of A":3 b:4; settle', PLAIN)

    def long_prompt(trace: Trace) -> bool:
        return any(prompt_length(submit.prompt) >= 25 for submit in trace.submits())

    assert shrink(trace, long_prompt, LONG).steps == parse("submit A prompt a:25", PLAIN).steps


def test_idle_steps_are_left_out() -> None:
    idle = "run 2; submit A prompt a:3; settle; abort A; run; settle; reset_local; settle"
    assert tidied(parse(idle, PLAIN)) == parse("submit A prompt a:3; settle; reset_local", PLAIN)


@pytest.mark.parametrize("seed", range(12))
def test_every_candidate_is_valid_and_every_success_plainer(seed: int) -> None:
    """Under predicates without rhyme or reason too, so that the search has an end whatever happens."""
    trace = busy() if seed == 0 else case(seed, seed)
    taken = [measure(trace)]

    def fails(candidate: Trace) -> bool:
        validate(candidate)
        Geometry.of(candidate.configuration)
        verdict = zlib.crc32(repr((seed, candidate)).encode()) % 3 == 0
        if verdict:
            taken.append(measure(candidate))
        return verdict

    small = shrink(trace, fails, LONG)
    # The last success may be the renaming, which changes no size.
    assert all(later < earlier for earlier, later in pairwise(taken[:-1]))
    assert measure(small) == taken[-1] <= taken[-2:][0]
    assert all(number >= 0 for sizes in taken for number in sizes)


def test_the_deadline_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    runs: list[Trace] = []

    def fails(candidate: Trace) -> bool:
        clock[0] += 1.0
        runs.append(candidate)
        return len(candidate.steps) > 20

    small = shrink(busy(), fails, 5.5)
    assert len(runs) == 6
    assert len(small.steps) > 20
    assert shrink(busy(), fails, -1.0) == busy()
    assert len(runs) == 6


def test_a_candidate_that_the_target_refuses_is_passed_over() -> None:
    def fails(candidate: Trace) -> bool:
        if candidate.configuration.unit < 2:
            raise TraceError("refused")
        if candidate.configuration.eagle:
            raise TargetProblem("cannot")
        return True

    small = shrink(replace(busy(), steps=busy().steps[:8]), fails, LONG)
    assert small.configuration.unit == 2
    assert not small.configuration.eagle


def test_names_stay_when_they_matter() -> None:
    named = parse("submit first prompt text:5; settle", PLAIN)
    small = shrink(named, lambda trace: "first" in repr(trace), LONG)
    assert small.steps == parse("submit first prompt text:1", PLAIN).steps
