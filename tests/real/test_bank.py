"""A sample of the bug bank on two real versions: what was mended holds, what was not fails."""

from __future__ import annotations

import pytest

from tailproof.jobs.bank.cases import bank
from tailproof.jobs.bank.run import Matrix, run_bank
from tailproof.known.model import load
from tailproof.targets.opening import Target, tier_states

NEW, OLD = "vllm==0.32.0", "vllm==0.31.0"
SAMPLE = (
    "case 2",
    "case 3",
    "defect 1",
    "#52371",
    "#45238",
    "#45614",
    "#44701",
    "#36708",
    "#40709",
    "#43516",
)


@pytest.fixture(scope="module")
def sample() -> Matrix:
    names = [name for name in (NEW, OLD) if tier_states(Target.parse(name))["core"] == "ready"]
    return run_bank(names, bank().about(SAMPLE), load(), print)


def verdicts(matrix: Matrix, target: str) -> dict[str, str]:
    if target not in matrix.targets:
        pytest.skip(f"{target} is not ready here")
    return {report.rpartition("/")[2]: row[target].words for report, row in matrix.cells.items()}


def test_the_default_target_has_nothing_that_is_not_known(sample: Matrix) -> None:
    found = verdicts(sample, NEW)
    assert {report for report, verdict in found.items() if verdict != "holds"} == {"vllm#40709"}
    assert found["vllm#40709"] == "known CH2"


def test_an_older_version_fails_what_was_mended_since(sample: Matrix) -> None:
    found = verdicts(sample, OLD)
    mended = {report: verdict for report, verdict in found.items() if verdict.startswith("fails")}
    assert {"PM1", "RT2", "CH2"} <= {verdict.removeprefix("fails ") for verdict in mended.values()}
    assert found["vllm#44701 (#44706)"] == found["vllm#36708"] == "holds"


@pytest.mark.parametrize("target", [NEW, OLD])
def test_the_sample_ran_as_a_whole(sample: Matrix, target: str) -> None:
    assert "could not run" not in verdicts(sample, target).values()
