"""Lockstep on the reference: no finding on the clean engine, the right one on each planted fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spec.rules import RULES
from spec.trace import Trace
from tailproof.generate.core import case
from tailproof.generate.store import store_case
from tailproof.judge.lockstep import compare
from tailproof.planted.reference import MUTANTS
from tailproof.planted.reference_store import STORE_MUTANTS
from tailproof.targets.opening import Target, TargetNameError, open_target

OWNER = {fault: rule.id for rule in RULES.values() for fault in (*rule.faults, *rule.store_faults)}
CASES: dict[Callable[[int, int], Trace], int] = {case: 400, store_case: 300}


def findings(
    drawn: Callable[[int, int], Trace], name: str, seed: int, stop_at: str | None = None
) -> dict[str, int]:
    """Rule to the index of the first case that shows it broken."""
    opened = open_target(Target.parse(name), lambda line: None)
    found: dict[str, int] = {}
    for index in range(CASES[drawn]):
        trace = drawn(seed, index)
        divergence = compare(trace, opened.run(trace))
        if divergence is not None:
            found.setdefault(divergence.rule, index)
            if divergence.rule == stop_at:
                break
    return found


@pytest.mark.parametrize("drawn", CASES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_clean_reference_gives_no_finding(drawn: Callable[[int, int], Trace], seed: int) -> None:
    assert findings(drawn, "reference", seed) == {}


@pytest.mark.parametrize("fault", sorted((*MUTANTS, *STORE_MUTANTS)))
def test_each_planted_fault_is_caught_under_its_rule(fault: str) -> None:
    rule, (drawn, seed) = OWNER[fault], (case, 1) if fault in MUTANTS else (store_case, 7)
    found = findings(drawn, f"reference+{fault}", seed, rule)
    assert rule in found, f"{fault} gave {found or 'no finding'}, due was {rule}"


def test_the_same_seed_gives_the_same_cases_and_other_seeds_others() -> None:
    assert [case(5, index) for index in range(50)] == [case(5, index) for index in range(50)]
    assert [case(5, index) for index in range(50)] != [case(6, index) for index in range(50)]


def test_an_unknown_fault_names_those_near_it() -> None:
    with pytest.raises(TargetNameError, match="pins-nothing"):
        Target.parse("reference+pins-nothin")
