"""The main job: proofs, seed table, known traces and fuzzing on each target, and one verdict per rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from proofs.catalogue import spec_theorems
from spec.rules import RULES
from tailproof import replay
from tailproof.baseline import Baseline, Known
from tailproof.environments import EnvironmentProblem
from tailproof.fuzz import GENERATORS, Found, FuzzReport, fuzz
from tailproof.process import TargetProblem
from tailproof.prove import ProveReport, prove
from tailproof.seeds import SeedResult, run_seeds
from tailproof.targets import OpenTarget, Target, baseline_name, open_target, release_line, tier_states

VERDICTS = ("broken", "known", "proved", "held", "unobserved", "not-run")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run says about one rule on one target: `tier` names the tiers that had a say, `cases` is how
    often the rule could have been seen broken, `reason` why the verdict is what it is."""

    rule: str
    target: str
    tier: str
    verdict: str
    cases: int
    reason: str


@dataclass(frozen=True, slots=True)
class KnownResult:
    """A baseline entry run again."""

    known: Known
    target: str
    result: replay.Replayed


@dataclass(frozen=True, slots=True)
class Skipped:
    """A tier of a target that was not run, and why."""

    target: str
    tier: str
    reason: str


@dataclass(slots=True)
class CheckReport:
    """Everything that a check saw. `proofs` are the spec's theorems (None: not reached), `skipped` tiers that
    could not run, `problems` targets that could not or broke down, one line each."""

    seed: int
    proofs: ProveReport | None = None
    seeds: list[SeedResult] = field(default_factory=list)
    known: list[KnownResult] = field(default_factory=list)
    fuzzed: list[FuzzReport] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def broken(self) -> list[Found]:
        """New divergences of all targets."""
        return [found for report in self.fuzzed for found in report.broken]

    def exit_code(self, strict: bool) -> int:
        """1 a rule is broken, 3 a target could not run or a known check could not be made, else 0; strict:
        also 3 when something was unobserved or not run."""
        if any(verdict.verdict == "broken" for verdict in self.verdicts):
            return 1
        loose = any(verdict.verdict in ("unobserved", "not-run") for verdict in self.verdicts)
        failed = any(item.result.verdict == "ERROR" for item in self.known)
        return 3 if self.problems or self.interrupted or failed or (strict and loose) else 0


def check(
    names: Sequence[str],
    *,
    seconds: float,
    seed: int,
    baseline: Baseline,
    folder: Path | None,
    progress: Callable[[str], None],
    proofs: bool = True,
    line: str | None = None,
) -> CheckReport:
    """Check targets one after the other; `seconds` bounds the fuzzing of each, all its tiers together.
    Without `proofs` the theorems are left out. `line` is the release line whose known faults count for all
    targets, where it is not their own.

    A target that cannot be run becomes a problem of the report, the others go on.
    """
    report = CheckReport(seed)
    try:
        if proofs:
            theorems = spec_theorems()
            progress(f"proving {len(theorems)} theorems about the spec")
            report.proofs = prove(theorems, engines=("z3",))
            progress(f"theorems done in {report.proofs.seconds:.0f} s")
    except KeyboardInterrupt:
        report.interrupted = True
        for name in names:
            report.verdicts.extend(_not_run(name, "interrupted"))
        return report
    for name in names:
        progress(f"{name}: starting")
        try:
            target = Target.parse(name)
            with closing(open_target(target, progress)) as opened:
                version = opened.describe().version
                progress(f"{name}: version {version} is ready, the first case starts")
                progress(f"{name}: {release_line(target, opened, line).why}")
                known_as = baseline_name(target, opened, line)
                _check_target(report, target, known_as, opened, seconds, baseline, folder, progress)
        except (TargetProblem, EnvironmentProblem) as problem:
            report.problems.append(str(problem))
            report.verdicts.extend(_not_run(name, str(problem)))
        except KeyboardInterrupt:
            report.interrupted = True
            report.verdicts.extend(_not_run(name, "interrupted"))
            break
    return report


def _check_target(
    report: CheckReport,
    target: Target,
    known_as: str,
    opened: OpenTarget,
    seconds: float,
    baseline: Baseline,
    folder: Path | None,
    progress: Callable[[str], None],
) -> None:
    name = target.name
    report.seeds.extend(run_seeds({name: opened}))
    progress(f"{name}: {len(report.seeds)} seed cases done")
    state = tier_states(target)["store"]
    if state != "ready":
        report.skipped.append(Skipped(name, "store", state))
    for known in baseline.of(known_as):
        kept = replay.read_named(baseline.folder / known.trace)
        if kept.tier == "store" and state != "ready":
            result = replay.Replayed("NOT-RUN", state)
        else:
            result = replay.replay(opened, kept)
        report.known.append(KnownResult(known, name, result))
    tiers = [tier for tier in GENERATORS if tier == "core" or state == "ready"]
    progress(f"{name}: {len(report.known)} known traces done, fuzzing for {seconds:.0f} s")
    fuzzed: dict[str, FuzzReport] = {}
    for tier in tiers:
        if report.interrupted:
            report.skipped.append(Skipped(name, tier, "interrupted"))
            continue
        try:
            fuzzed[tier] = fuzz(
                [opened],
                name,
                seed=report.seed,
                tier=tier,
                seconds=seconds / len(tiers),
                baseline=baseline,
                known_as=known_as,
                folder=folder,
                progress=_saying(progress, f"{name}, {tier}"),
            )
        except TargetProblem as problem:
            # What the tiers before it have shown stays.
            if not fuzzed:
                raise
            report.problems.append(str(problem))
            report.skipped.append(Skipped(name, tier, str(problem)))
            continue
        report.fuzzed.append(fuzzed[tier])
        report.interrupted |= fuzzed[tier].interrupted
        report.problems.extend(f"{name}, {tier}: {line}" for line in fuzzed[tier].lost_lines())
    report.verdicts.extend(_verdicts(report, name, known_as, fuzzed, baseline))


def _saying(progress: Callable[[str], None], whose: str) -> Callable[[str], None]:
    return lambda line: progress(f"{whose}: {line}")


def _verdicts(
    report: CheckReport, name: str, known_as: str, fuzzed: Mapping[str, FuzzReport], baseline: Baseline
) -> list[Verdict]:
    broken, known = _breaches(report, name, known_as, fuzzed, baseline)
    verdicts = []
    for rule in RULES.values():
        # What no tier is said to observe is for the theorems alone.
        reached = {tier: found.exercised[rule.id] for tier, found in fuzzed.items() if rule.tiers}
        tiers = [tier for tier, cases in reached.items() if cases] or [
            tier for tier in rule.tiers if tier in fuzzed
        ]
        tier, cases = ", ".join(tiers or rule.tiers) or "core", sum(reached.values())
        if rule.pending is not None:
            verdict, reason = "not-run", rule.pending
        elif refuted := _not_proved(report, rule.id, "refuted"):
            verdict, reason = "broken", f"refuted for the spec itself: {refuted}"
        elif rule.id in broken:
            verdict, reason = "broken", broken[rule.id]
        elif rule.id in known:
            verdict, reason = "known", ", ".join(sorted(set(known[rule.id])))
        elif not rule.tiers:
            verdict, reason = _derived(report, rule.id)
        elif cases:
            verdict, reason = "held", f"{cases} times it could have been seen broken"
        elif not tiers:
            verdict, reason = "not-run", _why_not(report, name, rule.tiers)
        else:
            verdict, reason = "unobserved", "no case reached it"
        verdicts.append(Verdict(rule.id, name, tier, verdict, cases, reason))
    return verdicts


def _breaches(
    report: CheckReport, name: str, known_as: str, fuzzed: Mapping[str, FuzzReport], baseline: Baseline
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Rules that were broken, each with what was seen, and those known to be, each with its entries."""
    broken: dict[str, str] = {}
    known: dict[str, list[str]] = {}
    for result in report.seeds:
        divergence = result.divergences.get(name)
        if divergence is not None and baseline.find(known_as, divergence.finding) is None:
            broken[divergence.rule] = f"seed case {result.case.id}: {divergence.finding.message}"
    for item in report.known:
        divergence = item.result.divergence
        if item.target != name or divergence is None:
            continue
        if entry := baseline.find(known_as, divergence.finding):
            known.setdefault(divergence.rule, []).append(entry.id)
        else:
            broken[divergence.rule] = f"known trace {item.known.id}: {divergence.finding.message}"
    for found in (found for tier in fuzzed.values() for found in tier.found):
        if found.known is None:
            broken[found.finding.rule] = found.finding.message
        else:
            known.setdefault(found.finding.rule, []).append(found.known.id)
    return broken, known


def _why_not(report: CheckReport, name: str, tiers: Sequence[str]) -> str:
    """Why none of some tiers was run."""
    reasons = {one.tier: one.reason for one in report.skipped if one.target == name}
    return "; ".join(reasons[tier] for tier in tiers if tier in reasons) or "nothing runs it yet"


def _not_proved(report: CheckReport, rule: str, verdict: str) -> str:
    """The theorems of a rule with a verdict, as words."""
    found = report.proofs.theorems if report.proofs is not None else []
    return ", ".join(
        proved.theorem.id for proved in found if proved.theorem.rule == rule and proved.verdict == verdict
    )


def _derived(report: CheckReport, rule: str) -> tuple[str, str]:
    """The verdict on a rule that only theorems check."""
    if report.proofs is None:
        return "not-run", "the theorems were left out"
    mine = [proved for proved in report.proofs.theorems if proved.theorem.rule == rule]
    if open_ends := [proved for proved in mine if proved.verdict != "proved"]:
        return "unobserved", ", ".join(f"{one.theorem.id}: {one.verdict} {one.reason}" for one in open_ends)
    return "proved", f"of the spec: {', '.join(proved.theorem.id for proved in mine)}"


def _not_run(name: str, reason: str) -> list[Verdict]:
    return [
        Verdict(rule.id, name, ", ".join(rule.tiers) or "core", "not-run", 0, reason)
        for rule in RULES.values()
    ]
