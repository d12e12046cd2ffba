"""The kinds of chunks that broke a rule: a known fault's kind is given only where that fault explains it."""

from __future__ import annotations

import pytest

from reference.history import History, Prefixes
from reference.oracle import ChunkForecast
from reference.publish import Publications
from spec.geometry import Geometry
from spec.observation import Scheduled
from spec.trace import Configuration, Group, Submit
from tailproof import circumstances

NOTHING = Publications(frozenset(), frozenset(), 0, 0, 0)


def geometry(alignment: int | None = None, *, block: int = 16, small: int = 0, modules: int = 0) -> Geometry:
    """Units of 4, Mamba blocks of 16, EAGLE, exports on the given alignment."""
    groups = [Group("full", block), Group("mamba", 16, checkpoint_alignment=alignment)]
    if small:
        groups.append(Group("full", small))
    return Geometry.of(
        Configuration(
            tuple(groups),
            4,
            eagle=True,
            speculative=modules or 1,
            multi_module=modules > 0,
            blocks=99,
            budget=400,
        )
    )


def chunk(start: int, end: int, *, prompt: int, more: int = 0, **stops: int) -> ChunkForecast:
    """A chunk of a request of `prompt` tokens that has given `more`."""
    history = History.of(Submit("r", (("p", prompt),), more + 1), Prefixes(4), {})
    history.tokens.extend(range(more))
    return ChunkForecast(Scheduled("r", start, end, 0), history, start, stops, NOTHING, True)


JUNCTIONS = [
    (chunk(20, 64, prompt=100, junction=48), ""),
    (chunk(16, 64, prompt=100, junction=48), "-from-block-end"),
    (chunk(0, 64, prompt=100, junction=48), "-from-block-end"),
]


@pytest.mark.parametrize(("jumping", "suffix"), JUNCTIONS)
def test_a_junction_is_lost_to_the_known_fault_only_from_inside_a_block(
    jumping: ChunkForecast, suffix: str
) -> None:
    assert circumstances.jumped(geometry(), jumping, "junction") == suffix


RESUMED = [
    # The last block end that a resend of 105 tokens can use, 80, lies below the checkpoint 96 of the prompt.
    (None, chunk(0, 104, prompt=100, more=5, checkpoint=96), "-resumed-in-reach"),
    # That of 130 tokens, 112, lies above it.
    (None, chunk(0, 128, prompt=100, more=30, checkpoint=96), "-resumed"),
    # The chunk exports the checkpoint of the present length instead.
    (4, chunk(0, 104, prompt=100, more=5, checkpoint=96), "-resumed"),
]


@pytest.mark.parametrize(("alignment", "jumping", "suffix"), RESUMED)
def test_a_resumed_prefill_passes_a_checkpoint_only_where_the_known_fault_does(
    alignment: int | None, jumping: ChunkForecast, suffix: str
) -> None:
    assert circumstances.jumped(geometry(alignment), jumping, "checkpoint") == suffix


CUT = [
    (4, chunk(0, 98, prompt=100, checkpoint=96), ""),
    (4, chunk(0, 98, prompt=100, checkpoint=96, junction=97), "-cut-at-junction"),
    (4, chunk(0, 100, prompt=100, checkpoint=96), ""),
    (None, chunk(0, 98, prompt=100, checkpoint=96, junction=97), ""),
]


@pytest.mark.parametrize(("alignment", "jumping", "suffix"), CUT)
def test_a_chunk_is_cut_after_its_export_was_decided_only_at_a_junction(
    alignment: int | None, jumping: ChunkForecast, suffix: str
) -> None:
    assert circumstances.jumped(geometry(alignment), jumping, "checkpoint") == suffix


def test_draft_modules_cut_a_chunk_too() -> None:
    cut = chunk(0, 96, prompt=100, checkpoint=92)
    assert circumstances.jumped(geometry(4, modules=3), cut, "checkpoint") == "-cut-at-junction"


PARTIAL = [
    (None, chunk(8, 100, prompt=100), "-without-export"),
    (4, chunk(8, 100, prompt=100), ""),
    (4, chunk(6, 100, prompt=100), "-without-export"),
    (4, chunk(8, 64, prompt=100), "-without-export"),
    (4, chunk(8, 64, prompt=100, junction=64), ""),
]


@pytest.mark.parametrize(("alignment", "running", "suffix"), PARTIAL)
def test_a_chunk_runs_past_a_block_end_for_the_known_reason_only_when_it_may_export(
    alignment: int | None, running: ChunkForecast, suffix: str
) -> None:
    assert circumstances.partial_block(geometry(alignment), running) == suffix


def test_splits_on_a_smaller_block_are_told_apart_first() -> None:
    small = geometry(small=8)
    assert circumstances.jumped(small, chunk(0, 64, prompt=100, junction=48), "junction") == "-smallest-block"
    assert circumstances.partial_block(small, chunk(8, 100, prompt=100)) == "-smallest-block"
