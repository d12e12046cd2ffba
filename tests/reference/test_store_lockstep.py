"""Lockstep on the reference with a store: the clean engine passes, each planted fault is found."""

from __future__ import annotations

import pytest

from spec.rules import RULES
from tailproof.generate.store import store_case
from tailproof.judge.lockstep import compare
from tailproof.planted.reference_store import STORE_MUTANTS
from tailproof.targets.opening import Target, TargetNameError, open_target

OWNER = {fault: rule.id for rule in RULES.values() for fault in rule.store_faults}
CASES = 300


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_clean_reference_gives_no_finding(seed: int) -> None:
    opened = open_target(Target.parse("reference"), lambda line: None)
    for index in range(CASES):
        trace = store_case(seed, index)
        assert compare(trace, opened.run(trace)) is None, index


@pytest.mark.parametrize("fault", sorted(STORE_MUTANTS))
def test_each_planted_fault_is_caught_under_its_rule(fault: str) -> None:
    opened = open_target(Target.parse(f"reference+{fault}"), lambda line: None)
    found: dict[str, int] = {}
    for index in range(CASES):
        trace = store_case(7, index)
        if (divergence := compare(trace, opened.run(trace))) is not None:
            found.setdefault(divergence.rule, index)
        if OWNER[fault] in found:
            return
    raise AssertionError(f"{fault} gave {found or 'no finding'}, due was {OWNER[fault]}")


def test_an_unknown_fault_names_those_near_it() -> None:
    with pytest.raises(TargetNameError, match="pins-nothing"):
        Target.parse("reference+pins-nothin")
