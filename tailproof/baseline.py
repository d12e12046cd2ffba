"""The baseline: known divergences of targets, each with its trace, reason, reference and end date.

An entry covers the divergences of one rule and kind on the targets it names. It is shown, never hidden.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from spec.rules import RULES
from tailproof.judge.findings import Finding

SHIPPED = Path(__file__).with_name("known")
FORMAT = 1


class BaselineError(ValueError):
    """A baseline file that cannot be used; one line."""


@dataclass(frozen=True, slots=True)
class Known:
    """One known divergence: `trace` is a replay file beside the baseline, `expires` an ISO date after which
    it no longer counts."""

    id: str
    targets: tuple[str, ...]
    rule: str
    kind: str
    trace: str
    reason: str
    reference: str
    expires: datetime.date

    def covers(self, target: str, finding: Finding) -> bool:
        """Whether a finding on a target is this one."""
        return target in self.targets and (finding.rule, finding.kind) == (self.rule, self.kind)


@dataclass(frozen=True, slots=True)
class Baseline:
    """All entries of one file; `folder` is where its traces lie."""

    entries: tuple[Known, ...] = ()
    folder: Path = SHIPPED
    today: datetime.date = field(default_factory=datetime.date.today)

    def find(self, target: str, finding: Finding) -> Known | None:
        """The entry that covers a finding, expired ones not counted."""
        for entry in self.entries:
            if entry.covers(target, finding) and entry.expires >= self.today:
                return entry
        return None

    def of(self, target: str) -> tuple[Known, ...]:
        """The entries of a target."""
        return tuple(entry for entry in self.entries if target in entry.targets)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    entries: tuple[Known, ...]


def load(path: Path | None = None) -> Baseline:
    """The baseline in a file; the shipped one without a path.

    Raises:
        BaselineError: with one line that says what is wrong.
    """
    path = path or SHIPPED / "baseline.json"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as problem:
        raise BaselineError(f"{path}: cannot read: {problem.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise BaselineError(f"{path}: {problem}") from None
    if found.format != FORMAT:
        raise BaselineError(f"{path}: format {found.format} is not supported, use {FORMAT}")
    for entry in found.entries:
        if entry.rule not in RULES:
            raise BaselineError(f"{path}: entry {entry.id!r}: there is no rule {entry.rule!r}")
        if not (path.parent / entry.trace).is_file():
            raise BaselineError(f"{path}: entry {entry.id!r}: there is no trace {entry.trace!r}")
    return Baseline(found.entries, path.parent)
