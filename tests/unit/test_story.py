"""Explanations: an argument from what was observed, short, with who registered what, where and why."""

from __future__ import annotations

from reference.oracle import Oracle
from spec.notation import parse
from spec.observation import Failure, Observation, Outcome
from tailproof.explain.evidence import Evidence
from tailproof.explain.story import explain_divergence
from tailproof.generate.core import case
from tailproof.judge.findings import Divergence, Finding
from tailproof.judge.lockstep import compare
from tailproof.judge.step import Step as Judged
from tailproof.planted.reference import MUTANTS
from tailproof.targets.opening import Target, open_target

ONCE = parse("groups full 4, mamba 4; unit 2; submit A prompt a:8; settle")


def test_states_from_before_a_reset_are_no_evidence() -> None:
    trace = parse("submit A prompt a:8; run 2; reset_local running", ONCE)
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
    failure = Failure("stuck", "no request ends", "\n".join(detail))
    outcome = Outcome((Observation(0, "submit"), Observation(1, "settle", failure=failure)))
    finding = Finding("LV1", "stuck", "the target broke off (stuck): no request ends")
    lines = explain_divergence(ONCE, outcome, Divergence(finding, 1, 1))
    assert lines[-30:] == detail
    crash = Outcome(
        (outcome.observations[0], Observation(1, "settle", failure=Failure("crash", "x", failure.detail)))
    )
    assert explain_divergence(ONCE, crash, Divergence(finding, 1, 1))[-5:] == [lines[-31], *detail[-4:]]


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
