"""Shows reports: as lines for a terminal, as the documents of the command line contract, JUnit and HTML."""

from __future__ import annotations

import html
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from adapters.vllm.names import REPLACED, STORE_REPLACED
from spec.rules import RULES
from tailproof.jobs.check import VERDICTS, CheckReport, Verdict
from tailproof.jobs.fuzz import Found, FuzzReport
from tailproof.jobs.seeds import SeedResult
from tailproof.known.model import KnownFault
from tailproof.reach.core import unsupported
from tailproof.reach.coverage import TAGS
from tailproof.reach.store import store_lines
from tailproof.reach.table import folded, reach_lines, reach_table
from tailproof.targets.opening import Target, tier_states

FORMAT = 1


def json_text(document: object) -> str:
    """A document as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def write_file(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    draft.write_text(text + "\n", encoding="utf-8")
    draft.replace(path)


def table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Rows as left-aligned columns."""
    kept = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*kept, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in kept
    ]


# Divergences


def divergence_lines(found: Found) -> list[str]:
    """A divergence with its explanation and the line that reproduces it."""
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
        lines.append(f"       reproduce: tailproof replay {found.path} --target {{target}}")
    return lines


def divergence_document(found: Found) -> dict[str, Any]:
    """A divergence as the contract has it."""
    return {
        "rule": found.finding.rule,
        "kind": found.finding.kind,
        "fingerprint": found.fingerprint,
        "message": found.finding.message,
        "steps": found.steps,
        "cases": found.count,
        "first_case": found.case,
        "first_seconds": round(found.seconds, 3),
        "trace": str(found.path) if found.path is not None else None,
        "explanation": list(found.explanation),
        "baseline": found.fault or None,
        "shows": found.shows or None,
    }


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
        yield from folded("steps that meddled with the store, as far as seen:", fault_counts(report))
        yield ""
    for found in report.found:
        yield from (line.replace("{target}", report.target) for line in divergence_lines(found))
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


def fault_counts(report: FuzzReport) -> list[str]:
    """The steps that did something to the store, by kind, with how many were seen to."""
    return [f"{count} {name}" for name, count in sorted(report.faults.items())]


def fuzz_document(report: FuzzReport) -> dict[str, Any]:
    """A fuzz report as the contract has it."""
    return {
        "format": FORMAT,
        "seed": report.seed,
        "target": report.target,
        "tier": report.tier,
        "cases": report.cases,
        "steps": report.steps,
        "seconds": round(report.seconds, 3),
        "cases_per_second": round(report.cases / report.seconds, 2) if report.seconds else 0.0,
        "target_share": round(report.target_share, 4),
        "interrupted": report.interrupted,
        "against": report.against or None,
        "explained": dict(sorted(report.explained.items())),
        "base_explained": dict(sorted(report.base_explained.items())),
        "unjudged": report.unjudged,
        "coverage": {tag: report.coverage.counts[tag] for tag in TAGS} | _store_totals(report),
        "store_reach": report.coverage.store.counts if report.tier == "store" else {},
        "faults": dict(sorted(report.faults.items())),
        "lost": dict(report.lost),
        "reach": report.coverage.reach.counts,
        "unsupported": unsupported(report.target),
        "exercised": dict(sorted(report.exercised.items())),
        "divergences": [divergence_document(found) for found in report.found],
    }


def _store_totals(report: FuzzReport) -> dict[str, int]:
    return report.coverage.store.totals if report.tier == "store" else {}


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


def seed_document(results: list[SeedResult], problems: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The seed table as the contract has it."""
    return {
        "format": FORMAT,
        "cases": [
            {
                "id": result.case.id,
                "tier": result.case.tier,
                "setting": result.case.setting,
                "prompt": result.case.prompt,
                "unit": result.case.unit,
                "block": result.case.block,
                "align": result.case.align,
                "eagle": result.case.eagle,
                "exports": result.case.exports,
                "marked": result.case.marked,
                "spec": result.spec,
                "specs": dict(result.specs),
                "profiles": dict(result.profiles),
                "observed": dict(result.observed),
                "lacking": dict(result.lacking),
            }
            for result in results
        ],
        "problems": dict(problems or {}),
    }


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
    yield _summary(report, strict)


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


def _summary(report: CheckReport, strict: bool) -> str:
    counts = ", ".join(
        f"{sum(item.verdict == verdict for item in report.verdicts)} {verdict}" for verdict in VERDICTS
    )
    ends = {
        0: "nothing is broken but what known faults explain",
        1: "A RULE IS BROKEN",
        3: "not everything could run",
    }
    return f"{counts}: {ends[report.exit_code(strict)]}"


def check_document(report: CheckReport) -> dict[str, Any]:
    """A check report as the contract has it."""
    return {
        "format": FORMAT,
        "seed": report.seed,
        "verdicts": [
            {
                "rule": item.rule,
                "target": item.target,
                "tier": item.tier,
                "verdict": item.verdict,
                "cases": item.cases,
                "reason": item.reason,
            }
            for item in report.verdicts
        ],
        "seeds": seed_document(report.seeds)["cases"],
        "known": [
            {
                "id": item.fault.id,
                "trace": item.trace.file,
                "target": item.target,
                "verdict": item.verdict,
                "detail": item.detail,
            }
            for item in report.known
        ],
        "faults": [
            {
                "id": seen.fault.id,
                "target": seen.target,
                "state": seen.state,
                "traces": seen.traces,
                "findings": seen.findings,
                "exact": seen.fault.exact,
                "expires": seen.fault.expires.isoformat(),
            }
            for seen in report.faults
        ],
        "fuzz": [fuzz_document(fuzzed) for fuzzed in report.fuzzed],
        "divergences": [
            {"target": fuzzed.target, **divergence_document(found)}
            for fuzzed in report.fuzzed
            for found in fuzzed.found
        ],
        "skipped": [
            {"target": skipped.target, "tier": skipped.tier, "reason": skipped.reason}
            for skipped in report.skipped
        ],
        "problems": report.problems,
        "interrupted": report.interrupted,
    }


def check_junit(report: CheckReport) -> str:
    """The verdicts as JUnit XML: one test case a rule and target; known and unrun rules are skips."""
    suite = ElementTree.Element("testsuite", name="tailproof", tests=str(len(report.verdicts)))
    for item in report.verdicts:
        case = ElementTree.SubElement(suite, "testcase", classname=item.target, name=item.rule)
        if item.verdict == "broken":
            ElementTree.SubElement(case, "failure", message=item.reason)
        elif item.verdict != "held":
            ElementTree.SubElement(case, "skipped", message=f"{item.verdict}: {item.reason}")
    suite.set("failures", str(sum(item.verdict == "broken" for item in report.verdicts)))
    suite.set("skipped", str(sum(item.verdict not in ("held", "broken") for item in report.verdicts)))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode")


def check_html(report: CheckReport, strict: bool) -> str:
    """The verdicts and divergences as one self-contained page."""
    rows = "\n".join(_html_row(item) for item in report.verdicts)
    found = "\n".join(
        f"<h3>{html.escape(item.fingerprint)}</h3><pre>{html.escape(chr(10).join(divergence_lines(item)))}</pre>"
        for fuzzed in report.fuzzed
        for item in fuzzed.found
    )
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Tailproof check</title>"
        "<style>body{font:14px sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:left;"
        "border-bottom:1px solid #ddd}.broken{background:#fdd}.known{background:#fed}.held{background:#dfd}"
        "</style><h1>Tailproof check</h1>"
        f"<p>{html.escape(_summary(report, strict))}</p>"
        f"<table><tr><th>rule<th>target<th>verdict<th>statement<th>reason</tr>\n{rows}\n</table>\n{found}"
    )


def _html_row(item: Verdict) -> str:
    cells = (item.rule, item.target, item.verdict, RULES[item.rule].statement, item.reason)
    return f"<tr class='{item.verdict}'>" + "".join(f"<td>{html.escape(cell)}" for cell in cells) + "</tr>"


# targets


def targets_document(names: Iterable[str]) -> dict[str, Any]:
    """Targets as the contract has it."""
    documents = []
    for name in names:
        target = Target.parse(name)
        documents.append(
            {
                "name": name,
                "kind": target.kind,
                "version": target.argument if target.kind == "installed" else None,
                "tiers": tier_states(target),
                "replaced": [] if target.kind == "reference" else list(REPLACED + STORE_REPLACED),
            }
        )
    return {"format": FORMAT, "targets": documents}


def target_lines(names: Iterable[str], more: Iterable[str] = ()) -> Iterator[str]:
    """Targets for the terminal, and which `more` can be added by name."""
    replaced: list[str] = []
    for document in targets_document(names)["targets"]:
        yield f"{document['name']} ({document['kind']})"
        for tier, state in document["tiers"].items():
            yield f"  {tier:<7}{state}"
        replaced = document["replaced"] or replaced
    if others := ", ".join(more):
        yield f"can be added: {others}"
    if replaced:
        yield "in vLLM targets these parts are stood in for:"
        yield from (f"  {line}" for line in replaced)
