"""The bug bank: every report once, every trace sound, judged right, and able to fail."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.bank import brief, markdown
from spec.geometry import Geometry
from spec.notation import text
from spec.observation import Outcome
from spec.rules import RULES
from spec.trace import Trace, validate
from tailproof.cli.bank import bank_command
from tailproof.jobs.bank import show
from tailproof.jobs.bank.cases import FOLDER, BankError, Case, bank, load
from tailproof.jobs.bank.run import VERDICTS, judged, profiled, run_bank
from tailproof.known.explain import NOTHING
from tailproof.known.model import Baseline
from tailproof.targets.opening import Target, open_target

REPORTS = 108
SHIPPED = bank()
PLAYED = [case for case in SHIPPED.cases if case.traces]
# A planted fault, a report that must fail under it, and the rule that it is seen by.
PLANTED = (
    ("scan-capped", "seeds/core-and-mooncake-pull-request.txt case 2", "PM1"),
    ("old-checkpoint", "seeds/core-and-mooncake-pull-request.txt case 3", "RT2"),
    ("double-drop", "vllm-project/vllm#52371 section 1", "PM3"),
    ("no-junction", "vllm-project/vllm#45238", "LK5"),
    ("no-junction", "vllm-project/vllm#53945", "LK5"),
    ("retention-drops-checkpoint", "vllm-project/vllm#54713", "RT2"),
    ("state-extends-hit", "vllm-project/vllm#45614 (#43650, #47861, vllm-ascend#12038)", "PM3"),
    ("stale-state", "vllm-project/vllm#43559", "SF2"),
    ("stale-kv", "vllm-project/vllm-ascend#13503", "SF1"),
    ("publishes-mid-chunk", "vllm-project/vllm#43559", "CH3"),
    ("leaks-block", "ModelEngine-Group/unified-cache-management#1053", "LT3"),
    ("ignores-adapter", "vllm-project/vllm#44701 (#44706)", "LK1"),
    ("ignores-salt", "vllm-project/vllm#44701 (#44706)", "LK1"),
    ("ignores-media", "vllm-project/vllm#36708", "LK1"),
    ("tail-without-margin", "seeds/core-and-mooncake-pull-request.txt case 1", "TS1"),
    ("external-double-drop", "vllm-project/vllm#43516", "LK4"),
    ("loads-other-state", "vllm-project/vllm#51358 / #53084", "SF2"),
    ("failed-load-used", "taco-project/FlexKV#232", "SF2"),
    ("pin-kept-on-failure", "vllm-project/vllm#43742", "LT2"),
    ("abandoned-load-leaks", "vllm-project/vllm#33377", "LT3"),
)


def test_every_report_appears_once() -> None:
    reports = [case.report for case in SHIPPED.cases]
    assert len(reports) == len(set(reports)) == REPORTS


def test_each_case_is_played_or_says_why_not() -> None:
    for case in SHIPPED.cases:
        assert case.about.endswith("."), case.report
        assert bool(case.traces) != bool(case.reason), case.report
        assert (case.relation == "none") == bool(case.reason), case.report
    counts = Counter(case.relation for case in SHIPPED.cases)
    assert counts["same"] + counts["kind"] >= 85
    assert not any("TODO" in case.reason for case in SHIPPED.cases)


@pytest.mark.parametrize("name", sorted(SHIPPED.plays))
def test_a_trace_is_valid_and_written_as_it_is_read(name: str) -> None:
    play = SHIPPED.plays[name]
    validate(play.trace)
    Geometry.of(play.trace.configuration)
    assert play.trace.note
    assert play.path.read_text() == text(play.trace)


@pytest.mark.parametrize("case", PLAYED, ids=lambda case: case.report.replace("/", ":"))
def test_the_reference_passes(case: Case) -> None:
    matrix = run_bank(["reference"], SHIPPED.about((case.report,)), Baseline(), print)
    cell = matrix.cells[case.report]["reference"]
    assert cell.verdict == "holds", cell


@pytest.mark.parametrize(("fault", "report", "rule"), PLANTED)
def test_a_planted_fault_fails_its_case(fault: str, report: str, rule: str) -> None:
    name = f"reference+{fault}"
    matrix = run_bank([name], SHIPPED.about((report,)), Baseline(), print)
    cell = matrix.cells[report][name]
    assert cell.verdict == "fails", cell
    assert cell.finding is not None
    assert cell.finding.rule == rule
    assert matrix.exit_code == 1


def test_a_lookahead_target_runs_under_both_rule_sets() -> None:
    described = open_target(Target.parse("reference"), print).describe()
    both = replace(described, profiles=("lookahead", "drop"))

    def profiles(name: str) -> list[str]:
        return [trace.configuration.profile for trace in profiled(SHIPPED.plays[name].trace, both)]

    assert profiles("seeds-2") == ["lookahead", "drop"]
    assert profiles("vllm-45238") == profiles("seeds-1") == ["drop"]


@pytest.mark.parametrize("name", sorted(SHIPPED.plays))
def test_the_hits_under_lookahead_hashes_are_those_of_the_reference(name: str) -> None:
    """Where the index tells them."""
    play = SHIPPED.plays[name]
    for profile, hits in play.hits.items():
        trace = replace(play.trace, configuration=replace(play.trace.configuration, profile=profile))
        case = Case("", "", "", "same", tuple(RULES))
        assert judged(case, trace, outcome_of(trace), hits, NOTHING).verdict == "holds"


def outcome_of(trace: Trace, target: str = "reference") -> Outcome:
    return open_target(Target.parse(target), print).run(trace)


TWO = SHIPPED.plays["seeds-2"].trace


def test_a_broken_rule_of_another_case_is_beside_or_hides() -> None:
    outcome = outcome_of(TWO, "reference+scan-capped")
    beside = judged(Case("", "", "", "same", ("AC2",)), TWO, outcome, {}, NOTHING)
    assert (beside.verdict, [one.rule for one in beside.beside]) == ("holds", ["PM1"])
    assert beside.unknown
    hidden = judged(Case("", "", "", "same", ("AC2",)), TWO, outcome, {"B": 6912}, NOTHING)
    assert hidden.verdict == "hidden"
    stopped = outcome_of(TWO, "reference+stale-kv")
    hidden = judged(Case("", "", "", "same", ("AC2",)), TWO, stopped, {}, NOTHING)
    assert (hidden.verdict, hidden.finding and hidden.finding.rule) == ("hidden", "SF1")


def test_a_hit_that_is_not_as_expected_fails() -> None:
    cell = judged(Case("", "", "", "same", ("LK1",)), TWO, outcome_of(TWO), {"B": 128}, NOTHING)
    assert (cell.verdict, cell.finding and cell.finding.kind) == ("fails", "expected-hit")


def copied(folder: Path) -> Path:
    shutil.copytree(FOLDER / "traces", folder / "traces")
    shutil.copy(FOLDER / "index.json", folder)
    return folder


def test_index_and_traces_must_fit(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    assert load(folder).cases == SHIPPED.cases
    (folder / "traces" / "seeds-1.txt").unlink()
    (folder / "traces" / "stray.txt").write_bytes((FOLDER / "traces" / "seeds-2.txt").read_bytes())
    document = json.loads((folder / "index.json").read_text())
    document["cases"].append({**document["cases"][0], "rules": ["XX1"], "reason": "none"})
    (folder / "index.json").write_text(json.dumps(document))
    with pytest.raises(BankError) as problem:
        load(folder)
    for words in (
        "trace seeds-1 is not there",
        "trace stray is used by no case",
        "there is no rule XX1",
        "appears more than once",
        "a reason belongs to cases that are not played",
    ):
        assert words in str(problem.value)


def test_hits_of_a_request_that_never_arrives(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    document = json.loads((folder / "index.json").read_text())
    document["hits"]["seeds-2"] = {"drop": {"Z": 1}}
    (folder / "index.json").write_text(json.dumps(document))
    with pytest.raises(BankError, match="hits of 'Z', which never arrives in seeds-2"):
        load(folder)


def test_the_command_shows_a_case() -> None:
    ended = CliRunner().invoke(bank_command, ["45614", "--target", "reference"])
    assert ended.exit_code == 0, ended.output
    assert "holds" in ended.output
    assert "reference: 1 holds" in ended.output


def test_the_command_fails_with_the_line_that_reproduces_it() -> None:
    target = "reference+state-extends-hit"
    ended = CliRunner().invoke(bank_command, ["45614", "--target", target])
    assert ended.exit_code == 1, ended.output
    assert f"{target}: fails PM3" in ended.output
    assert f"tailproof replay tailproof/jobs/bank/traces/vllm-45614.txt --target {target}" in ended.output


def test_the_document() -> None:
    matrix = run_bank(["reference"], SHIPPED.about(("45614", "#36696")), Baseline(), print)
    document = show.document(matrix)
    assert json.loads(json.dumps(document)) == document
    assert document["counts"]["reference"] == {**dict.fromkeys(VERDICTS, 0), "holds": 1}
    played, left = document["cases"]
    assert played["cells"]["reference"]["verdict"] == "holds"
    assert (left["cells"], left["relation"]) == ({}, "none")


def test_the_tables_name_every_case() -> None:
    some = SHIPPED.about(("45614", "#36696"))
    cells = brief(run_bank(["reference"], some, Baseline(), print))
    text = "\n".join(markdown(some, cells, ["reference"]))
    assert "| holds | 1 |" in text
    assert "| vllm-project/vllm#45614" in text
    assert "| sgl-project/sglang#36696" in text


def test_a_word_that_no_report_has() -> None:
    with pytest.raises(BankError, match="no report in the bank has '99999'"):
        SHIPPED.about(("99999",))
