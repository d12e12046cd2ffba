"""The cases of the bug bank: which public report each stands for, and the traces that play it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
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
    if problems := list(_problems(index, files.keys())):
        raise BankError(f"bug bank: {'; '.join(problems)}")
    plays = {name: _play(name, path, index.hits.get(name, {})) for name, path in files.items()}
    return Bank(index.cases, plays)


def _problems(index: _File, files: Set[str]) -> Iterator[str]:
    if index.format != FORMAT:
        yield f"format {index.format} is not supported, use {FORMAT}"
    for case in index.cases:
        played = case.relation != "none"
        if case.relation not in RELATIONS:
            yield f"{case.report}: relation {case.relation!r}"
        for name in ("traces", "rules"):
            if played != bool(getattr(case, name)):
                yield f"{case.report}: {name} belong to cases that are played"
        if played == bool(case.reason):
            yield f"{case.report}: a reason belongs to cases that are not played"
        yield from (f"{case.report}: there is no rule {rule}" for rule in case.rules if rule not in RULES)
    reports = Counter(case.report for case in index.cases)
    yield from (f"{one} appears more than once" for one in sorted(reports) if reports[one] > 1)
    used = {name for case in index.cases for name in case.traces}
    for name in sorted(used ^ files):
        yield f"trace {name} is {'not there' if name in used else 'used by no case'}"
    yield from (f"hits of {name}, which is no trace" for name in sorted(index.hits.keys() - used))


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
