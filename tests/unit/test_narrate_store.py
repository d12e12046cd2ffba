"""Explanations with a store: what was put, loaded, lost and held, and at last who holds what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spec.observation import Admitted, Answer, Entry, Failure, Observation, Outcome, Transfer
from spec.trace import (
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
from tailproof.explain.store import meddling, standing
from tailproof.explain.story import explain_divergence, setting
from tailproof.judge.findings import Divergence, Finding
from tailproof.judge.lockstep import compare
from tailproof.targets.opening import Target, open_target

PLAIN = Configuration((Group("full", 8), Group("mamba", 8)), unit=4, store="both")
TWO = replace(PLAIN, second="both", lookup_async=True, receivers=2, decode_saves=True, load_failures="fail")
PROMPT = (("a", 22),)
STORED: tuple[Step, ...] = (Submit("A", PROMPT), Settle(), ResetLocal())
RESENT: tuple[Step, ...] = (*STORED, Submit("B", PROMPT), Settle())
CROSSED: tuple[Step, ...] = (
    *STORED[:2],
    Gate("get", "hold", 1),
    Gate("put", "hold"),
    Submit("B", PROMPT, engine=1),
    Submit("D", (("b", 22),)),
    Run(3, engine=1),
    Run(2),
    DropKeys(2),
    Gate("get", "fail", 1),
    Run(1, engine=1),
)


def run(trace: Trace) -> list[Observation]:
    """What the reference does."""
    return list(open_target(Target.parse("reference"), print).run(trace).observations)


def in_store(seen: list[Observation], index: int, **values: Any) -> None:
    """Replaces fields of what one observation shows of the store."""
    view = seen[index].store
    assert view is not None
    seen[index] = replace(seen[index], store=replace(view, **values))


def explained(trace: Trace, change: Callable[[list[Observation]], None]) -> list[str]:
    """The explanation of a changed run, from the setting on."""
    seen = run(trace)
    change(seen)
    outcome = Outcome(tuple(seen))
    divergence = compare(trace, outcome)
    assert divergence is not None
    return explain_divergence(trace, outcome, divergence)[3:]


def at_end(trace: Trace, rule: str, failure: Failure | None = None) -> list[str]:
    """The explanation of a finding of a rule in the last step of a run."""
    seen = run(trace)
    seen[-1] = replace(seen[-1], failure=failure)
    divergence = Divergence(Finding(rule, "kind", "so it is"), len(seen) - 1, seen[-1].at)
    return explain_divergence(trace, Outcome(tuple(seen)), divergence)[3:]


def test_a_short_load_is_explained_by_what_the_store_holds() -> None:
    loading = (Admitted("B", 0, 8, 0),)
    assert explained(Trace(PLAIN, RESENT), lambda seen: in_store(seen, 7, loading=loading)) == [
        "Setting: U 4, Mamba block 8, no EAGLE, states at chunk ends, retention 0, a store (both).",
        "step 0: A arrives with 22 tokens (22 of 'a'), checkpoint 20.",
        "step 1: A finds nothing to reuse, computes [0, 16), registers the state at 16 (chunk end, a replay "
        "boundary), attention at 8, 16.",
        "step 1: state at 16 of A is put; attention at 8, 16 of A are put.",
        "step 2: A computes [16, 20), registers the state at 20 (chunk end, the resend checkpoint), "
        "attention at 20.",
        "step 2: state at 20 of A is put.",
        "step 3: A computes [20, 22), registers nothing.",
        "step 3: attention at 20 of A is put.",
        "step 4: nothing is computed.",
        "step 5: a reset of the local cache takes effect.",
        "step 6: B arrives with the prompt of A.",
        "step 7: B leaves the queue to load 8 tokens; attention at 8, 16, 20 of B and state at 20 of B are "
        "loaded.",
        "On the prefix of B the store holds attention at 8, 16, 20, state at 16, 20.",
    ]


def test_a_loaded_state_is_registered_as_loaded() -> None:
    lines = at_end(Trace(PLAIN, (*STORED, Submit("B", PROMPT), Run(3))), "AC1")
    assert lines[-2:] == [
        "step 8: the load of B has come in.",
        "step 9: B computes [20, 22), registers the state at 20 (loaded, the resend checkpoint), attention "
        "at 8, 16, 20.",
    ]


def test_a_missing_key_is_explained_by_what_is_there() -> None:
    def without_state(seen: list[Observation]) -> None:
        view = seen[2].store
        assert view is not None
        in_store(seen, 2, transfers=(), stored=())

    lines = explained(Trace(PLAIN, STORED), without_state)
    assert "On the prefix of A the store holds attention at 8, 16, 20, state at 16." in lines


def test_who_holds_what_when_a_run_is_stuck() -> None:
    lines = at_end(Trace(TWO, CROSSED), "LV1", Failure("stuck", "too many steps"))
    assert lines[-5:] == [
        "step 16, engine 1: from now on gets of engine 1 fail for all keys.",
        "step 16, engine 1: attention at 8, 16, 20 of B and state at 20 of B are loaded, but all of it "
        "fails.",
        "step 17, engine 1: the load of B has failed; B ends with an error.",
        "At last, at engine 0: D runs; 506 blocks are free; 3 blocks by job 3 of D are pinned; 1 put waits "
        "at a gate; puts are held back.",
        "At last, at engine 1: 511 blocks are free; gets fail for all keys.",
    ]


def test_pins_are_told_where_they_matter() -> None:
    lines = at_end(Trace(TWO, CROSSED), "LT2")
    assert any(
        line == "step 14, engine 0: still pinned: 3 blocks by job 3 of D; 1 put waits at a gate."
        for line in lines
    )
    assert not any("pinned" in line for line in at_end(Trace(TWO, CROSSED), "SF4"))
    told = at_end(Trace(PLAIN, (*STORED[:1], Run(3))), "LT2")
    assert any("job 0 is told to have ended" in line for line in told)


def test_a_loading_request_and_a_dead_master_are_named() -> None:
    steps = (*STORED, Gate("get", "hold"), Submit("B", PROMPT), Run(2), KillMaster())
    trace = Trace(PLAIN, steps)
    seen = run(trace)
    assert list(standing(trace, Outcome(tuple(seen)), len(seen) - 1)) == [
        "At last, at engine 0: B loads; 505 blocks are free; 1 get waits at a gate; gets are held back; "
        "the master is dead."
    ]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"answers": (Answer("B", known=False),)}, "the store gives no answer for B"),
        (
            {"transfers": (Transfer("put", (Entry(0, 8, "B"),), error="OSError: gone"),)},
            "attention at 8 of B is put, but the call breaks off (OSError: gone)",
        ),
        (
            {
                "transfers": (
                    Transfer("put", (Entry(0, 8, "B"), Entry(1, 8, "B")), failed=(Entry(1, 8, "B"),)),
                )
            },
            "attention at 8 of B and state at 8 of B are put, but state at 8 of B fails",
        ),
        (
            {"transfers": (Transfer("put", (Entry(0, 8, "B"),), wrong=(Entry(0, 8, "B"),)),)},
            "attention at 8 of B is put, from blocks that hold other content: attention at 8 of B",
        ),
        (
            {"transfers": (Transfer("put", (Entry(0, 8, "B"),), unpinned=(Entry(0, 8, "B"),)),)},
            "attention at 8 of B is put, from blocks that no job holds: attention at 8 of B",
        ),
        (
            {"transfers": (Transfer("get", (Entry(0, 8, "B"),), wrong=(Entry(0, 8, "B"),)),)},
            "attention at 8 of B is loaded, with other content: attention at 8 of B",
        ),
        ({"held_lookups": 2}, "2 lookups wait at a gate"),
        ({"held_puts": 1, "held_gets": 1}, "1 put and 1 get wait at a gate"),
    ],
)
def test_what_one_step_shows(values: dict[str, Any], text: str) -> None:
    trace = Trace(PLAIN, RESENT)
    seen = run(trace)
    in_store(seen, 7, **{"transfers": (), "loading": (), **values})
    divergence = Divergence(Finding("LV1", "kind", "so it is"), 7, seen[7].at)
    lines = explain_divergence(trace, Outcome(tuple(seen)), divergence)
    assert f"step 7: {text}." in lines


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (Gate("put", "hold"), "from now on puts of engine 0 are held back"),
        (Gate("get", "newest", 1), "from now on gets of engine 1 are held back but for the latest one"),
        (Gate("lookup", "raise"), "from now on lookups of engine 0 raise an exception"),
        (Gate("put", "full"), "from now on puts of engine 0 find no room"),
        (Gate("get", "part"), "from now on gets of engine 0 fail for their last key"),
        (DropKeys(1), "the store loses its latest key"),
        (DropKeys(3), "the store loses its latest 3 keys"),
        (ResetStore(), "the store is emptied"),
        (KillMaster(), "the master is killed"),
        (RestartMaster(), "the master is started again, empty"),
        (Run(), None),
    ],
)
def test_steps_in_words(step: Step, text: str | None) -> None:
    assert meddling(step) == text


def test_the_setting_names_the_store() -> None:
    assert setting(PLAIN).endswith(", a store (both)")
    assert setting(TWO).endswith(
        ", two engines on one store (both and both), lookups beside the schedule, decoded KV is saved too, "
        "2 loading threads, a failed load ends its request"
    )
    assert "store" not in setting(replace(PLAIN, store="off"))
