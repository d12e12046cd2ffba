"""The one search: cases are drawn, run ahead on the workers of a target, and come back ready to be judged."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from adapters.protocol import Description
from spec.geometry import GeometryError
from spec.observation import Outcome
from spec.trace import Trace, TraceError
from tailproof.generate.core import case
from tailproof.generate.drawing import Axes
from tailproof.generate.store import StoreAxes, store_case
from tailproof.jobs.against import Base
from tailproof.judge.findings import Divergence, Finding, IncompleteError
from tailproof.judge.lockstep import Explainer, Unjudged, divergences, seek
from tailproof.judge.step import Step
from tailproof.known.explain import Known
from tailproof.targets.opening import OpenTarget
from tailproof.targets.problems import TargetProblem

_AHEAD = 3
Draw = Callable[[int, int], Trace]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is searched: a target, opened once for each worker. `explains` gives what explains the findings
    of a run, `base` ran the same cases and then explains them instead, `omit` leaves out steps of the content
    check (letters a to i)."""

    workers: Sequence[OpenTarget]
    explains: Callable[[Trace], Explainer]
    base: Base | None = None
    omit: str = ""

    def describe(self) -> list[Description]:
        """What the target says of itself, and the base."""
        opened = [*self.workers[:1], *(self.base.workers[:1] if self.base is not None else ())]
        return [one.describe() for one in opened]

    def start(self, trace: Trace, at: int) -> None:
        """Queue a case."""
        self.workers[at % len(self.workers)].start(trace, self.omit)
        if self.base is not None:
            self.base.workers[at % len(self.base.workers)].start(trace)

    def finish(self, trace: Trace, at: int) -> tuple[Outcome, Explainer]:
        """The outcome of the oldest queued case of a worker, and what explains its findings; what the base
        shows is counted."""
        outcome = self.workers[at % len(self.workers)].finish()
        explainer = self.explains(trace)
        if self.base is not None:
            theirs = self.base.workers[at % len(self.base.workers)].finish()
            explainer = self.base.beside(trace, theirs, explainer, count=True)
        return outcome, explainer

    def shows(self, trace: Trace, rule: str, kind: str, fault: str = "") -> tuple[Outcome, Divergence | None]:
        """Run a trace, and look for the divergence of a rule and kind that this fault explains ("": none)."""
        outcome, explainer = self.workers[0].run(trace, self.omit), self.explains(trace)
        if self.base is not None:
            explainer = self.base.beside(trace, self.base.workers[0].run(trace), explainer)
        found = seek(trace, outcome, rule, kind, explainer, fault)
        is_it = found is not None and (found.rule, found.finding.kind) == (rule, kind)
        return outcome, found if is_it else None

    def cancel(self) -> None:
        """Forget what is queued."""
        for worker in (*self.workers, *(self.base.workers if self.base is not None else ())):
            worker.cancel()


@dataclass(frozen=True, slots=True)
class Case:
    """The case `index` of a search, run: `seconds` is when it was done, counted from the search's start."""

    index: int
    trace: Trace
    outcome: Outcome
    explainer: Explainer
    seconds: float

    def divergences(
        self, visit: Callable[[Step], None] | None = None, unjudged: Unjudged | None = None
    ) -> Iterator[Divergence]:
        """What is broken in it, as `divergences` of the judge has it."""
        return divergences(self.trace, self.outcome, visit, self.explainer, unjudged)

    def new(self) -> Finding | None:
        """The first finding that nothing explains."""
        return next((one.finding for one in self.divergences() if not one.fault), None)


def search(
    subject: Subject,
    draw: Callable[[int], Trace],
    *,
    seconds: float | None = None,
    cases: int | None = None,
    ahead: int = _AHEAD,
) -> Iterator[Case]:
    """The cases of a search, in order; no new one is begun after some seconds, or a number of cases. Each
    worker has `ahead` of them queued. Who stops early must cancel what is queued.

    Raises:
        TargetProblem: when the target cannot go on.
    """
    began = time.monotonic()
    queued: deque[Trace] = deque()
    started = 0
    while True:
        while (
            len(queued) < ahead * len(subject.workers)
            and (cases is None or started < cases)
            and (seconds is None or time.monotonic() - began < seconds)
        ):
            queued.append(draw(started))
            subject.start(queued[-1], started)
            started += 1
        if not queued:
            return
        trace, index = queued.popleft(), started - len(queued) - 1
        outcome, explainer = subject.finish(trace, index)
        yield Case(index, trace, outcome, explainer, time.monotonic() - began)


def drawing(tier: str, described: Sequence[Description]) -> Draw:
    """What draws the cases of a tier from a seed and an index, within what all targets that run them
    support."""
    first, *others = described
    lacks = {name for one in described for name in one.lacks}
    if tier == "core":
        shared = tuple(name for name in first.profiles if all(name in one.profiles for one in others))
        axes = Axes().within(shared or ("drop",), lacks)
        return lambda seed, index: case(seed, index, axes)
    # A connector keeps to the hashes without lookahead.
    store_axes = StoreAxes(layout=StoreAxes().layout.within(("drop",), lacks))
    return lambda seed, index: store_case(seed, index, store_axes)


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
    worker: OpenTarget,
    known: Known,
    *,
    seed: int,
    seconds: float,
    cases: int | None = None,
    tier: str = "core",
) -> Hunted:
    """Run generated cases of a tier on a target until one shows what is not known of it, for at most
    some seconds, or a number of cases."""
    subject = Subject([worker], lambda trace: known.explainer())
    done, began = 0, time.monotonic()
    finding, trouble = None, ""
    try:
        draw = drawing(tier, subject.describe())
        began = time.monotonic()
        for one in search(subject, lambda index: draw(seed, index), seconds=seconds, cases=cases):
            done += 1
            if finding := one.new():
                break
    except (TargetProblem, TraceError, GeometryError, IncompleteError) as problem:
        trouble = str(problem).splitlines()[0]
    worker.cancel()
    return Hunted(finding, trouble, done, time.monotonic() - began)
