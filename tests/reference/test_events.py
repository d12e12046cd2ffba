"""What readers of KV events believe: both readings of a removal, and events that contradict themselves."""

from __future__ import annotations

import pytest

from reference.cache import Key
from reference.events import Told
from spec.observation import Entry, Event


def key_of(entry: Entry) -> Key:
    """One request only, so that a prefix is its length."""
    return entry.group, entry.position


def entries(*positions: int, group: int = 0) -> tuple[Entry, ...]:
    return tuple(Entry(group, position, "A") for position in positions)


def stored(*positions: int, start: int = 0, group: int = 0) -> Event:
    """A correct stored event."""
    return Event("stored", entries(*positions, group=group), start, positions[-1] - start)


def removed(*positions: int, group: int = 0) -> Event:
    return Event("removed", entries(*positions, group=group))


CLEARED = Event("cleared")


def told(*events: Event) -> Told:
    """What is believed after events, each read in a step of its own; the same as all read in one step."""
    one_by_one = Told()
    for event in events:
        one_by_one = one_by_one.after((event,), key_of)
    at_once = Told().after(events, key_of)
    assert (one_by_one.last, one_by_one.surely, one_by_one.perhaps) == (
        at_once.last,
        at_once.surely,
        at_once.perhaps,
    )
    return at_once


@pytest.mark.rule("AC3")
@pytest.mark.parametrize(
    ("events", "surely", "perhaps"),
    [
        ((), set(), set()),
        ((stored(4, 8),), {4, 8}, {4, 8}),
        ((stored(4, 8), removed(4)), {8}, {8}),
        ((removed(4), stored(4)), {4}, {4}),
        # Stored twice and removed once: gone for a reader of the last event, there for one who counts.
        ((stored(4), stored(4), removed(4)), set(), {4}),
        ((stored(4), stored(4), removed(4), removed(4)), set(), set()),
        ((stored(4), stored(4), removed(4), stored(4)), {4}, {4}),
        # A removal of what was never stored leaves no debt.
        ((removed(4), removed(4), stored(4)), {4}, {4}),
        ((stored(4, 8), stored(4), CLEARED), set(), set()),
        ((stored(4, 8), CLEARED, stored(4)), {4}, {4}),
        ((stored(4), stored(4), CLEARED, stored(4), removed(4)), set(), set()),
    ],
)
def test_what_readers_believe(events: tuple[Event, ...], surely: set[int], perhaps: set[int]) -> None:
    believed = told(*events)
    assert {position for _, position in believed.surely} == surely
    assert {position for _, position in believed.perhaps} == perhaps
    assert believed.surely <= believed.perhaps


@pytest.mark.rule("AC3")
def test_groups_are_apart() -> None:
    believed = told(stored(4), stored(4, group=1), removed(4))
    assert believed.surely == believed.perhaps == {(1, 4)}


def test_what_was_believed_before_is_left_as_it_was() -> None:
    before = Told().after((stored(4), stored(4)), key_of)
    before.after((removed(4), CLEARED), key_of)
    assert before.surely == {(0, 4)}
    assert before.counts == {(0, 4): 2}


BROKEN: list[tuple[str, Event]] = [
    ("a token too few", Event("stored", entries(4), 0, 3)),
    ("a token too many", Event("stored", entries(4), 0, 5)),
    ("not divisible among its entries", Event("stored", entries(4, 8), 0, 9)),
    ("parent too early", Event("stored", entries(8), 0, 4)),
    ("parent too late", Event("stored", entries(8), 8, 4)),
    ("a block left out in front", Event("stored", entries(8), 4, 8)),
    ("a block left out between", Event("stored", entries(4, 12), 0, 12)),
    ("entries in another order", Event("stored", entries(8, 4), 0, 8)),
    ("unequal parts", Event("stored", entries(4, 6), 0, 6)),
    ("other tokens", Event("stored", entries(4), 0, 4, matches=False)),
    ("tokens of nothing", Event("stored", (), 8, 4)),
]


@pytest.mark.rule("AC3")
@pytest.mark.parametrize("event", [event for _, event in BROKEN], ids=[name for name, _ in BROKEN])
def test_an_event_whose_tokens_are_not_those_of_its_entries_is_broken(event: Event) -> None:
    believed = Told().after((stored(4), event, stored(12, start=8)), key_of)
    assert believed.broken == (event,)


@pytest.mark.rule("AC3")
@pytest.mark.parametrize(
    "event",
    [
        stored(4),
        stored(4, 8, 12),
        stored(12, 16, start=8),
        # One entry may stand for all the tokens since its parent.
        stored(8),
        stored(10, start=8),
        Event("stored", (), 8, 0),
        removed(4, 12),
        removed(4),
        CLEARED,
    ],
)
def test_an_event_that_is_right_is_not_broken(event: Event) -> None:
    assert Told().after((event,), key_of).broken == ()


def test_broken_events_are_those_of_the_last_step_only() -> None:
    first = Told().after((BROKEN[0][1], BROKEN[1][1]), key_of)
    assert first.broken == (BROKEN[0][1], BROKEN[1][1])
    assert first.after((), key_of).broken == ()
    # What a broken event names is believed all the same.
    assert first.after((), key_of).surely == {(0, 4)}
