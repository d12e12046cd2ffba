"""The cases of the bug bank: which public report each stands for, and the traces that play it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import msgspec

from adapters.codec import parse_trace_text
from spec.rules import RULES
from spec.trace import Trace, TraceError

FOLDER = Path(__file__).parent
FORMAT = 1
RELATIONS = ("same", "kind", "none")
Hits = Mapping[str, int]


class BankError(ValueError):
    """A bank that cannot be used; one line that says what is wrong."""


@dataclass(frozen=True, slots=True)
class Case:
    """One public report. `about` says in our words what went wrong, `kind` what it looked like.

    `relation` is "same" when its own scenario is played on the code that it concerns, "kind" when that code
    is elsewhere (a fork, another connector, another engine) and the same kind of fault is asked for here, and
    "none" when it is not played, for `reason`. `rules` are those that must hold on the `traces`; `note`
    says how a trace differs from the report.
    """

    report: str
    about: str
    kind: str
    relation: str
    rules: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()
    reason: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Play:
    """A trace of the bank with the hits in tokens, local and external together, that requests must have when
    they are first admitted, by rule profile."""

    name: str
    trace: Trace
    hits: Mapping[str, Hits]

    @property
    def path(self) -> Path:
        """The file of the trace."""
        return FOLDER / "traces" / f"{self.name}.txt"

    @property
    def tier(self) -> str:
        """The tier that runs it."""
        return "core" if self.trace.configuration.store == "off" else "store"


@dataclass(frozen=True, slots=True)
class Bank:
    """All cases in the order of the reports, and their plays by name."""

    cases: tuple[Case, ...]
    plays: Mapping[str, Play]

    def about(self, words: tuple[str, ...]) -> Bank:
        """The cases whose report holds one of the words, all without words, and what they need.

        Raises:
            BankError: for a word that no report holds.
        """
        for word in words:
            if not any(word in case.report for case in self.cases):
                raise BankError(f"no report in the bank has {word!r} in its reference")
        kept = tuple(case for case in self.cases if not words or any(word in case.report for word in words))
        used = {name for case in kept for name in case.traces}
        return Bank(kept, {name: play for name, play in self.plays.items() if name in used})


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    cases: tuple[Case, ...]
    hits: dict[str, dict[str, dict[str, int]]] = {}


@dataclass(slots=True)
class _Problems:
    found: list[str] = field(default_factory=list)

    def note(self, wrong: object, text: str) -> None:
        if wrong:
            self.found.append(text)


@lru_cache(maxsize=1)
def bank() -> Bank:
    """The shipped bank.

    Raises:
        BankError: when index and traces do not fit together.
        TraceError: when a trace is refused.
    """
    return load(FOLDER)


def load(folder: Path) -> Bank:
    """The bank in a folder: `index.json`, and one file for each trace in `traces`.

    Raises:
        BankError: when index and traces do not fit together.
        TraceError: when a trace is refused.
    """
    try:
        index = msgspec.json.decode((folder / "index.json").read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError) as problem:
        raise BankError(f"{folder / 'index.json'}: {problem}") from None
    files = {path.stem: path for path in sorted((folder / "traces").glob("*.txt"))}
    problems = _Problems()
    problems.note(index.format != FORMAT, f"format {index.format} is not supported, use {FORMAT}")
    for case in index.cases:
        _check(case, problems)
    reports = [case.report for case in index.cases]
    for report in sorted({one for one in reports if reports.count(one) > 1}):
        problems.note(True, f"{report} appears more than once")
    used = {name for case in index.cases for name in case.traces}
    for name in sorted(used ^ files.keys()):
        problems.note(True, f"trace {name} is {'not there' if name in used else 'used by no case'}")
    for name in sorted(index.hits.keys() - used):
        problems.note(True, f"hits of {name}, which is no trace")
    if problems.found:
        raise BankError(f"bug bank: {'; '.join(problems.found)}")
    plays = {name: _play(name, path, index.hits.get(name, {})) for name, path in files.items()}
    return Bank(index.cases, plays)


def _check(case: Case, problems: _Problems) -> None:
    played = case.relation != "none"
    problems.note(case.relation not in RELATIONS, f"{case.report}: relation {case.relation!r}")
    problems.note(played != bool(case.traces), f"{case.report}: traces belong to cases that are played")
    problems.note(played != bool(case.rules), f"{case.report}: rules belong to cases that are played")
    problems.note(
        played == bool(case.reason), f"{case.report}: a reason belongs to cases that are not played"
    )
    for rule in case.rules:
        problems.note(rule not in RULES, f"{case.report}: there is no rule {rule}")


def _play(name: str, path: Path, hits: Mapping[str, Hits]) -> Play:
    try:
        trace = parse_trace_text(path.read_bytes())
    except TraceError as problem:
        raise TraceError(f"{path}: {problem}") from None
    arrives = {submit.id for submit in trace.submits()}
    for expected in hits.values():
        if strange := sorted(expected.keys() - arrives):
            raise BankError(f"bug bank: hits of {strange[0]!r}, which never arrives in {name}")
    return Play(name, trace, hits)
