"""Fuzzes a target until the first divergence that no known fault explains: how long a fault stays unseen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from spec.geometry import GeometryError
from spec.trace import Trace, TraceError
from tailproof.jobs.fuzz import generator
from tailproof.judge.findings import Finding, IncompleteError
from tailproof.judge.lockstep import divergences
from tailproof.known.explain import Known
from tailproof.targets.worker import TargetProblem, Worker

_AHEAD = 3


@dataclass(frozen=True, slots=True)
class Hunted:
    """What a hunt gave. `finding` is None when nothing was seen; `trouble` is the line with which the target
    or the comparison gave up, "" when neither did. `cases` counts the last one too, `seconds` are wall time
    without the start of the worker."""

    finding: Finding | None
    trouble: str
    cases: int
    seconds: float

    @property
    def seen(self) -> bool:
        """Whether a rule was broken, or the run could not go on."""
        return self.finding is not None or bool(self.trouble)


def hunt(
    worker: Worker,
    known: Known,
    *,
    seed: int,
    seconds: float,
    cases: int | None = None,
    tier: str = "core",
    progress: Callable[[int], None] = lambda cases: None,
) -> Hunted:
    """Run generated cases on a target until one diverges, for at most some seconds, or a number of cases.

    `known` is what is known of the target; `progress` is told the number of cases.
    """
    try:
        drawn = generator(tier, [worker.describe()])
    except TargetProblem as problem:
        return Hunted(None, str(problem), 0, 0.0)
    began = time.monotonic()
    waiting: list[Trace] = []
    started = judged = 0

    def passed() -> float:
        return time.monotonic() - began

    while passed() < seconds and (cases is None or judged < cases):
        try:
            while len(waiting) < _AHEAD and (cases is None or started < cases):
                trace = drawn(seed, started)
                worker.start(trace)
                waiting.append(trace)
                started += 1
            judged += 1
            trace = waiting.pop(0)
            finding = _first(trace, worker, known)
        except (TargetProblem, TraceError, GeometryError, IncompleteError) as problem:
            worker.cancel()
            return Hunted(None, str(problem).splitlines()[0], judged, passed())
        if finding is not None:
            worker.cancel()
            return Hunted(finding, "", judged, passed())
        progress(judged)
    worker.cancel()
    return Hunted(None, "", judged, passed())


def _first(trace: Trace, worker: Worker, known: Known) -> Finding | None:
    found = divergences(trace, worker.finish(), explainer=known.explainer())
    return next((one.finding for one in found if not one.fault), None)
