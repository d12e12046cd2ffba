"""Fuzzes one target in lockstep with the oracle: generate, run, compare, and keep what breaks, made small."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spec.observation import Outcome
from spec.trace import Trace
from tailproof.explain.story import explain_divergence
from tailproof.jobs import replay
from tailproof.jobs.against import Base, Beside, sign
from tailproof.jobs.search import Case, Subject, drawing, search
from tailproof.judge.findings import Finding
from tailproof.judge.lockstep import Unjudged, exercised
from tailproof.judge.step import Step
from tailproof.known.explain import NOTHING, Known
from tailproof.known.model import KnownFault
from tailproof.reach.coverage import Coverage
from tailproof.reach.store import fault_name
from tailproof.shrink.search import shrink
from tailproof.targets.opening import OpenTarget

_REPORT_SECONDS = 10.0
# A case of the store tier takes the real system a hundred times as long.
SHRINK_SECONDS = {"core": 20.0, "store": 60.0}
GENERATORS = ("core", "store")


@dataclass(slots=True)
class Found:
    """A divergence that was found: `case` is the index of the first case with it, run after `seconds`, and
    `count` cases broke the same rule in the same way. `fault` is the known fault that explains it, as `known`
    tells, or says that a base does the same ("": it is new); `shows` is the known fault that would explain
    it, but that the base does not show there. Of a new one, `trace` is the smallest trace for it, with its
    explanation and the file that it was kept in."""

    finding: Finding
    trace: Trace
    case: int
    seconds: float
    fault: str = ""
    known: KnownFault | None = None
    shows: str = ""
    count: int = 1
    explanation: tuple[str, ...] = ()
    path: Path | None = None

    @property
    def fingerprint(self) -> str:
        """Names it: rule, kind and a digest of the trace."""
        return replay.fingerprint(self.finding.rule, self.finding.kind, self.trace)

    @property
    def steps(self) -> int:
        """Steps of the trace."""
        return len(self.trace.steps)


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


# Rule, kind and the known fault that explains it ("": none does).
Firsts = dict[tuple[str, str, str], Found]


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
    subject = Subject(workers, lambda trace: known.explainer(), base, omit)
    firsts: Firsts = {}
    said = began = time.monotonic()
    try:
        draw = drawing(tier, subject.describe())
        for case in search(subject, lambda index: draw(seed, index), seconds=seconds, cases=cases):
            _count(report, firsts, rules, known, case)
            report.seconds = time.monotonic() - began
            if time.monotonic() - said > _REPORT_SECONDS:
                said = time.monotonic()
                new = sum(not found.fault for found in firsts.values())
                kinds = f"{new} new and {len(firsts) - new} known kinds of divergence"
                progress(f"{report.cases} cases, {report.steps} steps, {kinds}")
    except KeyboardInterrupt:
        report.interrupted = True
        subject.cancel()
    if base is not None:
        report.base_explained = Counter(base.explained)
    report.found = sorted(firsts.values(), key=lambda found: bool(found.fault))
    for found in report.found:
        found.explanation = (found.finding.message,)
        if found.fault:
            continue
        try:
            if not report.interrupted:
                progress(f"making the first {found.finding.rule} trace small")
                _explain(subject, found, SHRINK_SECONDS[tier])
        except KeyboardInterrupt:
            report.interrupted = True
            workers[0].cancel()
        if report.interrupted:
            found.explanation = (*found.explanation, "not made small: the run was interrupted")
        if folder is not None:
            finding = found.finding
            kept = (found.trace, target, finding.rule, finding.kind, finding.message, found.explanation)
            found.path = replay.write(folder, replay.ReplayFile(*kept))
    return report


def _count(report: FuzzReport, firsts: Firsts, rules: frozenset[str], known: Known, case: Case) -> None:
    """Count a case, and note the first divergence of each kind."""
    trace, outcome = case.trace, case.outcome
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
    unjudged, explainer = Unjudged(), case.explainer
    for divergence in case.divergences(visit, unjudged):
        finding, fault = divergence.finding, divergence.fault
        report.explained.update([fault] if fault else [])
        key = (finding.rule, finding.kind, fault)
        if key in seen or (rules and finding.rule not in rules):
            continue
        seen.add(key)
        report.rules[finding.rule] += 1
        if key in firsts:
            firsts[key].count += 1
        else:
            shows = explainer.shown.get(sign(finding), "") if isinstance(explainer, Beside) else ""
            firsts[key] = Found(finding, trace, case.index, case.seconds, fault, known.fault(fault), shows)
    report.unjudged += unjudged.observations


def _faults(trace: Trace, outcome: Outcome) -> Iterator[str]:
    """The steps that did something to the store, each as often as it was seen to."""
    for at in {observation.at for observation in outcome.observations if observation.failure is None}:
        if (name := fault_name(trace.steps[at])) is not None:
            yield name


def _explain(subject: Subject, found: Found, seconds: float) -> None:
    """Make the trace of a divergence that nothing explains small, and tell its story."""
    rule, kind = found.finding.rule, found.finding.kind
    trace = shrink(found.trace, lambda trace: subject.shows(trace, rule, kind)[1] is not None, seconds)
    outcome, divergence = subject.shows(trace, rule, kind)
    found.trace = trace
    if divergence is None:
        found.explanation = (f"{found.finding.message} (seen once, not again when the case was repeated)",)
        return
    found.explanation = tuple(explain_divergence(trace, outcome, divergence))
    found.finding = divergence.finding
