"""Known faults from a folder of one's own: what they explain, what is said of each, and what is refused."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec.trace import Configuration, Group, Settle, Submit, Trace, TraceError
from tailproof.jobs import replay
from tailproof.jobs.fuzz import fuzz
from tailproof.jobs.known_traces import KnownResult, faults_seen
from tailproof.jobs.replay import ReplayFile, write
from tailproof.known import explain
from tailproof.known.explain import Known
from tailproof.known.model import load
from tailproof.targets.opening import ReferenceTarget, Target, open_target

Command = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("own_folder")

# A planted fault that breaks one rule, in one way, which a shipped quirk foretells.
PLANTED = "reference+bounded-by-first-layout"
QUIRK = "lookup.bounded_by_the_one_before"
RULE, KIND = "LK2", "bounded-by-other-layout"
LINE = ("--as", "0.32")
FUZZ = ("fuzz", "--seed", "1", "--cases", "60", "--json", "f.json", "--target")
CHECK = ("check", "--no-proofs", "--seconds", "0.6", "--seed", "1", "--json", "c.json", "--target")
TEXT = f"""
id = "mine"
title = "The second layout is bounded."
effect = "lost hit"
where = ["a/b.py: C.d"]
first = "0.31"
last = "0.32"
rules = ["{RULE}"]
quirks = ["{QUIRK}"]
reach = "default flags"
expires = 2999-01-01
happens = "It happens."

[upstream]
state = "not found"
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace on which the planted fault shows, made small."""
    folder = tmp_path_factory.mktemp("kept")
    report = fuzz([open_target(Target.parse(PLANTED), print)], PLANTED, seed=1, cases=40, folder=folder)
    (found,) = report.found
    assert (found.finding.rule, found.finding.kind) == (RULE, KIND)
    assert found.path is not None
    return found.path


def base(*texts: str, traces: tuple[Path, ...] = ()) -> Path:
    """A folder of known faults, with traces beside it that every one of them has."""
    faults, beside = Path("base/faults"), Path("base/traces")
    for folder in (faults, beside):
        folder.mkdir(parents=True)
    for trace in traces:
        (beside / trace.name).write_bytes(trace.read_bytes())
    rows = "".join(f'\n[[traces]]\nfile = "{trace.name}"\nrule = "{RULE}"\n' for trace in traces)
    for text in texts:
        name = re.search(r'^id = "(.+)"', text, re.MULTILINE)
        assert name is not None
        (faults / f"{name[1]}.toml").write_text(text + rows)
    return faults


def changed(*pairs: tuple[str, str]) -> str:
    """The file of the fault with some texts changed."""
    text = TEXT
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


def document(name: str) -> dict[str, Any]:
    """A document that was written."""
    found: dict[str, Any] = json.loads(Path(name).read_text())
    return found


def states(name: str = "c.json") -> dict[str, str]:
    """The state of each known fault in a check's document."""
    return {item["id"]: item["state"] for item in document(name)["faults"]}


# Refusals


@pytest.mark.parametrize("words", [FUZZ, CHECK, ("bank", "45614", "--target")], ids=["fuzz", "check", "bank"])
@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([("id = ", "id")], "base/faults/mine.toml: not valid TOML: "),
        ([('"LK2"', '"LK9"')], "base/faults/mine.toml: there is no rule 'LK9'"),
        ([("2999-01-01", '"soon"')], "base/faults/mine.toml: Invalid RFC3339 encoded date"),
        ([(QUIRK, "lookup.some_thing")], "mine: there is no quirk 'lookup.some_thing'"),
    ],
    ids=["TOML", "rule", "date", "quirk"],
)
def test_a_bad_file_is_refused_in_one_line(
    tailproof: Command, words: tuple[str, ...], pairs: list[tuple[str, str]], said: str
) -> None:
    folder = base(TEXT)
    (folder / "mine.toml").write_text(changed(*pairs))
    ended = tailproof(*words, "reference", "--baseline", folder)
    assert ended.code == 2
    assert ended.line.startswith(f"tailproof: {said}")


def test_what_is_not_there_is_refused(tailproof: Command, kept: Path) -> None:
    ended = tailproof(*FUZZ, "reference", "--baseline", "nowhere")
    assert ended.code == 2
    assert ended.line == "tailproof: nowhere: not a folder of known faults (one TOML file each)"
    check = (*CHECK, "reference", *LINE, "--baseline", base(TEXT, traces=(kept,)))
    trace = Path("base/traces") / kept.name
    trace.write_text("{")
    ended = tailproof(*check)
    assert ended.code == 2
    assert ended.err.splitlines()[-1].startswith(f"tailproof: {trace}: not valid JSON: ")
    trace.unlink()
    ended = tailproof(*check)
    assert ended.code == 2
    assert ended.line == f"tailproof: base/faults/mine.toml: there is no trace {kept.name!r} in base/traces"


# What a fault explains


def test_what_a_fault_explains_is_shown_and_does_not_fail(tailproof: Command) -> None:
    ended = tailproof(*FUZZ, PLANTED, *LINE, "--baseline", base(TEXT), "--out", "other")
    assert ended.code == 0
    assert f"\nknown  {RULE}-{KIND}-" in ended.out
    assert "\n       mine: The second layout is bounded.\n" in ended.out
    found = document("f.json")
    count = found["explained"]["mine"]
    assert count > 0
    assert f"\n  findings explained: {count} mine\n" in ended.out
    assert ended.out.endswith("\n0 new divergences, 1 known\n")
    assert not Path("other").exists()
    assert [(one["rule"], one["baseline"], one["shows"]) for one in found["divergences"]] == [
        (RULE, "mine", None)
    ]
    assert (found["unjudged"], found["against"], found["base_explained"]) == (0, None, {})
    assert "unjudged" not in ended.out


@pytest.mark.parametrize(
    ("pairs", "line"),
    [
        pytest.param([], (), id="no line"),
        pytest.param([], ("--as", "0.33"), id="another line"),
        pytest.param([(QUIRK, "lookup.short_window_run")], LINE, id="another quirk"),
        pytest.param([('"LK2"', '"LK1"')], LINE, id="another rule"),
        pytest.param([("2999-01-01", "2020-01-01")], LINE, id="expired"),
    ],
)
def test_what_it_does_not_explain_is_new(
    tailproof: Command, pairs: list[tuple[str, str]], line: tuple[str, ...]
) -> None:
    """Negative controls: the same run, and nothing known of it."""
    ended = tailproof(*FUZZ, PLANTED, *line, "--baseline", base(changed(*pairs)))
    assert ended.code == 1
    assert f"\nBROKEN {RULE}-{KIND}-" in ended.out
    found = document("f.json")
    assert found["explained"] == {}
    assert [one["baseline"] for one in found["divergences"]] == [None]
    # A lost hit leaves the content right, but nothing explains it, so the run ends there.
    assert (
        f"\n{found['unjudged']} of {found['steps']} steps were left unjudged behind a finding that lasts\n"
    ) in ended.out
    assert 0 < found["unjudged"] < found["steps"]


def test_another_fault_is_new_beside_a_known_one(tailproof: Command) -> None:
    """The baseline must hide nothing else: this fault stops early, and sometimes as if it were bounded."""
    ended = tailproof(*FUZZ, "reference+stops-early", *LINE, "--baseline", base(TEXT))
    assert ended.code == 1
    found = {(one["rule"], one["baseline"]) for one in document("f.json")["divergences"]}
    assert (RULE, "mine") in found
    assert {("LK1", None), ("PM1", None)} <= found


# What a check says of each fault


MENDED = changed(('last = "0.32"', 'last = "0.31"\nmended = true'))
OLD = changed(("2999-01-01", "2020-01-01"))
EXPIRED = "on 2020-01-01, so it explains nothing: see to it, or give it a new date"


@pytest.mark.parametrize(
    ("text", "target", "state", "verdict", "rule"),
    [
        (TEXT, PLANTED, "met", "known", "known"),
        (TEXT, "reference", "not met", "gone", "held"),
        (MENDED, "reference", "mended", "gone", "held"),
        (MENDED, PLANTED, "back", "broken", "broken"),
        (OLD, PLANTED, "expired", "broken", "broken"),
    ],
)
def test_the_state_of_a_fault_is_said(
    tailproof: Command, kept: Path, text: str, target: str, state: str, verdict: str, rule: str
) -> None:
    ended = tailproof(*CHECK, target, *LINE, "--baseline", base(text, traces=(kept,)))
    assert ended.code == (rule == "broken")
    found = document("c.json")
    assert [(one["id"], one["verdict"]) for one in found["known"]] == [("mine", verdict)]
    assert {one["verdict"] for one in found["verdicts"] if one["rule"] == RULE} == {rule}
    findings = sum(run["explained"].get("mine", 0) for run in found["fuzz"])
    assert found["faults"] == [
        {
            "id": "mine",
            "target": target,
            "state": state,
            "traces": int(state == "met"),
            "findings": findings,
            "exact": True,
            "expires": "2020-01-01" if state == "expired" else "2999-01-01",
        }
    ]
    row = rf"^  mine +{re.escape(target)} +{state} +{int(state == 'met')} +{findings}"
    assert re.search(row + (f" +{EXPIRED}$" if state == "expired" else "$"), ended.out, re.MULTILINE)
    # Of a trace that came to what was due, nothing is said.
    told = [line for line in ended.out.splitlines() if f"{kept.name} of mine: " in line]
    assert [line.split(":")[0].strip() for line in told] == ([] if state in ("met", "mended") else [verdict])


def test_a_trace_of_a_fault_that_is_back_is_enough(
    tailproof: Command, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a finding of the fuzzing."""
    monkeypatch.setattr("tailproof.jobs.check.GENERATORS", ())
    folder = base(MENDED, traces=(kept,))
    assert tailproof(*CHECK, PLANTED, *LINE, "--baseline", folder).code == 1
    (verdict,) = (one for one in document("c.json")["verdicts"] if one["rule"] == RULE)
    assert verdict["reason"].startswith("known trace of mine: ")
    assert tailproof(*CHECK, "reference", *LINE, "--baseline", folder).code == 0


def test_a_trace_that_only_another_fault_explains(tailproof: Command, kept: Path) -> None:
    other = changed(('id = "mine"', 'id = "a-mine"'))
    folder = base(other, changed((QUIRK, "lookup.short_window_run")), traces=(kept,))
    ended = tailproof(*CHECK, PLANTED, *LINE, "--baseline", folder)
    assert ended.code == 0
    assert states() == {"a-mine": "met", "mine": "not met"}
    assert f"\n  other: {kept.name} of mine: explained by a-mine\n" in ended.out


def test_what_the_baseline_cannot_hold_is_said(tailproof: Command) -> None:
    inexact = changed(
        ('id = "mine"', 'id = "loose"'),
        ("second layout is", "first layout is"),
        ("reach =", "exact = false\nreach ="),
    )
    ended = tailproof(*CHECK, "reference", *LINE, "--baseline", base(TEXT, inexact))
    lines = ended.out.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("what the baseline cannot hold"))
    assert lines[at + 2 : at + 4] == ["  loose: The first layout is bounded.", ""]
    assert {one["id"]: one["exact"] for one in document("c.json")["faults"]} == {"loose": False, "mine": True}
    assert re.search(r"^  loose .+ inexact$", ended.out, re.MULTILINE)


def test_a_trace_of_the_store_waits_for_a_machine_that_can_run_it(
    tailproof: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Configuration((Group("full", 4), Group("mamba", 4)), unit=2, store="both")
    trace = Trace(setting, (Submit("A", (("a", 9),)), Settle()))
    file = write(Path("there"), ReplayFile(trace, "reference", RULE, KIND, "text", ()))
    folder = base(TEXT, traces=(file,))
    check = (*CHECK, "reference", *LINE, "--baseline", folder)
    # Negative control: where the store can run, the trace does.
    tailproof(*check)
    assert [one["verdict"] for one in document("c.json")["known"]] == ["gone"]
    state = {"core": "ready", "store": "libfoo is missing"}
    monkeypatch.setattr("tailproof.jobs.check.tier_states", lambda target: state)
    ended = tailproof(*check)
    assert ended.code == 0
    assert [one["verdict"] for one in document("c.json")["known"]] == ["NOT-RUN"]
    assert f"\n  NOT-RUN: {file.name} of mine: libfoo is missing\n" in ended.out


def test_a_trace_that_the_target_refuses_is_an_error(
    tailproof: Command, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ReferenceTarget.run

    def refused(self: ReferenceTarget, trace: Trace, omit: str = "") -> Any:
        if trace == refused.trace:  # type: ignore[attr-defined]
            raise TraceError("configuration: it has no such thing")
        return run(self, trace, omit)

    folder = base(TEXT, traces=(kept,))
    check = (*CHECK, "reference", *LINE, "--baseline", folder)
    refused.trace = replay.read(kept).trace  # type: ignore[attr-defined]
    monkeypatch.setattr(ReferenceTarget, "run", refused)
    ended = tailproof(*check)
    assert ended.code == 3
    assert f"\n  ERROR: {kept.name} of mine: configuration: it has no such thing\n" in ended.out
    refused.trace = None  # type: ignore[attr-defined]
    assert tailproof(*check).code == 0


# The states by themselves


def seen(text: str, verdicts: tuple[str, ...], line: str = "0.32", explained: int = 0) -> list[str]:
    """The states of one fault after kept traces came to these verdicts."""
    (fault,) = load(base(text)).faults
    known = Known(load(Path("base/faults")), line)
    results = [
        KnownResult(fault, None, "here", line, verdict, "")  # type: ignore[arg-type]
        for verdict in verdicts
    ]
    return [one.state for one in faults_seen("here", known, results, Counter({"mine": explained}))]


@pytest.mark.parametrize(
    ("text", "verdicts", "line", "explained", "state"),
    [
        (TEXT, ("known",), "0.32", 0, ["met"]),
        (TEXT, (), "0.32", 1, ["met"]),
        (TEXT, ("gone", "other", "broken", "NOT-RUN", "ERROR"), "0.32", 0, ["not met"]),
        (TEXT, (), "0.33", 0, []),
        (MENDED, ("gone",), "0.32", 0, ["mended"]),
        (MENDED, ("gone", "broken"), "0.33", 0, ["back"]),
        (MENDED, ("known",), "0.31", 0, ["met"]),
        (changed(("2999-01-01", "2020-01-01")), ("known",), "0.32", 1, ["expired"]),
    ],
)
def test_the_state_of_a_fault(
    text: str, verdicts: tuple[str, ...], line: str, explained: int, state: list[str]
) -> None:
    assert seen(text, verdicts, line, explained) == state


def test_a_quirk_that_is_not_there_is_refused_before_anything_runs() -> None:
    folder = base(changed((QUIRK, "lookup.some_thing")))
    with pytest.raises(explain.BaselineError, match=r"^mine: there is no quirk 'lookup\.some_thing'$"):
        explain.checked(folder)
    assert load(folder).faults
    assert explain.checked().faults == load().faults
