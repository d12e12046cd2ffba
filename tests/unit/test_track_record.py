"""docs/track-record.md says what the files of the known faults say, and those name every kept trace."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tailproof.known import record
from tailproof.known.model import TRACES, load

SETTINGS = {
    "default flags",
    "needs --prefix-match-unit",
    "needs KV events",
    "needs a model that exports states inside chunks",
    "needs a non-default policy",
    "needs a preemption, or a reset that restarts running requests",
    "needs a store connector",
    "needs drafts and a sliding window",
    "no model today",
    "a configuration that vLLM does not build",
    "only at toy sizes",
}
STATES = {"open", "merged", "fixed in 0.33", "not found", "not exactly"}


def test_the_document_is_what_the_faults_say() -> None:
    text = record.DOCUMENT.read_text(encoding="utf-8")
    assert record.rendered(text, load().faults) == text, "run python -m tailproof.known.record"


def test_rendering_keeps_what_is_written_by_hand() -> None:
    text = record.rendered(f"before\n{record.BEGIN}old\n{record.END}after\n", load().faults[:1])
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old\n" not in text
    assert record.rendered(text, load().faults[:1]) == text


def test_every_fault_has_a_trace_and_every_trace_a_fault() -> None:
    faults = load().faults
    assert [fault.id for fault in faults if not fault.traces] == []
    named = Counter(trace.file for fault in faults for trace in fault.traces)
    assert [file for file, times in named.items() if times > 1] == []
    assert {path.name for path in TRACES.iterdir()} == set(named)


def test_a_fault_says_all_that_a_reader_asks() -> None:
    for fault in load().faults:
        assert fault.of_line(fault.first), fault.id
        assert fault.of_line(fault.last), fault.id
        assert fault.reach.partition(":")[0] in SETTINGS, fault.id
        assert fault.upstream.state.partition(":")[0] in STATES, fault.id
        assert fault.upstream.read is not None, fault.id
        assert fault.quirks, fault.id
        assert fault.where, fault.id
        assert all(": " in place for place in fault.where), fault.id


def test_a_line_is_as_wide_as_it_may_be() -> None:
    for line in record.DOCUMENT.read_text(encoding="utf-8").splitlines():
        free = line.startswith(("|", "    ", "  `vllm/", "- code: "))
        assert free or len(line) <= record.WIDTH, line


def test_references_become_links_and_code_is_not_broken() -> None:
    fault = load().faults[0]
    upstream = replace(
        fault.upstream, state="open: see #7 and a/b#8", references=("a/b#8", "vllm-project/vllm#9")
    )
    place = f"{'x' * 100}.py: A.b"
    text = record.rendered("", [replace(fault, upstream=upstream, where=(place,), mended=True)])
    said = " ".join(text.split())
    github = "https://github.com"
    assert (
        f"open: see [#7]({github}/vllm-project/vllm/issues/7) and [a/b#8]({github}/a/b/issues/8) "
        f"([#9]({github}/vllm-project/vllm/issues/9))"
    ) in said
    assert f"`{place}`" in text
    assert ", mended since |" in text


def test_the_command_rewrites_the_document(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "track-record.md"
    monkeypatch.setattr(record, "DOCUMENT", copy)
    assert record.main() == 2
    assert "not there" in capsys.readouterr().err
    copy.write_text(f"mine\n{record.BEGIN}{record.END}", encoding="utf-8")
    assert record.main() == 0
    text = copy.read_text(encoding="utf-8")
    assert text.startswith("mine\n")
    assert all(f"\n## {fault.id}\n" in text for fault in load().faults)
