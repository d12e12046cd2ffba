"""The real scheduler and cache manager of vLLM in lockstep with the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count, islice

import pytest

from spec.trace import Configuration
from tailproof.generate.core import case
from tailproof.generate.drawing import Axes
from tailproof.jobs import replay
from tailproof.jobs.fuzz import fuzz
from tailproof.jobs.seeds import run_seeds
from tailproof.judge.findings import IncompleteError
from tailproof.judge.lockstep import compare, divergences
from tailproof.known.explain import Known
from tailproof.known.model import KnownFault, KnownTrace, load
from tailproof.targets.opening import DEFAULT
from tailproof.targets.worker import Worker

# The hits that the seed cases require; the column of the spec must come out of the code.
REQUIRED = {
    "lookup-capped-below-proof": 6912,
    "cap-applied-twice": 7168,
    "proof-scan-off-by-one-unit": 15_984,
    "proof-scan-unaligned-prompt": 15_984,
}
KNOWN = Known(load(), "0.32")
FAULTS = KNOWN.baseline.of("0.32")


def test_the_target_says_what_it_is_and_what_is_replaced(vllm: Worker) -> None:
    description = vllm.describe()
    assert (description.version, description.tiers["core"]) == ("0.32.0", "ready")
    assert any("forward" in line for line in description.replaced)


def test_seed_cases_agree_on_the_real_scheduler(vllm: Worker) -> None:
    results = run_seeds({DEFAULT: vllm})
    specs = {result.case.id: result.spec for result in results}
    assert {case: specs[case] for case in REQUIRED} == REQUIRED
    core = [result for result in results if result.case.tier == "core"]
    assert len(core) > len(REQUIRED)
    assert not [result.case.id for result in core if result.is_wrong(DEFAULT) or result.lacking]
    assert all(result.divergences[DEFAULT] is None for result in core)


TRACES = [(fault, trace) for fault in FAULTS if fault.tier == "core" for trace in fault.of_line("0.32")]


@pytest.mark.parametrize(("fault", "trace"), TRACES, ids=[trace.file for _, trace in TRACES])
def test_known_traces_still_diverge_as_recorded(vllm: Worker, fault: KnownFault, trace: KnownTrace) -> None:
    kept = replay.read(KNOWN.baseline.folder / trace.file)
    assert kept.fingerprint == trace.file.removesuffix(".json")
    outcome = vllm.run(kept.trace)
    found = list(divergences(kept.trace, outcome, explainer=KNOWN.explainer()))
    assert found, "fixed: say in the file of the fault that it is mended"
    assert [one.finding for one in found if not one.fault] == []
    assert (trace.rule, fault.id) in {(one.rule, one.fault) for one in found}
    # As recorded: what the file says that it breaks.
    assert kept.rule == trace.rule
    assert (kept.rule, kept.kind) in {(one.rule, one.finding.kind) for one in found if one.fault == fault.id}


@pytest.mark.parametrize(("fault", "trace"), TRACES, ids=[trace.file for _, trace in TRACES])
def test_a_known_trace_is_new_where_its_fault_is_not_known(
    vllm: Worker, fault: KnownFault, trace: KnownTrace
) -> None:
    """Negative control: no other fault explains all that this one shows."""
    others = tuple(one for one in FAULTS if one is not fault)
    without = Known(replace(KNOWN.baseline, faults=others), "0.32")
    kept = replay.read(KNOWN.baseline.folder / trace.file)
    found = list(divergences(kept.trace, vllm.run(kept.trace), explainer=without.explainer()))
    assert any(not one.fault for one in found)


@pytest.mark.parametrize("seed", [101, 102])
def test_fuzzing_finds_nothing_that_is_not_known(vllm: Worker, seed: int) -> None:
    report = fuzz([vllm], DEFAULT, seed=seed, cases=700, known=KNOWN)
    assert [found.explanation for found in report.broken] == []
    assert report.coverage.unreached() == []


SEEN_AS = {"a": ("SF1",), **dict.fromkeys("bcefg", ("SF1", "SF2", "SF4"))}


@pytest.mark.parametrize("step", sorted(SEEN_AS))
def test_a_content_check_step_left_out_is_seen(vllm: Worker, step: str) -> None:
    """Negative control of the content check: without the step, reads of a clean case go wrong."""
    for index in range(400):
        trace = case(7, index)
        clean = vllm.run(trace)
        if compare(trace, clean) is not None:
            continue
        divergence = compare(trace, vllm.run(trace, omit=step))
        if divergence is not None:
            assert divergence.rule in SEEN_AS[step]
            assert (divergence.finding.kind == "stale-bytes") is (step == "a")
            return
    pytest.fail(f"leaving out step {step} was never seen")


def test_reads_left_out_are_an_error_and_no_verdict(vllm: Worker) -> None:
    """Without step d nothing is read, so nothing could be found wrong: the run must not count as clean."""
    for index in range(20):
        trace = case(7, index)
        if compare(trace, vllm.run(trace)) is not None:
            continue
        with pytest.raises(IncompleteError, match="the content check read 0 tokens and states, due were "):
            compare(trace, vllm.run(trace, omit="d"))
        return
    pytest.fail("no clean case")


# One feature at a time, so that none hides among the others.


def _windows(now: Configuration) -> bool:
    return any(group.kind == "window" for group in now.groups)


def _small(now: Configuration) -> bool:
    return now.blocks < 60


ALONE = Axes(pressure=0.0, asynchronous=0.0, events=0.0, windows=0.0, multi_module=0.0)
FEATURES: dict[str, tuple[Axes, Callable[[Configuration], bool]]] = {
    "sliding windows": (replace(ALONE, windows=1.0), _windows),
    "draft modules": (replace(ALONE, multi_module=1.0), lambda now: now.multi_module),
    "asynchronous scheduling": (replace(ALONE, asynchronous=1.0), lambda now: now.asynchronous),
    "KV events": (replace(ALONE, events=1.0), lambda now: now.events),
    "memory pressure": (replace(ALONE, pressure=1.0), _small),
}
CASES = 150


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_by_itself_gives_nothing_that_is_not_known(vllm: Worker, feature: str) -> None:
    axes, wanted = FEATURES[feature]
    traces = (trace for trace in (case(104, index, axes) for index in count()) if wanted(trace.configuration))
    hits = late = told = evicted = 0
    for trace in islice(traces, CASES):
        outcome = vllm.run(trace)
        found = divergences(trace, outcome, explainer=KNOWN.explainer())
        assert [one.finding for one in found if not one.fault] == [], trace
        for seen in outcome.observations:
            hits += sum(item.local > 0 for item in seen.admitted)
            late += not seen.scheduled and bool(seen.finished) and seen.do in ("run", "settle")
            told += len(seen.events or ())
            evicted += seen.evicted or 0
    assert hits > CASES
    assert (late > CASES) is (feature == "asynchronous scheduling")
    assert (told > CASES) is (feature == "KV events")
    assert (evicted > CASES) is (feature == "memory pressure")
