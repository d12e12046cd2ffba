"""Renders docs/track-record.md: the known faults as a table and a section each, between hand-written ends.

python -m tailproof.known.record
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from tailproof.known.model import KnownFault, load

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "track-record.md"
BEGIN, END = "<!-- begin -->\n", "<!-- end -->\n"
WIDTH = 120
_REPOSITORY = "vllm-project/vllm"
_SPACE = "\x00"
_REFERENCE = re.compile(r"(?:([\w.-]+/[\w.-]+))?#(\d+)")
_PARAGRAPHS = {
    "happens": "What happens.",
    "place": "Where.",
    "plain": "How plain.",
    "ours": "Is it us?",
    "bad": "How bad.",
    "found": "How found.",
}
# What the faults are ordered by: how plain a setting shows them, then what they do.
_UNREACHED = ("no model today", "a configuration that vLLM does not build", "only at toy sizes")
_WRONG_CONTENT = {"SF1", "SF2", "CH3", "CH4", "TS2"}
_NO_END = {"CH2", "LV1", "LV2"}


def main() -> int:
    """Rewrite the document; returns the exit code."""
    if not DOCUMENT.is_file():
        print(f"{DOCUMENT}: not there; the track record is part of a source checkout", file=sys.stderr)
        return 2
    text = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(rendered(text, load().faults), encoding="utf-8")
    return 0


def rendered(text: str, faults: Sequence[KnownFault]) -> str:
    """The document with the faults between its marks, whatever stood there before."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    ordered = sorted(faults, key=_order)
    return f"{before}{BEGIN}\n" + "\n".join(_lines(ordered)) + f"\n\n{END}{after}"


def _order(fault: KnownFault) -> tuple[bool, int, str]:
    rules = set(fault.rules)
    harm = 0 if rules & _WRONG_CONTENT else 1 if rules & _NO_END else 2
    return _head(fault.reach) in _UNREACHED, harm, fault.id


def _lines(faults: Sequence[KnownFault]) -> Iterator[str]:
    yield "| id | rules | vLLM | effect | setting | upstream |"
    yield "|---|---|---|---|---|---|"
    for fault in faults:
        known = ", ".join(_linked(reference) for reference in fault.upstream.references)
        state = _head(fault.upstream.state)
        yield (
            f"| [{fault.id}](#{fault.id}) | {', '.join(fault.rules)} | {_versions(fault)} | {fault.effect} "
            f"| {_head(fault.reach)} | {f'{state}: {known}' if known else state} |"
        )
    for fault in faults:
        yield ""
        yield from _section(fault)


def _section(fault: KnownFault) -> Iterator[str]:
    yield f"## {fault.id}"
    yield ""
    yield from _wrapped(fault.title)
    yield ""
    yield from _item(f"effect: {fault.effect}")
    yield from _item(f"rules: {', '.join(fault.rules)}, on vLLM {_versions(fault)}")
    yield from _item(f"setting: {fault.reach}")
    yield from _item(f"code: {', '.join(f'`{place}`' for place in fault.where)}")
    if fault.theorems:
        yield from _item(f"theorems refuted: {', '.join(f'`{theorem}`' for theorem in fault.theorems)}")
    yield from _item(_upstream(fault))
    for name, label in _PARAGRAPHS.items():
        if text := getattr(fault, name):
            for number, paragraph in enumerate(text.strip().split("\n\n")):
                yield ""
                yield from _wrapped(paragraph if number else f"*{label}* {paragraph}")
    yield ""
    for trace in fault.traces:
        notes = [trace.rule, trace.note, f"on {' and '.join(trace.lines)}" if trace.lines else ""]
        yield f"    tailproof replay tailproof/known/traces/{trace.file}  # {', '.join(filter(None, notes))}"


def _upstream(fault: KnownFault) -> str:
    upstream = fault.upstream
    read = f", read {upstream.read}" if upstream.read else ""
    named = {match[2] for match in _REFERENCE.finditer(upstream.state)}
    others = [reference for reference in upstream.references if reference.partition("#")[2] not in named]
    aside = f" ({', '.join(others)})" if others else ""
    return _linked(f"upstream{read}: {upstream.state}{aside}")


def _versions(fault: KnownFault) -> str:
    seen = fault.first if fault.first == fault.last else f"{fault.first} to {fault.last}"
    return f"{seen}, mended since" if fault.mended else seen


def _head(text: str) -> str:
    """What stands before the first colon."""
    return text.partition(":")[0]


def _linked(text: str) -> str:
    """A text with its references (owner/repository#number, or #number of vLLM) as links."""

    def link(match: re.Match[str]) -> str:
        repository = match[1] or _REPOSITORY
        shown = f"#{match[2]}" if repository == _REPOSITORY else match[0]
        return f"[{shown}](https://github.com/{repository}/issues/{match[2]})"

    return _REFERENCE.sub(link, text)


def _item(text: str) -> list[str]:
    return _wrapped(f"- {text}", "  ")


def _wrapped(text: str, indent: str = "") -> list[str]:
    # What stands between backticks stays on one line.
    joined = re.sub(r"`[^`]+`", lambda code: code[0].replace(" ", _SPACE), " ".join(text.split()))
    lines = textwrap.wrap(
        joined, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(_SPACE, " ") for line in lines]


if __name__ == "__main__":
    sys.exit(main())
