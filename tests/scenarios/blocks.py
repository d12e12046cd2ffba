"""Reads scenarios: a file holds blocks of what is asked, a line `----`, what comes of it, and a blank line.

What is asked are lines of the notation of a trace (`docs/contract.md`) and

    on reference reference+FAULT    the targets; a fault may be one of `engines.py`
    line 0.32 0.33                  the release lines whose known faults are asked; `none` for nothing known
    tell steps explanation          what is told beside the findings: `explanation` of the first, `CH1` of the
                                    first of that rule, `pins` in the steps, fields of observations (`free`),
                                    `comparisons`: what each of them finds, `reach`: what the case counts for;
                                    `found` for nothing more
    plant ...                       a change of what was seen (`plants.py`)
    units 4 2                       what the workers say of their units
    beside FAULT: RULE KIND         the finding is new, on every release line that has this known fault
    same as FAULT: RULE KIND        the fault explains the finding there, and all others are known too

Where a block has no steps, or says nothing of the groups, those of the block before hold; `on`, `line` and
`tell` hold until said anew. Lines of `#` are comments.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spec.geometry import Geometry, GeometryError
from spec.notation import parse
from spec.trace import Trace, TraceError
from tailproof.known.model import load

FOLDER = Path(__file__).parent
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.txt"))}
RULE = "----"
BASELINE = load()
LINES = ("0.32", "0.33")


@dataclass(frozen=True, slots=True)
class Question:
    """What a block asks: a trace, or why there is none; on which targets, under which release lines."""

    trace: Trace | None = None
    refused: str = ""
    on: tuple[str, ...] = ("reference",)
    lines: tuple[str, ...] = ("none",)
    tell: tuple[str, ...] = ("steps",)
    plants: tuple[str, ...] = ()
    units: tuple[int, int] | None = None
    beside: tuple[str, str, str] | None = None


@dataclass(slots=True)
class Block:
    """A block of a file: the `asked` lines, as they stand, the question, and what is `due`."""

    place: str
    asked: list[str]
    question: Question
    due: list[str] = field(default_factory=list)


def blocks(text: str, name: str = "") -> list[Block]:
    """The blocks of a file."""
    found: list[Block] = []
    asked: list[str] = []
    expecting = False
    last = Question()
    for number, line in enumerate(text.splitlines(), start=1):
        if expecting and line:
            found[-1].due.append(line)
        elif not expecting and line == RULE:
            last = _understood(asked, last)
            found.append(Block(f"{name}:{number}", asked, last))
            asked, expecting = [], True
        else:
            expecting = False
            asked.append(line)
    return found


def of_file(name: str) -> list[Block]:
    """The blocks of a file of this folder."""
    return blocks(FILES[name].read_text(encoding="utf-8"), name)


def _understood(asked: list[str], last: Question) -> Question:
    heads: dict[str, Any] = {"plants": (), "units": None, "refused": "", "beside": None}
    notation: list[str] = []
    for line in asked:
        word, _, rest = line.partition(" ")
        if word == "plant":
            heads["plants"] += (rest,)
        elif word == "units":
            heads["units"] = tuple(map(int, rest.split()))
        elif word in ("on", "line", "tell"):
            heads["lines" if word == "line" else word] = tuple(rest.split())
        elif word in ("beside", "same"):
            heads |= _beside(word, rest)
        else:
            notation.append(line)
    if any(line.partition("#")[0].strip() for line in notation):
        try:
            heads["trace"] = parse("\n".join(notation), last.trace)
            Geometry.of(heads["trace"].configuration)
        except (TraceError, GeometryError) as problem:
            heads["refused"] = str(problem)
    return replace(last, **heads)


def _beside(word: str, rest: str) -> dict[str, Any]:
    fault, _, due = rest.removeprefix("as ").partition(": ")
    known = next(one for one in BASELINE.faults if one.id == fault)
    lines = tuple(line for line in LINES if known.is_in(line))
    return {"beside": (word, fault, due), "lines": ("none", *lines), "tell": ("found",)}
