"""The command line: exit codes, documents, wording and what is left on the disk, on the reference alone."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.codec import parse_trace
from spec.rules import RULES
from spec.trace import Configuration, Group, Settle, Submit, Trace
from tailproof.jobs.replay import ReplayFile, write
from tailproof.targets import opening as targets

ROOT = Path(__file__).resolve().parents[2]


Command = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("own_folder")


def files(folder: Path) -> list[str]:
    """Every file below a folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


NO_STORE = {"core": "ready", "store": "libfoo is missing", "engine": "later"}
FUZZ = ("fuzz", "--seed", "1", "--target")
STALE = (*FUZZ, "reference+stale-state", "--cases", "60")


@pytest.fixture
def kept(tailproof: Command) -> list[Path]:
    """The replay files of a planted fault."""
    assert tailproof(*STALE, "--out", "kept").code == 1
    return sorted(Path("kept").iterdir())


# Exit codes


def test_fuzzing_a_planted_fault_keeps_a_trace_that_can_be_replayed(
    tailproof: Command, kept: list[Path]
) -> None:
    assert kept
    # What was computed from a wrong state gives wrong outputs in the same step.
    rules = {path: path.name.split("-")[0] for path in kept}
    assert set(rules.values()) == {"SF2", "SF4"}
    assert files(Path()) == [path.as_posix() for path in kept]
    again = tailproof("replay", *kept)
    assert again.code == 1
    for path in kept:
        assert f"FAILED  {path} on reference+stale-state: {rules[path]}: " in again.out
        assert json.loads(path.read_text())["target"] == "reference+stale-state"
    fixed = tailproof("replay", *kept, "--target", "reference")
    assert fixed.code == 0
    assert fixed.out.splitlines() == [
        f"FIXED  {path} on reference: {rules[path]} holds on this trace" for path in kept
    ]


def test_the_line_that_reproduces_a_divergence_does(tailproof: Command) -> None:
    found = tailproof(*STALE)
    lines = [line for line in found.out.splitlines() if "reproduce: " in line]
    assert len(lines) == 2
    for line in lines:
        words = line.split("reproduce: tailproof ")[1].split()
        assert tailproof(*words).code == 1
        assert Path(words[1]).parent == Path("divergences")


def test_a_mix_of_fixed_and_failed_is_a_failure(tailproof: Command, kept: list[Path]) -> None:
    healthy = Path("healthy.json")
    healthy.write_text(json.dumps({**json.loads(kept[0].read_text()), "target": "reference"}))
    for order in ((healthy, kept[0]), (kept[0], healthy)):
        ended = tailproof("replay", *order)
        assert ended.code == 1
        verdicts = [line.split()[0] for line in ended.out.splitlines() if not line.startswith(" ")]
        assert sorted(verdicts) == ["FAILED", "FIXED"]


def test_an_error_of_replay_gives_way_to_a_failure_only(tailproof: Command, kept: list[Path]) -> None:
    trace = json.loads(kept[0].read_text())["trace"]
    broken = Path("elsewhere.json")
    broken.write_text(json.dumps({"format": 1, "target": "python:/nowhere/python", "trace": trace}))
    ended = tailproof("replay", broken)
    assert ended.code == 3
    assert ended.out == (
        "ERROR  elsewhere.json on python:/nowhere/python: python:/nowhere/python: there is no interpreter at "
        "/nowhere/python\n"
    )
    assert tailproof("replay", broken, kept[0]).code == 1
    healthy = Path("healthy.json")
    healthy.write_text(json.dumps(trace))
    assert tailproof("replay", healthy, "--target", "reference").code == 0
    assert tailproof("replay", broken, healthy, "--target", "reference").code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("fuzz", "--target", "refrence"),
            "unknown target 'refrence': use vllm==VERSION, vllm@PATH, python:PATH, reference or "
            "reference+NAME",
        ),
        (
            ("fuzz", "--target", "reference+scan-caped"),
            "no planted fault is called 'scan-caped'; near are scan-capped, ",
        ),
        (("check", "--target", "vllm"), "unknown target 'vllm': use "),
        (("check", "--target", "reference", "--target", "nonsense"), "unknown target 'nonsense': use "),
        (("seeds", "--target", "reference+"), "unknown target 'reference+': use "),
        *(
            ((command, "--as", "newest"), "'newest' is no known release line; known are 0.28, 0.29, 0.30, ")
            for command in ("check", "fuzz", "bank")
        ),
        *(
            ((command, "--target", "reference", "--against", "refrence"), "unknown target 'refrence': use ")
            for command in ("check", "fuzz")
        ),
        (("targets", "add", "nonsense"), "unknown target 'nonsense': use "),
        (
            ("fuzz", "--target", "reference", "--rule", "LK9"),
            "there is no rule 'LK9'; near are LK1, LK2, LK3, LK4, LK5",
        ),
        (("rules", "lk9"), "there is no rule 'lk9'; near are LK1, LK2, LK3, LK4, LK5"),
        (("replay", "nowhere.json"), "nowhere.json: cannot read: No such file or directory"),
        (("replay", "."), ".: cannot read: Is a directory"),
        (("explain", "--prompt", "9", "--unit", "3", "--block", "8"), "unit 3 does not divide block 8: "),
    ],
)
def test_wrong_input_is_refused_in_one_line(tailproof: Command, words: tuple[str, ...], message: str) -> None:
    ended = tailproof(*words)
    assert ended.code == 2
    assert ended.line.startswith(f"tailproof: {message}")
    assert files(Path()) == []


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("bogus",),
        ("replay",),
        ("fuzz", "--cases", "0"),
        ("fuzz", "--tier", "gpu"),
        ("fuzz", "--seed", "-1"),
        ("check", "--seconds", "0"),
        ("check", "--bogus"),
        ("explain", "--prompt", "x"),
    ],
)
def test_wrong_usage_is_refused(tailproof: Command, words: tuple[str, ...]) -> None:
    ended = tailproof(*words)
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.startswith("Usage: ")


def test_a_tier_that_is_not_there_cannot_run(tailproof: Command) -> None:
    ended = tailproof("fuzz", "--target", "reference", "--tier", "engine")
    assert ended.code == 3
    assert ended.line == "tailproof: tier engine cannot run: not implemented"


def test_a_target_that_cannot_run_is_3(tailproof: Command) -> None:
    ended = tailproof("fuzz", "--cases", "3", "--target", "vllm@/nowhere")
    assert (ended.code, ended.line) == (3, "tailproof: vllm@/nowhere: /nowhere holds no vllm package")
    # The table of the others is shown all the same.
    ended = tailproof("seeds", "--target", "reference", "--target", "vllm@/nowhere")
    assert ended.code == 3
    assert ended.out.endswith("could not run: vllm@/nowhere: /nowhere holds no vllm package\n")
    ended = tailproof("check", "--no-proofs", "--target", "vllm@/nowhere", "--seconds", "0.1")
    assert ended.code == 3
    assert "could not run: vllm@/nowhere: /nowhere holds no vllm package\n" in ended.out
    assert f"{len(RULES)} not-run: not everything could run" in ended.out


def test_help_and_version(tailproof: Command) -> None:
    ended = tailproof("--help")
    assert ended.code == 0
    for name in ("check", "fuzz", "replay", "seeds", "explain", "rules", "targets"):
        assert re.search(rf"^  {name} ", ended.out, re.MULTILINE)
        assert tailproof(name, "-h").code == 0
    assert re.fullmatch(r".+, version \d+\.\d+\.\d+\n", tailproof("--version").out)


def test_the_module_is_the_program() -> None:
    run = [sys.executable, "-m", "tailproof"]
    good = subprocess.run([*run, "rules", "CP1"], capture_output=True, text=True, check=False, timeout=60)
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.startswith("CP1  ")
    bad = subprocess.run([*run, "rules", "CP0"], capture_output=True, text=True, check=False, timeout=60)
    assert (bad.returncode, bad.stdout) == (2, "")


def test_the_line_whose_faults_are_known_is_said_and_can_be_asked_for(tailproof: Command) -> None:
    own = tailproof(*FUZZ, "reference", "--cases", "1")
    assert "] the reference has no known faults\n" in own.err
    asked = tailproof(*FUZZ, "reference", "--cases", "1", "--as", "vllm==0.33.0")
    assert "] as asked for, the known faults of 0.33 are used\n" in asked.err


# Bad traces


def trace_document(**changes: Any) -> dict[str, Any]:
    """A good trace with some values changed."""
    document: dict[str, Any] = {
        "format": 1,
        "configuration": {
            "groups": [{"kind": "full", "block": 8}, {"kind": "mamba", "block": 8}],
            "unit": 4,
        },
        "steps": [{"do": "submit", "id": "A", "prompt": [["a", 20]]}, {"do": "settle"}],
    }
    return {**document, **changes}


BAD_FILES: dict[str, str | bytes] = {
    "format: found 2, this version reads format 1": json.dumps(trace_document(format=2)),
    "configuration.groups[0]: the unit 3 does not divide the block size 8": json.dumps(
        trace_document(configuration={**trace_document()["configuration"], "unit": 3})
    ),
    "line 1: the setting needs groups, write groups GROUP": b"",
    "not valid JSON: 'utf-8' codec": b'{"format": "\xff\xfe"}',
    "not valid JSON: maximum": "[" * 200_000,
    "a trace is a JSON object with format, configuration and steps": "[1, 2]",
    # Of replay files.
    "format: found 7, this version reads formats": json.dumps({"format": 7, "trace": trace_document()}),
    "unknown field 'traces', known are format, tool, target, ": json.dumps(
        {"format": 1, "traces": [], "trace": trace_document()}
    ),
    "rule: there is no rule 'LK9'": json.dumps({"format": 1, "rule": "LK9", "trace": trace_document()}),
    "target: must be a text": json.dumps({"format": 1, "target": 3, "trace": trace_document()}),
    "explanation: must be a list of lines": json.dumps(
        {"format": 1, "explanation": "text", "trace": trace_document()}
    ),
}


@pytest.mark.parametrize("message", BAD_FILES)
def test_a_bad_trace_file_is_refused_in_one_line_that_names_it(
    tailproof: Command, tmp_path: Path, message: str
) -> None:
    content = BAD_FILES[message]
    Path("bad.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    for words in (("bad.json",), ("good.json", "bad.json", "--target", "reference")):
        ended = tailproof("replay", *words)
        assert ended.code == 2
        assert ended.line.startswith(f"tailproof: bad.json: {message}")
        # A good file beside it is not even begun; by itself it is run.
        Path("good.json").write_text(json.dumps(trace_document()))
    ended = tailproof("replay", "good.json", "--target", "reference")
    said = "FIXED  good.json on reference: every rule holds on this trace\n"
    assert (ended.code, ended.out, ended.err) == (0, said, "")
    assert files(tmp_path) == ["here/bad.json", "here/good.json"]


# Same seed, same run


def found_in(document: dict[str, Any]) -> Any:
    """The divergences without their times."""
    return [
        {name: value for name, value in item.items() if name != "first_seconds"}
        for item in document["divergences"]
    ]


def fuzzed(tailproof: Command, target: str, *words: str) -> dict[str, Any]:
    """The document of a fuzz run of 60 cases."""
    ended = tailproof(*FUZZ, target, "--cases", "60", "--json", "f.json", *words)
    assert ended.code in (0, 1)
    document: dict[str, Any] = json.loads(Path("f.json").read_text())
    return document


@pytest.mark.parametrize("target", ["reference", "reference+double-drop"])
def test_the_same_seed_gives_the_same_run_also_with_more_workers(tailproof: Command, target: str) -> None:
    one = fuzzed(tailproof, target)
    for words in ((), ("--workers", "2")):
        other = fuzzed(tailproof, target, *words)
        assert found_in(other) == found_in(one)
        for name in ("cases", "steps", "coverage", "exercised"):
            assert other[name] == one[name]
    assert bool(one["divergences"]) == (target != "reference")


def test_rules_limits_what_counts(tailproof: Command) -> None:
    assert tailproof(*STALE, "--rule", "LK1").code == 0
    assert tailproof(*STALE, "--rule", "LK1", "--rule", "SF2").code == 1


# Documents


def has(document: dict[str, Any], *names: str) -> None:
    """The document has these fields."""
    assert set(names) <= set(document)


def test_the_seeds_document(tailproof: Command) -> None:
    ended = tailproof("seeds", "--target", "reference", "--target", "reference+scan-capped", "--json")
    assert ended.code == 1
    has(ended.document, "format", "cases")
    assert ended.document["format"] == 1
    for case in ended.document["cases"]:
        has(case, "id", "tier", "setting", "prompt", "unit", "block", "align", "eagle", "spec", "observed")
        assert case["observed"]["reference"] == case["spec"]
    observed = {case["id"]: case["observed"]["reference+scan-capped"] for case in ended.document["cases"]}
    spec = {case["id"]: case["spec"] for case in ended.document["cases"]}
    assert spec["cap-applied-twice"] == 7168
    assert spec["proof-scan-off-by-one-unit"] == 15984
    assert observed["proof-scan-off-by-one-unit"] < 15984
    assert tailproof("seeds", "--target", "reference", "--json").code == 0


def test_the_fuzz_document(tailproof: Command) -> None:
    ended = tailproof(*STALE, "--json", "deep/f.json")
    assert ended.code == 1
    document = json.loads(Path("deep/f.json").read_text())
    has(document, "format", "seed", "target", "tier", "cases", "steps", "seconds", "target_share")
    has(document, "coverage", "divergences")
    assert (document["format"], document["seed"], document["cases"]) == (1, 1, 60)
    assert (document["target"], document["tier"]) == ("reference+stale-state", "core")
    assert 0 < document["target_share"] < 1
    for found in document["divergences"]:
        has(found, "rule", "fingerprint", "steps", "trace", "explanation", "baseline")
        assert found["baseline"] is None
        assert Path(found["trace"]).name == f"{found['fingerprint']}.json"
        kept = json.loads(Path(found["trace"]).read_text())
        assert kept["explanation"] == found["explanation"]
        assert len(parse_trace(kept["trace"]).steps) == found["steps"]


STORE_TRACE = Trace(
    Configuration((Group("full", 4), Group("mamba", 4)), unit=2, store="both"),
    (Submit("A", (("a", 9),)), Settle()),
)
CHECK = ("check", "--seconds", "2", "--seed", "1", "--json", "c.json", "--junit", "c.xml", "--html", "c.html")


def test_check_of_the_reference(tailproof: Command) -> None:
    ended = tailproof(*CHECK, "--target", "reference")
    assert ended.code == 0
    document = json.loads(Path("c.json").read_text())
    has(document, "format", "seed", "verdicts", "divergences")
    assert [verdict["rule"] for verdict in document["verdicts"]] == list(RULES)
    for verdict in document["verdicts"]:
        has(verdict, "rule", "target", "tier", "verdict", "cases", "reason")
        rule = RULES[verdict["rule"]]
        assert verdict["verdict"] in ("proved", "held", "unobserved")
        assert (verdict["verdict"] == "proved") == (not rule.tiers)
        assert (verdict["verdict"] == "held") == (verdict["cases"] > 0)
    assert document["divergences"] == document["skipped"] == []
    # The tiers share the time.
    assert [(run["tier"], run["seconds"] < 2) for run in document["fuzz"]] == [
        ("core", True),
        ("store", True),
    ]
    suite = ElementTree.parse("c.xml").getroot()
    assert [case.get("name") for case in suite] == list(RULES)
    assert suite.get("failures") == "0"
    assert suite.get("tests") == str(len(RULES))
    page = Path("c.html").read_text()
    assert all(f"<td>{rule}<td>" in page for rule in RULES)
    assert "nothing is broken but what known faults explain" in ended.out.splitlines()[-1]
    assert files(Path()) == ["c.html", "c.json", "c.xml"]


def test_the_fuzz_document_of_the_store_tier(tailproof: Command) -> None:
    words = (*FUZZ, "reference", "--tier", "store", "--cases", "25", "--json", "f.json", "--out", "kept")
    ended = tailproof(*words)
    assert ended.out.startswith("reference, tier store, seed 1: 25 cases, ")
    document = json.loads(Path("f.json").read_text())
    has(document, "faults", "store_reach")
    assert document["tier"] == "store"
    assert document["faults"]["gate put hold"] > 0
    assert document["coverage"]["put made"] > document["coverage"]["put failed"]
    assert sum(document["coverage"][axis] for axis in document["store_reach"] if "store " in axis) == 25
    assert document["exercised"]["TS2"] > 0
    assert "\nhow often each feature and phase of the store was reached:\n" in ended.out
    told = ended.out[ended.out.index("  steps that meddled with the store, as far as seen: ") :]
    count = document["faults"]["gate put hold"]
    assert f"{count} gate put hold" in " ".join(told.split())


def test_check_says_why_the_store_tier_was_not_run(
    tailproof: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailproof.jobs.check.tier_states", lambda target: NO_STORE)
    ended = tailproof(*CHECK, "--no-proofs", "--target", "reference")
    document = json.loads(Path("c.json").read_text())
    assert ended.code == 0
    assert document["skipped"] == [{"target": "reference", "tier": "store", "reason": "libfoo is missing"}]
    assert [run["tier"] for run in document["fuzz"]] == ["core"]
    assert "\nnot run: reference, tier store: libfoo is missing\n" in ended.out
    for verdict in document["verdicts"]:
        if RULES[verdict["rule"]].tiers == ("store",):
            assert (verdict["verdict"], verdict["reason"]) == ("not-run", "libfoo is missing")
        assert verdict["verdict"] != "held" or verdict["tier"] == "core"


def test_replay_of_a_store_trace(tailproof: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(Path("kept"), ReplayFile(STORE_TRACE, "reference", "TS1", "missing-block", "text", ()))
    ended = tailproof("replay", file)
    assert (ended.code, ended.out[:5]) == (0, "FIXED")
    monkeypatch.setattr(
        targets, "tier_states", lambda target: {"core": "ready", "store": "libfoo is missing"}
    )
    ended = tailproof("replay", file)
    assert ended.code == 3
    assert ended.out == f"ERROR  {file} on reference: tier store cannot run: libfoo is missing\n"


def test_check_of_a_planted_fault(tailproof: Command) -> None:
    ended = tailproof(*CHECK, "--target", "reference+leaks-block")
    assert ended.code == 1
    document = json.loads(Path("c.json").read_text())
    broken = [verdict for verdict in document["verdicts"] if verdict["verdict"] == "broken"]
    assert [verdict["rule"] for verdict in broken] == ["LT3"]
    assert {found["rule"] for found in document["divergences"]} == {"LT3"}
    suite = ElementTree.parse("c.xml").getroot()
    assert [case.get("name") for case in suite if case.find("failure") is not None] == ["LT3"]
    assert suite.get("failures") == "1"
    page = Path("c.html").read_text()
    assert all(f"<td>{rule}<td>" in page for rule in RULES)
    fingerprint = document["divergences"][0]["fingerprint"]
    assert f"<h3>{fingerprint}</h3>" in page
    assert f"tailproof replay divergences/{fingerprint}.json --target reference+leaks-block</pre>" in page
    assert "the scheduler&#39;s split" in page
    assert ended.out.splitlines()[-1].endswith(": A RULE IS BROKEN")


def test_strict_asks_for_every_rule(tailproof: Command) -> None:
    words = ("check", "--no-proofs", "--target", "reference", "--seconds", "0.3", "--seed", "1")
    assert tailproof(*words).code == 0
    ended = tailproof(*words, "--strict")
    assert ended.code == 3
    assert ended.out.splitlines()[-1].endswith(": not everything could run")
    broken = tailproof(*words, "--target", "reference+leaks-block", "--strict")
    assert broken.code == 1


def test_the_rules_document(tailproof: Command) -> None:
    document = tailproof("rules", "--json").document
    assert document["format"] == 1
    assert [rule["id"] for rule in document["rules"]] == list(RULES)
    for rule in document["rules"]:
        has(
            rule,
            "id",
            "family",
            "statement",
            "reason",
            "source",
            "profiles",
            "definition",
            "theorems",
            "targets",
            "controls",
            "places",
        )
        assert rule["controls"]
    asked = tailproof("rules", "--json", "lv2", "CP4").document
    assert [rule["id"] for rule in asked["rules"]] == ["LV2", "CP4"]


def test_the_explain_document(tailproof: Command) -> None:
    words = ("explain", "--prompt", "7296", "--unit", "128", "--block", "896", "--eagle")
    document = tailproof(*words, "--json").document
    has(document, "format", "checkpoint", "proof_end", "hit", "recomputed", "limit", "rules")
    assert (document["checkpoint"], document["hit"], document["proof_end"]) == (7168, 7168, 7296)
    assert all(rule in RULES for rule in document["rules"].values())
    ended = tailproof(*words, "--svg", "picture.svg")
    assert ended.code == 0
    assert "7168" in ended.out
    assert ElementTree.parse("picture.svg").getroot().tag.endswith("svg")


def test_the_targets_document_and_list(tailproof: Command) -> None:
    document = tailproof("targets", "--json").document
    assert document["format"] == 1
    assert [target["name"] for target in document["targets"]] == ["vllm==0.32.0", "reference"]
    for target in document["targets"]:
        has(target, "name", "kind", "version", "tiers", "replaced")
        assert list(target["tiers"]) == ["core", "store", "engine"]
    ended = tailproof("targets")
    assert ended.code == 0
    assert "reference (reference)\n  core   ready\n" in ended.out


def test_targets_are_added_and_removed(tailproof: Command) -> None:
    assert tailproof("targets", "add", "reference+no-drop").out == "reference+no-drop is ready\n"
    assert "reference+no-drop (reference)\n" in tailproof("targets").out
    assert tailproof("targets", "remove", "reference+no-drop").out == "reference+no-drop removed\n"
    assert "reference+no-drop" not in tailproof("targets").out
    assert tailproof("targets", "remove", "reference+no-drop").out == "reference+no-drop was not there\n"


# Wording

DIVERGENCE_TEXT = """\
BROKEN PM1-scan-capped-8d92ec8f: 9 cases, first case 2 after 0.0 s
       PM1 is broken: request 'B' of 2 tokens hit 0, due was 1: as if the proof scan stopped at P − 1.
       The rule: The proof scan is bounded by min(limit + M_g, hashes·U), not by the limit P − 1.
       Why it matters: Proof is only inspected; bounding it by the hit limit hides proof that is there.
       Setting: groups full 2, mamba 2; unit 1, eagle, speculative 1
       step 0: A arrives with 2 tokens (2 of 'a'), checkpoint 1.
       step 1: A finds nothing to reuse, computes [0, 1), registers the state at 1 (chunk end, the resend \
checkpoint).
       step 2: A computes [1, 2); attention at 2 is registered.
       step 3: B arrives with the prompt of A.
       step 4: B finds nothing to reuse (due was 1), computes [0, 1), registers nothing.
       To reuse 1 token B needs attention through 2 (the last 1 as proof only; visible through 2, by A in \
step 2) and the state at 1, by A in step 1.
       The tokens of B:
       0░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░│───────────────────────────────────│
                                          └1 checkpoint                    2 P┘
       ░ this step
       reproduce: tailproof replay divergences/PM1-scan-capped-8d92ec8f.json --target reference+scan-capped

240 of 1625 steps were left unjudged behind a finding that lasts
1 new divergences, 0 known
"""


def test_the_text_of_a_divergence(tailproof: Command) -> None:
    ended = tailproof(*FUZZ, "reference+scan-capped", "--cases", "30")
    text = ended.out[ended.out.index("BROKEN ") :]
    assert re.sub(r"after \d+\.\d s", "after 0.0 s", text) == DIVERGENCE_TEXT


# Interruption


def test_an_interrupted_run_says_what_it_has(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tailproof", *FUZZ, "reference", "--seconds", "60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has the signal ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )
    try:
        assert process.stderr is not None
        assert "the reference has no known faults" in process.stderr.readline()
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        out, err = process.communicate(timeout=20)
        assert time.monotonic() - began < 5
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    lines = out.splitlines()
    assert lines[0].startswith("reference, tier core, seed 1: ")
    assert lines[1] == "interrupted before its time"
    assert "Traceback" not in err
    assert process.returncode == 130
