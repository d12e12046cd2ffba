"""Other versions of vLLM as targets: their seed table, what they lack, what fuzzing finds on them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from bench.detection import DEFECTS, Defect, hunt
from spec.trace import Configuration, Group, Settle, Submit, Trace, TraceError
from tailproof.jobs import replay
from tailproof.jobs.fuzz import fuzz
from tailproof.jobs.seeds import SeedResult, run_seeds
from tailproof.judge.lockstep import divergences
from tailproof.known.explain import NOTHING, Known
from tailproof.known.model import KnownFault, KnownTrace, load
from tailproof.targets.environments import EnvironmentProblem
from tailproof.targets.opening import OVERLAYS, Target, line_of, open_target
from tailproof.targets.worker import TargetProblem, Worker

AHEAD = "vllm==0.33.0"
KNOWN = Known(load(), "0.33")
Opened = Callable[[str], Worker]

# Hits of a resend that vLLM is known to give, from hand-made runs (splits, then exports inside chunks).
SPLITS = ("lookup-capped-below-proof", "cap-applied-twice", "proof-scan-off-by-one-unit")
EXPORTS = tuple(f"{case}-exports" for case in SPLITS)
WAS = {"vllm==0.29.0": (0, 0, 0), "vllm==0.30.0": (5376, 6272, 15_120), "vllm==0.31.0": (5376, 6272, 15_120)}


def say(line: str) -> None:
    """Progress, for whoever waits."""
    print(line, file=sys.stderr)


@pytest.fixture(scope="module")
def version() -> Iterator[Opened]:
    """Opens a version by name; a test that needs one which cannot be had here is skipped."""
    kept: dict[str, Worker] = {}

    def opened(name: str) -> Worker:
        if name not in kept:
            try:
                worker = open_target(Target.parse(name), say)
            except (TargetProblem, EnvironmentProblem) as problem:
                pytest.skip(str(problem))
            assert isinstance(worker, Worker)
            kept[name] = worker
            worker.describe()
        return kept[name]

    yield opened
    for worker in kept.values():
        worker.close()


def observed(name: str, worker: Worker) -> dict[str, SeedResult]:
    """The results of the core tier's seed cases."""
    return {result.case.id: result for result in run_seeds({name: worker})}


@pytest.mark.parametrize("name", [f"vllm=={one}" for one in OVERLAYS])
def test_what_runs_is_the_version_that_was_asked_for(version: Opened, name: str) -> None:
    assert version(name).describe().version == name.removeprefix("vllm==")


@pytest.mark.parametrize("name", sorted(WAS))
def test_an_old_version_has_the_seed_defects(version: Opened, name: str) -> None:
    """Negative controls of the seed table: the hits that the defects left."""
    found = observed(name, version(name))
    assert tuple(found[case].observed[name] for case in SPLITS) == WAS[name]
    assert all(found[case].is_wrong(name) for case in SPLITS)
    for case in EXPORTS:
        if name == "vllm==0.29.0":
            assert "has no states exported inside a chunk" in found[case].lacking[name]
        else:
            assert found[case].is_wrong(name)
    assert name == "vllm==0.29.0" or found["unaligned-prompt"].observed[name] == 7296
    marked = found["registration-by-per-group-flag"].observed[name]
    assert (marked == 7296) is (name == "vllm==0.31.0")


def test_033_hits_what_its_own_profile_makes_due(version: Opened) -> None:
    found = observed(AHEAD, version(AHEAD))
    core = [result for result in found.values() if result.case.tier == "core"]
    assert not [result.case.id for result in core if result.is_wrong(AHEAD)]
    assert {result.profiles[AHEAD] for result in core} == {"lookahead"}
    assert found["proof-scan-unaligned-prompt"].observed[AHEAD] == 16_000
    assert all(result.divergences[AHEAD] is None for result in core)


def test_fuzzing_033_finds_nothing_that_is_not_known(version: Opened) -> None:
    report = fuzz([version(AHEAD)], AHEAD, seed=111, cases=500, known=KNOWN)
    assert [found.explanation for found in report.broken] == []
    assert report.coverage.counts["hit inside a block"] > 100
    assert any(found.known for found in report.found)


TRACES = [
    (fault, trace)
    for fault in KNOWN.baseline.of("0.33")
    if fault.tier == "core"
    for trace in fault.of_line("0.33")
]
MENDED = [trace for fault in KNOWN.baseline.mended("0.33") if fault.tier == "core" for trace in fault.traces]


@pytest.mark.parametrize(("fault", "trace"), TRACES, ids=[trace.file for _, trace in TRACES])
def test_known_traces_of_033_still_diverge_as_recorded(
    version: Opened, fault: KnownFault, trace: KnownTrace
) -> None:
    kept = replay.read(KNOWN.baseline.folder / trace.file)
    assert kept.fingerprint == trace.file.removesuffix(".json")
    outcome = version(AHEAD).run(kept.trace)
    found = list(divergences(kept.trace, outcome, explainer=KNOWN.explainer()))
    assert found, "fixed: say in the file of the fault that it is mended"
    assert [one.finding for one in found if not one.fault] == []
    assert (trace.rule, fault.id) in {(one.rule, one.fault) for one in found}


@pytest.mark.parametrize("trace", MENDED, ids=lambda trace: trace.file)
def test_what_033_mended_holds_there(version: Opened, trace: KnownTrace) -> None:
    kept = replay.read(KNOWN.baseline.folder / trace.file)
    assert list(divergences(kept.trace, version(AHEAD).run(kept.trace))) == []


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_each_seed_defect_is_found_again_where_it_is_and_not_where_it_is_not(
    version: Opened, defect: Defect
) -> None:
    assert hunt(defect, version(defect.target), 1, seconds=60).found
    assert not hunt(defect, version(defect.control), 1, cases=60).found


@pytest.mark.parametrize("name", ["vllm==0.28.0", "vllm==0.31.0"])
def test_fuzzing_an_old_version_runs_and_finds(version: Opened, name: str) -> None:
    """Nothing of an old version is known, and nothing that it lacks is drawn, so that fuzzing never errs."""
    assert load().of(line_of(name)) == ()
    report = fuzz([version(name)], name, seed=5, cases=60, rules=frozenset(["PM1"]), known=NOTHING)
    assert [found.finding.kind for found in report.found] == ["scan-capped"]
    assert report.rules["PM1"] >= 2


def test_what_a_version_lacks_is_refused_by_name(version: Opened) -> None:
    groups = Group("full", 16), Group("mamba", 16)
    trace = Trace(Configuration(groups, 4, junctions=True), (Submit("A", (("a", 5),)), Settle()))
    with pytest.raises(TraceError, match=r"^configuration: vLLM 0\.29\.0 has no junction checkpoints$"):
        version("vllm==0.29.0").run(trace)
