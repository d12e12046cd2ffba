"""Shrinking: small, plain, valid, the same rule broken, and always an end."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from spec.geometry import Geometry
from spec.trace import (
    Abort,
    Configuration,
    Group,
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
PLAIN = Group("full", 8), Group("mamba", 8)
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
    groups = Group("full", 8), Group("mamba", 8, checkpoint_alignment=4), Group("full", 8, draft=True)
    configuration = Configuration(
        groups,
        unit=4,
        eagle=True,
        speculative=3,
        dcp=4,
        retention=64,
        junctions=True,
        blocks=900,
        budget=40,
        long_prefill=24,
        live=4,
        policy="priority",
        asynchronous=True,
        events=True,
    )
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
    others = [Submit(f"r{index}", ((f"p{index}", 41 + 3 * index),), 2) for index in range(20)]
    resend = (Submit("x", (("q", 64),)), Settle(), Submit("y", (("q", 64),)), Settle())
    groups = Group("full", 16), Group("mamba", 16)
    configuration = Configuration(groups, 8, eagle=True, speculative=1, blocks=1000, junctions=True)
    steps = (*others[:10], Settle(), *resend[:2], *others[10:], Run(4), *resend[2:])
    trace = Trace(configuration, steps)
    assert finding(trace) == ("PM1", "scan-capped")
    small = shrink(trace, lambda candidate: finding(candidate) == ("PM1", "scan-capped"), LONG)
    assert finding(small) == ("PM1", "scan-capped")
    assert (requests(small), len(small.steps), small.configuration.unit) == (2, 4, 1)
    assert tokens(small) <= 8


def test_what_always_fails_shrinks_to_the_minimum() -> None:
    small = shrink(busy(), lambda trace: True, LONG)
    assert small.configuration == Configuration((Group("full", 1), Group("mamba", 1)), 1)
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
    groups = Group("full", 8), Group("mamba", 8), Group("window", 8, window=24)
    windowed = Trace(Configuration(groups, 8), (Submit("A", (("a", 30),)), Settle()))
    assert shrink(windowed, lambda trace: True, LONG).configuration.groups == (
        Group("full", 1),
        Group("mamba", 1),
    )
    kept = shrink(
        windowed, lambda trace: any(group.kind == "window" for group in trace.configuration.groups), LONG
    )
    assert [group.window for group in kept.configuration.groups if group.kind == "window"] == [2]
    drafts = Group("full", 8), Group("mamba", 8), Group("full", 8, draft=True, replicated=True)
    several = Configuration(drafts, 8, eagle=True, speculative=3, multi_module=True, dcp=2)
    small = shrink(Trace(several, windowed.steps), lambda trace: trace.configuration.eagle, LONG)
    assert small.configuration == Configuration(
        (
            Group("full", small.configuration.groups[0].block),
            Group("mamba", small.configuration.groups[1].block),
        ),
        1,
        eagle=True,
        speculative=1,
    )
    replicated = shrink(
        Trace(several, windowed.steps),
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
    trace = Trace(Configuration(PLAIN, 4, retention=16), (Submit("A", (("a", 17), ("b", 6)), 2), Settle()))
    small = rescaled(trace, 4, 1, proportional=False)
    assert small.configuration == Configuration((Group("full", 2), Group("mamba", 2)), 1, retention=4)
    assert next(small.submits()).prompt == (("a", 4), ("b", 1))
    near = rescaled(trace, 4, 2, proportional=True)
    assert next(near.submits()).prompt == (("a", 9), ("b", 3))


def test_a_next_turn_outlives_the_request_that_it_continues() -> None:
    steps = (Submit("A", (("a", 20),), 5), Settle(), Submit("B", (("@A", 23), ("b", 4))), Settle())
    without = without_requests(Trace(Configuration(PLAIN, 4), steps), frozenset("A"))
    assert without.steps == (Submit("B", (("a", 20), ("outputs of A", 3), ("b", 4))), Settle())

    def long_prompt(trace: Trace) -> bool:
        return any(prompt_length(submit.prompt) >= 25 for submit in trace.submits())

    small = shrink(Trace(Configuration(PLAIN, 4), steps), long_prompt, LONG)
    assert small.steps == (Submit("A", (("a", 25),)),)


def test_idle_steps_are_left_out() -> None:
    steps = (Run(2), Submit("A", (("a", 3),)), Settle(), Abort("A"), Run(1), Settle(), ResetLocal(), Settle())
    assert tidied(Trace(Configuration(PLAIN, 4), steps)).steps == (*steps[1:3], ResetLocal())


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
    steps = (Submit("first", (("text", 5),)), Settle())
    named = Trace(Configuration(PLAIN, 4), steps)
    assert shrink(named, lambda trace: "first" in repr(trace), LONG).steps == (
        Submit("first", (("text", 1),)),
    )
