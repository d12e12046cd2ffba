"""Compares scheduled chunks: how far one goes is the system's choice, what it must not pass is not."""

from __future__ import annotations

from collections.abc import Iterator

from tailproof.judge.findings import Finding
from tailproof.judge.step import Step, exercises, judges

_RULES = {"checkpoint": "CP7", "junction": "CH1", "block": "CH1"}


@judges("CH5", "CH2", "LV2")
def spans(step: Step) -> Iterator[Finding]:
    """Mode "chunks": where a chunk begins, and that it computes something. Exact."""
    for chunk in step.expected.chunks:
        item, request = chunk.scheduled, chunk.history.id
        span = f"request {request!r} computed [{item.start}, {item.end})"
        if chunk.expected_start is None and request in step.expected.store.failed_before:
            yield Finding("LV2", "failed-load-used", f"{span}, behind a load that failed", request)
        elif chunk.expected_start is None:
            text = f"{span}, but was neither running nor admitted"
            yield Finding("CH5", "not-admitted", text, request)
        elif item.start != chunk.expected_start:
            text = f"{span}, due was a start at {chunk.expected_start}"
            yield Finding("CH5", "contiguous", text, request)
        if item.end <= item.start:
            yield Finding("CH2", "empty-chunk", f"{span}: nothing", request, lasting=False)


@judges("CP7", "CH1")
def stops(step: Step) -> Iterator[Finding]:
    """Mode "stops": no chunk jumps over a required stop, or ends in what draft modules read ahead. One-sided:
    ending earlier is a choice."""
    lookahead = step.geometry.lookahead
    for chunk in step.expected.chunks:
        item, request = chunk.scheduled, chunk.history.id
        span = f"request {request!r} computed [{item.start}, {item.end})"
        if chunk.prefill and 0 < chunk.history.known - item.end < lookahead:
            text = f"{span}, nearer to its end than the {lookahead} tokens that draft modules read ahead"
            yield Finding("CH1", "ends-in-lookahead", text, request, item.end, lasting=False)
        for name, stop in chunk.stops.items():
            if item.start < stop < item.end:
                text = f"{span} and jumped over its {name} stop {stop}"
                kind = f"jumped-{name}"
                yield Finding(_RULES[name], kind, text, request, stop, stop=name, lasting=False)


@exercises("CH5", "CP7", "CH1", "CH3")
def computed(step: Step) -> Iterator[str]:
    """Chunks that could have begun elsewhere, or jumped over something."""
    geometry = step.geometry
    for chunk in step.expected.chunks:
        item, left = chunk.scheduled, chunk.publications
        if item.start:
            yield "CH5"
        if "checkpoint" in chunk.stops or left.export == geometry.checkpoint(chunk.history.prompt) > 0:
            yield "CP7"
        if "junction" in chunk.stops or "block" in chunk.stops:
            yield "CH1"
        if item.end - item.start > geometry.mamba_block:
            yield "CH3"
