"""Lockstep on the reference: no finding on the clean engine, the right one on each planted fault."""

from __future__ import annotations

import pytest

from spec.rules import RULES
from spec.trace import Configuration, Group, ResetLocal, Run, Settle, Submit, Trace
from tailproof.generate.core import case
from tailproof.judge.lockstep import compare
from tailproof.planted.reference import MUTANTS
from tailproof.targets.opening import Target, open_target

OWNER = {fault: rule.id for rule in RULES.values() for fault in rule.faults}
CASES = 400


def findings(name: str, seed: int, stop_at: str | None = None) -> dict[str, int]:
    """Rule to the index of the first case that shows it broken."""
    opened = open_target(Target.parse(name), lambda line: None)
    found: dict[str, int] = {}
    for index in range(CASES):
        trace = case(seed, index)
        divergence = compare(trace, opened.run(trace))
        if divergence is not None:
            found.setdefault(divergence.rule, index)
            if divergence.rule == stop_at:
                break
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_the_clean_reference_gives_no_finding(seed: int) -> None:
    assert findings("reference", seed) == {}


@pytest.mark.parametrize("fault", sorted(MUTANTS))
def test_each_planted_fault_is_caught_under_its_rule(fault: str) -> None:
    rule = OWNER[fault]
    found = findings(f"reference+{fault}", 1, rule)
    assert rule in found, f"{fault} gave {found or 'no finding'}, due was {rule}"


def test_the_same_seed_gives_the_same_cases_and_other_seeds_others() -> None:
    assert [case(5, index) for index in range(50)] == [case(5, index) for index in range(50)]
    assert [case(5, index) for index in range(50)] != [case(6, index) for index in range(50)]


def test_an_evicted_entry_is_judged_only_when_the_pool_has_room() -> None:
    """The same lost entry breaks RT1 in a large pool and is a choice in one too small for everything."""
    groups = Group("full", 4), Group("mamba", 4)
    steps = (
        Submit("A", (("a", 20),)),
        Settle(),
        Submit("B", (("b", 20),)),
        Settle(),
    )
    opened = open_target(Target.parse("reference+loses-entry"), lambda line: None)
    for blocks, due in ((512, "RT1"), (8, None)):
        trace = Trace(Configuration(groups, 2, blocks=blocks), steps)
        divergence = compare(trace, opened.run(trace))
        assert (divergence and divergence.rule) == due


def test_a_next_turn_reuses_what_the_outputs_left() -> None:
    """Dense retention keeps a state at each block end of the decode: the next turn hits past the prompt."""
    groups = Group("full", 4), Group("mamba", 4)
    steps = (
        Submit("A", (("a", 20),), outputs=15),
        Settle(),
        Submit("B", (("@A", 35), ("b", 3))),
        Settle(),
    )
    opened = open_target(Target.parse("reference"), lambda line: None)
    for retention, hit in ((None, 32), (0, 18)):
        trace = Trace(Configuration(groups, 2, retention=retention), steps)
        outcome = opened.run(trace)
        assert compare(trace, outcome) is None
        assert [item.local for seen in outcome.observations for item in seen.admitted] == [0, hit]


def test_a_reset_with_running_requests_starts_them_again() -> None:
    groups = Group("full", 4), Group("mamba", 4)
    steps = (Submit("A", (("a", 20),), outputs=8), Run(9), ResetLocal(running=True), Settle())
    opened = open_target(Target.parse("reference"), lambda line: None)
    trace = Trace(Configuration(groups, 2), steps)
    outcome = opened.run(trace)
    assert compare(trace, outcome) is None
    admitted = [item.request for seen in outcome.observations for item in seen.admitted]
    assert admitted == ["A", "A"]
