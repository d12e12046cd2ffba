"""What is special about a chunk that broke a rule, told in the kind: one known fault must hide no other."""

from __future__ import annotations

from reference.oracle import ChunkForecast, Oracle
from spec.chunking import can_export
from spec.geometry import Geometry


def smallest(geometry: Geometry) -> str:
    """vLLM splits on the smallest block of all groups, where that is not the Mamba block."""
    return "-smallest-block" if geometry.smallest < geometry.mamba_block else ""


def jumped(geometry: Geometry, chunk: ChunkForecast, name: str) -> str:
    """What is special about a chunk that jumped over the stop of that name."""
    item, history = chunk.scheduled, chunk.history
    if suffix := smallest(geometry):
        return suffix
    if name == "junction":
        # The known fault counts blocks from where the chunk begins, which is right from a block's end.
        return "" if item.start % geometry.mamba_block else "-from-block-end"
    if history.known > history.prompt:
        return "-resumed" if name != "checkpoint" or _passed_over(geometry, chunk) else "-resumed-in-reach"
    if name == "checkpoint" and not geometry.fine and geometry.align > geometry.mamba_block:
        return "-off-block-grid"
    cut = _cut(geometry, chunk) and name == "checkpoint" and may_export(geometry, chunk)
    return "-cut-at-junction" if cut else ""


def _passed_over(geometry: Geometry, chunk: ChunkForecast) -> bool:
    """Whether vLLM passes over the checkpoint of a resumed request's prompt: where it exports that of the
    present length, and where the last block end that it can use now lies above."""
    block_end = geometry.checkpoint_on(chunk.history.known, geometry.mamba_block)
    return may_export(geometry, chunk) or not geometry.fine or block_end >= chunk.stops["checkpoint"]


def between_media(oracle: Oracle) -> bool:
    """Whether a request stands so near before an item of media that draft modules read into it already, while
    items just passed are kept for theirs, and the encoder has no room for all of them."""
    lookahead, room = oracle.geometry.lookahead, oracle.configuration.encoder
    if not lookahead or not room:
        return False
    kept: dict[str, int] = {}
    near: dict[str, int] = {}
    for history in oracle.live():
        at = history.computed
        for name, start, length in history.submit.media:
            if start < at < start + length + lookahead:
                kept[name] = length
            elif at <= start <= at + lookahead:
                near[name] = length
    return any(name not in kept and sum(kept.values()) + length > room for name, length in near.items())


def partial_block(geometry: Geometry, chunk: ChunkForecast) -> str:
    """What is special about a chunk that ran past the end of the block it began in."""
    whole = chunk.scheduled.end >= chunk.history.prefill_end or _cut(geometry, chunk)
    return smallest(geometry) or ("" if whole and may_export(geometry, chunk) else "-without-export")


def _cut(geometry: Geometry, chunk: ChunkForecast) -> bool:
    """Whether a chunk may have been cut after it was decided to export: only a junction and the reserve for
    draft modules do that."""
    short = chunk.scheduled.end < chunk.history.prefill_end
    return short and ("junction" in chunk.stops or chunk.history.junction > 0 or geometry.lookahead > 1)


def may_export(geometry: Geometry, chunk: ChunkForecast) -> bool:
    """Whether a chunk that reaches the end of the prefill from where this one begins would export."""
    return any(
        can_export(
            chunk.scheduled.start,
            end,
            geometry.checkpoint(end),
            geometry.unit,
            geometry.mamba_block,
            geometry.mamba[0].checkpoint_alignment,
        )
        for end in (chunk.history.known, chunk.history.prefill_end)
    )
