"""The real scheduler and cache manager of vLLM in lockstep with the oracle."""

from __future__ import annotations

import pytest

from tailproof import replay
from tailproof.baseline import load
from tailproof.fuzz import fuzz
from tailproof.generate import case
from tailproof.lockstep import compare
from tailproof.process import Worker
from tailproof.seeds import run_seeds
from tailproof.targets import DEFAULT

# The hits that DESIGN.md requires; the spec's column must come out of the code.
REQUIRED = {
    "lookup-capped-below-proof": 6912,
    "cap-applied-twice": 7168,
    "proof-scan-off-by-one-unit": 15_984,
    "proof-scan-unaligned-prompt": 15_984,
}
BASELINE = load()


def test_the_target_says_what_it_is_and_what_is_replaced(vllm: Worker) -> None:
    description = vllm.describe()
    assert (description.version, description.tiers["core"]) == ("0.32.0", "ready")
    assert any("forward" in line for line in description.replaced)


def test_seed_cases_agree_on_the_real_scheduler(vllm: Worker) -> None:
    results = run_seeds({DEFAULT: vllm})
    assert {result.case.id: result.spec for result in results} == REQUIRED
    assert {result.case.id: result.observed[DEFAULT] for result in results} == REQUIRED
    assert all(result.divergences[DEFAULT] is None for result in results)


@pytest.mark.parametrize("known", BASELINE.entries, ids=lambda known: known.id)
def test_known_traces_still_diverge_as_recorded(vllm: Worker, known: object) -> None:
    assert known in BASELINE.entries
    for entry in BASELINE.entries:
        if entry == known:
            kept = replay.read(BASELINE.folder / entry.trace)
            result = replay.replay(vllm, kept)
            assert result.verdict == "FAILED", "fixed: remove the entry"
            assert result.divergence is not None
            finding = result.divergence.finding
            assert (finding.rule, finding.kind) == (entry.rule, entry.kind)
            assert kept.fingerprint == entry.trace.removesuffix(".json")


@pytest.mark.parametrize("seed", [101, 102])
def test_fuzzing_finds_nothing_that_the_baseline_does_not_know(vllm: Worker, seed: int) -> None:
    report = fuzz([vllm], DEFAULT, seed=seed, cases=700, baseline=BASELINE)
    assert [found.explanation for found in report.broken] == []
    assert report.coverage.unreached() == []


@pytest.mark.parametrize("step", ["b", "c", "e", "f", "g"])
def test_a_content_check_step_left_out_is_seen(vllm: Worker, step: str) -> None:
    """Negative control of the content check: without the step, reads of a clean case go wrong."""
    for index in range(400):
        trace = case(7, index)
        clean = vllm.run(trace)
        if compare(trace, clean) is not None:
            continue
        divergence = compare(trace, vllm.run(trace, omit=step))
        if divergence is not None:
            assert divergence.rule in ("SF1", "SF2", "SF4")
            return
    pytest.fail(f"leaving out step {step} was never seen")
