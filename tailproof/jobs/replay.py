"""Replay files: a kept trace with what it broke, readable for years, and the check whether it still does."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from adapters.codec import parse_trace, read_document, trace_document
from spec.geometry import Geometry, GeometryError
from spec.notation import lines
from spec.observation import Outcome
from spec.rules import RULES
from spec.trace import Trace, TraceError
from tailproof.explain.story import explain_divergence, happened
from tailproof.judge.findings import Divergence
from tailproof.judge.lockstep import Explainer, seek
from tailproof.targets import cache
from tailproof.targets.opening import OpenTarget

# Format 1 had the trace as a JSON object.
FORMAT = 2
_FIELDS = ("format", "tool", "target", "rule", "kind", "fingerprint", "message", "explanation", "trace")


@dataclass(frozen=True, slots=True)
class ReplayFile:
    """A kept trace. `rule` and `kind` say what it broke on `target` when it was written ("" for a bare
    trace), `explanation` why."""

    trace: Trace
    target: str = ""
    rule: str = ""
    kind: str = ""
    message: str = ""
    explanation: tuple[str, ...] = ()

    @property
    def tier(self) -> str:
        """The tier that runs the trace."""
        return "core" if self.trace.configuration.store == "off" else "store"

    @property
    def fingerprint(self) -> str:
        """Names the divergence: rule, kind and a digest of the trace."""
        return fingerprint(self.rule, self.kind, self.trace)


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay: `verdict` FIXED or FAILED, with one line of `detail`, the `outcome` of the run,
    and the divergence, explained as of now."""

    verdict: str
    detail: str
    outcome: Outcome
    divergence: Divergence | None = None

    def story(self, kept: ReplayFile) -> list[str]:
        """What each step did in words, up to the divergence."""
        seen = self.outcome.observations
        end = len(seen) if self.divergence is None else self.divergence.index + 1
        return happened(kept.trace, Outcome(seen[:end]))

    def explanation(self, kept: ReplayFile) -> list[str]:
        """The argument: as recorded, and where nothing is, that of this run; nothing when no rule broke."""
        if self.divergence is None or kept.explanation:
            return list(kept.explanation if self.divergence else ())
        return explain_divergence(kept.trace, self.outcome, self.divergence)


def fingerprint(rule: str, kind: str, trace: Trace) -> str:
    """`RULE-kind-xxxxxxxx`: the digest covers the trace without its note."""
    document = {name: value for name, value in trace_document(trace).items() if name != "note"}
    digest = hashlib.sha256(msgspec.json.encode(document, order="deterministic")).hexdigest()[:8]
    return "-".join(part for part in (rule, kind, digest) if part)


def tool_version() -> str:
    """The version of this tool."""
    try:
        return version("tailproof")
    except PackageNotFoundError:
        return "unknown"


def write(folder: Path, kept: ReplayFile) -> Path:
    """Write a replay file into a folder, atomically; returns its path."""
    path = folder / f"{kept.fingerprint}.json"
    document = {
        "format": FORMAT,
        "tool": tool_version(),
        "target": kept.target,
        "rule": kept.rule,
        "kind": kept.kind,
        "fingerprint": kept.fingerprint,
        "message": kept.message,
        "explanation": kept.explanation,
        "trace": lines(kept.trace),
    }
    cache.write(path, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
    return path


def read(path: Path) -> ReplayFile:
    """Read a replay file, or a bare trace, which may be text in the notation.

    Raises:
        TraceError: with one line, also when the file cannot be read.
    """
    try:
        text = path.read_bytes()
    except OSError as problem:
        raise TraceError(f"cannot read: {problem.strerror}") from None
    document = read_document(text)
    if not isinstance(document, dict) or "trace" not in document:
        kept = ReplayFile(parse_trace(document))
    else:
        kept = _parse(document)
    Geometry.of(kept.trace.configuration)
    return kept


def read_named(path: Path) -> ReplayFile:
    """As `read`; the error names the file."""
    try:
        return read(path)
    except (TraceError, GeometryError) as problem:
        raise TraceError(f"{path}: {problem}") from None


def _parse(document: dict[str, Any]) -> ReplayFile:
    found = document.get("format")
    if type(found) is not int or found not in (1, FORMAT):
        raise TraceError(f"format: found {found!r}, this version reads formats 1 and {FORMAT}")
    for name in document:
        if name not in _FIELDS:
            raise TraceError(f"unknown field {name!r}, known are {', '.join(_FIELDS)}")
    texts = {name: document.get(name, "") for name in ("target", "rule", "kind", "message")}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise TraceError(f"{name}: must be a text")
    if texts["rule"] and texts["rule"] not in RULES:
        raise TraceError(f"rule: there is no rule {texts['rule']!r}")
    explanation = document.get("explanation", [])
    if not isinstance(explanation, list) or not all(isinstance(line, str) for line in explanation):
        raise TraceError("explanation: must be a list of lines")
    return ReplayFile(parse_trace(document["trace"]), **texts, explanation=tuple(explanation))


def replay(opened: OpenTarget, kept: ReplayFile, explainer: Explainer | None = None) -> Replayed:
    """Run a kept trace again. FAILED: a rule breaks (as recorded or otherwise); FIXED: none does. The
    explainer tells which known fault that is.

    Raises:
        TargetProblem: when the target cannot be run.
        TraceError: when the target refuses the trace.
    """
    outcome = opened.run(kept.trace)
    divergence = seek(kept.trace, outcome, kept.rule, kept.kind, explainer)
    if divergence is None:
        return Replayed("FIXED", f"{kept.rule or 'every rule'} holds on this trace", outcome)
    finding = divergence.finding
    text = f"{finding.rule}: {finding.message}"
    if kept.rule and (finding.rule, finding.kind) != (kept.rule, kept.kind):
        text = f"{text} (recorded was {kept.rule} {kept.kind})"
    if divergence.fault:
        text = f"{text} (known: {divergence.fault})"
    return Replayed("FAILED", text, outcome, divergence)
