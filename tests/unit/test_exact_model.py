"""The exact model: whole chunks equal the plain loop bit for bit, and memory shows every wrong word."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.memory import Content, Memory
from reference.history import History, Prefixes
from spec.exact_model import KV_MASK, first_state, kv, next_state, output_token, outputs, signed, states
from spec.trace import Submit, prompt_tokens

LENGTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1023, 4096)


def drawn(length: int, seed: int = 0) -> list[int]:
    """Random tokens."""
    rng = random.Random(f"{seed}/{length}")
    return [rng.randrange(3, 2_000_000_014) for _ in range(length)]


# The plain loop.


def test_signed_is_an_int64() -> None:
    for value in (0, 1, -1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), 3 * 2**64 + 5):
        result = signed(value)
        assert -(2**63) <= result < 2**63
        assert (result - value) % 2**64 == 0


def test_states_begin_before_the_first_token() -> None:
    assert states([]) == [first_state(None)]
    found = states([5, 6])
    assert found == [first_state(None), next_state(first_state(None), 5), found[2]]
    assert found[2] == next_state(found[1], 6)


def test_a_salt_gives_another_state() -> None:
    salts = (None, "a", "b", "ab", "Ä")
    assert len({first_state(salt) for salt in salts}) == len(salts)
    assert len({tuple(states([1, 2, 3], salt)) for salt in salts}) == len(salts)


def test_every_token_and_every_place_changes_the_state() -> None:
    tokens = drawn(50)
    whole = states(tokens)
    assert len(set(whole)) == 51
    for place in range(50):
        changed = [*tokens]
        changed[place] += 1
        other = states(changed)
        assert other[: place + 1] == whole[: place + 1]
        assert all(one != two for one, two in zip(other[place + 1 :], whole[place + 1 :], strict=True))
    swapped = [tokens[1], tokens[0], *tokens[2:]]
    assert states(swapped)[2] != whole[2]


def test_outputs_follow_from_the_prefix() -> None:
    tokens = drawn(20)
    sampled = outputs(tokens, 8)
    assert outputs(tokens, 3) == sampled[:3]
    assert outputs([*tokens, sampled[0]], 7) == sampled[1:]
    assert sampled[0] == output_token(states(tokens)[-1])
    assert outputs(tokens, 0) == []
    assert outputs(tokens, 8, "s") != sampled
    assert all(3 <= token < 1_000_000_010 for token in sampled)


@given(st.integers(-(2**63), 2**63 - 1))
def test_kv_and_output_of_any_state(state: int) -> None:
    assert -(2**63) <= kv(state) < 2**63
    assert kv(kv(state)) == state
    assert kv(state) != state
    assert 3 <= output_token(state) < 1_000_000_010


# Content.


@pytest.mark.rule("SF2")
@pytest.mark.parametrize("salt", [None, "s", "another salt"])
@pytest.mark.parametrize("length", LENGTHS)
def test_content_equals_the_plain_loop(length: int, salt: str | None) -> None:
    tokens = drawn(length)
    for extra in (0, 1, 5):
        content = Content(tokens, extra, salt)
        assert content.sampled == outputs(tokens, extra, salt)
        expected = states([*tokens, *content.sampled], salt)
        assert content.state.dtype == content.kv.dtype == torch.int64
        assert content.state.tolist() == expected
        assert content.kv.tolist() == [kv(state) for state in expected[1:]]


@settings(deadline=None, max_examples=100, database=None)
@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=200), st.integers(0, 20), st.text(max_size=4))
def test_content_equals_the_plain_loop_for_drawn_tokens(tokens: list[int], extra: int, salt: str) -> None:
    content = Content(tokens, extra, salt or None)
    expected = states([*tokens, *outputs(tokens, extra, salt or None)], salt or None)
    assert content.state.tolist() == expected
    assert content.kv.tolist() == [kv(state) for state in expected[1:]]


def test_content_of_a_real_prompt() -> None:
    tokens = prompt_tokens((("a", 7040), ("b", 256)))
    content = Content(tokens, 3, None)
    assert content.state.tolist() == states([*tokens, *content.sampled])


def test_contents_share_nothing() -> None:
    tokens = drawn(40)
    one, two = Content(tokens, 2, None), Content(tokens, 2, None)
    one.state.zero_()
    one.kv.zero_()
    assert two.state.tolist() == states([*tokens, *two.sampled])
    assert Content(tokens, 2, None).state.tolist() == two.state.tolist()


# Drift.


@pytest.mark.parametrize("held", [0, 1, -1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize(("start", "end"), [(0, 30), (0, 1), (7, 8), (12, 30), (29, 30)])
def test_drifted_goes_on_from_the_state_that_was_held(start: int, end: int, held: int) -> None:
    tokens = drawn(30)
    content = Content(tokens, 0, None)
    state, expected = held, []
    for token in tokens[start:end]:
        state = next_state(state, token)
        expected.append(state)
    assert content.drifted(start, end, held).tolist() == expected


def test_drifted_from_the_right_state_is_the_content() -> None:
    content = Content(drawn(30), 4, "s")
    for start in (0, 1, 17, 33):
        state = int(content.state[start])
        assert torch.equal(content.drifted(start, 34, state), content.state[start + 1 :])
    assert content.drifted(10, 10, int(content.state[10])).tolist() == []
    assert content.drifted(10, 10, 0).tolist() == []


def test_a_wrong_state_never_comes_right_again() -> None:
    content = Content(drawn(300), 0, None)
    for start in (0, 100, 299):
        wrong = signed(int(content.state[start]) + 1)
        assert not (content.drifted(start, 300, wrong) == content.state[start + 1 :]).any()


# Memory.


def table(*blocks: int) -> torch.Tensor:
    """A block table."""
    return torch.tensor(blocks, dtype=torch.int64)


@pytest.mark.rule("SF1")
@pytest.mark.parametrize("words", [4, 16])
def test_memory_reads_what_was_written_in_pieces(words: int) -> None:
    memory = Memory(8, words)
    content = Content(drawn(14), 0, None)
    blocks = table(5, 2, 7, 1)
    for start, end in ((0, 3), (3, 4), (4, 11), (11, 14)):
        memory.write_kv(blocks, 4, start, content.kv[start:end])
        assert memory.first_wrong_kv(blocks, 4, content.kv[:end]) is None
    for token in range(14):
        block = int(blocks[token // 4])
        assert int(memory.pages[block, token % 4]) == int(content.kv[token])
    assert not memory.pages[[0, 3, 4, 6]].any()
    if words > 4:
        assert not memory.pages[:, 4:].any()


@pytest.mark.parametrize("wrong", range(14))
def test_the_first_wrong_token_is_found(wrong: int) -> None:
    memory = Memory(8, 4)
    content = Content(drawn(14), 0, None)
    blocks = table(5, 2, 7, 1)
    memory.write_kv(blocks, 4, 0, content.kv)
    memory.pages[int(blocks[wrong // 4]), wrong % 4] += 1
    assert memory.first_wrong_kv(blocks, 4, content.kv) == wrong
    assert memory.first_wrong_kv(blocks, 4, content.kv[: wrong + 1]) == wrong
    assert memory.first_wrong_kv(blocks, 4, content.kv[:wrong]) is None


def test_blocks_in_the_wrong_order_are_found() -> None:
    memory = Memory(8, 4)
    content = Content(drawn(12), 0, None)
    memory.write_kv(table(1, 2, 3), 4, 0, content.kv)
    assert memory.first_wrong_kv(table(1, 3, 2), 4, content.kv) == 4
    assert memory.first_wrong_kv(table(1, 2, 0), 4, content.kv) == 8
    assert memory.first_wrong_kv(table(1, 2, 3), 4, Content(drawn(12), 0, "s").kv) == 0


def test_a_table_longer_than_needed_is_read_as_far_as_needed() -> None:
    memory = Memory(8, 4)
    content = Content(drawn(5), 0, None)
    blocks = table(1, 2, 0, 0)
    memory.write_kv(blocks, 4, 0, content.kv)
    assert memory.first_wrong_kv(blocks, 4, content.kv) is None
    assert memory.first_wrong_kv(blocks, 4, content.kv[:0]) is None


def test_zero_clears_exactly_the_named_blocks() -> None:
    memory = Memory(4, 4)
    for block in range(4):
        memory.write_state(block, block + 10)
    memory.zero([1, 3])
    assert [memory.read_state(block) for block in range(4)] == [10, 0, 12, 0]
    memory.zero([])
    assert memory.holds_state(2, 12)


@pytest.mark.rule("SF2")
@pytest.mark.parametrize("state", [1, -1, 2**63 - 1, -(2**63)])
def test_a_state_fills_its_block(state: int) -> None:
    memory = Memory(4, 6)
    memory.write_state(2, state)
    assert memory.read_state(2) == state
    assert memory.holds_state(2, state)
    assert not memory.holds_state(1, state)
    assert not memory.holds_state(2, signed(state + 1))
    for word in range(6):
        torn = Memory(4, 6)
        torn.write_state(2, state)
        torn.pages[2, word] += 1
        assert not torn.holds_state(2, state)


def test_a_state_over_kv_is_a_wrong_read() -> None:
    """Blocks are shared by all groups, so a block handed out twice shows."""
    memory = Memory(4, 4)
    content = Content(drawn(8), 0, None)
    memory.write_kv(table(1, 2), 4, 0, content.kv)
    memory.write_state(2, int(content.state[8]))
    assert memory.first_wrong_kv(table(1, 2), 4, content.kv) == 4
    memory.write_kv(table(1, 2), 4, 7, content.kv[7:])
    assert not memory.holds_state(2, int(content.state[8]))


def test_kv_of_a_state_is_never_the_state() -> None:
    content = Content(drawn(64), 0, None)
    assert not (content.kv == content.state[1:]).any()
    assert torch.equal(content.kv ^ KV_MASK, content.state[1:])


# Salts: the identity of prefixes and the content must agree on what is the same.


@pytest.mark.rule("SF1")
@pytest.mark.parametrize(("one", "two"), [(None, "a"), ("a", "b"), ("a", "a"), (None, None), (None, "")])
def test_prefixes_are_the_same_exactly_when_their_content_is(one: str | None, two: str | None) -> None:
    prefixes = Prefixes(4)
    numbers = [
        History.of(Submit(f"r{index}", (("p", 8),), salt=salt), prefixes, {}).numbers
        for index, salt in enumerate((one, two))
    ]
    contents = [Content(prompt_tokens((("p", 8),)), 0, salt).state.tolist() for salt in (one, two)]
    assert (numbers[0] == numbers[1]) == (contents[0] == contents[1])
