"""The notation of traces: every trace travels, every field of it, and what is wrong is told in one line."""

from __future__ import annotations

import dataclasses
import re
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spec import notation
from spec.notation import NotationError, lines, parse, text, usage, words
from spec.trace import STEPS, Configuration, Group, Settle, Submit, Trace
from tailproof.generate.core import case
from tailproof.generate.store import store_case
from tailproof.jobs import replay
from tailproof.jobs.bank import cases as bank
from tailproof.known.model import TRACES
from tests.unit.conftest import Command

PLAIN = Configuration((Group("full", 4), Group("mamba", 4)), 2)
# A value that is not the default, for a field of each type; what must fit together is chosen by name.
OTHER: dict[Any, Any] = {
    bool: True,
    int: 7,
    int | None: 6,
    str: "other",
    str | None: "two words",
    tuple[Group, ...]: PLAIN.groups[::-1],
    tuple[tuple[str, int], ...]: (("a", 9), ("b c", 4)),
    tuple[tuple[str, int, int], ...]: (("i", 1, 2), ("#", 4, 3)),
}
KINDS = (Configuration, Group, *STEPS.values())
FIELDS = [(kind, field.name) for kind in KINDS for field in dataclasses.fields(kind)]


def filled(kind: Any, *names: str) -> Any:
    """A value of a dataclass whose required fields, and those named, are not their default."""
    hints = typing.get_type_hints(kind)
    wanted = [one.name for one in dataclasses.fields(kind) if one.default is dataclasses.MISSING]
    return kind(**{name: OTHER[hints[name]] for name in (*wanted, *names)})


def travelled(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> Trace:
    """A trace printed and read, right or wrong as a run."""
    monkeypatch.setattr(notation, "validate", lambda trace: None)
    return parse(text(trace))


def holding(value: Any) -> Trace:
    """A trace that has a configuration, a group or a step in it."""
    if isinstance(value, Configuration):
        return Trace(value, (Settle(),))
    if isinstance(value, Group):
        return Trace(dataclasses.replace(PLAIN, groups=(value, value, PLAIN.groups[0])), (Settle(),))
    return Trace(PLAIN, (value,))


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=lambda value: getattr(value, "__name__", value))
def test_every_field_travels(kind: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = filled(kind, name)
    default = next(one.default for one in dataclasses.fields(kind) if one.name == name)
    assert getattr(value, name) != default
    assert travelled(holding(value), monkeypatch) == holding(value)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_field_left_out_of_the_table_does_not_travel(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = words(kind)
    for gone in whole:
        table = {word: one for word, one in whole.items() if word != gone}
        monkeypatch.setattr(
            notation, "words", lambda asked, table=table: table if asked is kind else words(asked)
        )
        trace = holding(filled(kind, whole[gone].name))
        with pytest.raises((AssertionError, NotationError, TypeError, ValueError)):
            assert travelled(trace, monkeypatch) == trace


def kept() -> Iterator[Path]:
    """The traces that are kept."""
    yield from sorted(TRACES.iterdir())
    yield from sorted((bank.FOLDER / "traces").iterdir())


def test_kept_traces_travel() -> None:
    traces = [replay.read_named(path).trace for path in kept()]
    assert len(traces) > 140
    for trace in traces:
        assert parse(text(trace)) == trace


@pytest.mark.parametrize("drawn", [case, store_case])
def test_generated_traces_travel(drawn: Any) -> None:
    for index in range(300):
        trace = drawn(9, index)
        assert parse(text(trace)) == trace
        assert text(trace).isascii()


@pytest.mark.parametrize(
    "name", ["prompt", "x", "1", "a b", "#", "ü", "a:1", '"', "\n", "\ud800", "note", "none", "-"]
)
def test_any_name_travels(name: str) -> None:
    submit = Submit(name, ((name, 3),), salt=name, adapter=name, media=((name, 0, 2),))
    trace = Trace(PLAIN, (submit,))
    assert parse(text(trace)) == trace


@pytest.mark.parametrize(
    "note", ["", "one", "two\nlines", "\n", " led by a space", "# no comment; run 3", '"', "a\rb", "µ"]
)
def test_any_note_travels(note: str) -> None:
    trace = Trace(PLAIN, (Settle(),), note=note)
    assert parse(text(trace)) == trace


def test_what_is_written_by_hand_is_read() -> None:
    """Commas, comments, blank lines and several statements on a line are free."""
    by_hand = parse("""
        # a comment
        groups full 4 x2, mamba 4 export 2   # behind a line too
        unit 2 eagle, speculative 1
        retention dense
        submit A prompt a:20 outputs 3; run; settle accept 1
    """)
    assert lines(by_hand) == [
        "groups full 4 x2, mamba 4 export 2",
        "unit 2, eagle, speculative 1, retention dense",
        "submit A prompt a:20 outputs 3",
        "run",
        "settle accept 1",
    ]


def test_what_is_left_out_is_as_before() -> None:
    before = parse("groups full 4, mamba 4; unit 2, blocks 9; submit A prompt a:4; settle")
    assert parse("blocks 8", before) == dataclasses.replace(
        before, configuration=dataclasses.replace(before.configuration, blocks=8)
    )
    assert parse("run", before).configuration == before.configuration
    assert parse("groups full 2, mamba 2; unit 2", before) == Trace(
        Configuration((Group("full", 2), Group("mamba", 2)), 2), before.steps
    )


HEAD = "groups full 4, mamba 4\nunit 2\n"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (f"{HEAD}submt A", "line 3: no line begins with submt, did you mean submit"),
        ("groups full 4, mamba\nunit 2\nrun", "line 1: the setting: groups a group needs block"),
        ("unit 2\nrun", "line 2: the setting needs groups"),
        (
            "groups full 4 block 2\nunit 2",
            "line 1: the setting: groups a group does not know block, write KIND BLOCK [draft]",
        ),
        (f"{HEAD}unit 3\nrun", "line 3: unit has been said before, keep one of them"),
        ("groups full 4\nunit two", "line 2: the setting: unit wants a number, found two"),
        (f"{HEAD}blocks 1\nrun", "line 3: blocks must be 2 or more, got 1"),
        (f"{HEAD}run\nblocks 3", "line 4: blocks is part of the setting, write it before the first step"),
        (f"{HEAD}run\nabort B", "line 4: request 'B' was never submitted before this step"),
        (f"{HEAD}run; abort B; settle\nrun", "line 3: request 'B' was never submitted before this step"),
        (f"{HEAD}run {'9' * 30}", "line 3: run: steps wants a number, found 999"),
        (f"{HEAD}run 3 accept 2", "line 3: accept must lie in 0..0"),
        (f"{HEAD}submit A prompt a:b", "line 3: submit: prompt wants NAME:TOKENS, found a:b"),
        (f"{HEAD}submit A prompt a:1+2", "line 3: submit: prompt wants NAME:TOKENS, found a:1+2"),
        (f"{HEAD}submit A prompt a:4 media i:3", "line 3: submit: media wants NAME:START+TOKENS, found i:3"),
        (f"{HEAD}submit A prompt a:4 outputs", "line 3: submit: outputs wants a number, but nothing follows"),
        (f"{HEAD}submit A prompt a:4 outputs 1 outputs 2", "line 3: outputs is said twice, keep one of them"),
        (
            f"{HEAD}submit A a:4",
            "line 3: submit does not know a:4, write ID prompt NAME:TOKENS... [outputs N]",
        ),
        (f"{HEAD}kill_master now", "line 3: kill_master does not know now, write nothing"),
        (f'{HEAD}submit "A prompt a:4', "line 3: a quote is not closed"),
        (f'{HEAD}submit "\\x" prompt a:4', 'line 3: submit: id "\\x" is no name in quotes'),
        (f"format 2\n{HEAD}run", "line 1: format 2 is not supported, this version reads format 1"),
        (HEAD, "line 3: steps: a trace needs at least one step"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(wrong: str, told: str) -> None:
    with pytest.raises(NotationError) as refused:
        parse(wrong)
    assert str(refused.value).startswith(told)
    assert "\n" not in str(refused.value)


CONTRACT = Path(__file__).resolve().parents[2] / "docs" / "contract.md"


def section() -> str:
    """What the contract document says of the notation."""
    return CONTRACT.read_text(encoding="utf-8").split("\n## The notation\n")[1].split("\n## ")[0]


def test_the_document_shows_how_each_line_is_written() -> None:
    rows = dict(re.findall(r"^\| ([a-z_ ]+) \| `(.*)` \|$", section(), flags=re.MULTILINE))
    steps = {name: f"{name} {usage(kind)}".strip() for name, kind in STEPS.items()}
    assert rows == {"setting": usage(Configuration), "each group": usage(Group), **steps}
    spelled = {
        (word.word, word.name) for kind in KINDS for word in words(kind).values() if word.word != word.name
    }
    assert spelled == {("export", "checkpoint_alignment"), ("sliding_window", "window")}
    for pair in spelled:
        assert "`{}` is `{}`".format(*pair) in section()


def test_the_example_of_the_document_is_read() -> None:
    example = re.search(r"\n\n((?:    .*\n)+)", section())
    assert example
    trace = parse(textwrap.dedent(example[1]))
    assert [step.id for step in trace.submits()] == ["A", "B"]
    assert trace.note == "a prompt, and the same again"


HAND_WRITTEN = """\
groups full 4, mamba 4; unit 2, eagle, speculative 1
submit A prompt a:8; settle; submit B prompt a:8; settle
"""


def test_a_file_that_holds_a_trace_in_the_notation_is_replayed(tailproof: Command, tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text(HAND_WRITTEN, encoding="utf-8")
    fixed = tailproof("replay", file, "--target", "reference")
    assert (fixed.code, fixed.out) == (0, f"FIXED  {file} on reference: every rule holds on this trace\n")
    told = tailproof("replay", file, "--target", "reference", "--steps").out
    assert "       step 5: B reuses 6 tokens, computes [6, 8), registers nothing.\n" in told
    # What no explanation was recorded for is explained anew.
    failed = tailproof("replay", file, "--target", "reference+scan-capped")
    assert failed.code == 1
    assert "       Setting: groups full 4, mamba 4; unit 2, eagle, speculative 1\n" in failed.out
    file.write_text("groups full 4, mamba 4; unit 2; sumbit A prompt a:8", encoding="utf-8")
    assert tailproof("replay", file).err == (
        f"tailproof: {file}: line 1: no line begins with sumbit, did you mean submit\n"
    )
