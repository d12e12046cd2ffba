"""The reach of the generator on the real vLLM: every supported cell of axis and phase is met."""

from __future__ import annotations

import pytest

from tailproof.jobs.fuzz import fuzz
from tailproof.known.explain import Known
from tailproof.known.model import load
from tailproof.targets.opening import DEFAULT
from tailproof.targets.worker import Worker

CASES = 4000


@pytest.mark.timeout(900)
def test_a_fuzz_run_meets_every_supported_cell_and_no_other(vllm: Worker) -> None:
    report = fuzz([vllm], DEFAULT, seed=103, cases=CASES, known=Known(load(), "0.32"))
    assert report.coverage.reach.contradicted(DEFAULT) == []
    assert report.coverage.empty(DEFAULT) == []
