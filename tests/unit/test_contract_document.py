"""The contract document: tables agree with the types, the example runs, what is predicted is compared."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import pytest

from adapters.codec import parse_trace, trace_document
from adapters.protocol import Hello, Job, Reply
from spec.observation import (
    Admitted,
    Answer,
    Counters,
    Entry,
    Event,
    FailedRead,
    Failure,
    Finished,
    Observation,
    Outcome,
    Pin,
    Scheduled,
    StoreView,
    Transfer,
)
from spec.rules import RULES
from spec.trace import FORMAT, STEPS, Configuration, Gate, Group, ResetLocal, Run, Settle, Submit, Trace
from tailproof.cli import main as cli
from tailproof.jobs import replay
from tailproof.jobs.fuzz import FuzzReport
from tailproof.jobs.known_traces import VERDICTS
from tailproof.judge.findings import Divergence, Finding, IncompleteError
from tailproof.judge.lockstep import Explainer, compare
from tailproof.known import quirks
from tailproof.known.explain import ROOMS
from tailproof.known.model import FAULTS, TRACES, KnownFault, KnownTrace, Upstream
from tailproof.known.quirks.case import QUIRKS, Case
from tailproof.targets.opening import Target, open_target

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
HEAD = ("field", "type", "default", "meaning")
TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Trace,
        Configuration,
        Group,
        Outcome,
        Observation,
        Scheduled,
        Admitted,
        Entry,
        Event,
        Counters,
        Finished,
        FailedRead,
        StoreView,
        Transfer,
        Answer,
        Pin,
        Failure,
        Finding,
        Divergence,
        KnownFault,
        KnownTrace,
        Upstream,
    )
} | {f"{name}: {kind.__name__}": kind for name, kind in STEPS.items()}
Row = tuple[str, ...]


def sections(text: str) -> dict[str, list[Row]]:
    """The rows of the table under each heading, its head and rule left out; no rows without a table."""
    found: dict[str, list[Row]] = {}
    head = ""
    for line in re.sub(r"```.*?```", "", text, flags=re.DOTALL).splitlines():
        if match := re.match(r"#+ (.+)", line):
            head = match[1]
            assert head not in found or not found[head], f"two sections are called {head}"
            found[head] = []
        elif line.startswith("|"):
            found[head].append(tuple(cell.strip() for cell in line.strip().strip("|").split("|")))
    return {head: rows[2:] for head, rows in found.items()}


def type_words(annotation: str) -> str:
    """An annotation as the document says it."""
    if match := re.fullmatch(r"tuple\[tuple\[(.+)\], \.\.\.\]", annotation):
        return f"list of [{match[1]}]"
    if match := re.fullmatch(r"tuple\[(.+), \.\.\.\]", annotation):
        return f"list of {match[1]}"
    if match := re.fullmatch(r"(.+) \| None", annotation):
        return f"{type_words(match[1])} or null"
    if match := re.fullmatch(r"tuple\[(.+)\]", annotation):
        return f"[{match[1]}]"
    return annotation.removeprefix("datetime.")


def rows_of(kind: type) -> list[Row]:
    """The rows that a type asks for, without the meaning."""
    return [
        (
            f"`{item.name}`",
            type_words(str(item.type)),
            "required" if item.default is MISSING else json.dumps(item.default),
        )
        for item in fields(kind)
    ]


def problems(text: str) -> list[str]:
    """What the tables of a document get wrong about the types."""
    found = sections(text)
    return [line for name, kind in TYPES.items() for line in _table_problems(found, name, rows_of(kind))]


def _table_problems(found: dict[str, list[Row]], name: str, due: list[Row]) -> Iterator[str]:
    if name not in found:
        yield f"{name}: there is no section"
        return
    names = [row[0] for row in found[name]]
    due_names = [row[0] for row in due]
    yield from (f"{name}: {field} is missing" for field in due_names if field not in names)
    yield from (f"{name}: there is no {field}" for field in names if field not in due_names)
    if sorted(names) == sorted(due_names) and names != due_names:
        yield f"{name}: the order is {', '.join(due_names)}"
    seen = {row[0]: row for row in found[name]}
    for row in due:
        if row[0] not in seen:
            continue
        shown = seen[row[0]]
        if len(shown) != len(HEAD) or not shown[-1]:
            yield f"{name}: {row[0]} has {len(shown)} cells, or no meaning"
        elif shown[1:3] != row[1:]:
            yield f"{name}: {row[0]} is {', '.join(row[1:])}, not {', '.join(shown[1:3])}"


def test_the_tables_agree_with_the_types() -> None:
    assert problems(TEXT) == []


def test_every_type_has_a_section() -> None:
    assert [head for head in sections(TEXT) if ": " in head] == [name for name in TYPES if ": " in name]


PLANTS: list[tuple[str, str, str, list[str]]] = [
    (
        "renamed field",
        "| `long_prefill` |",
        "| `long_prompt` |",
        ["Configuration: `long_prefill` is missing", "Configuration: there is no `long_prompt`"],
    ),
    (
        "wrong default",
        "| `budget` | int | 8192 |",
        "| `budget` | int | 4096 |",
        ["Configuration: `budget` is int, 8192, not int, 4096"],
    ),
    (
        "wrong type",
        "| `cached` | int or null |",
        "| `cached` | int |",
        ["Finished: `cached` is int or null, required, not int, required"],
    ),
    (
        "required made optional",
        "| `count` | int | required |",
        "| `count` | int | 1 |",
        ["drop_keys: DropKeys: `count` is int, required, not int, 1"],
    ),
    (
        "missing row",
        "| `salt` | str or null | null | requests of different salts share nothing |\n",
        "",
        ["submit: Submit: `salt` is missing"],
    ),
    (
        "other order",
        "| `start` | int | required | first token computed |\n| `end` |",
        "| `end` | int | required | first token computed |\n| `start` |",
        ["Scheduled: the order is `request`, `start`, `end`, `drafts`"],
    ),
    (
        "wrong default of a known fault",
        "| `exact` | bool | true |",
        "| `exact` | bool | false |",
        ["KnownFault: `exact` is bool, true, not bool, false"],
    ),
    (
        "renamed field of a known trace",
        "| `file` | str | required |",
        "| `trace` | str | required |",
        ["KnownTrace: `file` is missing", "KnownTrace: there is no `trace`"],
    ),
    ("missing section", "### gate: Gate", "### gates: Gate", ["gate: Gate: there is no section"]),
    (
        "no meaning",
        "| `position` | int | required | tokens of the prefix that it is found under |",
        "| `position` | int | required | |",
        ["Entry: `position` has 4 cells, or no meaning"],
    ),
]


@pytest.mark.parametrize(("old", "new", "due"), [plant[1:] for plant in PLANTS], ids=[p[0] for p in PLANTS])
def test_a_planted_change_is_reported(old: str, new: str, due: list[str]) -> None:
    assert TEXT.count(old) == 1
    assert problems(TEXT.replace(old, new)) == due


def test_a_new_field_of_a_type_is_reported() -> None:
    due = [*rows_of(Run), ("`extra`", "int", "required")]
    assert list(_table_problems(sections(TEXT), "run: Run", due)) == ["run: Run: `extra` is missing"]


# The example


def example() -> dict[str, Any]:
    """The example trace of the document."""
    blocks = re.findall(r"```json\n(.*?)```", TEXT, flags=re.DOTALL)
    assert len(blocks) == 1
    document: dict[str, Any] = json.loads(blocks[0])
    return document


def test_the_example_runs_on_the_reference_as_the_text_says() -> None:
    trace = parse_trace(example())
    outcome = open_target(Target.parse("reference"), print).run(trace)
    assert compare(trace, outcome) is None
    hits = {item.request: item.local for seen in outcome.observations for item in seen.admitted}
    assert hits == {"A": 0, "B": 7168, "C": 7168}
    assert "checkpoint of 7296 tokens is 7168" in " ".join(TEXT.split())


def test_the_example_is_what_the_tool_itself_would_write() -> None:
    assert trace_document(parse_trace(example())) == example()


# The other tables


def test_the_replay_table_names_what_is_written(tmp_path: Path) -> None:
    kept = replay.ReplayFile(parse_trace(example()), "reference", "LK1", "kind", "text", ("line",))
    written = json.loads(replay.write(tmp_path, kept).read_text(encoding="utf-8"))
    names = [row[0].strip("`") for row in sections(TEXT)["Replay files"]]
    assert names == list(written) == list(replay._FIELDS)
    assert written["format"] == 2
    assert re.fullmatch("LK1-kind-[0-9a-f]{8}", written["fingerprint"])


def section(head: str) -> str:
    """The text under a heading, to the next one."""
    text = re.split(rf"^#+ {re.escape(head)}$", TEXT, maxsplit=1, flags=re.MULTILINE)[1]
    return re.split(r"^#+ ", text, maxsplit=1, flags=re.MULTILINE)[0]


def test_the_folders_of_the_known_faults_are_those_named() -> None:
    assert f"`{FAULTS.relative_to(ROOT).as_posix()}`" in section("Known faults")
    assert "`traces` beside" in " ".join(section("Known faults").split())
    assert FAULTS.parent / "traces" == TRACES
    assert (replay.FORMAT, FORMAT) == (2, 1)


def test_the_text_on_findings_names_what_there_is() -> None:
    text = section("Divergence")
    for name in ("explain", "follow"):
        assert f"`{name}(" in text
        assert hasattr(Explainer, name)
    for field in ("explained", "unjudged", "base_explained"):
        assert f"`{field}`" in text
        assert field in {item.name for item in fields(FuzzReport)}


def test_the_text_on_quirks_names_what_there_is() -> None:
    text = section("Quirks")
    folder = Path(quirks.__file__).parent
    assert f"`{folder.relative_to(ROOT).as_posix()}`" in text
    assert "`split.block_grid`" in text
    assert "split.block_grid" in QUIRKS
    assert hasattr(Case, "due_to")
    rooms = {Path(room.__file__ or "").name for room in ROOMS}
    assert rooms == {path.name for path in folder.glob("*.py")} - {"__init__.py", "case.py", "witness.py"}


def test_the_states_and_verdicts_are_those_of_the_code() -> None:
    states = [row[0].strip("`") for row in sections(TEXT)["States"]]
    # `tests/unit/test_baseline.py` meets each of them.
    assert states == ["met", "not met", "mended", "back", "expired"]
    assert [row[0].strip("`") for row in sections(TEXT)["Verdicts on kept traces"]] == list(VERDICTS)


def test_the_worker_text_names_the_messages() -> None:
    text = TEXT.partition("## Workers")[2].partition("## ")[0]
    for kind in (Hello, Job, Reply, Outcome, Failure):
        assert f"`{kind.__name__}`" in text


def test_the_exit_codes_are_those_of_the_command_line() -> None:
    codes = [int(row[0]) for row in sections(TEXT)["Exit codes"]]
    assert codes == [cli.OK, cli.BROKEN, cli.USAGE, cli.UNABLE, cli.INTERRUPTED]


# What is free and what is predicted

PLAYED = Trace(
    Configuration(groups=(Group("full", 8), Group("mamba", 8)), unit=4, events=True),
    (
        Submit("A", (("a", 20),), outputs=2),
        Settle(),
        Submit("B", (("a", 20),), outputs=2),
        Run(),
        Run(),
        ResetLocal(),
    ),
)
Change = Callable[[list[Observation]], None]


def changed(index: int, **values: Any) -> Change:
    """Replaces fields of one observation."""

    def apply(seen: list[Observation]) -> None:
        seen[index] = replace(seen[index], **values)

    return apply


def first_of(index: int, field: str, **values: Any) -> Change:
    """Replaces values of the first item in a field of one observation."""

    def apply(seen: list[Observation]) -> None:
        first, *rest = getattr(seen[index], field)
        items: dict[str, Any] = {field: (replace(first, **values), *rest)}
        seen[index] = replace(seen[index], **items)

    return apply


# The run: 0 submit, 1 A [0, 16), 2 A [16, 20), 3 A decodes, 4 submit, 5 B [16, 20), 6 B decodes, 7 reset.
DIFFERENCES: list[tuple[str, Change, str | None]] = [
    ("`scheduled.request`, their order", changed(1, scheduled=(), admitted=(), published=()), "CH2"),
    ("`scheduled.start`", first_of(2, "scheduled", start=17), "CH5"),
    ("`scheduled.end`", first_of(3, "scheduled", end=20), "CH2"),
    ("`scheduled.end`", first_of(1, "scheduled", end=20), "CP7"),
    ("`admitted.local`", first_of(5, "admitted", local=0), "LK1"),
    ("`admitted.local`", first_of(5, "admitted", local=20), "PM2"),
    ("`admitted.external`", first_of(5, "admitted", external=4), "CH5"),
    ("`admitted.junction`", first_of(5, "admitted", junction=4), "LK5"),
    ("`preempted`", changed(6, preempted=("B",)), "CH2"),
    ("`finished.request`", changed(3, finished=()), "LV1"),
    ("`finished.reason`", first_of(3, "finished", reason="other"), None),
    ("`finished.outputs`", first_of(3, "finished", outputs=(1, 2)), "SF4"),
    ("`finished.cached`", first_of(6, "finished", cached=12), "AC1"),
    ("`finished.cached`", first_of(6, "finished", cached=None), None),
    ("`published`", changed(1, published=()), "RT1"),
    ("`published`", changed(1, published=(Entry(1, 8, "A"), Entry(1, 16, "A"))), "RT1"),
    ("`withdrawn`", changed(4, withdrawn=(Entry(1, 16, "A"),)), "RT1"),
    ("`failed_reads`", changed(5, failed_reads=(FailedRead("B", 0, 3, "kv"),)), "SF1"),
    ("`failed_reads`", changed(5, failed_reads=(FailedRead("B", 1, 16, "state"),)), "SF2"),
    ("`running`, `waiting`", changed(5, running=(), free=511), "LV1"),
    ("`running`, `waiting`", changed(5, running=(), waiting=("B",), free=511), None),
    ("`free`", changed(3, free=510), "LT3"),
    ("`free`", changed(5, free=1), None),
    ("`reset`", changed(7, reset=False, withdrawn=()), "LT4"),
    ("`reset`", changed(7, withdrawn=()), "LT4"),
    ("`evicted`", changed(3, evicted=5), None),
    ("`wasted`", changed(3, wasted=1), "RT1"),
    ("`wasted`", changed(3, wasted=0), None),
    ("`events`", changed(1, events=()), "AC3"),
    ("`events`", changed(1, events=None), "AC3"),
    ("`events`", changed(6, events=(Event("stored", (Entry(0, 16, "B"),), 8, 4),)), "AC3"),
    ("`counters`", changed(1, counters=Counters(1, 20, 4)), "AC2"),
    ("`counters`", changed(6, counters=None), None),
    ("`failure`", changed(2, failure=Failure("crash", "gone")), "LV1"),
    ("`seconds`", changed(2, seconds=99.0), None),
]


def one_output_more(seen: list[Observation]) -> None:
    """Repeats the last output of the first request that ends."""
    outputs = seen[3].finished[0].outputs
    first_of(3, "finished", outputs=(*outputs, outputs[-1]))(seen)


def played() -> list[Observation]:
    """What the reference does."""
    return list(open_target(Target.parse("reference"), print).run(PLAYED).observations)


@pytest.mark.parametrize(("row", "change", "rule"), DIFFERENCES, ids=[f"{d[0]} {d[2]}" for d in DIFFERENCES])
def test_what_is_predicted_is_compared_and_what_is_free_is_not(
    row: str, change: Change, rule: str | None
) -> None:
    seen = played()
    assert compare(PLAYED, Outcome(tuple(seen))) is None
    change(seen)
    divergence = compare(PLAYED, Outcome(tuple(seen)))
    assert (divergence and divergence.rule) == rule
    (shown,) = (item for item in sections(TEXT)["Free and predicted"] if item[0] == row)
    if rule is not None:
        assert rule in shown[2]


@pytest.mark.parametrize(("units", "rule"), [((4, 4), None), ((8, 4), "EL2"), ((4, 8), "EL2"), (None, None)])
def test_the_units_of_an_outcome_are_compared(units: tuple[int, int] | None, rule: str | None) -> None:
    divergence = compare(PLAYED, Outcome(tuple(played()), units=units))
    assert (divergence and divergence.rule) == rule


def test_a_content_check_that_read_too_little_or_too_much_is_an_error_of_the_adapter() -> None:
    """B reuses 16 tokens: their KV and one state are read before it computes on."""
    for verified in (16, 18):
        seen = played()
        changed(5, verified=verified)(seen)
        with pytest.raises(IncompleteError, match=rf"steps\[3\]: the content check read {verified} tokens"):
            compare(PLAYED, Outcome(tuple(seen)))
    seen = played()
    changed(5, verified=17)(seen)
    assert compare(PLAYED, Outcome(tuple(seen))) is None


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        pytest.param(first_of(5, "scheduled", start=18), "CH5", id="first chunk begins past its hit"),
        pytest.param(first_of(3, "finished", outputs=()), "LV1", id="ended without its outputs"),
        pytest.param(one_output_more, "SF4", id="more outputs than asked for"),
        pytest.param(changed(5, admitted=()), "CH5", id="computed without being admitted"),
    ],
)
def test_a_difference_that_should_be_reported(change: Change, rule: str) -> None:
    seen = played()
    change(seen)
    divergence = compare(PLAYED, Outcome(tuple(seen)))
    assert divergence is not None
    assert divergence.rule == rule


def test_the_table_names_every_field_that_is_not_mere_placing() -> None:
    text = " ".join(row[0] for row in sections(TEXT)["Free and predicted"])
    kinds = (Scheduled, "scheduled."), (Admitted, "admitted."), (Finished, "finished."), (StoreView, "store.")
    for kind, prefix in kinds:
        for field in fields(kind):
            assert f"`{prefix}{field.name}`" in text
    for field in fields(Observation):
        assert field.name in ("at", "do") or f"`{field.name}" in text
    for row in sections(TEXT)["Free and predicted"]:
        assert row[1] in ("free", "predicted")
        assert set(re.findall(r"\b[A-Z]{2}\d\b", row[2])) <= set(RULES)


STORED = Trace(
    replace(PLAYED.configuration, events=False, store="both"),
    (
        Submit("A", (("a", 20),), outputs=2),
        Settle(),
        ResetLocal(),
        Submit("B", (("a", 20),), outputs=2),
        Settle(),
        Gate("get", "fail"),
        ResetLocal(),
        Submit("C", (("a", 20),)),
        Run(2),
    ),
)


def in_store(index: int, **values: Any) -> Change:
    """Replaces fields of what one observation shows of the store."""

    def apply(seen: list[Observation]) -> None:
        view = seen[index].store
        assert view is not None
        seen[index] = replace(seen[index], store=replace(view, **values))

    return apply


# The run: 1 A [0, 16), put, 2 A [16, 20), job 0 reported, 3 A decodes, 4 reset, 6 B loads 16 tokens,
# 7 reported, 8 B [16, 20), 9 B decodes, 10 gets fail, 13 C loads, 14 reported as failed.
BLOCKS = Entry(0, 8, "A"), Entry(0, 16, "A")
STATE = Entry(1, 16, "A")
LATER = Entry(0, 20, "A")
SAVED = STATE, *BLOCKS
STORE_DIFFERENCES: list[tuple[str, Change, str | None]] = [
    ("`store.loading`", in_store(6, loading=(Admitted("B", 0, 8, 0),)), "LK4"),
    ("`store.loading`", in_store(6, loading=(Admitted("B", 8, 8, 0),)), "LK4"),
    ("`store.loading`", in_store(6, loading=(Admitted("B", 0, 16, 4),)), "LK5"),
    ("`store.loaded`, `store.failed`", in_store(7, loaded=()), "LV2"),
    ("`store.loaded`, `store.failed`", in_store(14, failed=()), "LV2"),
    ("`store.answers`", in_store(1, answers=()), None),
    ("`store.transfers`", in_store(1, transfers=(Transfer("put", (*SAVED, LATER), failed=(LATER,)),)), "TS2"),
    ("`store.transfers`", in_store(1, transfers=(Transfer("put", SAVED, wrong=(STATE,)),)), "TS2"),
    ("`store.transfers`", in_store(1, transfers=(Transfer("put", (*SAVED, STATE)),)), "TS3"),
    ("`store.transfers`", in_store(1, transfers=(Transfer("put", SAVED, unpinned=(STATE,)),)), "TS4"),
    ("`store.transfers`", in_store(1, transfers=(Transfer("put", (Entry(0, 12, "A"),)),)), "TS1"),
    ("`store.transfers`", in_store(6, transfers=(Transfer("get", BLOCKS, wrong=BLOCKS[:1]),)), "SF1"),
    ("`store.transfers`", in_store(6, transfers=(Transfer("get", (STATE,), wrong=(STATE,)),)), "SF2"),
    ("`store.stored`", in_store(1, stored=(*BLOCKS, STATE, Entry(0, 4, "A"))), "TS1"),
    ("`store.stored`", in_store(1, stored=BLOCKS), "TS1"),
    ("`store.dropped`", in_store(3, dropped=(STATE,)), "TS1"),
    ("`store.pins`", in_store(1, pins=(Pin(0, "nobody", 3),)), "TS4"),
    ("`store.pins`", in_store(2, pins=(Pin(0, "A", 3),)), "LT2"),
    ("`store.reported`", in_store(2, reported=()), "LT2"),
    ("`store.miscounted`", in_store(2, miscounted=1), "LT1"),
    ("`store.held_puts`, `store.held_gets`, `store.held_lookups`", in_store(5, held_gets=1), None),
    ("`engine`", lambda seen: None, None),
]


@pytest.mark.parametrize(
    ("row", "change", "rule"), STORE_DIFFERENCES, ids=[f"{d[0]} {d[2]}" for d in STORE_DIFFERENCES]
)
def test_what_is_predicted_of_the_store_is_compared(row: str, change: Change, rule: str | None) -> None:
    seen = list(open_target(Target.parse("reference"), print).run(STORED).observations)
    assert compare(STORED, Outcome(tuple(seen))) is None
    change(seen)
    divergence = compare(STORED, Outcome(tuple(seen)))
    assert (divergence and divergence.rule) == rule
    (shown,) = (item for item in sections(TEXT)["Free and predicted"] if item[0] == row)
    if rule is not None:
        assert rule in shown[2]


def test_every_predicted_row_has_a_difference_that_is_reported() -> None:
    reported = {row for row, _, rule in (*DIFFERENCES, *STORE_DIFFERENCES) if rule is not None}
    elsewhere = {"`units` of the outcome", "`verified`"}
    for row in sections(TEXT)["Free and predicted"]:
        assert row[1] == "free" or row[0] in reported | elsewhere, row
