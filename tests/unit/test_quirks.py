"""The wrong variants themselves: what each foretells, what they remember of a run, when one is named."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reference.cache import SlowCache
from reference.history import History, Prefixes
from reference.publish import publications
from reference.store_oracle import oracles
from spec.chunking import junction_stop, required_stops
from spec.geometry import Geometry, GeometryError
from spec.observation import Entry, FailedRead, Finished, Observation, Outcome
from spec.trace import Configuration, Gate, Group, ResetLocal, Run, Settle, Submit, Trace
from tailproof.judge.findings import Finding
from tailproof.judge.lockstep import divergences
from tailproof.judge.step import Step
from tailproof.known.explain import ROOMS, Explanations, Known
from tailproof.known.model import Baseline, BaselineError, KnownFault, Upstream, load
from tailproof.known.quirks.case import QUIRKS, Case
from tailproof.known.quirks.lookup import short_window_run
from tailproof.known.quirks.split import Prefill, split_end
from tailproof.known.quirks.witness import Witness
from tailproof.targets import Target, open_target

Wrong = frozenset[str]
NONE: Wrong = frozenset()
EAGLE: dict[str, object] = {"eagle": True, "speculative": 1}


def full(block: int, **options: object) -> Group:
    return Group("full", block, **options)  # type: ignore[arg-type]


def mamba(block: int, alignment: int | None = None) -> Group:
    return Group("mamba", block, checkpoint_alignment=alignment)


def window(block: int, tokens: int) -> Group:
    return Group("window", block, window=tokens)


def setting(*groups: Group, unit: int, **options: object) -> Configuration:
    return Configuration(groups, unit, **options)  # type: ignore[arg-type]


# The split.


@st.composite
def layouts(draw: st.DrawFn) -> Configuration:
    """Layouts of all kinds: fine and coarse, with exports, drafts and several draft modules."""
    unit = draw(st.sampled_from((1, 2, 4)))
    blocks = st.sampled_from([unit * times for times in (1, 2, 3, 4)])
    groups = [full(draw(blocks)), mamba(draw(blocks), draw(st.sampled_from((None, 1, unit, 2 * unit))))]
    if draw(st.booleans()):
        groups.append(draw(st.one_of(st.builds(full, blocks), st.builds(window, blocks, st.integers(2, 20)))))
    drafts = draw(st.sampled_from((0, 1, 2, 3)))
    configuration = setting(
        *groups,
        unit=unit,
        eagle=drafts > 0,
        speculative=drafts,
        multi_module=drafts > 1 and draw(st.booleans()),
        junctions=draw(st.booleans()),
        retention=draw(st.sampled_from((0, None))),
        budget=draw(st.sampled_from((8, 64))),
        profile=draw(st.sampled_from(("", "lookahead"))) or Configuration(tuple(groups), unit).profile,
    )
    try:
        Geometry.of(configuration)
    except GeometryError:
        assume(False)
    return configuration


def jumped(configuration: Configuration, history: History, start: int, asked: int, wrong: Wrong) -> list[str]:
    """The required stops that a split jumps over, and what it leaves to draft modules."""
    geometry = Geometry.of(configuration)
    prefill = Prefill.of(history, start, history.junction)
    end = split_end(geometry, configuration, prefill, asked, wrong)
    assert start <= end <= start + asked
    if end == start:
        return []
    left = publications(configuration, geometry, history, start, end, 0)
    exported = (geometry.mamba[0].index, left.export) in left.must
    stops = required_stops(
        start=start,
        prompt=history.prompt,
        tokens=history.known,
        can_export=geometry.mamba[0].checkpoint_alignment is not None,
        export=left.export if exported else 0,
        junction=junction_stop(history.junction, history.prompt, geometry.mamba_block, geometry.junctions),
        checkpoint=geometry.checkpoint,
        block_checkpoint=geometry.block_checkpoint,
        lookahead=geometry.lookahead,
    )
    near = ["lookahead"] if 0 < history.known - end < geometry.lookahead else []
    return near + [name for name, stop in stops.items() if start < stop < end]


@given(layouts(), st.integers(12, 40) | st.integers(1, 12), st.integers(0, 3), st.data())
@settings(max_examples=250, deadline=None)
def test_a_split_without_mistakes_jumps_over_no_stop(
    configuration: Configuration, prompt: int, produced: int, data: st.DataObject
) -> None:
    geometry = Geometry.of(configuration)
    prefixes = Prefixes(configuration.unit, geometry.hash_lookahead)
    history = History.of(Submit("A", (("a", prompt),), outputs=4), prefixes, {})
    history.produce(produced, prefixes)
    history.told = history.produced
    history.junction = data.draw(st.sampled_from(range(0, history.known, geometry.grid)), "junction")
    for start in range(history.prefill_end):
        most = min(configuration.budget, history.known - start)
        for asked in {most, (most + 1) // 2}:
            assert jumped(configuration, history, start, asked, NONE) == []


FINE = setting(full(4), mamba(4), unit=1)
COARSE_SPLIT = setting(full(2), mamba(2), window(4, 2), unit=1)
EXPORTING = setting(full(8), mamba(8, 4), unit=4)
SMALL = setting(full(2), mamba(8), unit=2)
MODULES = setting(full(8), mamba(8), unit=2, eagle=True, speculative=3, multi_module=True)
CUT = setting(full(8), mamba(8, 4), unit=4, **EAGLE)


@pytest.mark.parametrize(
    ("mistake", "configuration", "prefill", "right", "wrong"),
    [
        # The grid of hits is 4, the last Mamba block end 6.
        ("split.block_grid", COARSE_SPLIT, Prefill(0, 7, 7, 0), 4, 6),
        # The checkpoint of the prompt is 1, the last block end of what there is 4.
        ("split.present_length", FINE, Prefill(0, 2, 6, 0), 1, 4),
        # Above that block end the checkpoint is a stop all the same.
        ("split.present_length", FINE, Prefill(4, 6, 8, 0), 5, 5),
        # Counted from 4, no block of 8 ends at 8.
        ("split.floor_from_start", EXPORTING, Prefill(4, 17, 17, 8), 8, 17),
        # Where a block begins both count alike.
        ("split.floor_from_start", EXPORTING, Prefill(8, 40, 40, 16), 16, 16),
        # The junction cuts at 16, past the checkpoint 12. The chunk cut so exports nothing.
        ("split.export_before_cut", CUT, Prefill(0, 18, 18, 16), 8, 16),
        # Uncut the chunk exports.
        ("split.export_before_cut", CUT, Prefill(0, 18, 18, 0), 18, 18),
        # The last end of a block of 2 is 28, of a block of 8 it is 24.
        ("split.smallest_block", SMALL, Prefill(0, 30, 30, 0), 24, 28),
        # A stop at 8 leaves one token, three are read ahead: nothing is left of a chunk that begins at 7.
        ("split.reserve_after", MODULES, Prefill(0, 9, 9, 0), 6, 6),
        ("split.reserve_after", MODULES, Prefill(6, 9, 9, 0), 9, 6),
        ("split.reserve_after", MODULES, Prefill(7, 9, 9, 0), 9, 7),
    ],
)
def test_each_mistake_alone_has_its_effect(
    mistake: str, configuration: Configuration, prefill: Prefill, right: int, wrong: int
) -> None:
    geometry, asked = Geometry.of(configuration), prefill.tokens - prefill.start
    ends = [split_end(geometry, configuration, prefill, asked, one) for one in (NONE, frozenset({mistake}))]
    assert ends == [right, wrong]


def test_mistakes_add_up() -> None:
    """From 4 on blocks of 8 end at 12; that the chunk exports is decided before the junction cuts it."""
    prefill, geometry = Prefill(4, 40, 40, 16), Geometry.of(EXPORTING)
    names = ("split.export_before_cut", "split.floor_from_start")
    ends = [split_end(geometry, EXPORTING, prefill, 36, frozenset(names[:count])) for count in range(3)]
    assert ends == [8, 16, 12]


def test_a_split_ends_decoding_where_it_is_asked_to() -> None:
    for start, asked in ((20, 1), (21, 4)):
        assert split_end(Geometry.of(FINE), FINE, Prefill(start, 20, 22, 0), asked, NONE) == start + asked
