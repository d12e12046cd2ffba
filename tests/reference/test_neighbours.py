"""A fault beside a known one is new, and one that does the same is explained by it."""

from __future__ import annotations

import pytest

from tests.reference.neighbours import BASELINE, LINES, NEIGHBOURS, TWINS, Plant, judged, observations

PLANTS = (*NEIGHBOURS, *TWINS)


def lines(plant: Plant) -> list[str]:
    """The release lines that have the fault of a plant."""
    (fault,) = (one for one in BASELINE.faults if one.id == plant.fault)
    return [line for line in LINES if fault.is_in(line)]


def cases(plants: tuple[Plant, ...]) -> list[object]:
    """Each plant on each release line that has its fault."""
    return [
        pytest.param(plant, line, marks=pytest.mark.rule(plant.due[:3]), id=f"{plant}-{line}")
        for plant in plants
        for line in lines(plant)
    ]


@pytest.mark.parametrize("plant", PLANTS, ids=str)
def test_without_the_plant_nothing_is_wrong(plant: Plant) -> None:
    assert judged(plant.trace, observations(plant.trace), "") == []
    if plant.change:
        assert judged(plant.trace, observations(plant.trace, plant.engine), "") == []


@pytest.mark.parametrize(("plant", "line"), cases(NEIGHBOURS))
def test_a_neighbour_is_new(plant: Plant, line: str) -> None:
    assert (plant.due, "") in plant.found(line)


@pytest.mark.parametrize(("plant", "line"), cases(TWINS))
def test_a_twin_is_known(plant: Plant, line: str) -> None:
    found = plant.found(line)
    assert found[0][1] == plant.fault
    assert (plant.due, plant.fault) in found
    assert all(fault for _, fault in found)


@pytest.mark.parametrize("plant", PLANTS, ids=str)
def test_nothing_is_known_where_no_release_line_is(plant: Plant) -> None:
    found = plant.found("")
    assert found
    assert not any(fault for _, fault in found)
    assert plant.due in [kind for kind, _ in found]


def test_every_known_fault_has_a_neighbour_and_a_twin() -> None:
    faults = {fault.id for fault in BASELINE.faults}
    assert {plant.fault for plant in NEIGHBOURS} == faults
    # The slow engine preempts nobody, so it never prefills outputs again up to a junction.
    without = {"unfinished-mamba", "junction-where-prefill-ends"}
    assert faults - {plant.fault for plant in TWINS} == without
    assert {line for fault in BASELINE.faults for line in (fault.first, fault.last)} == set(LINES)
    assert len({str(plant) for plant in NEIGHBOURS}) == len(NEIGHBOURS)
