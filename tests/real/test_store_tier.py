"""The store tier on the real vLLM, its real Mooncake connector and a real master: what is promised holds."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from spec.observation import Observation, Outcome, StoreView, Transfer
from spec.trace import (
    Abort,
    Configuration,
    DropKeys,
    Gate,
    Group,
    KillMaster,
    ResetLocal,
    ResetStore,
    RestartMaster,
    Run,
    Settle,
    Step,
    Submit,
    Trace,
)
from tailproof.jobs import replay
from tailproof.jobs.fuzz import fuzz
from tailproof.jobs.seeds import CASES, RESEND, hit_of
from tailproof.judge.lockstep import compare, divergences
from tailproof.known.explain import Known
from tailproof.known.model import KnownFault, KnownTrace, load
from tailproof.targets.environments import ensure
from tailproof.targets.libraries import prepare_store, store_problem
from tailproof.targets.opening import DEFAULT
from tailproof.targets.worker import Worker

SETTING = Configuration(
    groups=(Group("full", 16), Group("mamba", 16)),
    unit=4,
    eagle=True,
    speculative=1,
    blocks=200,
    store="both",
)
PROMPT = (("p", 70),)
KNOWN = Known(load(), "0.32")
TRACES = [
    (fault, trace)
    for fault in KNOWN.baseline.of("0.32")
    if fault.tier == "store"
    for trace in fault.of_line("0.32")
]


@pytest.fixture(scope="module")
def target(vllm: Worker) -> Worker:
    """The real vLLM where its store tier can run."""
    python = ensure(DEFAULT, print).python
    prepare_store(python, print)
    if reason := store_problem(python):
        pytest.skip(reason)
    return vllm


def run(target: Worker, *steps: Step, setting: Configuration = SETTING) -> list[Observation]:
    """The observations of a run in which every comparison holds and every request ended."""
    trace = Trace(setting, steps)
    outcome = target.run(trace)
    found = compare(trace, outcome)
    assert found is None, found
    return list(outcome.observations)


def views(observations: list[Observation]) -> list[StoreView]:
    """What each step showed of the store."""
    assert all(one.store is not None for one in observations)
    return [one.store for one in observations if one.store is not None]


def transfers(observations: list[Observation], kind: str) -> list[Transfer]:
    """All transfers of a kind."""
    return [one for view in views(observations) for one in view.transfers if one.kind == kind]


def ended(observations: list[Observation]) -> dict[str, str]:
    """How each request ended."""
    return {item.request: item.reason for one in observations for item in one.finished}


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still run."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except OSError:
            continue
        if f"\nPPid:\t{pid}\n" in text and "\nState:\tZ" not in text:
            found.append(int(status.parent.name))
    return found


def test_the_seed_of_the_external_tail(target: Worker) -> None:
    (case,) = [case for case in CASES if case.stored]
    trace = case.trace()
    outcome = target.run(trace)
    assert compare(trace, outcome) is None
    assert hit_of(outcome, RESEND) == 7296


def test_a_resend_after_a_local_reset_loads_its_tail(target: Worker) -> None:
    seen = run(
        target,
        Submit("A", PROMPT),
        Settle(),
        ResetLocal(),
        Submit("B", PROMPT),
        Submit("C", PROMPT),
        Settle(),
    )
    # C = 64: the last of 17 units is the EAGLE drop's; the tail's proof ends at 68.
    assert hit_of(Outcome(tuple(seen)), "B") == 64
    (get, *_) = transfers(seen, "get")
    assert {(entry.group, entry.position) for entry in get.entries} == {
        *((0, end) for end in (16, 32, 48, 64)),
        (1, 64),
    }
    stored = {(entry.group, entry.position) for view in views(seen) for entry in view.stored}
    assert {(0, 64), (0, 68), (1, 64)} <= stored
    assert ended(seen) == {"A": "length", "B": "length", "C": "length"}


def test_pins_last_until_their_save_is_reported(target: Worker) -> None:
    seen = run(
        target, Gate("put", "hold"), Submit("A", PROMPT), Run(6), Gate("put", "release"), Run(), Settle()
    )
    held = [one for one in seen if one.at == 2]
    last = held[-1].store
    assert last is not None
    assert last.held_puts == 1
    assert last.pins
    assert not last.stored
    # The request ended with its blocks held.
    assert ended(held) == {"A": "length"}
    assert held[-1].free < SETTING.blocks - 1
    released, told = (one.store for one in seen if one.at in (3, 4))
    assert released is not None
    assert told is not None
    assert len(released.pins) == len(last.pins)
    assert {pin.job for pin in last.pins} == set(told.reported)
    assert not told.pins
    assert seen[-1].free == SETTING.blocks - 1


@pytest.mark.parametrize("action", ["fail", "raise", "part"])
def test_a_failed_load_is_computed_anew(target: Worker, action: str) -> None:
    seen = run(
        target,
        Submit("A", PROMPT),
        Settle(),
        ResetLocal(),
        Gate("get", action),
        Submit("B", PROMPT),
        Run(2),
        ResetStore(),
        Gate("get", "release"),
        Settle(),
    )
    assert [view.failed for view in views(seen) if view.failed] == [("B",)]
    assert ended(seen) == {"A": "length", "B": "length"}


def test_a_failed_load_ends_its_request_where_that_is_asked_for(target: Worker) -> None:
    seen = run(
        target,
        Submit("A", PROMPT),
        Settle(),
        ResetLocal(),
        Gate("get", "fail"),
        Submit("B", PROMPT),
        Settle(),
        setting=replace(SETTING, load_failures="fail"),
    )
    assert ended(seen) == {"A": "length", "B": "error"}


def test_keys_lost_between_lookup_and_load(target: Worker) -> None:
    seen = run(
        target,
        Submit("A", PROMPT),
        Settle(),
        ResetLocal(),
        Gate("get", "hold"),
        Submit("B", PROMPT),
        Run(),
        DropKeys(2),
        Gate("get", "release"),
        Settle(),
    )
    assert [view.failed for view in views(seen) if view.failed] == [("B",)]
    # What is left serves a shorter hit, which is loaded next.
    first, *again = transfers(seen, "get")
    assert first.failed
    assert not any(one.failed for one in again)
    assert ended(seen)["B"] == "length"


def test_a_request_aborted_while_it_loads_gives_its_blocks_back(target: Worker) -> None:
    seen = run(
        target,
        Submit("A", PROMPT),
        Settle(),
        ResetLocal(),
        Gate("get", "hold"),
        Submit("B", PROMPT),
        Run(),
        Abort("B"),
        ResetLocal(),
        Gate("get", "release"),
        Settle(),
    )
    aborted = next(one for one in seen if one.do == "abort")
    assert aborted.free < SETTING.blocks - 1
    assert [one.reset for one in seen if one.do == "reset_local"] == [True, False]
    assert seen[-1].free == SETTING.blocks - 1


def test_what_one_engine_produces_another_consumes(target: Worker) -> None:
    seen = run(
        target,
        Submit("A", PROMPT),
        Settle(),
        Submit("B", PROMPT, engine=1),
        Settle(engine=1),
        setting=replace(SETTING, store="producer", second="consumer"),
    )
    assert hit_of(Outcome(tuple(seen)), "B") == 64
    assert not [one for one in transfers([one for one in seen if one.engine == 1], "put") if one.entries]


def test_lookups_beside_the_schedule_are_answered_a_step_later(target: Worker) -> None:
    seen = run(
        target,
        Submit("A", PROMPT),
        Settle(),
        ResetLocal(),
        Gate("lookup", "hold"),
        Submit("B", PROMPT),
        Run(3),
        Gate("lookup", "release"),
        Settle(),
        setting=replace(SETTING, lookup_async=True),
    )
    waiting = [view for view, one in zip(views(seen), seen, strict=True) if one.at == 5]
    assert [view.held_lookups for view in waiting] == [1, 1, 1]
    assert not any(view.loading for view in waiting)
    assert hit_of(Outcome(tuple(seen)), "B") == 64


def test_loads_come_in_out_of_order(target: Worker) -> None:
    other = (("q", 70),)
    seen = run(
        target,
        Submit("A", PROMPT),
        Submit("B", other),
        Settle(),
        ResetLocal(),
        Gate("get", "hold"),
        Submit("C", PROMPT),
        Submit("D", other),
        Run(),
        Gate("get", "newest"),
        Run(2),
        Gate("get", "release"),
        Settle(),
        setting=replace(SETTING, receivers=2),
    )
    loaded = [request for view in views(seen) for request in view.loaded]
    assert sorted(loaded) == ["C", "D"]
    newest = next(view for view, one in zip(views(seen), seen, strict=True) if one.at == 8)
    assert newest.held_gets == 1
    assert len(newest.transfers) == 1


def test_a_killed_master_is_a_fault_and_no_hang(target: Worker) -> None:
    began = time.monotonic()
    seen = run(
        target,
        Submit("A", PROMPT),
        Settle(),
        ResetLocal(),
        Gate("get", "hold"),
        Submit("B", PROMPT),
        Run(),
        KillMaster(),
        Gate("get", "release"),
        Run(2),
        RestartMaster(),
        Settle(),
        ResetLocal(),
        Submit("C", PROMPT),
        Settle(),
        ResetLocal(),
        Submit("D", PROMPT),
        Settle(),
    )
    assert time.monotonic() - began < 60
    alive = [view.alive for view in views(seen)]
    assert False in alive
    assert alive[-1]
    assert any(view.dropped for view, one in zip(views(seen), seen, strict=True) if one.do == "kill_master")
    assert [view.failed for view in views(seen) if view.failed] == [("B",)]
    assert ended(seen) == dict.fromkeys("ABCD", "length")
    # The store came back empty and works again.
    assert hit_of(Outcome(tuple(seen)), "D") == 64


def test_a_case_begins_with_an_empty_store_whatever_the_one_before_did(target: Worker) -> None:
    target.run(Trace(SETTING, (Submit("A", PROMPT), Settle(), KillMaster())))
    seen = run(target, Submit("A", PROMPT), Settle())
    assert hit_of(Outcome(tuple(seen)), "A") == 0
    assert all(view.alive for view in views(seen))


@pytest.mark.parametrize(("letter", "rule"), [("h", "SF1"), ("i", "TS1")])
def test_bytes_that_do_not_move_are_found(target: Worker, letter: str, rule: str) -> None:
    """A load or save that claims success without moving a byte must be seen at once."""
    trace = Trace(SETTING, (Submit("A", PROMPT), Settle(), ResetLocal(), Submit("B", PROMPT), Settle()))
    found = compare(trace, target.run(trace, letter))
    assert found is not None
    assert found.rule == rule


def test_random_cases_find_only_what_is_known(target: Worker) -> None:
    report = fuzz([target], DEFAULT, tier="store", seed=20, cases=60, known=KNOWN)
    assert report.cases == 60
    assert not report.broken, [(one.finding.rule, one.finding.kind, one.case) for one in report.broken]
    # The run had something to find.
    assert report.exercised["LK4"] > 50
    assert report.exercised["TS1"] > 20
    assert report.exercised["LT2"] > 50


@pytest.mark.parametrize(("fault", "trace"), TRACES, ids=[trace.file for _, trace in TRACES])
def test_known_traces_still_diverge_as_recorded(target: Worker, fault: KnownFault, trace: KnownTrace) -> None:
    kept = replay.read(KNOWN.baseline.folder / trace.file)
    assert kept.fingerprint == trace.file.removesuffix(".json")
    found = list(divergences(kept.trace, target.run(kept.trace), explainer=KNOWN.explainer()))
    assert found, "fixed: say in the file of the fault that it is mended"
    assert [one.finding for one in found if not one.fault] == []
    assert (trace.rule, fault.id) in {(one.rule, one.fault) for one in found}
    assert (kept.rule, kept.kind) in {(one.rule, one.finding.kind) for one in found if one.fault == fault.id}


def test_nothing_is_left_of_a_worker() -> None:
    python = ensure(DEFAULT, print).python
    if reason := store_problem(python):
        pytest.skip(reason)
    shared = set(os.listdir("/dev/shm"))
    worker = Worker(DEFAULT, python, "vllm")
    with closing(worker):
        worker.run(Trace(SETTING, (Submit("A", PROMPT), Settle())))
        process = worker._process
        assert process is not None
        servers = children(process.pid)
        folder = Path(worker._folder.name)
        assert len(servers) == 2
        assert list(folder.glob("tailproof-store-*"))
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in servers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in servers if Path(f"/proc/{pid}").exists()]
    assert not folder.exists()
    assert set(os.listdir("/dev/shm")) <= shared


def test_a_master_killed_from_outside_ends_a_case_and_not_the_run(target: Worker) -> None:
    """As `kill -9` on the process, at any time: the case says so, the run goes on, the next case is well."""
    process = target._process
    assert process is not None
    run(target, Submit("A", PROMPT), Settle())

    def pid() -> int:
        names = {one: Path(f"/proc/{one}/comm").read_text().strip() for one in children(process.pid)}
        return next(one for one, name in names.items() if name == "mooncake_master")

    killed = pid()
    # Long enough to be killed in the middle.
    prompts = {f"r{number}": ((f"r{number}", 190),) for number in range(80)}
    steps = [step for name, prompt in prompts.items() for step in (Submit(name, prompt), Settle())]
    target.start(Trace(SETTING, tuple(steps)))
    time.sleep(0.02)
    os.kill(killed, signal.SIGKILL)
    outcome = target.finish()
    failure = outcome.observations[-1].failure
    assert failure is not None
    assert failure.kind == "store"
    assert "was killed from outside" in failure.message
    assert compare(Trace(SETTING, tuple(steps)), outcome) is None
    seen = run(target, Submit("A", PROMPT), Settle(), ResetLocal(), Submit("B", PROMPT), Settle())
    assert hit_of(Outcome(tuple(seen)), "B") == 64
    assert pid() != killed
