"""The file of one known fault, and the folder of them: facts that reports, proofs and documents read."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec

from spec.rules import RULES

FAULTS = Path(__file__).with_name("faults")
TRACES = Path(__file__).with_name("traces")
TIERS = ("core", "store")
_LINE = re.compile(r"\d+\.\d+")


class BaselineError(ValueError):
    """A file of a known fault that cannot be used; one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTrace:
    """A kept trace on which a fault shows: `file` in the folder of traces, the broken `rule`, and what is
    special about it in `note`. `lines` are the release lines on which it shows, none given: all of the
    fault's."""

    file: str
    rule: str
    note: str = ""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """What upstream knows of a fault: `references` (owner/repository#number), their `state` and the date of
    that reading; a reading that found nothing has no reference. The state is a few words ("open", "merged",
    "not found", "not exactly"), perhaps a colon and what is near."""

    state: str
    references: tuple[str, ...] = ()
    read: datetime.date | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFault:
    """One defect of a target that is known.

    `title` and `effect` are for users, `where` names files and functions. `first` and `last` are the release
    lines ("0.32") on which it was seen first and last; `mended` tells that the line after `last` is free of
    it, not merely untried. `rules` are those it breaks, `quirks` the names of the wrong variants
    (`tailproof.known.quirks`) that explain its findings; `exact` that they foretell what is seen, and do not
    only narrow down where. `tier` is "store" where it shows only with one. `reach` says how plain a setting
    shows it, in a few words and perhaps a colon and more. `theorems` are those about the target's own source
    that it refutes. After `expires` it explains nothing any more.
    `happens`, `place`, `plain`, `ours`, `bad` and `found` are paragraphs of the track record.
    """

    id: str
    title: str
    effect: str
    where: tuple[str, ...]
    first: str
    last: str
    rules: tuple[str, ...]
    quirks: tuple[str, ...]
    reach: str
    expires: datetime.date
    upstream: Upstream
    happens: str
    exact: bool = True
    mended: bool = False
    tier: str = "core"
    theorems: tuple[str, ...] = ()
    traces: tuple[KnownTrace, ...] = ()
    place: str = ""
    plain: str = ""
    ours: str = ""
    bad: str = ""
    found: str = ""

    def is_in(self, line: str) -> bool:
        """Whether a release line ("0.32") has the fault."""
        return bool(line) and _order(self.first) <= _order(line) <= _order(self.last)

    def of_line(self, line: str) -> tuple[KnownTrace, ...]:
        """The traces that show it on a release line."""
        if not self.is_in(line):
            return ()
        return tuple(trace for trace in self.traces if not trace.lines or line in trace.lines)


@dataclass(frozen=True, slots=True)
class Baseline:
    """The known faults that a run goes by; `folder` is where their traces lie, `today` decides which have
    expired."""

    faults: tuple[KnownFault, ...] = ()
    folder: Path = TRACES
    today: datetime.date = field(default_factory=datetime.date.today)

    def of(self, line: str) -> tuple[KnownFault, ...]:
        """The faults of a release line, expired ones too."""
        return tuple(fault for fault in self.faults if fault.is_in(line))

    def in_force(self, line: str) -> tuple[KnownFault, ...]:
        """The faults of a release line that have not expired."""
        return tuple(fault for fault in self.of(line) if fault.expires >= self.today)

    def expired(self, line: str) -> tuple[KnownFault, ...]:
        """The faults of a release line that have expired, and so explain nothing."""
        return tuple(fault for fault in self.of(line) if fault.expires < self.today)

    def mended(self, line: str) -> tuple[KnownFault, ...]:
        """The faults that are said to be mended by a release line."""
        return tuple(
            fault for fault in self.faults if fault.mended and line and _order(fault.last) < _order(line)
        )


def line_of(version: str) -> str:
    """The release line of a version: "0.32" for "0.32.0"; "" where the version names none."""
    match = re.match(r"(\d+\.\d+)(?!\d)", version)
    return match[1] if match else ""


def load(folder: Path | None = None) -> Baseline:
    """The known faults in a folder of TOML files, whose traces lie in `traces` beside it; the shipped ones
    without a folder.

    Raises:
        BaselineError: with one line that says which file is wrong, and how.
    """
    folder = folder or FAULTS
    if not folder.is_dir():
        raise BaselineError(f"{folder}: not a folder of known faults (one TOML file each)")
    traces = folder.parent / TRACES.name
    faults = tuple(_read(path, traces) for path in sorted(folder.glob("*.toml")))
    return Baseline(faults, traces)


def _read(path: Path, traces: Path) -> KnownFault:
    # The names of quirks are checked where they are looked up; this module imports no comparison.
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise BaselineError(f"{path}: cannot read: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise BaselineError(f"{path}: not valid TOML: {problem}") from None
    try:
        fault = msgspec.convert(values, KnownFault)
    except msgspec.ValidationError as problem:
        raise BaselineError(f"{path}: {problem}") from None
    for wrong in _problems(fault, values, path.stem, traces):
        raise BaselineError(f"{path}: {wrong}")
    return fault


def _problems(fault: KnownFault, values: dict[str, Any], stem: str, traces: Path) -> Iterator[str]:
    if fault.id != stem:
        yield f"the id is {fault.id!r}, the file says {stem!r}"
    tables = [(KnownFault, values), (Upstream, values["upstream"])]
    for kind, table in (*tables, *((KnownTrace, trace) for trace in values.get("traces", ()))):
        names = {item.name for item in fields(kind)}
        yield from (f"unknown field {name!r}" for name in table if name not in names)
    yield from (f"there is no rule {rule!r}" for rule in fault.rules if rule not in RULES)
    lines = (fault.first, fault.last, *(line for trace in fault.traces for line in trace.lines))
    yield from (
        f"{line!r} is no release line, write it as 0.32" for line in lines if not _LINE.fullmatch(line)
    )
    if _order(fault.first) > _order(fault.last):
        yield f"the first release line is {fault.first}, the last {fault.last}"
    if fault.tier not in TIERS:
        yield f"there is no tier {fault.tier!r}, only {' and '.join(TIERS)}"
    for trace in fault.traces:
        if trace.rule not in fault.rules:
            yield f"trace {trace.file!r} breaks {trace.rule!r}, which is not among the rules"
        yield from (
            f"trace {trace.file!r} is of {line}, the fault of {fault.first} to {fault.last}"
            for line in trace.lines
            if not fault.is_in(line)
        )
        if not (traces / trace.file).is_file():
            yield f"there is no trace {trace.file!r} in {traces}"


def _order(line: str) -> tuple[int, ...]:
    return tuple(int(part) for part in line.split("."))
