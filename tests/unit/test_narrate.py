"""Explanations: an argument from what was observed, short, with who registered what, where and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from reference.oracle import Oracle
from spec.observation import Entry, Failure, Observation, Outcome
from spec.trace import Configuration, Group, ResetLocal, Run, Settle, Step, Submit, Trace
from tailproof.explain.evidence import Evidence
from tailproof.explain.story import explain_divergence, setting
from tailproof.generate.core import case
from tailproof.judge.findings import Divergence, Finding
from tailproof.judge.lockstep import compare, divergences
from tailproof.judge.step import Step as Judged
from tailproof.planted.reference import MUTANTS
from tailproof.targets.opening import Target, open_target

GROUPS = Group("full", 4), Group("mamba", 4)
PLAIN = Configuration(GROUPS, 2)
EAGLE = Configuration(GROUPS, 2, eagle=True, speculative=1)
EXPORTS = Configuration((GROUPS[0], Group("mamba", 4, checkpoint_alignment=1)), 2)
ONCE: tuple[Step, ...] = (Submit("A", (("a", 8),)), Settle())
RESEND: tuple[Step, ...] = (*ONCE, Submit("B", (("a", 8),)), Settle())
Change = Callable[[Observation], Observation]
Wanted = Callable[[Finding], bool]


def explained(fault: str, configuration: Configuration, *steps: Step) -> list[str]:
    """The explanation of what a planted fault does with a trace."""
    opened = open_target(Target.parse(f"reference+{fault}"), lambda line: None)
    trace = Trace(configuration, steps)
    outcome = opened.run(trace)
    divergence = compare(trace, outcome)
    assert divergence is not None
    return explain_divergence(trace, outcome, divergence)


def told(lines: list[str]) -> list[str]:
    """Events and argument: without the rule, the setting and the picture."""
    picture = next((at for at, line in enumerate(lines) if line.startswith("The tokens of ")), len(lines))
    return lines[4:picture]


def test_a_missed_hit_says_what_was_there_and_who_registered_it() -> None:
    assert explained("scan-capped", EAGLE, *RESEND) == [
        "PM1 is broken: request 'B' of 8 tokens hit 0, due was 6: as if the proof scan stopped at P − 1.",
        "The rule: The proof scan is bounded by min(limit + M_g, hashes·U), not by the limit P − 1.",
        "Why it matters: Proof is only inspected; bounding it by the hit limit hides proof that is there.",
        "Setting: U 2, Mamba block 4, EAGLE with 1 draft, no group marked, states at chunk ends, "
        "retention 0.",
        "step 0: A arrives with 8 tokens (8 of 'a'), checkpoint 6.",
        "step 1: A finds nothing to reuse, computes [0, 4), registers the state at 4 (chunk end, a replay "
        "boundary), attention at 4.",
        "step 2: A computes [4, 6), registers the state at 6 (chunk end, the resend checkpoint).",
        "step 3: A computes [6, 8); attention at 8 is registered.",
        "step 4: B arrives with the prompt of A.",
        "step 5: B finds nothing to reuse (due was 6), learns of a junction at 2, computes [0, 4), registers "
        "nothing.",
        "To reuse 6 tokens B needs attention through 8 (the last 2 as proof only; visible through 8, by A in "
        "step 3) and the state at 6, by A in step 2.",
        "The tokens of B:",
        "0╱╱──────────────────────│─────────────────────────────────────────────│",
        "                         └6 checkpoint                              8 P┘",
        "░ this step",
    ]


@pytest.mark.parametrize(
    ("fault", "configuration", "steps", "argument"),
    [
        (
            "publishes-transient",
            EXPORTS,
            ONCE,
            [
                "A registered the state at 4 in step 1, but its chunk [0, 8) neither ended nor exported "
                "there.",
                "On this prefix states were computed only at 6 (A, step 1, exported), 8 (A, step 1).",
            ],
        ),
        (
            "retention-drops-checkpoint",
            PLAIN,
            ONCE,
            [
                "A's chunk [4, 6) ended at 6. 6 is the resend checkpoint, so its state must be found "
                "later; the step registered no state."
            ],
        ),
        (
            "old-checkpoint",
            EAGLE,
            ONCE,
            [
                "6 is the checkpoint of A's prompt of 8 tokens. The chunk [4, 8) passes 6, and nothing was "
                "exported.",
                "So A leaves no state at 6; the nearest computed below is at 4.",
            ],
        ),
        (
            "same-step-reuse",
            PLAIN,
            (ONCE[0], *RESEND[2:]),
            [
                "To reuse 4 tokens B needs attention through 4 (visible through 4, by A in this step) and "
                "the state at 4, by A in this step.",
                "The lookup of B already saw attention at 4, registered earlier in this very step, though "
                "the content is written only when the step runs.",
            ],
        ),
    ],
)
def test_the_argument_names_what_was_computed_and_registered(
    fault: str, configuration: Configuration, steps: tuple[Step, ...], argument: list[str]
) -> None:
    lines = told(explained(fault, configuration, *steps))
    assert lines[-len(argument) :] == argument
    assert lines[-len(argument) - 1].startswith("step ")


def planted(trace: Trace, start: int, change: Change, wanted: Wanted) -> list[str]:
    """The argument at a finding that a change brings: of the last engine step that begins a chunk at
    `start`."""
    seen = list(open_target(Target.parse("reference"), print).run(trace).observations)
    index = max(at for at, one in enumerate(seen) if one.scheduled and one.scheduled[0].start == start)
    outcome = Outcome((*seen[:index], change(seen[index])))
    divergence = next(one for one in divergences(trace, outcome) if wanted(one.finding))
    lines = told(explain_divergence(trace, outcome, divergence))
    return lines[max(at for at, line in enumerate(lines) if line.startswith("step ")) + 1 :]


def running_to(end: int) -> Change:
    """The chunk ends there."""
    return lambda seen: replace(seen, scheduled=(replace(seen.scheduled[0], end=end),))


def publishing(entry: Entry) -> Change:
    """The step makes that entry visible, and no other."""
    return lambda seen: replace(seen, published=(entry,))


AGAIN = Trace(PLAIN, (Submit("A", (("a", 8),), outputs=9), Run(7), ResetLocal(running=True), Settle()))
JUNCTION = Trace(PLAIN, (Submit("A", (("a", 20),)), Settle(), Submit("B", (("a", 14), ("b", 10))), Settle()))


@pytest.mark.parametrize(
    ("trace", "stop", "start", "end", "argument"),
    [
        (
            Trace(PLAIN, ONCE),
            "checkpoint",
            4,
            8,
            "6 is the checkpoint of A's prompt of 8 tokens. The chunk [4, 8) passes 6, and nothing was "
            "exported.",
        ),
        (
            Trace(PLAIN, ONCE),
            "block",
            0,
            6,
            "4 is the last block end that a lookup could use. The chunk [0, 6) passes 4, and nothing was "
            "exported.",
        ),
        (
            JUNCTION,
            "junction",
            0,
            14,
            "B's junction asks for a state at 12, for others with its prefix. The chunk [0, 14) passes 12, "
            "and nothing was exported.",
        ),
        (
            AGAIN,
            "checkpoint",
            0,
            13,
            "6 is the checkpoint of A's prompt of 8 tokens; started again, it prefills its outputs too, 13 "
            "tokens. The chunk [0, 13) passes 6, and nothing was exported.",
        ),
        (
            AGAIN,
            "block",
            0,
            13,
            "12 is the last block end that a lookup could use; started again, it prefills its outputs too, "
            "13 tokens. The chunk [0, 13) passes 12, and nothing was exported.",
        ),
    ],
)
def test_a_jumped_stop_is_named_with_its_reason(
    trace: Trace, stop: str, start: int, end: int, argument: str
) -> None:
    lines = planted(trace, start, running_to(end), lambda finding: finding.stop == stop)
    assert lines[0] == argument
    assert [" leaves no state at " in line for line in lines[1:]] == [True]


def test_a_state_whose_place_an_export_took_before_is_told_by_that_chunk() -> None:
    trace = Trace(EXPORTS, (Submit("A", (("a", 8),), outputs=3), Settle()))
    late = planted(trace, 8, publishing(Entry(1, 4, "A")), lambda finding: finding.rule == "CH4")
    assert late == [
        "A registered the state at 4 in step 2, but its chunk [0, 8) of step 1 put the export of 6 into its "
        "place.",
        "On this prefix states were computed only at 6 (A, step 1, exported), 8 (A, step 1).",
    ]


def test_a_state_that_an_earlier_chunk_ran_past_is_told_by_that_chunk() -> None:
    """B goes on from the state at 6 inside the block [4, 8), and ran past its end."""
    steps = (*ONCE, Submit("B", (("a", 7), ("b", 13)), outputs=3), Settle())
    trace = Trace(replace(EXPORTS, budget=64), steps)
    late = planted(trace, 20, publishing(Entry(1, 8, "B")), lambda finding: finding.rule == "CH3")
    assert late == [
        "B registered the state at 8 in step 4, but its chunk [6, 20) of step 3, which began inside that "
        "block with the state at 6 in it, neither ended nor exported there.",
        "On this prefix states were computed only at 6 (A, step 1, exported), 18 (B, step 3, exported), "
        "20 (B, step 3).",
    ]


@pytest.mark.parametrize("group", [0, 1])
def test_what_was_registered_for_a_request_that_was_preempted_is_told_so(group: int) -> None:
    def preempted(seen: Observation) -> Observation:
        entry = Entry(group, 8, "A")
        return replace(seen, scheduled=(), running=(), waiting=("A",), preempted=("A",), published=(entry,))

    trace = Trace(PLAIN, (Submit("A", (("a", 8),), outputs=2), Settle()))
    lines = planted(trace, 6, preempted, lambda finding: finding.entry is not None)
    assert lines[0] == (
        "A, which has this prefix, was preempted in this very step: what it was to compute, and was "
        "registered for, was never computed."
    )
    states = ["On this prefix states were computed only at 4 (A, step 1), 6 (A, step 2)."]
    assert lines[1:] == states * group


def test_states_from_before_a_reset_are_no_evidence() -> None:
    trace = Trace(PLAIN, (Submit("A", (("a", 8),)), Run(2), ResetLocal(running=True)))
    outcome = open_target(Target.parse("reference"), lambda line: None).run(trace)
    oracle = Oracle(trace)
    evidence = Evidence(oracle)
    seen = []
    for index, observation in enumerate(outcome.observations):
        forecast = oracle.forecast(observation)
        evidence.learn(index, Judged(observation, forecast, oracle))
        oracle.adopt(observation, forecast)
        seen.append(evidence.computed_before(1, oracle.histories["A"]))
    assert seen == [[], [(4, "A, step 1")], [(4, "A, step 1"), (6, "A, step 2")], []]


def test_what_is_known_of_a_stuck_system_is_shown_in_full() -> None:
    detail = [f"request r{index} holds {index} blocks and waits for 2 more" for index in range(30)]
    trace = Trace(PLAIN, ONCE)
    failure = Failure("stuck", "no request ends", "\n".join(detail))
    outcome = Outcome((Observation(0, "submit"), Observation(1, "settle", failure=failure)))
    finding = Finding("LV1", "stuck", "the target broke off (stuck): no request ends")
    lines = explain_divergence(trace, outcome, Divergence(finding, 1, 1))
    assert lines[-30:] == detail
    crash = Outcome(
        (outcome.observations[0], Observation(1, "settle", failure=Failure("crash", "x", failure.detail)))
    )
    assert explain_divergence(trace, crash, Divergence(finding, 1, 1))[-5:] == [lines[-31], *detail[-4:]]


def test_many_lines_are_left_out_but_no_arrival() -> None:
    many = [Submit(f"r{index}", ((f"p{index}", 9),), 3) for index in range(4)]
    steps = [step for submit in many for step in (submit, Run(1))]
    lines = explained("scan-capped", EAGLE, *steps, Settle(), *RESEND)
    assert len(lines) <= 16
    assert sum(" arrives with " in line for line in lines) == 6
    assert any(line.endswith("lines left out)") for line in lines)


def test_a_setting_in_words() -> None:
    groups = Group("full", 4), Group("mamba", 8), Group("full", 4, draft=True)
    configuration = Configuration(
        groups, 2, eagle=True, speculative=3, retention=None, blocks=40, budget=16, live=2, policy="priority"
    )
    assert setting(configuration) == (
        "U 2, Mamba block 8, attention block 4, EAGLE with 3 drafts, group 2 marked as draft, states at "
        "chunk ends, dense retention, 16 tokens a step, a pool of 40 blocks, at most 2 running, "
        "policy priority"
    )


def test_every_fault_is_explained_in_few_lines() -> None:
    told_of = 0
    for fault in MUTANTS:
        opened = open_target(Target.parse(f"reference+{fault}"), lambda line: None)
        for index in range(150):
            trace = case(1, index)
            outcome = opened.run(trace)
            divergence = compare(trace, outcome)
            if divergence is None:
                continue
            lines = explain_divergence(trace, outcome, divergence)
            assert lines[0].startswith(f"{divergence.rule} is broken: ")
            assert len(lines) <= 18
            told_of += 1
            break
    assert told_of > len(MUTANTS) // 2


def test_an_explanation_says_nothing_of_where_packages_lie() -> None:
    from tailproof.explain.story import _LIES_AT

    line = '  File "/home/someone/lib/python3.11/site-packages/vllm/v1/core/block_pool.py", line 3, in pop'
    assert _LIES_AT.sub(r'File "\1', line) == '  File "vllm/v1/core/block_pool.py", line 3, in pop'
