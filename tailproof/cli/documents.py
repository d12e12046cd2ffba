"""Reports as the JSON documents of the command line contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from adapters.vllm.names import REPLACED, STORE_REPLACED
from tailproof.jobs.check import CheckReport
from tailproof.jobs.fuzz import Found, FuzzReport
from tailproof.jobs.seeds import SeedResult
from tailproof.reach.core import unsupported
from tailproof.reach.coverage import TAGS
from tailproof.targets.opening import Target, tier_states

FORMAT = 1


def text(document: object) -> str:
    """A document as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def plain(value: object) -> Any:
    """A value as plain JSON values; a path is its name."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=str))


def part(value: object, names: str) -> dict[str, Any]:
    """Some fields of a value, in this order, as plain JSON values."""
    return {name: plain(getattr(value, name)) for name in names.split()}


def divergence(found: Found) -> dict[str, Any]:
    """A divergence."""
    return {
        **part(found.finding, "rule kind"),
        "fingerprint": found.fingerprint,
        "message": found.finding.message,
        "steps": found.steps,
        "cases": found.count,
        "first_case": found.case,
        "first_seconds": round(found.seconds, 3),
        "trace": plain(found.path),
        "explanation": found.explanation,
        "baseline": found.fault or None,
        "shows": found.shows or None,
    }


def fuzz(report: FuzzReport) -> dict[str, Any]:
    """A fuzz report."""
    store = report.coverage.store if report.tier == "store" else None
    return {
        "format": FORMAT,
        **part(report, "seed target tier cases steps"),
        "seconds": round(report.seconds, 3),
        "cases_per_second": round(report.cases / report.seconds, 2) if report.seconds else 0.0,
        "target_share": round(report.target_share, 4),
        "interrupted": report.interrupted,
        "against": report.against or None,
        "explained": dict(sorted(report.explained.items())),
        "base_explained": dict(sorted(report.base_explained.items())),
        "unjudged": report.unjudged,
        "coverage": {tag: report.coverage.counts[tag] for tag in TAGS} | (store.totals if store else {}),
        "store_reach": store.counts if store else {},
        "faults": dict(sorted(report.faults.items())),
        "lost": report.lost,
        "reach": report.coverage.reach.counts,
        "unsupported": unsupported(report.target),
        "exercised": dict(sorted(report.exercised.items())),
        "divergences": [divergence(found) for found in report.found],
    }


def _seed_cases(results: Iterable[SeedResult]) -> list[dict[str, Any]]:
    case, result = "id tier setting prompt unit block align eagle exports marked", "spec specs profiles"
    return [part(one.case, case) | part(one, f"{result} observed lacking") for one in results]


def seeds(results: Iterable[SeedResult], problems: Mapping[str, str]) -> dict[str, Any]:
    """The seed table."""
    return {"format": FORMAT, "cases": _seed_cases(results), "problems": problems}


def check(report: CheckReport) -> dict[str, Any]:
    """A check report."""
    return {
        "format": FORMAT,
        "seed": report.seed,
        "verdicts": report.verdicts,
        "seeds": _seed_cases(report.seeds),
        "known": [
            {"id": one.fault.id, "trace": one.trace.file, **part(one, "target verdict detail")}
            for one in report.known
        ],
        "faults": [
            part(one.fault, "id")
            | part(one, "target state traces findings")
            | part(one.fault, "exact expires")
            for one in report.faults
        ],
        "fuzz": [fuzz(fuzzed) for fuzzed in report.fuzzed],
        "divergences": [
            {"target": fuzzed.target, **divergence(found)}
            for fuzzed in report.fuzzed
            for found in fuzzed.found
        ],
        **part(report, "skipped problems interrupted"),
    }


def targets(names: Iterable[str]) -> dict[str, Any]:
    """Targets, and what of each is not the real thing."""
    return {
        "format": FORMAT,
        "targets": [
            {
                "name": target.name,
                "kind": target.kind,
                "version": target.argument if target.kind == "installed" else None,
                "tiers": tier_states(target),
                "replaced": () if target.kind == "reference" else REPLACED + STORE_REPLACED,
            }
            for target in map(Target.parse, names)
        ],
    }
