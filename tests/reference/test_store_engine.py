"""The slow engine with a store, by hand: which key is saved, what is loaded when, who holds blocks.

Unit 4, blocks of 8, so L = 8, unless a test says otherwise. With EAGLE a prompt of 19 tokens has its resend
checkpoint at 12 and the proof of it through 16; without, at 16. A prompt of 23: 16 (proof 20), and 20.
"""

from __future__ import annotations

import pytest

from reference.session import SlowSession
from reference.store_side import StoreSide
from spec.observation import Entry, Observation, Outcome, StoreView
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
    validate,
)
from tailproof.judge.lockstep import compare
from tailproof.planted.reference_store import STORE_MUTANTS
from tailproof.targets.opening import Target, TargetNameError, open_target

GROUPS = Group("full", 8), Group("mamba", 8)
FULL, MAMBA = 0, 1
BLOCKS = 512


def configured(eagle: bool = False, **options: object) -> Configuration:
    values: dict[str, object] = {"store": "both", "blocks": BLOCKS, **options}
    return Configuration(GROUPS, 4, eagle=eagle, speculative=int(eagle), **values)  # type: ignore[arg-type]


def run(configuration: Configuration, *steps: Step, side: type[StoreSide] = StoreSide) -> list[Observation]:
    validate(Trace(configuration, steps))
    session = SlowSession(configuration, side)
    seen = [observation for at, step in enumerate(steps) for observation in session.step(at, step)]
    for observation in seen:
        assert observation.failure is None
        assert view(observation).miscounted == 0
    return seen


def view(observation: Observation) -> StoreView:
    assert observation.store is not None
    return observation.store


def keys(observations: list[Observation]) -> set[tuple[int, int]]:
    """What the store holds in the end, as (group, position)."""
    held: set[Entry] = set()
    for observation in observations:
        held |= set(view(observation).stored)
        held -= set(view(observation).dropped)
    return {(entry.group, entry.position) for entry in held}


def admitted(observations: list[Observation]) -> list[tuple[str, int, int]]:
    """Who left the queue, to compute or to load: (request, local, external)."""
    return [
        (item.request, item.local, item.external)
        for observation in observations
        for item in (*observation.admitted, *view(observation).loading)
    ]


def at_step(observations: list[Observation], at: int) -> list[Observation]:
    return [observation for observation in observations if observation.at == at]


def prompt(name: str, tokens: int, outputs: int = 1, engine: int = 0) -> Submit:
    return Submit(name, (("p", tokens),), outputs=outputs, engine=engine)


@pytest.mark.parametrize(
    ("eagle", "tokens", "stored"),
    [
        # C = 12, proof through 16 = ⌊P/L⌋·L: the tail is normal; states at C and at the replay boundary 8.
        (True, 19, {(FULL, 8), (FULL, 16), (MAMBA, 8), (MAMBA, 12)}),
        # C = 16, proof through 20: one key inside a block.
        (True, 23, {(FULL, 8), (FULL, 16), (FULL, 20), (MAMBA, 8), (MAMBA, 16)}),
        # C = 16: nothing past ⌊P/L⌋·L.
        (False, 19, {(FULL, 8), (FULL, 16), (MAMBA, 16)}),
        (False, 23, {(FULL, 8), (FULL, 16), (FULL, 20), (MAMBA, 16), (MAMBA, 20)}),
        # P ≤ U: C = 0, nothing at all.
        (False, 4, set()),
    ],
)
def test_a_prompt_leaves_its_normal_blocks_its_tail_and_its_states(
    eagle: bool, tokens: int, stored: set[tuple[int, int]]
) -> None:
    assert keys(run(configured(eagle), prompt("A", tokens), Settle())) == stored


@pytest.mark.parametrize(("eagle", "hit"), [(True, 16), (False, 20)])
def test_a_resend_after_a_reset_is_loaded_and_goes_on_two_steps_later(eagle: bool, hit: int) -> None:
    seen = run(configured(eagle), prompt("A", 23), Settle(), ResetLocal(), prompt("B", 23), Run(4), Settle())
    load, tell, begin, _ = at_step(seen, 4)
    assert [item.external for item in view(load).loading] == [hit]
    assert (load.scheduled, load.admitted, load.running, load.waiting) == ((), (), (), ("B",))
    (transfer,) = view(load).transfers
    last = 20 if eagle else hit
    due = [(FULL, 8), (FULL, 16), *([] if eagle else [(FULL, last)]), (MAMBA, hit)]
    assert [(entry.group, entry.position) for entry in transfer.entries] == due
    assert transfer.failed == transfer.wrong == ()
    # Three blocks hold 20 tokens, two hold 16, in each group.
    assert load.free == BLOCKS - 1 - 2 * -(-hit // 8)
    assert (view(tell).loaded, tell.scheduled) == (("B",), ())
    assert [(item.start, item.end) for item in begin.scheduled] == [(hit, 23)]
    assert begin.admitted == ()
    assert {(entry.group, entry.position) for entry in begin.published} >= {(FULL, 8), (FULL, 16)}
    assert begin.failed_reads == ()
    assert [(item.request, item.cached) for item in begin.finished] == [("B", hit)]
    assert seen[-1].free == BLOCKS - 1


def test_the_last_block_is_found_under_a_later_key() -> None:
    """Of 17 tokens the 12 before the last unit hit; A stored no key at 12, but one at 16."""
    seen = run(configured(True), prompt("A", 19), Settle(), ResetLocal(), prompt("B", 19), Settle())
    assert admitted(seen)[-1] == ("B", 0, 12)
    (transfer,) = view(at_step(seen, 4)[0]).transfers
    assert [(entry.group, entry.position) for entry in transfer.entries] == [
        (FULL, 8),
        (FULL, 16),
        (MAMBA, 12),
    ]


def test_a_longer_hit_in_the_store_cuts_the_local_one() -> None:
    """L = 16 over blocks of 8 and 16: of 8 local tokens nothing stays, of 16 all."""
    groups = Group("full", 8), Group("mamba", 16)
    configuration = Configuration(groups, 4, store="both", second="producer")
    for shared, kept in ((9, 0), (17, 16)):
        seen = run(
            configuration,
            prompt("A", 33, engine=1),
            Settle(engine=1),
            prompt("B", shared),
            Settle(),
            prompt("C", 33),
            Settle(),
        )
        assert admitted(seen)[-1] == ("C", kept, 32 - kept)


class KeepsLocal(StoreSide):
    """A shorter local hit stays whole, off the alignment or not."""

    def kept_of_local(self, hit: int) -> int:
        return hit


def test_a_local_hit_that_is_not_cut_is_found() -> None:
    groups = Group("full", 8), Group("mamba", 16)
    steps = (
        prompt("A", 33, engine=1),
        Settle(engine=1),
        prompt("B", 9),
        Settle(),
        prompt("C", 33),
        Settle(),
    )
    trace = Trace(Configuration(groups, 4, store="both", second="producer"), steps)
    for side, due in ((StoreSide, None), (KeepsLocal, "LK4")):
        seen = run(trace.configuration, *steps, side=side)
        divergence = compare(trace, Outcome(tuple(seen), units=(4, 4)))
        assert (divergence and divergence.rule) == due


def test_what_the_local_cache_has_is_not_loaded() -> None:
    seen = run(configured(), prompt("A", 23), Settle(), prompt("B", 23), Settle())
    assert admitted(seen) == [("A", 0, 0), ("B", 20, 0)]
    assert all(transfer.kind == "put" for observation in seen for transfer in view(observation).transfers)


def test_pins_stay_while_saves_are_held_and_go_one_step_after_the_release() -> None:
    seen = run(
        configured(),
        Gate("put", "hold"),
        prompt("A", 23),
        Run(6),
        ResetLocal(),
        Gate("put", "release"),
        Run(),
        ResetLocal(),
    )
    held, refused, released, told, reset = (
        at_step(seen, 2)[-1],
        *(at_step(seen, at)[0] for at in (3, 4, 5, 6)),
    )
    assert held.running == held.waiting == ()
    # Chunks end at 16, 20 and 23. The first job holds the state at 16 and two blocks, the second the state
    # at 20, the last the block of the tail and the two that it might have to save again.
    assert [pin.blocks for pin in view(held).pins] == [3, 1, 3]
    assert view(held).held_puts == 1
    assert keys([held]) == set()
    assert held.free == BLOCKS - 1 - 5
    assert refused.reset is False
    assert [len(transfer.entries) for transfer in view(released).transfers] == [1, 2, 1, 1]
    assert len(view(released).pins) == 3
    assert view(told).reported == (0, 1, 2)
    assert view(told).pins == ()
    assert told.free == BLOCKS - 1
    assert reset.reset is True


def test_a_put_is_told_in_the_step_after_it() -> None:
    seen = run(configured(), prompt("A", 9), Run(3))
    first, second, third = at_step(seen, 1)
    assert [(item.start, item.end) for item in first.scheduled] == [(0, 8)]
    assert [pin.job for pin in view(first).pins] == [0]
    assert [transfer.kind for transfer in view(first).transfers] == ["put", "put"]
    assert view(second).reported == (0,)
    # The prompt's last step saves no tail, since C = 8 is on the alignment.
    assert view(third).reported == ()


def test_a_load_that_fails_in_part_is_computed_anew() -> None:
    seen = run(
        configured(),
        prompt("A", 23),
        Settle(),
        ResetLocal(),
        Gate("get", "part"),
        prompt("B", 23),
        Run(2),
        Gate("get", "release"),
        ResetStore(),
        Run(),
        Settle(),
    )
    load, tell = at_step(seen, 5)
    (transfer,) = view(load).transfers
    assert [(entry.group, entry.position) for entry in transfer.failed] == [(MAMBA, 20)]
    assert view(tell).failed == ("B",)
    assert tell.free == BLOCKS - 1 - 6
    (begin,) = at_step(seen, 8)
    assert [(item.request, item.local, item.external) for item in begin.admitted] == [("B", 0, 0)]
    assert seen[-1].free == BLOCKS - 1


def test_a_failed_load_ends_its_request_where_that_is_asked_for() -> None:
    seen = run(
        configured(load_failures="fail"),
        prompt("A", 23),
        Settle(),
        ResetLocal(),
        Gate("get", "raise"),
        prompt("B", 23),
        Run(2),
    )
    load, tell = at_step(seen, 5)
    assert view(load).transfers[0].error
    assert view(tell).failed == ("B",)
    assert [(item.request, item.reason, item.outputs) for item in tell.finished] == [("B", "error", ())]
    assert tell.free == BLOCKS - 1


def test_an_aborted_load_keeps_its_blocks_until_it_is_told() -> None:
    seen = run(
        configured(),
        prompt("A", 23),
        Settle(),
        ResetLocal(),
        Gate("get", "hold"),
        prompt("B", 23),
        Run(),
        Abort("B"),
        ResetLocal(),
        Gate("get", "release"),
        Run(),
        ResetLocal(),
    )
    (abort,), (refused,), (told,), (reset,) = (at_step(seen, at) for at in (6, 7, 9, 10))
    assert [item.reason for item in abort.finished] == ["abort"]
    assert abort.waiting == ()
    assert abort.free == BLOCKS - 1 - 6
    assert refused.reset is False
    assert view(told).loaded == ("B",)
    assert told.free == BLOCKS - 1
    assert reset.reset is True


def test_a_consumer_loads_what_a_producer_saved_and_saves_nothing() -> None:
    configuration = configured(store="producer", second="consumer")
    seen = run(
        configuration,
        prompt("A", 23),
        Settle(),
        prompt("B", 23, engine=1),
        Settle(engine=1),
        prompt("C", 31, engine=1),
        Settle(engine=1),
    )
    assert admitted(seen) == [("A", 0, 0), ("B", 0, 20), ("C", 20, 0)]
    assert not any(
        transfer.kind == "put"
        for observation in seen
        if observation.engine == 1
        for transfer in view(observation).transfers
    )
    assert {observation.engine for observation in at_step(seen, 3)} == {1}


@pytest.mark.parametrize("role", ["producer", "consumer", "both"])
@pytest.mark.parametrize("decode_saves", [False, True])
def test_what_is_decoded_is_saved_only_where_asked_for(role: str, decode_saves: bool) -> None:
    """A prompt of 14 and 12 outputs: 25 tokens are computed, blocks end at 8, 16 and 24."""
    seen = run(configured(store=role, decode_saves=decode_saves), prompt("A", 14, outputs=12), Settle())
    full = {position for group, position in keys(seen) if group == FULL}
    prefilled = set() if role == "consumer" else {8, 12}
    assert full == prefilled | ({8, 16, 24} if decode_saves else set())


def test_the_master_dies_and_comes_back_empty() -> None:
    seen = run(
        configured(),
        prompt("A", 23),
        Settle(),
        KillMaster(),
        ResetLocal(),
        prompt("B", 23),
        Settle(),
        RestartMaster(),
        ResetLocal(),
        prompt("C", 23),
        Settle(),
    )
    (dead,), (back,) = at_step(seen, 2), at_step(seen, 6)
    assert view(dead).alive is False
    assert len(view(dead).dropped) == 5
    answers = [answer for observation in at_step(seen, 5) for answer in view(observation).answers]
    assert [(answer.request, answer.known) for answer in answers] == [("B", False)]
    puts = [transfer for observation in at_step(seen, 5) for transfer in view(observation).transfers]
    assert puts
    assert all(transfer.failed == transfer.entries for transfer in puts)
    assert view(back).alive is True
    assert admitted(seen) == [("A", 0, 0), ("B", 0, 0), ("C", 0, 0)]
    assert keys(seen) == {(FULL, 8), (FULL, 16), (FULL, 20), (MAMBA, 16), (MAMBA, 20)}


def test_keys_lost_between_lookup_and_load_lead_to_recomputation() -> None:
    seen = run(
        configured(),
        prompt("A", 23),
        Settle(),
        ResetLocal(),
        Gate("get", "hold"),
        prompt("B", 23),
        Run(),
        DropKeys(1),
        Settle(),
    )
    (drop,) = at_step(seen, 6)
    assert [(entry.group, entry.position) for entry in view(drop).dropped] == [(FULL, 20)]
    # The store still serves 16, but a load that failed is not followed by another one.
    assert admitted(seen) == [("A", 0, 0), ("B", 0, 20), ("B", 0, 0)]
    assert seen[-1].free == BLOCKS - 1


def test_a_reset_of_the_store_lets_held_saves_end_first() -> None:
    seen = run(configured(), Gate("put", "hold"), prompt("A", 23), Run(4), ResetStore(), Settle())
    (reset,) = at_step(seen, 3)
    assert len(view(reset).transfers) == 4
    assert keys(seen) == set()
    assert view(reset).held_puts == 0


def test_a_lookup_beside_the_schedule_is_used_a_step_later_while_others_go_on() -> None:
    """B is asked about in the first step and C, too short for a hit of its own, begins at once; B's answer
    comes at the end of that step and leads to a load in the second."""
    seen = run(
        configured(lookup_async=True),
        prompt("A", 23),
        Settle(),
        ResetLocal(),
        prompt("B", 23),
        Submit("C", (("c", 3),)),
        Run(4),
    )
    ask, load, tell, begin = at_step(seen, 5)
    assert [answer.request for answer in view(ask).answers] == ["B"]
    assert [item.request for item in ask.scheduled] == ["C"]
    assert view(ask).loading == ()
    assert [item.request for item in view(load).loading] == ["B"]
    assert view(tell).loaded == ("B",)
    assert [(item.request, item.start) for item in begin.scheduled] == [("B", 20)]


def test_held_lookups_come_one_at_a_time_and_a_failing_one_knows_nothing() -> None:
    seen = run(
        configured(lookup_async=True),
        prompt("A", 23),
        Settle(),
        ResetLocal(),
        Gate("lookup", "hold"),
        prompt("B", 23),
        prompt("C", 23),
        Run(),
        Gate("lookup", "newest"),
        Gate("lookup", "raise"),
        Run(),
    )
    (ask,), (newest,), (raised,), (then,) = (at_step(seen, at) for at in (6, 7, 8, 9))
    assert view(ask).held_lookups == 1
    assert [(one.request, one.known) for one in view(newest).answers] == [("B", True)]
    assert view(newest).held_lookups == 1
    assert [(one.request, one.known) for one in view(raised).answers] == [("C", False)]
    assert [item.request for item in view(then).loading] == ["B"]
    assert [(item.request, item.external) for item in then.admitted] == [("C", 0)]


def test_the_newest_load_overtakes_where_two_threads_load() -> None:
    seen = run(
        configured(receivers=2),
        prompt("A", 23),
        Settle(),
        ResetLocal(),
        Gate("get", "hold"),
        prompt("B", 23),
        prompt("C", 23),
        prompt("D", 23),
        Run(),
        Gate("get", "newest"),
        Gate("get", "newest"),
    )
    (load,), (first,), (second,) = (at_step(seen, at) for at in (7, 8, 9))
    assert view(load).held_gets == 2
    assert [transfer.entries[0].request for transfer in view(first).transfers] == ["C"]
    assert [transfer.entries[0].request for transfer in view(second).transfers] == ["D"]
    assert view(second).held_gets == 1


def test_jobs_of_a_preempted_request_end_without_putting() -> None:
    """The first job stands at the gate and goes on; those behind it put nothing. Resumed with 25 tokens after
    a local hit of 20 (the reset was refused), the request saves KV again, through 24, and its new state."""
    seen = run(
        configured(),
        Gate("put", "hold"),
        prompt("A", 23, outputs=8),
        Run(4),
        ResetLocal(running=True),
        Gate("put", "release"),
        Run(),
        Settle(),
    )
    (reset,), (release,) = at_step(seen, 3), at_step(seen, 4)
    assert reset.reset is False
    assert reset.running == ()
    assert [
        [(entry.group, entry.position) for entry in transfer.entries] for transfer in view(release).transfers
    ] == [[(MAMBA, 16)], [(FULL, 8), (FULL, 16)]]
    assert view(at_step(seen, 5)[0]).reported == (0, 1, 2)
    assert admitted(seen)[-1] == ("A", 20, 0)
    kv = {(FULL, 8), (FULL, 16), (FULL, 20), (FULL, 24)}
    assert keys(seen) == {*kv, (MAMBA, 16), (MAMBA, 24)}
    assert seen[-1].free == BLOCKS - 1


def test_after_a_preemption_the_prompt_still_decides_the_tail() -> None:
    """Preempted with 27 tokens known, the request prefills all of them; C stays 20."""
    seen = run(
        configured(), prompt("A", 23, outputs=8), Run(7), ResetLocal(running=True), ResetStore(), Settle()
    )
    (reset,) = at_step(seen, 2)
    assert reset.running == ()
    assert (FULL, 20) in keys(seen)
    assert not any(group == FULL and position > 24 for group, position in keys(seen))


def test_a_store_without_room_is_asked_no_more_until_a_put_succeeds() -> None:
    seen = run(
        configured(),
        Gate("put", "full"),
        prompt("A", 23),
        Run(4),
        Gate("put", "release"),
        prompt("B", 23),
        Settle(),
    )
    puts = [transfer for observation in at_step(seen, 2) for transfer in view(observation).transfers]
    assert [[entry.position for entry in transfer.failed] for transfer in puts] == [[16]]
    assert [number for one in at_step(seen, 2) for number in view(one).reported] == [0, 1, 2]


def test_a_failed_first_call_leaves_the_second_out() -> None:
    """The state's call fails, so its job leaves the KV out; the job of the prompt's last step tries it again,
    and the last key fails."""
    seen = run(configured(), Gate("put", "part"), prompt("A", 17), Run(2))
    puts = [transfer for observation in seen for transfer in view(observation).transfers]
    assert [[entry.position for entry in transfer.entries] for transfer in puts] == [[16], [8, 16]]
    assert [[entry.position for entry in transfer.failed] for transfer in puts] == [[16], [16]]
    assert [entry.group for entry in puts[0].entries] == [MAMBA]


def test_a_junction_adds_no_tail() -> None:
    seen = run(
        configured(retention=None),
        Submit("A", (("p", 30), ("a", 9))),
        Settle(),
        Submit("B", (("p", 30), ("b", 9))),
        Settle(),
    )
    mine = {entry.position for one in at_step(seen, 3) for entry in view(one).stored if entry.group == FULL}
    assert mine == {32, 36}


@pytest.mark.parametrize("fault", sorted(STORE_MUTANTS))
def test_each_fault_has_a_name_and_runs(fault: str) -> None:
    opened = open_target(Target.parse(f"reference+{fault}"), lambda line: None)
    trace = Trace(configured(True), (prompt("A", 23), Settle(), ResetLocal(), prompt("B", 23), Run(4)))
    outcome = opened.run(trace)
    assert outcome.observations[-1].store is not None


def test_a_fault_of_the_core_tier_runs_with_a_store_and_one_of_the_store_without() -> None:
    with_store = Trace(configured(), (prompt("A", 23), Settle(), prompt("B", 23), Settle()))
    without = Trace(Configuration(GROUPS, 4), with_store.steps)
    stops = open_target(Target.parse("reference+off-grid-hit"), lambda line: None).run(with_store)
    assert [item.local for one in stops.observations for item in one.admitted] == [0, 21]
    plain = open_target(Target.parse("reference+pins-nothing"), lambda line: None).run(without)
    assert all(one.store is None for one in plain.observations)


def test_an_unknown_fault_names_those_near_it() -> None:
    with pytest.raises(TargetNameError, match="pins-nothing"):
        Target.parse("reference+pins-nothin")
