"""Each kind of finding about a store goes red for one change of a right run, and for that kind alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from spec.observation import Admitted, Entry, Observation, Outcome, Pin, StoreView, Transfer
from spec.trace import Configuration, Gate, Group, ResetLocal, Run, Settle, Submit, Trace
from tailproof.judge.lockstep import compare
from tailproof.targets.opening import Target, open_target

# U 4, block 8: C of 20 tokens is 16.
SETTING = Configuration((Group("full", 8), Group("mamba", 8)), unit=4, store="both")
PROMPT = (("a", 20),)
STEPS = (
    Gate("put", "hold"),
    Submit("A", PROMPT),
    Run(3),
    Gate("put", "release"),
    Settle(),
    ResetLocal(),
    Submit("B", PROMPT),
    Run(),
    Gate("get", "fail"),
    Settle(),
    ResetLocal(),
    Submit("C", PROMPT),
    Settle(),
)
TRACE = Trace(replace(SETTING, load_failures="fail"), STEPS)

Test = Callable[[StoreView], bool]


def held(view: StoreView) -> bool:
    """A step in which jobs stay held."""
    return bool(view.pins and view.held_puts)


def told(view: StoreView) -> bool:
    """The step in which jobs are reported."""
    return bool(view.reported)


def loads(view: StoreView) -> bool:
    """The step in which a request leaves to load."""
    return bool(view.loading)


CHANGES: dict[str, tuple[Test, int, Callable[[StoreView], StoreView]]] = {
    "LT2 pin-released-early": (held, 1, lambda view: replace(view, pins=())),
    "LT2 pin-changed": (
        held,
        1,
        lambda view: replace(view, pins=tuple(replace(pin, blocks=pin.blocks + 1) for pin in view.pins)),
    ),
    "LT2 pin-kept": (told, 0, lambda view: replace(view, pins=(Pin(view.reported[0], "A", 1),))),
    "TS4 pin-foreign": (told, 0, lambda view: replace(view, pins=(Pin(99, "nobody", 1),))),
    "TS1 key-unexpected": (told, 0, lambda view: replace(view, stored=(Entry(0, 4, "A"),))),
    "TS1 key-vanished": (told, 0, lambda view: replace(view, dropped=(Entry(0, 8, "A"),))),
    "LK4 external-too-long": (loads, 0, lambda view: replace(view, loading=(Admitted("B", 0, 20, 0),))),
    "LK4 external-cut": (loads, 0, lambda view: replace(view, loading=(Admitted("B", 8, 8, 0),))),
    "SF2 loaded-wrong": (
        loads,
        0,
        lambda view: replace(
            view, transfers=(Transfer("get", (Entry(1, 16, "A"),), wrong=(Entry(1, 16, "A"),)),)
        ),
    ),
    "LV2 load-unreported": (lambda view: bool(view.loaded), 0, lambda view: replace(view, loaded=())),
}


def right_run() -> list[Observation]:
    """The observations of the reference, in which every comparison holds."""
    seen = list(open_target(Target.parse("reference"), print).run(TRACE).observations)
    assert compare(TRACE, Outcome(tuple(seen))) is None
    return seen


def at(seen: list[Observation], test: Test, which: int) -> int:
    """The index of the `which`-th observation whose view passes a test."""
    return [index for index, one in enumerate(seen) if one.store is not None and test(one.store)][which]


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_found_under_its_kind(name: str) -> None:
    test, which, change = CHANGES[name]
    seen = right_run()
    index = at(seen, test, which)
    view = seen[index].store
    assert view is not None
    seen[index] = replace(seen[index], store=change(view))
    found = compare(TRACE, Outcome(tuple(seen)))
    assert found is not None
    assert f"{found.rule} {found.finding.kind}" == name


@pytest.mark.parametrize(("reason", "kind"), [("length", "failure-misnamed"), (None, "failure-not-told")])
def test_a_failed_load_that_does_not_end_its_request_is_found(reason: str | None, kind: str) -> None:
    seen = right_run()
    index = at(seen, lambda view: bool(view.failed), 0)
    ended = tuple(replace(one, reason=reason) for one in seen[index].finished) if reason else ()
    seen[index] = replace(seen[index], finished=ended)
    found = compare(TRACE, Outcome(tuple(seen)))
    assert found is not None
    assert (found.rule, found.finding.kind) in {("LV2", kind), ("LV1", "vanished")}
    assert reason is None or found.finding.kind == kind


def test_a_job_that_ended_and_is_not_reported_is_found() -> None:
    seen = right_run()
    index = at(seen, told, 0)
    view, before = seen[index].store, seen[index - 1].store
    assert view is not None
    assert before is not None
    seen[index] = replace(seen[index], store=replace(view, reported=(), pins=before.pins))
    found = compare(TRACE, Outcome(tuple(seen)))
    assert found is not None
    assert (found.rule, found.finding.kind) == ("LT2", "pin-overdue")
