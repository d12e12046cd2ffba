"""Adapters and media: what they are part of, what is refused, and what the generators draw of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reference.history import History, Prefixes
from spec.exact_model import first_state, plain, states, with_media
from spec.trace import Configuration, Group, Run, Settle, Submit, Trace, TraceError, validate
from tailproof.explain.story import explain_divergence
from tailproof.generate.core import case
from tailproof.generate.drawing import Axes
from tailproof.generate.store import StoreAxes, store_case
from tailproof.judge.lockstep import compare
from tailproof.planted.reference import AdapterBlind, MediaBlind
from tailproof.reach.coverage import Coverage
from tailproof.targets.opening import Target, open_target

PLAIN = Configuration((Group("full", 8), Group("mamba", 8)), unit=4)
MEDIA = (("i", 3, 5), ("j", 8, 2))
ALL = Axes(adapters=0.5, media=1.0)


def sent(**values: object) -> Submit:
    return replace(Submit("A", (("p", 20),)), **values)


def numbers(prefixes: Prefixes, *submits: Submit) -> list[list[int]]:
    return [History.of(submit, prefixes, {}).numbers for submit in submits]


def test_media_change_what_is_read_where_they_stand_and_nowhere_else() -> None:
    tokens = list(range(100, 120))
    read = with_media(tokens, MEDIA)
    assert [at for at in range(20) if read[at] != tokens[at]] == list(range(3, 10))
    assert plain(read) == tokens
    assert max(read) < 1 << 63
    moved = with_media(tokens, (("i", 4, 5),))
    other = with_media(tokens, (("k", 3, 5),))
    assert len({tuple(states(one)) for one in (tokens, read, moved, other)}) == 4


def test_a_salt_an_adapter_and_both_are_four_roots() -> None:
    asked = [sent(), sent(salt="x"), sent(adapter="x"), sent(salt="x", adapter="x")]
    roots = [submit.root for submit in asked]
    assert roots[0] is None
    assert len(set(roots)) == len({first_state(root) for root in roots}) == 4
    assert len({tuple(one) for one in numbers(Prefixes(4), *asked)}) == 4


def test_prefixes_differ_from_the_first_unit_that_an_item_reaches_into() -> None:
    none, here, there = numbers(Prefixes(4), sent(), sent(media=MEDIA), sent(media=(("i", 8, 5),)))
    assert none[0] != here[0]
    assert (none[:2], none[2] != there[2]) == (there[:2], True)
    assert set(here).isdisjoint(none)


def test_hashes_that_look_ahead_cover_media_too() -> None:
    none, ahead = numbers(Prefixes(4, 1), sent(), sent(media=(("i", 8, 5),)))
    assert none[0] == ahead[0]
    assert none[1] != ahead[1]


def test_planted_prefixes_see_no_difference() -> None:
    assert len({tuple(one) for one in numbers(MediaBlind(4), sent(), sent(media=MEDIA))}) == 1
    blind = numbers(AdapterBlind(4), sent(), sent(adapter="x"), sent(salt="s"), sent(salt="s", adapter="x"))
    assert blind[0] == blind[1] != blind[2] == blind[3]


def test_a_next_turn_reads_the_tokens_without_the_media() -> None:
    prefixes = Prefixes(4)
    first = History.of(sent(media=MEDIA), prefixes, {})
    turn = History.of(Submit("B", (("@A", 20),)), prefixes, {"A": first})
    again = History.of(Submit("D", (("@A", 20),), media=MEDIA), prefixes, {"A": first})
    assert turn.tokens == plain(first.tokens[:20])
    assert again.numbers == first.numbers != turn.numbers


@pytest.mark.parametrize(
    ("submits", "encoder", "words"),
    [
        ((sent(adapter=""),), 0, "adapter must not be empty"),
        ((sent(media=(("", 3, 5),)),), 0, "must have a name and lie in the prompt"),
        ((sent(media=(("i", 3, 0),)),), 0, "must have a name and lie in the prompt"),
        ((sent(media=(("i", 16, 5),)),), 0, "must have a name and lie in the prompt"),
        ((sent(media=(("i", 3, 5), ("j", 7, 1))),), 0, "after the item before it"),
        ((sent(media=(("i", 3, 5),)), sent(id="B", media=(("i", 3, 6),))), 0, "before it had 5"),
        ((sent(media=(("i", 3, 5),)),), 4, "but configuration.encoder is 4"),
    ],
)
def test_what_no_system_could_run_is_refused(submits: tuple[Submit, ...], encoder: int, words: str) -> None:
    with pytest.raises(TraceError, match=words):
        validate(Trace(replace(PLAIN, encoder=encoder), submits))


def test_generated_media_belong_to_segments_and_disturb_nothing_else() -> None:
    repeated = 0
    for index in range(60):
        drawn, without = case(5, index, ALL), case(5, index, replace(ALL, adapters=0.0, media=0.0))
        validate(drawn)
        plainer = {"adapter": None, "media": ()}
        stripped = [replace(step, **plainer) if isinstance(step, Submit) else step for step in drawn.steps]
        assert replace(drawn, steps=tuple(stripped)) == without
        seen: dict[object, object] = {}
        for submit in drawn.submits():
            first = seen.setdefault(submit.prompt, submit.media) if submit.media else submit.media
            repeated += first is not submit.media
    assert repeated > 10


@pytest.mark.parametrize("store", [False, True])
def test_the_reference_holds_with_media_and_adapters(store: bool) -> None:
    opened, coverage = open_target(Target.parse("reference"), print), Coverage()
    axes = StoreAxes(layout=replace(StoreAxes().layout, adapters=0.5, media=1.0))
    for index in range(40):
        trace = store_case(7, index, axes) if store else case(7, index, ALL)
        coverage.case(trace)
        assert compare(trace, opened.run(trace)) is None
    for tag in ("other adapter", "other media"):
        assert coverage.counts[tag]


def test_an_arrival_is_told_with_its_adapter_and_media() -> None:
    blind = open_target(Target.parse("reference+ignores-media"), print)
    trace = Trace(PLAIN, (sent(), Settle(), replace(sent(media=MEDIA, adapter="x"), id="B"), Run(), Settle()))
    assert compare(trace, blind.run(trace)) is None
    trace = Trace(PLAIN, (sent(), Settle(), sent(id="B", media=(("i", 3, 5),)), Settle()))
    outcome = blind.run(trace)
    found = compare(trace, outcome)
    assert found is not None
    assert any("media 'i' on [3, 8)" in line for line in explain_divergence(trace, outcome, found))
