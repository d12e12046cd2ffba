"""Shows reports as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tailproof.cli import documents
from tailproof.jobs.check import VERDICTS, CheckReport
from tailproof.jobs.fuzz import Found, FuzzReport
from tailproof.jobs.seeds import SeedResult
from tailproof.known.model import KnownFault
from tailproof.reach.coverage import TAGS
from tailproof.reach.store import store_lines
from tailproof.reach.table import folded, reach_lines, reach_table


def table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Rows as left-aligned columns."""
    kept = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*kept, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in kept
    ]


# Divergences


def divergence_lines(found: Found, target: str) -> list[str]:
    """A divergence of a target with its explanation and the line that reproduces it."""
    head = f"{found.fingerprint}: {found.count} cases, first case {found.case} after {found.seconds:.1f} s"
    if found.known is not None:
        return [f"known  {head}", f"       {found.known.id}: {found.known.title}"]
    if found.fault:
        return [f"same   {head}", f"       {found.fault}: {found.finding.message}"]
    lines = [f"BROKEN {head}"]
    if found.shows:
        lines.append(f"       the known fault {found.shows} shows here, and on the base it does not")
    lines += [f"       {line}" for line in found.explanation]
    if found.path is not None:
        lines.append(f"       reproduce: tailproof replay {found.path} --target {target}")
    return lines


# fuzz


def fuzz_lines(report: FuzzReport, reach: bool = False) -> Iterator[str]:
    """A fuzz report for the terminal; with `reach`, the whole table of axes and phases too."""
    rate = report.cases / report.seconds if report.seconds else 0.0
    yield (
        f"{report.target}, tier {report.tier}, seed {report.seed}: {report.cases} cases, "
        f"{report.steps} steps in {report.seconds:.1f} s, {rate:.0f} cases/s, "
        f"{report.target_share:.0%} of the worker's time in the target"
    )
    if report.interrupted:
        yield "interrupted before its time"
    yield ""
    yield "how often each axis and phase was reached:"
    counts = report.coverage.counts
    half = (len(TAGS) + 1) // 2
    left = [f"{tag:<42}{counts[tag]:>8}" for tag in TAGS[:half]]
    right = [f"{tag:<42}{counts[tag]:>8}" for tag in TAGS[half:]] + [""]
    yield from (f"  {one}   {two}".rstrip() for one, two in zip(left, right, strict=False))
    yield ""
    if reach:
        yield from reach_table(report.coverage.reach, report.target)
        yield ""
    yield from reach_lines(report.coverage.reach, report.target)
    yield ""
    if report.tier == "store":
        yield "how often each feature and phase of the store was reached:"
        yield from store_lines(report.coverage.store)
        yield ""
        yield from folded(
            "steps that meddled with the store, as far as seen:",
            [f"{count} {name}" for name, count in sorted(report.faults.items())],
        )
        yield ""
    for found in report.found:
        yield from divergence_lines(found, report.target)
        yield ""
    yield from explained_lines(report)
    yield from report.lost_lines()
    new = len(report.broken)
    yield f"{new} new divergences, {len(report.found) - new} known" if report.found else "no divergence"


def explained_lines(report: FuzzReport) -> Iterator[str]:
    """How many findings each known fault explained, beside those of the base, and what was left unjudged."""
    names = sorted(set(report.explained) | set(report.base_explained))
    if names and not report.against:
        yield from folded("findings explained:", [f"{report.explained[name]} {name}" for name in names])
    elif names:
        yield f"findings explained, here and on {report.against}:"
        for name in names:
            here, there = report.explained[name], report.base_explained[name]
            yield f"  {here:>6} {there:>6}  {name}{'  MORE HERE' if here > there else ''}"
    yield from cannot_hold(found.known for found in report.found if found.known is not None)
    if report.unjudged:
        yield f"{report.unjudged} of {report.steps} steps were left unjudged behind a finding that lasts"


# seeds


def seed_lines(results: list[SeedResult], problems: Mapping[str, str] | None = None) -> Iterator[str]:
    """The seed table for the terminal: the spec's hit under each profile in use, then the one observed on
    each
    target, with a "!" where it is not what the target's profile makes due."""
    targets = list(dict.fromkeys(name for result in results for name in result.observed))
    profiles = list(dict.fromkeys(("drop", *(one for result in results for one in result.profiles.values()))))
    heads = [f"spec {profile}" for profile in profiles] if len(profiles) > 1 else ["spec"]
    rows = [("case", "U", "B", "P", "EAGLE", *heads, *targets)]
    for result in results:
        case = result.case
        eagle = "on" if case.eagle else "off"
        specs = (str(result.specs[profile]) for profile in profiles)
        seen = (_seen(result, name) for name in targets)
        rows.append((case.id, str(case.unit), str(case.block), str(case.prompt), eagle, *specs, *seen))
    yield from table(rows)
    if any(result.is_wrong(name) for result in results for name in result.observed):
        yield "! is not what is due"
    for reason in dict.fromkeys(reason for result in results for reason in result.lacking.values()):
        yield f"- {reason}"
    yield from (f"could not run: {problem}" for problem in (problems or {}).values())


def _seen(result: SeedResult, target: str) -> str:
    if target not in result.observed:
        return ""
    if target in result.lacking:
        return "-"
    seen = result.observed[target]
    return f"{'none' if seen is None else seen}{'!' if result.is_wrong(target) else ''}"


# check


def check_lines(report: CheckReport, strict: bool) -> Iterator[str]:
    """A check report for the terminal; the verdicts come last."""
    if report.seeds:
        yield "seed cases"
        yield from (f"  {line}" for line in seed_lines(report.seeds))
        yield ""
    yield from _faults(report)
    for fuzzed in report.fuzzed:
        yield from (f"  {line}" if line else "" for line in fuzz_lines(fuzzed))
        yield ""
    for skipped in report.skipped:
        yield f"not run: {skipped.target}, tier {skipped.tier}: {skipped.reason}"
    for problem in report.problems:
        yield f"could not run: {problem}"
    yield "verdicts"
    rows = [("rule", "target", "verdict", "reason")]
    rows += [(item.rule, item.target, item.verdict, item.reason) for item in report.verdicts]
    yield from (f"  {line}" for line in table(rows))
    yield ""
    yield summary(report, strict)


def _faults(report: CheckReport) -> Iterator[str]:
    """What was seen of every known fault, and what they cannot hold."""
    if not report.faults:
        return
    yield "known faults"
    rows = [("fault", "target", "state", "traces", "findings", "")]
    for seen in report.faults:
        note = "inexact" if not seen.fault.exact else ""
        if seen.state == "expired":
            note = f"on {seen.fault.expires}, so it explains nothing: see to it, or give it a new date"
        counts = (str(seen.traces), str(seen.findings))
        rows.append((seen.fault.id, seen.target, seen.state, *counts, note))
    yield from (f"  {line}" for line in table(rows))
    for item in report.known:
        if item.verdict not in ("known", "gone") or (item.verdict == "gone" and item.fault.is_in(item.line)):
            yield f"  {item.verdict}: {item.trace.file} of {item.fault.id}: {item.detail}"
    yield from cannot_hold(seen.fault for seen in report.faults)
    yield ""


def cannot_hold(faults: Iterable[KnownFault]) -> Iterator[str]:
    """Those of some known faults that no variant of the spec foretells."""
    inexact = [fault for fault in dict.fromkeys(faults) if not fault.exact]
    if inexact:
        yield "what the baseline cannot hold: no variant of the spec foretells these, so another fault in the"
        yield "same place of the same step could pass for one of them"
        yield from (f"  {fault.id}: {fault.title}" for fault in inexact)


def summary(report: CheckReport, strict: bool) -> str:
    counts = ", ".join(
        f"{sum(item.verdict == verdict for item in report.verdicts)} {verdict}" for verdict in VERDICTS
    )
    ends = {
        0: "nothing is broken but what known faults explain",
        1: "A RULE IS BROKEN",
        3: "not everything could run",
    }
    return f"{counts}: {ends[report.exit_code(strict)]}"


# targets


def target_lines(names: Iterable[str], more: Iterable[str] = ()) -> Iterator[str]:
    """Targets for the terminal, and which `more` can be added by name."""
    replaced: list[str] = []
    for document in documents.targets(names)["targets"]:
        yield f"{document['name']} ({document['kind']})"
        for tier, state in document["tiers"].items():
            yield f"  {tier:<7}{state}"
        replaced = document["replaced"] or replaced
    if others := ", ".join(more):
        yield f"can be added: {others}"
    if replaced:
        yield "in vLLM targets these parts are stood in for:"
        yield from (f"  {line}" for line in replaced)
