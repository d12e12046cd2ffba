"""Fuzzes one target in lockstep with the oracle: generate, run, compare, and keep what breaks, made small."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from adapters.protocol import Description
from spec.observation import Outcome
from spec.trace import Trace
from tailproof.explain.story import explain_divergence
from tailproof.generate.core import Axes, case
from tailproof.generate.store import StoreAxes, store_case
from tailproof.jobs import replay
from tailproof.jobs.against import Base, Beside, sign
from tailproof.judge.findings import Divergence, Finding
from tailproof.judge.lockstep import Explainer, Unjudged, divergences, exercised, seek
from tailproof.judge.step import Step
from tailproof.known.explain import NOTHING, Known
from tailproof.known.model import KnownFault
from tailproof.reach.coverage import Coverage
from tailproof.reach.store import fault_name
from tailproof.shrink.search import shrink
from tailproof.targets.opening import OpenTarget

_AHEAD = 3
_REPORT_SECONDS = 10.0
# A case of the store tier takes the real system a hundred times as long.
SHRINK_SECONDS = {"core": 20.0, "store": 60.0}
GENERATORS = ("core", "store")


@dataclass(frozen=True, slots=True)
class Found:
    """A divergence that was found: the smallest trace for it, its explanation, the file it was kept in and
    the known fault that explains it (None: it is new, or a base does the same, as `fault` says). `shows` is
    the known fault that would explain it, but that the base does not show there. `count` cases broke the same
    rule in the same way; `case` is the index of the first."""

    finding: Finding
    fingerprint: str
    trace: Trace
    path: Path | None
    explanation: tuple[str, ...]
    known: KnownFault | None
    count: int
    case: int
    seconds: float
    steps: int
    fault: str = ""
    shows: str = ""


@dataclass(slots=True)
class FuzzReport:
    """What a fuzz run did. `seconds` is wall time without shrinking; `target_share` the share of the
    worker's time inside the target; `exercised` how often each rule could have been seen broken, `rules` how
    many cases broke each; `faults` how many steps of each kind did something to the store and were seen to;
    `explained` counts the findings that each known fault explained, `unjudged` the observations left without
    judgement behind a finding after which the content may be wrong. `against` is the name of a base that ran
    the same cases ("": none), `base_explained` what each known fault explained on it.
    `interrupted` that it was stopped before its time, `lost` how many cases
    broke off because a server of the store ended that no trace had killed, by what was said."""

    target: str
    tier: str
    seed: int
    cases: int = 0
    steps: int = 0
    seconds: float = 0.0
    worker_seconds: float = 0.0
    target_seconds: float = 0.0
    coverage: Coverage = field(default_factory=Coverage)
    exercised: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    found: list[Found] = field(default_factory=list)
    explained: Counter[str] = field(default_factory=Counter)
    unjudged: int = 0
    against: str = ""
    base_explained: Counter[str] = field(default_factory=Counter)
    interrupted: bool = False
    lost: Counter[str] = field(default_factory=Counter)

    @property
    def target_share(self) -> float:
        """Share of the worker's time spent inside the target, 0 when nothing ran."""
        return self.target_seconds / self.worker_seconds if self.worker_seconds else 0.0

    def lost_lines(self) -> list[str]:
        """The cases that broke off because of a lost server, a line for each cause."""
        return [f"{count} cases broke off: {message}" for message, count in self.lost.items()]

    @property
    def broken(self) -> list[Found]:
        """The divergences that no known fault explains."""
        return [found for found in self.found if not found.fault]


@dataclass(slots=True)
class _First:
    index: int
    trace: Trace
    finding: Finding
    fault: str
    seconds: float
    shows: str = ""
    count: int = 1


# Rule, kind and the known fault that explains it ("": none does).
Firsts = dict[tuple[str, str, str], _First]


def fuzz(
    workers: Sequence[OpenTarget],
    target: str,
    *,
    seed: int,
    tier: str = "core",
    seconds: float | None = None,
    cases: int | None = None,
    rules: frozenset[str] = frozenset(),
    known: Known = NOTHING,
    base: Base | None = None,
    folder: Path | None = None,
    omit: str = "",
    progress: Callable[[str], None] = lambda line: None,
) -> FuzzReport:
    """Fuzz a tier of a target, opened once per worker, for some seconds or a number of cases.

    `rules`, when given, limits what counts as a divergence; `known` is what is known of the target.
    With a `base`, which runs the same cases, a divergence counts exactly where the base does not show it.
    New divergences are written into `folder`. `omit` leaves out steps of the content check (letters a to i),
    which must then be found. A keyboard interrupt ends the run early with what it has.

    Raises:
        TargetProblem: when the target cannot go on.
        ValueError: when neither seconds nor cases bound the run, or nothing is generated for the tier.
    """
    if seconds is None and cases is None:
        raise ValueError("bound the run by seconds or cases")
    if tier not in GENERATORS:
        raise ValueError(f"no traces are generated for the tier {tier}")
    report = FuzzReport(target, tier, seed, against=base.name if base is not None else "")
    firsts: Firsts = {}
    try:
        _run(workers, report, firsts, rules, seconds, cases, progress, known, base, omit)
    except KeyboardInterrupt:
        report.interrupted = True
        for worker in (*workers, *(base.workers if base is not None else ())):
            worker.cancel()
    if base is not None:
        report.base_explained = Counter(base.explained)
    for first in sorted(firsts.values(), key=lambda one: bool(one.fault)):
        if not report.interrupted and not first.fault:
            progress(f"making the first {first.finding.rule} trace small")
        try:
            if report.interrupted or first.fault:
                found = _plain(first, known)
            else:
                found = _explained(workers[0], first, known, base, omit, SHRINK_SECONDS[tier])
        except KeyboardInterrupt:
            report.interrupted = True
            workers[0].cancel()
            found = _plain(first, known)
        report.found.append(_kept(report, found, folder))
    return report


def _run(
    workers: Sequence[OpenTarget],
    report: FuzzReport,
    firsts: Firsts,
    rules: frozenset[str],
    seconds: float | None,
    cases: int | None,
    progress: Callable[[str], None],
    known: Known,
    base: Base | None,
    omit: str,
) -> None:
    began = time.monotonic()
    said = began
    started = 0
    queued: list[Trace] = []

    def more() -> bool:
        if cases is not None and started >= cases:
            return False
        return seconds is None or time.monotonic() - began < seconds

    described = [one.describe() for one in (workers[0], *(base.workers[:1] if base is not None else ()))]
    drawn = generator(report.tier, described)
    while True:
        while len(queued) < _AHEAD * len(workers) and more():
            trace = drawn(report.seed, started)
            workers[started % len(workers)].start(trace, omit)
            if base is not None:
                base.workers[started % len(workers)].start(trace)
            queued.append(trace)
            started += 1
        if not queued:
            break
        trace = queued.pop(0)
        index = report.cases
        outcome = workers[index % len(workers)].finish()
        explainer: Explainer = known.explainer()
        if base is not None:
            explainer = base.beside(trace, base.workers[index % len(workers)].finish(), known, count=True)
        _judge(report, firsts, rules, index, trace, outcome, time.monotonic() - began, explainer)
        report.seconds = time.monotonic() - began
        if time.monotonic() - said > _REPORT_SECONDS:
            said = time.monotonic()
            new = sum(not first.fault for first in firsts.values())
            kinds = f"{new} new and {len(firsts) - new} known kinds of divergence"
            progress(f"{report.cases} cases, {report.steps} steps, {kinds}")


def _judge(
    report: FuzzReport,
    firsts: Firsts,
    rules: frozenset[str],
    index: int,
    trace: Trace,
    outcome: Outcome,
    seconds: float,
    explainer: Explainer,
) -> None:
    report.cases += 1
    report.steps += len(outcome.observations)
    report.worker_seconds += outcome.seconds
    report.target_seconds += outcome.target_seconds
    report.coverage.case(trace)
    report.faults.update(_faults(trace, outcome))

    def visit(step: Step) -> None:
        report.coverage.step(trace, step.observation, step.expected)
        report.exercised.update(exercised(step))

    last = outcome.observations[-1].failure if outcome.observations else None
    if last is not None and last.kind == "store":
        report.lost[last.message] += 1
    seen: set[tuple[str, str, str]] = set()
    unjudged = Unjudged()
    for divergence in divergences(trace, outcome, visit, explainer, unjudged):
        report.explained.update([divergence.fault] if divergence.fault else [])
        key = (divergence.rule, divergence.finding.kind, divergence.fault)
        if key in seen or (rules and divergence.rule not in rules):
            continue
        seen.add(key)
        report.rules[divergence.rule] += 1
        if key in firsts:
            firsts[key].count += 1
        else:
            finding = divergence.finding
            shows = explainer.shown.get(sign(finding), "") if isinstance(explainer, Beside) else ""
            firsts[key] = _First(index, trace, finding, divergence.fault, seconds, shows)
    report.unjudged += unjudged.observations


def generator(tier: str, described: Sequence[Description]) -> Callable[[int, int], Trace]:
    """What draws the cases of a tier, within what all targets that run them support."""
    first, *others = described
    lacks = {name for one in described for name in one.lacks}
    if tier == "core":
        shared = tuple(name for name in first.profiles if all(name in one.profiles for one in others))
        axes = Axes().within(shared or ("drop",), lacks)
        return lambda seed, index: case(seed, index, axes)
    # A connector keeps to the hashes without lookahead.
    layout = StoreAxes().layout.within(("drop",), lacks)
    return lambda seed, index: store_case(seed, index, StoreAxes(layout=layout))


def _faults(trace: Trace, outcome: Outcome) -> list[str]:
    """The steps that did something to the store, each as often as it was seen to."""
    seen = {observation.at for observation in outcome.observations if observation.failure is None}
    names = (fault_name(trace.steps[at]) for at in sorted(seen))
    return [name for name in names if name is not None]


def _plain(first: _First, known: Known) -> Found:
    """The first divergence of a kind as it was met."""
    why = () if first.fault else ("not made small: the run was interrupted",)
    return Found(
        finding=first.finding,
        fingerprint=replay.fingerprint(first.finding.rule, first.finding.kind, first.trace),
        trace=first.trace,
        path=None,
        explanation=(first.finding.message, *why),
        known=known.fault(first.fault),
        count=first.count,
        case=first.index,
        seconds=first.seconds,
        steps=len(first.trace.steps),
        fault=first.fault,
        shows=first.shows,
    )


def _explained(
    opened: OpenTarget, first: _First, known: Known, base: Base | None, omit: str, seconds: float
) -> Found:
    """The first divergence of a kind that nothing explains, made small and told."""
    rule, kind = first.finding.rule, first.finding.kind

    def sought(trace: Trace, outcome: Outcome) -> Divergence | None:
        explainer: Explainer = known.explainer()
        if base is not None:
            explainer = base.beside(trace, base.workers[0].run(trace), known)
        found = seek(trace, outcome, rule, kind, explainer, fault="")
        return found if found is not None and (found.rule, found.finding.kind) == (rule, kind) else None

    trace = shrink(first.trace, lambda trace: sought(trace, opened.run(trace, omit)) is not None, seconds)
    outcome = opened.run(trace, omit)
    divergence = sought(trace, outcome)
    if divergence is None:
        return replace(
            _plain(first, known),
            trace=trace,
            explanation=(f"{first.finding.message} (seen once, not again when the case was repeated)",),
        )
    return replace(
        _plain(first, known),
        finding=divergence.finding,
        fingerprint=replay.fingerprint(rule, kind, trace),
        trace=trace,
        explanation=tuple(explain_divergence(trace, outcome, divergence)),
        steps=len(trace.steps),
    )


def _kept(report: FuzzReport, found: Found, folder: Path | None) -> Found:
    """Write the replay file of a divergence that nothing explains."""
    if found.fault or folder is None:
        return found
    finding = found.finding
    kept = replay.ReplayFile(
        found.trace, report.target, finding.rule, finding.kind, finding.message, found.explanation
    )
    return replace(found, path=replay.write(folder, kept))
