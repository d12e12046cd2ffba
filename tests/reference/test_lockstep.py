"""Lockstep on the reference: no finding on the clean engine, the right one on each planted fault."""

from __future__ import annotations

import pytest

from spec.rules import RULES
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
