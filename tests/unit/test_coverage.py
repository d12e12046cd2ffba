"""The table of axes and phases: each row and column by an example, the declared gaps, and how it is shown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reference.forecast import AdmissionForecast, Forecast
from reference.oracle import Oracle
from spec.geometry import Geometry
from spec.notation import parse
from spec.observation import Admitted, Entry, Observation, Scheduled
from spec.trace import Settle, Trace
from tailproof.cli.documents import fuzz as fuzz_document
from tailproof.cli.main import cli
from tailproof.cli.text import fuzz_lines
from tailproof.generate.core import case
from tailproof.jobs.fuzz import FuzzReport
from tailproof.judge.lockstep import compare
from tailproof.judge.step import Step as Judged
from tailproof.reach.core import AXES, LACKS, PHASES, TIGHT, UNSUPPORTED, Reach, axes, unsupported
from tailproof.reach.coverage import TAGS, Coverage
from tailproof.reach.store import (
    STORE_AXES,
    STORE_PHASES,
    STORE_TAGS,
    StoreReach,
    fault_name,
    store_axes,
    store_lines,
)
from tailproof.reach.table import Table, reach_table
from tailproof.targets.opening import Target, open_target
from tests.scenarios.blocks import Block, of_file

PLAIN = parse("groups full 8, mamba 8; unit 4, budget 100; submit A prompt p:22; settle")
CASES = [block for name in ("reach", "reach_store") for block in of_file(name)]


def shows(name: str, what: str) -> list[set[str]]:
    """The features, or what was met or exercised, of each scenario of a file."""
    found = []
    for block in of_file(name):
        (line,) = (line for line in block.due if line.startswith(f"{what}: "))
        parts = line.removeprefix(f"{what}: ").split("; ")
        found.append({part if what == "features" else re.sub(r"^\d+ ", "", part) for part in parts})
    return found


def counted(*traces: Trace) -> Coverage:
    """What the reference reaches on some traces."""
    opened, coverage = open_target(Target.parse("reference"), print), Coverage()
    for trace in traces:
        coverage.case(trace)

        def visit(step: Judged, trace: Trace = trace) -> None:
            coverage.step(trace, step.observation, step.expected)

        compare(trace, opened.run(trace), visit)
    return coverage


def planted(*phases: str) -> FuzzReport:
    """A fuzz report whose table holds one count for each phase, in every row."""
    report = FuzzReport("vllm==0.32.0", "core", 1)
    for row in report.coverage.reach.counts.values():
        row.update(dict.fromkeys(phases, 1))
    return report


def test_a_case_keeps_nothing_of_the_case_before_it() -> None:
    running = parse("submit A prompt p:9 outputs 9; run 2", PLAIN)
    coverage = counted(running, parse("submit A prompt p:9; abort A", PLAIN))
    assert coverage.reach.counts["eagle off"]["aborted while waiting"] == 1
    early = parse("reset_local running; submit A prompt p:9", PLAIN)
    assert counted(running, early).reach.counts["eagle off"]["reset of running requests"] == 0


def test_the_drafts_of_a_request_just_admitted_are_neither_accepted_nor_rejected() -> None:
    trace = parse("eagle, speculative 1; submit A prompt p:8 outputs 4; settle", PLAIN)
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


def test_preemption_and_eviction_are_counted_as_observed() -> None:
    found = Reach()
    found.case(axes(PLAIN), 8)
    seen = Observation(1, "settle", preempted=("A", "B"), withdrawn=(Entry(0, 8, "C"),))
    assert found.step(Settle(), seen, Forecast(roomy=False)).count("preempted for space") == 2
    for axis in ("eagle off", TIGHT):
        row = found.counts[axis]
        assert (row["preempted for space"], row["entries thrown out"], row["hit 0"]) == (2, 1, 0)
    assert not any(found.counts["eagle on"].values())


@pytest.mark.parametrize(
    ("name", "features", "phases"),
    [
        ("reach", {*AXES} - {TIGHT}, {*PHASES} - {*LACKS["reference"]}),
        ("reach_store", {*STORE_AXES}, {*STORE_PHASES}),
    ],
)
def test_each_row_and_each_column_stands_in_a_scenario_and_not_in_all(
    name: str, features: set[str], phases: set[str]
) -> None:
    for wanted, what in ((features, "features"), (phases, "met")):
        found = [one & wanted for one in shows(name, what)]
        assert set[str]().union(*found) == wanted
        assert set.intersection(*found) <= {"submit"}


def test_each_rule_of_the_store_is_exercised_in_a_scenario_and_none_without_a_store() -> None:
    of_the_store = {"LK4", "LT1", "LT2", "LV2", *(f"TS{number}" for number in range(1, 8))}
    others = {"LT3", "LT4", "SF1", "SF2", "AC1", "LV1"}
    assert set[str]().union(*rules("reach_store")) >= of_the_store | others
    assert not set[str]().union(*rules("reach")) & of_the_store


def rules(name: str) -> list[set[str]]:
    """The rules that each scenario of a file exercises."""
    lines = [next(line for line in block.due if line.startswith("exercised: ")) for block in of_file(name)]
    return [set(re.findall(r"[A-Z]{2}\d+", line)) for line in lines]


@pytest.mark.parametrize("block", CASES, ids=lambda block: block.place)
def test_features_keep_the_order_of_the_table_and_a_case_counts_alike_in_all_its_rows(block: Block) -> None:
    trace = block.question.trace
    assert trace is not None
    whole = trace.configuration.store != "off"
    rows = store_axes(trace.configuration) if whole else axes(trace)
    assert list(rows) == [axis for axis in (STORE_AXES if whole else AXES) if axis in rows]
    table: Table = followed(trace) if whole else counted(trace).reach
    counts = [table.counts[axis] for axis in rows]
    assert all(row == counts[0] for row in counts)
    assert not any(any(table.counts[axis].values()) for axis in table.axes if axis not in (*rows, TIGHT))


# What cannot be reached


def test_declared_cells_exist_and_have_a_reason() -> None:
    for axis, row in UNSUPPORTED.items():
        assert axis in AXES
        assert set(row) <= set(PHASES)
    for row in (*UNSUPPORTED.values(), *LACKS.values()):
        assert all(reason and "\n" not in reason for reason in row.values())


def test_declared_cells_stay_empty_and_the_rest_of_their_rows_does_not() -> None:
    kept = [block.question.trace for block in of_file("reach")]
    coverage = counted(*(case(5, index) for index in range(250)), *filter(None, kept))
    assert coverage.reach.contradicted("reference") == []
    for axis in UNSUPPORTED:
        assert coverage.reach.counts[axis]["decode"] > 0
    columns = {phase for row in UNSUPPORTED.values() for phase in row}
    assert all(any(row[phase] for row in coverage.reach.counts.values()) for phase in columns)


def test_a_declared_cell_that_is_reached_is_named() -> None:
    trace = parse("groups full 8, mamba 8; unit 8, budget 100", PLAIN)
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


# The store

STORE = parse("store both; submit A prompt p:22; settle; reset_local; submit B prompt p:22; settle", PLAIN)


def followed(*traces: Trace) -> StoreReach:
    """What the reference reaches of the store on some traces, one after the other."""
    reach = StoreReach()
    for trace in traces:
        reach.case(trace)

        def visit(step: Judged, trace: Trace = trace) -> None:
            reach.step(trace, step.observation, step.expected)

        compare(trace, open_target(Target.parse("reference"), print).run(trace), visit)
    return reach


def test_without_a_store_there_are_no_rows_and_nothing_counts() -> None:
    assert store_axes(PLAIN.configuration) == ()
    assert not any(followed(PLAIN).totals.values())


def test_a_case_with_a_store_keeps_nothing_of_the_case_before_it() -> None:
    steps = "submit A prompt p:22; settle; reset_local; gate get hold; submit B prompt p:22; run 2"
    reach = followed(parse(steps, STORE), parse("submit B prompt p:22; abort B", STORE))
    assert reach.totals["aborted while loading"] == 0
    assert reach.totals["store both"] == 2


def test_the_names_of_faults() -> None:
    steps = "gate put hold; drop_keys 3; reset_store; kill_master; restart_master; reset_local; run"
    assert [fault_name(step) for step in parse(steps, STORE).steps] == [
        "gate put hold",
        "drop_keys",
        "reset_store",
        "kill_master",
        "restart_master",
        None,
        None,
    ]


def test_the_lines_name_every_tag_and_the_cells_that_were_not_met() -> None:
    reach = followed(STORE)
    reach.case(parse("decode_saves", STORE))
    lines = list(store_lines(reach))
    assert all(any(tag in line for line in lines) for tag in STORE_TAGS)
    assert any(line.startswith("  empty: decode saves × ") for line in lines)
    assert not any("store consumer ×" in line for line in lines)
    assert max(map(len, lines)) <= 110


def test_tags_are_told_apart() -> None:
    assert len(set(STORE_TAGS)) == len(STORE_TAGS)
