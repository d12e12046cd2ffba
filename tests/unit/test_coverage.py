"""The table of axes and phases: each row and column by an example, the declared gaps, and how it is shown."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reference.forecast import AdmissionForecast, Forecast
from reference.oracle import Oracle
from spec.geometry import Geometry
from spec.observation import Admitted, Entry, Observation, Scheduled
from spec.trace import Abort, Configuration, Group, ResetLocal, Run, Settle, Step, Submit, Trace
from tailproof.cli.documents import fuzz as fuzz_document
from tailproof.cli.main import cli
from tailproof.cli.text import fuzz_lines
from tailproof.generate.core import case
from tailproof.jobs.fuzz import FuzzReport
from tailproof.judge.lockstep import compare
from tailproof.judge.step import Step as Judged
from tailproof.reach.core import AXES, LACKS, PHASES, TIGHT, UNSUPPORTED, Reach, axes, unsupported
from tailproof.reach.coverage import TAGS, Coverage
from tailproof.reach.table import reach_table
from tailproof.targets.opening import Target, open_target

FULL, MAMBA = Group("full", 8), Group("mamba", 8)
PLAIN = Configuration((FULL, MAMBA), unit=4, retention=0, budget=100)
EAGLE = replace(PLAIN, eagle=True, speculative=1)
DRAFT = Group("full", 8, draft=True)


def exporting(alignment: int) -> Configuration:
    """Exports at that alignment, in tokens."""
    return replace(PLAIN, groups=(FULL, replace(MAMBA, checkpoint_alignment=alignment)))


def beside(*attention: Group, base: Configuration = PLAIN) -> Configuration:
    """These attention groups beside the Mamba group."""
    return replace(base, groups=(*attention, MAMBA))


def arrives(name: str, length: int, outputs: int = 1, salt: str | None = None) -> Submit:
    """A request whose prompt is like that of any other."""
    return Submit(name, (("p", length),), outputs, salt=salt)


def traced(configuration: Configuration, *steps: Step) -> Trace:
    return Trace(configuration, steps or (arrives("A", 22), Settle()))


ROWS: dict[str, Trace] = {
    "eagle off": traced(PLAIN),
    "eagle on": traced(EAGLE),
    "annotation none": traced(EAGLE),
    "annotation attention": traced(beside(DRAFT, base=EAGLE)),
    "annotation separate group": traced(beside(FULL, DRAFT, base=EAGLE)),
    "annotation replicated group": traced(
        beside(FULL, replace(DRAFT, replicated=True), base=replace(EAGLE, dcp=2))
    ),
    "states at chunk ends": traced(PLAIN),
    "exports aligned to U": traced(exporting(4)),
    "exports aligned finer": traced(exporting(2)),
    "exports aligned coarser": traced(exporting(8)),
    "hits fine": traced(PLAIN),
    "hits coarse": traced(replace(PLAIN, unit=8)),
    "retention None": traced(replace(PLAIN, retention=None)),
    "retention 0": traced(PLAIN),
    "retention k": traced(replace(PLAIN, retention=16)),
    "junction checkpoints on": traced(replace(EAGLE, junctions=True)),
    "attention block below the Mamba block": traced(beside(Group("full", 4))),
    "attention block above the Mamba block": traced(beside(Group("full", 16))),
    "several attention layouts": traced(beside(FULL, Group("full", 16))),
    "sliding-window group": traced(beside(FULL, Group("window", 4, window=12))),
    "DCP 2": traced(replace(PLAIN, dcp=2)),
    "DCP 4": traced(replace(PLAIN, dcp=4)),
    "DCP 8": traced(replace(PLAIN, dcp=8)),
    "several speculative tokens": traced(replace(EAGLE, speculative=2)),
    "multi-module MTP": traced(replace(EAGLE, speculative=2, multi_module=True)),
    "long-prefill threshold": traced(replace(PLAIN, long_prefill=8)),
    "priority scheduling": traced(replace(PLAIN, policy="priority")),
    "budget below a block": traced(replace(PLAIN, budget=7)),
    "a prompt of four budgets or more": traced(replace(PLAIN, budget=10), arrives("A", 40)),
    "asynchronous scheduling": traced(replace(PLAIN, asynchronous=True)),
    "KV events": traced(replace(PLAIN, events=True)),
    "cache salts": traced(PLAIN, arrives("A", 22, salt="s")),
    "adapters": traced(PLAIN, replace(arrives("A", 22), adapter="x")),
    "media": traced(PLAIN, replace(arrives("A", 22), media=(("i", 3, 5),))),
}

COLUMNS: dict[str, Trace] = {
    "submit": traced(PLAIN),
    "next turn of an earlier request": traced(
        PLAIN, arrives("A", 9), Settle(), Submit("B", (("@A", 10), ("q", 3))), Settle()
    ),
    "hit 0": traced(PLAIN),
    "hit inside a block": traced(PLAIN, arrives("A", 22), Settle(), arrives("B", 22), Settle()),
    "hit at a block end": traced(PLAIN, arrives("A", 17), Settle(), arrives("B", 17), Settle()),
    "same prefix, same step": traced(
        PLAIN, Submit("A", (("p", 4), ("a", 9))), Submit("B", (("p", 4), ("b", 9))), Settle()
    ),
    "first prefill chunk": traced(PLAIN),
    "later prefill chunk": traced(PLAIN),
    "export made": traced(exporting(4), arrives("A", 30), Settle()),
    "decode": traced(PLAIN, arrives("A", 9, outputs=3), Settle()),
    "drafts accepted": traced(EAGLE, arrives("A", 9, outputs=5), Settle(accept=1)),
    "drafts rejected": traced(EAGLE, arrives("A", 9, outputs=5), Settle(accept=0)),
    "finished": traced(PLAIN),
    "aborted while waiting": traced(PLAIN, arrives("A", 22), Abort("A")),
    "aborted in prefill": traced(replace(PLAIN, budget=8), arrives("A", 30), Run(2), Abort("A")),
    "aborted in decode": traced(PLAIN, arrives("A", 9, outputs=9), Run(4), Abort("A")),
    "resumed request": traced(PLAIN, arrives("A", 9, outputs=9), Run(2), ResetLocal(running=True), Settle()),
    "reset taken": traced(PLAIN, arrives("A", 9), Settle(), ResetLocal()),
    "reset refused": traced(PLAIN, arrives("A", 9, outputs=9), Run(2), ResetLocal()),
    "reset of running requests": traced(
        PLAIN, arrives("A", 9, outputs=9), Run(2), ResetLocal(running=True), Settle()
    ),
}


def counted(*traces: Trace) -> Coverage:
    """What the reference reaches on some traces."""
    opened, coverage = open_target(Target.parse("reference"), print), Coverage()
    for trace in traces:
        coverage.case(trace)

        def visit(step: Judged, trace: Trace = trace) -> None:
            coverage.step(trace, step.observation, step.expected)

        compare(trace, opened.run(trace), visit)
    return coverage


def phases(trace: Trace) -> Counter[str]:
    """The counts of a trace's phases, the same in every row of its case."""
    counts = counted(trace).reach.counts
    rows = [counts[axis] for axis in axes(trace)]
    assert all(row == rows[0] for row in rows)
    assert not any(any(counts[axis].values()) for axis in AXES if axis not in (*axes(trace), TIGHT))
    return Counter(rows[0])


def planted(*phases: str) -> FuzzReport:
    """A fuzz report whose table holds one count for each phase, in every row."""
    report = FuzzReport("vllm==0.32.0", "core", 1)
    for row in report.coverage.reach.counts.values():
        row.update(dict.fromkeys(phases, 1))
    return report


# Rows and columns


@pytest.mark.parametrize("axis", AXES)
def test_each_row_has_a_configuration_that_counts_in_it(axis: str) -> None:
    if axis == TIGHT:
        assert TIGHT not in axes(traced(PLAIN))
        return
    assert axis in axes(ROWS[axis])
    assert any(axis not in axes(trace) for trace in ROWS.values())


def test_rows_of_a_case_keep_the_order_of_the_table() -> None:
    for trace in ROWS.values():
        assert list(axes(trace)) == [axis for axis in AXES if axis in axes(trace)]


@pytest.mark.parametrize(
    ("configuration", "due"),
    [
        (PLAIN, set()),
        (replace(EAGLE, junctions=True), {"junction checkpoints on"}),
        (replace(PLAIN, junctions=True), set()),
        (replace(PLAIN, dcp=2), {"DCP 2"}),
        (replace(PLAIN, budget=8), set()),
        (beside(Group("full", 4), Group("full", 16)), {
            "attention block below the Mamba block",
            "attention block above the Mamba block",
            "several attention layouts",
        }),
        (beside(DRAFT, Group("full", 16), base=EAGLE), {
            "attention block above the Mamba block",
            "several attention layouts",
        }),
    ],
)  # fmt: skip
def test_features_are_what_a_configuration_really_has(configuration: Configuration, due: set[str]) -> None:
    features = set(AXES[AXES.index("retention k") + 1 :])
    assert features & set(axes(traced(configuration))) == due


@pytest.mark.parametrize(
    ("attention", "name"),
    [((DRAFT, DRAFT), "attention"), ((DRAFT, Group("full", 16)), "separate group")],
)
def test_annotation_attention_means_that_all_attention_is_marked(
    attention: tuple[Group, ...], name: str
) -> None:
    assert f"annotation {name}" in axes(traced(beside(*attention, base=EAGLE)))


def test_a_prompt_just_short_of_four_budgets_is_not_long() -> None:
    trace = traced(replace(PLAIN, budget=10), arrives("A", 39))
    assert "a prompt of four budgets or more" not in axes(trace)


@pytest.mark.parametrize("phase", PHASES)
def test_each_column_has_a_trace_that_reaches_it(phase: str) -> None:
    if phase in LACKS["reference"]:
        assert phase not in COLUMNS
        return
    assert phases(COLUMNS[phase])[phase]
    assert any(not phases(trace)[phase] for trace in COLUMNS.values()) or phase in ("submit",)


def test_one_request_from_arrival_to_end() -> None:
    """P 22 with U 4 and B 8 stops at the block end 16 and at the checkpoint 20; two outputs take a decode."""
    assert phases(traced(PLAIN, arrives("A", 22, outputs=2), Settle())) == {
        **dict.fromkeys(PHASES, 0),
        "submit": 1,
        "hit 0": 1,
        "first prefill chunk": 1,
        "later prefill chunk": 2,
        "decode": 1,
        "finished": 1,
    }


@pytest.mark.parametrize(
    ("accept", "accepted", "rejected"), [(0, False, True), (1, True, True), (2, True, False)]
)
def test_a_decode_counts_as_accepted_rejected_or_both(accept: int, accepted: bool, rejected: bool) -> None:
    configuration = replace(EAGLE, speculative=2)
    found = phases(
        traced(configuration, arrives("A", 9, outputs=1 + 3 * (accept + 1)), Settle(accept=accept))
    )
    assert (bool(found["drafts accepted"]), bool(found["drafts rejected"])) == (accepted, rejected)


def test_the_phase_of_an_abort_is_that_of_the_request() -> None:
    """Put back by a reset it waits again, though it has outputs; begun again it prefills again."""
    steps = (arrives("A", 30, outputs=9), Run(7), ResetLocal(running=True))
    small = replace(PLAIN, budget=8)
    assert phases(traced(small, *steps[:2], Abort("A")))["aborted in decode"] == 1
    assert phases(traced(small, *steps, Abort("A")))["aborted while waiting"] == 1
    assert phases(traced(small, *steps, Run(), Abort("A")))["aborted in prefill"] == 1


def test_aborting_what_has_ended_counts_nothing() -> None:
    found = phases(traced(PLAIN, arrives("A", 9), Settle(), Abort("A")))
    assert not any(found[phase] for phase in PHASES if phase.startswith("aborted"))


def test_a_reset_of_running_requests_needs_one_that_runs() -> None:
    found = phases(traced(PLAIN, arrives("A", 9), ResetLocal(running=True), Settle()))
    assert (found["reset taken"], found["reset of running requests"], found["resumed request"]) == (1, 0, 0)


def test_equal_prompts_under_other_salts_share_no_prefix() -> None:
    steps = (arrives("A", 6), arrives("B", 6, salt="s"), Settle())
    assert not phases(traced(PLAIN, *steps))["same prefix, same step"]


def test_a_case_keeps_nothing_of_the_case_before_it() -> None:
    running = traced(PLAIN, arrives("A", 9, outputs=9), Run(2))
    coverage = counted(running, traced(PLAIN, arrives("A", 9), Abort("A")))
    assert coverage.reach.counts["eagle off"]["aborted while waiting"] == 1
    early = traced(PLAIN, ResetLocal(running=True), arrives("A", 9))
    assert counted(running, early).reach.counts["eagle off"]["reset of running requests"] == 0


def test_the_drafts_of_a_request_just_admitted_are_neither_accepted_nor_rejected() -> None:
    trace = traced(EAGLE, arrives("A", 8, outputs=4), Settle())
    oracle = Oracle(trace)
    oracle.forecast(Observation(0, "submit"))
    oracle.histories["A"].produce(1, oracle.prefixes)
    seen = Observation(
        1,
        "settle",
        scheduled=(Scheduled("A", 8, 10, drafts=1),),
        admitted=(Admitted("A", 8, 0, 0),),
    )
    found = Reach()
    found.case(axes(trace), 8)
    due = oracle.forecast(seen)
    assert found.step(Settle(accept=1), seen, due) == ["hit at a block end", "decode"]
    oracle.adopt(seen, due)
    again = replace(seen, scheduled=(Scheduled("A", 9, 11, drafts=1),), admitted=())
    assert found.step(Settle(accept=1), again, oracle.forecast(again)) == ["decode", "drafts accepted"]


def test_steps_without_room_count_in_a_row_of_their_own() -> None:
    trace = traced(replace(PLAIN, blocks=16), arrives("A", 9), Settle(), arrives("B", 90), Settle())
    counts = counted(trace).reach.counts
    assert (counts[TIGHT]["submit"], counts["eagle off"]["submit"]) == (1, 2)


def test_preemption_and_eviction_are_counted_as_observed() -> None:
    found = Reach()
    found.case(axes(traced(PLAIN)), 8)
    seen = Observation(1, "settle", preempted=("A", "B"), withdrawn=(Entry(0, 8, "C"),))
    assert found.step(Settle(), seen, Forecast(roomy=False)).count("preempted for space") == 2
    for axis in ("eagle off", TIGHT):
        row = found.counts[axis]
        assert (row["preempted for space"], row["entries thrown out"], row["hit 0"]) == (2, 1, 0)
    assert not any(found.counts["eagle on"].values())


# What cannot be reached


def test_declared_cells_exist_and_have_a_reason() -> None:
    for axis, row in UNSUPPORTED.items():
        assert axis in AXES
        assert set(row) <= set(PHASES)
    for row in (*UNSUPPORTED.values(), *LACKS.values()):
        assert all(reason and "\n" not in reason for reason in row.values())


def test_declared_cells_stay_empty_and_the_rest_of_their_rows_does_not() -> None:
    coverage = counted(*(case(5, index) for index in range(250)), *ROWS.values(), *COLUMNS.values())
    assert coverage.reach.contradicted("reference") == []
    for axis in UNSUPPORTED:
        assert coverage.reach.counts[axis]["decode"] > 0
    columns = {phase for row in UNSUPPORTED.values() for phase in row}
    assert all(any(row[phase] for row in coverage.reach.counts.values()) for phase in columns)


def test_a_declared_cell_that_is_reached_is_named() -> None:
    trace = ROWS["hits coarse"]
    oracle = Oracle(trace)
    oracle.forecast(Observation(0, "submit"))
    history = oracle.histories["A"]
    admitted = AdmissionForecast(
        Admitted("A", 4, 0, 0), history, oracle.cache.lookup(history), frozenset(), frozenset()
    )
    report = FuzzReport("vllm==0.32.0", "core", 1)
    found = report.coverage.reach
    found.case(axes(trace), Geometry.of(trace.configuration).mamba_block)
    found.step(Settle(), Observation(1, "settle"), Forecast(admissions=(admitted,)))
    assert found.contradicted() == [("hits coarse", "hit inside a block")]
    wrong = "  met, though declared impossible (a fault of tailproof): hits coarse × hit inside a block"
    assert wrong in fuzz_lines(report)


def test_a_target_may_lack_columns() -> None:
    assert unsupported() == UNSUPPORTED
    for name in ("reference", "reference+stale-state"):
        lacks = unsupported(name)
        assert list(lacks) == list(AXES)
        assert set(lacks["eagle off"]) == set(LACKS["reference"]) | set(UNSUPPORTED["eagle off"])
    cells = len(AXES) * len(PHASES) - sum(map(len, UNSUPPORTED.values()))
    assert len(Coverage().empty()) == cells
    assert len(Coverage().empty("reference")) == cells - len(AXES) * len(LACKS["reference"])


def test_empty_names_the_supported_cells_that_were_not_met() -> None:
    coverage = planted(*PHASES).coverage
    assert coverage.empty() == []
    coverage.reach.counts["DCP 8"]["decode"] = 0
    coverage.reach.counts["eagle off"]["drafts accepted"] = 0
    assert coverage.empty() == [("DCP 8", "decode")]


# Flat tags


def test_tags_that_are_rows_or_columns_follow_the_table() -> None:
    coverage = counted(*(case(6, index) for index in range(40)))
    for phase in set(PHASES) & set(TAGS):
        counts = coverage.reach.counts
        assert coverage.counts[phase] == sum(counts[axis][phase] for axis in ("eagle on", "eagle off"))
    assert coverage.counts["eagle on"] + coverage.counts["eagle off"] == 40
    assert coverage.unreached() == [tag for tag in TAGS if not coverage.counts[tag]]


# How it is shown


def test_heads_are_short_and_told_apart() -> None:
    assert len(set(PHASES.values())) == len(PHASES)
    assert all(len(head) <= 4 for head in PHASES.values())


def test_the_report_names_the_rarest_and_the_empty_cells() -> None:
    report = planted(*PHASES)
    counts = report.coverage.reach.counts
    for axis, row in UNSUPPORTED.items():
        counts[axis].update(dict.fromkeys(row, 0))
    cells = len(report.coverage.reach.supported())
    for row in counts.values():
        row.update({phase: 9 for phase in PHASES if row[phase]})
    counts["DCP 8"]["aborted in decode"] = 3
    assert shown(report) == [f"reach: {cells} of {cells} cells, fewest 3 (DCP 8 × aborted in decode)"]
    counts["DCP 4"].update({"reset refused": 0, "same prefix, same step": 0})
    counts["KV events"] = dict.fromkeys(PHASES, 0)
    for row in counts.values():
        row["resumed request"] = 0
    left = cells - 2 - len(PHASES) - (len(AXES) - 1)
    assert shown(report) == [
        f"reach: {left} of {cells} cells, fewest 3 (DCP 8 × aborted in decode)",
        "  no case has KV events",
        "  no case meets resumed request",
        "  empty: DCP 4 × same prefix, same step; reset refused",
    ]


def shown(report: FuzzReport) -> list[str]:
    """The lines of a report about the table."""
    lines = list(fuzz_lines(report))
    start = next(at for at, line in enumerate(lines) if line.startswith("reach: "))
    return lines[start : lines.index("", start)]


def test_long_lists_of_names_are_folded_between_names() -> None:
    lines = shown(FuzzReport("vllm==0.32.0", "core", 1))
    assert lines[0].startswith("reach: 0 of ")
    assert "fewest" not in lines[0]
    assert max(map(len, lines)) <= 110
    text = " ".join(line.strip() for line in lines)
    assert all(axis in text for axis in AXES)
    ends = [line.rstrip().endswith((";", *AXES, *PHASES)) for line in lines[1:]]
    assert all(ends)


def test_the_document_holds_the_table_and_the_reasons() -> None:
    document: dict[str, Any] = json.loads(json.dumps(fuzz_document(planted("decode"))))
    assert list(document["coverage"]) == list(TAGS)
    assert list(document["reach"]) == list(AXES)
    assert all(list(row) == list(PHASES) for row in document["reach"].values())
    assert document["reach"]["DCP 8"]["decode"] == 1
    assert document["unsupported"] == UNSUPPORTED


def test_the_reach_option_prints_the_table(tmp_path: Path) -> None:
    words = ["fuzz", "--target", "reference", "--seed", "1", "--cases", "12", "--out", str(tmp_path)]
    plain, full = (CliRunner().invoke(cli, [*words, *more]).output for more in ([], ["--reach"]))
    assert "\nreach: " in plain
    assert "pre+" not in plain
    lines = full.splitlines()
    for axis in AXES:
        assert sum(line.startswith(f"  {axis} ") for line in lines) >= 2
    for phase, head in PHASES.items():
        assert any(f"{head:<6}{phase}" in line for line in lines)
    for reason in (reason for row in unsupported("reference").values() for reason in row.values()):
        assert any(line.endswith(reason) for line in lines)
    first, second = (index for index, line in enumerate(lines) if line.startswith(" " * 20))
    assert all(len(line) <= 110 for line in lines[first : second + len(AXES) + 1])
    assert full.count("\nreach: ") == 1


def test_big_counts_stay_narrow() -> None:
    report = planted("decode")
    report.coverage.reach.counts["eagle on"]["decode"] = 123_456
    lines = list(reach_table(report.coverage.reach, report.target))
    assert any("  123k" in line for line in lines)
    assert any(line.startswith("  eagle off") and line.endswith("     -") for line in lines)
