"""Compares what was read with what the prefix has: every read of every step, and every load (SF1, SF2)."""

from __future__ import annotations

from collections.abc import Iterator

from spec.observation import Entry
from tailproof.judge.findings import Finding
from tailproof.judge.saves import in_store
from tailproof.judge.step import Step, exercises, judges


@judges("SF1", "SF2")
def reads(step: Step) -> Iterator[Finding]:
    """Mode "content": exact."""
    hits = {admission.history.id: admission.admitted.local for admission in step.expected.admissions}
    for read in step.observation.failed_reads:
        where = f"group {read.group} of request {read.request!r}"
        facts = {"request": read.request, "position": read.position, "group": read.group}
        if read.what == "kv":
            kind = "kv-of-hit" if hits.get(read.request, 0) > read.position else "kv"
            text = f"{where} read wrong KV at token {read.position}"
            yield Finding("SF1", kind, text, **facts)  # type: ignore[arg-type]
        elif read.what == "stale":
            text = f"{where} reads a block past token {read.position} that holds a state, not cleared"
            yield Finding("SF1", "stale-bytes", text, **facts)  # type: ignore[arg-type]
        else:
            what = "the null block" if read.what == "null" else "a wrong state"
            text = f"{where} read {what} for the state after {read.position}"
            yield Finding("SF2", read.what, text, **facts)  # type: ignore[arg-type]


@judges("SF1", "SF2")
def loads(step: Step) -> Iterator[Finding]:
    """Mode "loaded content": exact."""
    for transfer in step.view.transfers:
        if transfer.kind == "get":
            for entry in transfer.wrong:
                text = f"{in_store(step, entry)} came out of the store with other content"
                yield Finding(_rule(step, entry), "loaded-wrong", text, entry.request, entry.position, entry)


def _rule(step: Step, entry: Entry) -> str:
    return "SF2" if step.kind(entry) == "mamba" else "SF1"


@exercises("SF1", "SF2")
def reused(step: Step) -> Iterator[str]:
    """Chunks that read what was computed before them."""
    for chunk in step.expected.chunks:
        if chunk.scheduled.start:
            yield from ("SF1", "SF2")
