"""Runs the scenarios of this folder (`blocks.py` says how to write one).

`pytest tests/scenarios --rewrite` writes what comes of each block into its file.
"""

from __future__ import annotations

import difflib
from dataclasses import replace

import pytest

from spec.rules import RULES
from tailproof.judge.lockstep import compare, exercised
from tailproof.judge.step import COMPARISONS, EXERCISES, Step, place, places
from tests.scenarios.answers import answered, found_of, name_of, outcome_of, rewritten
from tests.scenarios.blocks import BASELINE, FILES, Block, blocks, of_file

ALL = [block for name in FILES for block in of_file(name)]
NEIGHBOURS = of_file("neighbours")
WRONG = """\
groups full 4, mamba 4
unit 2
submit A prompt a:8
settle
tell found
----
found nothing
"""


@pytest.mark.parametrize("block", ALL, ids=lambda block: block.place)
def test_a_scenario_shows_what_its_file_says(block: Block, pytestconfig: pytest.Config) -> None:
    name = block.place.partition(":")[0]
    if pytestconfig.getoption("rewrite"):
        if block.place == of_file(name)[0].place:
            FILES[name].write_text(rewritten(FILES[name].read_text(encoding="utf-8")), encoding="utf-8")
        return
    got = answered(block.question)
    diff = difflib.unified_diff(block.due, got, "expected", "got", lineterm="", n=1)
    assert got == block.due, "\n".join((f"{block.place}, rewrite with --rewrite:", *diff))


def test_a_wrong_line_goes_red_and_is_rewritten() -> None:
    wrong = WRONG.replace("found nothing", "found LV1 stuck in step 3: it hangs")
    (block,) = blocks(wrong)
    with pytest.raises(AssertionError, match=r"(?s)-found LV1 stuck.*\+found nothing"):
        test_a_scenario_shows_what_its_file_says(block, _Never())  # type: ignore[arg-type]
    assert rewritten(wrong) == WRONG


class _Never:
    def getoption(self, name: str) -> bool:
        """Not given."""
        return False


def test_a_planted_fault_that_does_not_show_is_no_finding_and_one_that_shows_is() -> None:
    for fault, trace, due in (
        ("scan-capped", "", ["found nothing"]),
        ("leaks-block", "", ["found LT3 free-blocks in step 3: 510 blocks are free at rest, due were 511"]),
    ):
        (block,) = blocks(f"on reference+{fault}\n{trace}{WRONG}")
        assert answered(block.question) == due


@pytest.mark.parametrize("block", NEIGHBOURS, ids=lambda block: block.place)
def test_a_fault_beside_a_known_one_is_new_and_one_that_does_the_same_is_known(block: Block) -> None:
    question = block.question
    assert question.beside is not None
    word, fault, due = question.beside
    (name,) = question.on
    for target in ("reference", name) if question.plants else ("reference",):
        clean = replace(question, plants=())
        assert found_of(clean, outcome_of(clean, target), "none") == ([], "")
    for line in question.lines:
        found, _ = found_of(question, outcome_of(question, name), line)
        kinds = [(f"{one.rule} {one.finding.kind}", one.fault) for one in found]
        if line == "none":
            assert due in dict(kinds)
            assert not any(known for _, known in kinds)
        elif word == "beside":
            assert (due, "") in kinds
        else:
            assert (due, fault) in kinds
            assert kinds[0][1] == fault
            assert all(known for _, known in kinds)


def test_every_known_fault_has_a_neighbour_and_a_twin() -> None:
    faults = {fault.id for fault in BASELINE.faults}
    told = [block.question.beside for block in NEIGHBOURS if block.question.beside]
    assert {fault for word, fault, _ in told if word == "beside"} == faults
    # The slow engine preempts nobody, so it never prefills outputs again up to a junction.
    without = {"unfinished-mamba", "junction-where-prefill-ends"}
    assert faults - {fault for word, fault, _ in told if word == "same"} == without


# The register of comparisons.

RED = [[line for line in block.due if line.startswith("red ")] for block in of_file("comparisons")]


def test_every_comparison_goes_red_alone() -> None:
    alone = sorted(lines[0].split()[1].rstrip(":") for lines in RED if len(lines) == 1)
    assert alone == sorted(map(name_of, COMPARISONS))
    assert all(len(lines) < 2 for lines in RED)


@pytest.mark.parametrize("comparison", COMPARISONS, ids=name_of)
def test_a_comparison_is_marked_with_what_it_finds(comparison: object) -> None:
    (line,) = (line for lines in RED for line in lines if f" {name_of(comparison)}:" in line)  # type: ignore[arg-type]
    assert place(comparison) in places(line.split()[2])[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", [rule.id for rule in RULES.values() if rule.tiers])
def test_a_rule_that_runs_can_show_is_compared_and_counted(rule: str) -> None:
    compared, counted = places(rule)
    assert compared
    assert counted
    assert all(one.startswith("tailproof/judge/") for one in (*compared, *counted))


def test_a_rule_that_no_run_shows_is_compared_nowhere() -> None:
    assert [places(rule.id) for rule in RULES.values() if not rule.tiers if any(places(rule.id))] == []


def test_what_is_counted_is_marked() -> None:
    counted = set()
    for block in [*of_file("comparisons")[:1], *of_file("findings_store")]:
        outcome = outcome_of(replace(block.question, plants=()), "reference")
        assert block.question.trace is not None
        seen: list[Step] = []
        compare(block.question.trace, outcome, seen.append)
        for step in seen:
            for counter in EXERCISES:
                assert all(place(counter) in places(rule)[1] for rule in counter(step))
            assert set(exercised(step)) == {rule for counter in EXERCISES for rule in counter(step)}
            counted |= set(exercised(step))
    assert counted > {"LT2", "LV2", "CH1", "SF1"}
