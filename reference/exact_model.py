"""The exact hybrid model: content that shows, bit for bit, which prefix it was computed from.

The Mamba state after p tokens is an int64 recurrence over them, the attention KV of token p a function
of the state after it, and the next output token a function of the state that the run really held. So a
wrong state spreads into later KV and outputs as it would in a real model. Everything is held in torch
tensors in the blocks that the system under test hands out (`Memory`); the recurrence is linear, so whole
chunks are computed at once (`Content`) and must agree with the plain loop (`states`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_WRAP = 1 << 64
_FACTOR = 6_364_136_223_846_793_005
_SHIFT = 1_442_695_040_888_963_407
KV_MASK = 0x5DEECE66D1CE4E5B
_START = 0x1234_5678_9ABC_DEF1
_TOKEN_BITS = 32


def signed(value: int) -> int:
    """`value` modulo 2**64 as an int64."""
    value %= _WRAP
    return value - _WRAP if value >= _WRAP >> 1 else value


def first_state(salt: str | None) -> int:
    """The state before any token; a cache salt, or an adapter, gives another one."""
    return signed(_START + (zlib.crc32(salt.encode()) << 20 if salt else 0))


def with_media(tokens: Sequence[int], media: Iterable[tuple[str, int, int]]) -> list[int]:
    """What the model really reads: tokens, and where media stand behind them, the items' content too."""
    read = list(tokens)
    for name, start, length in media:
        for at in range(length):
            read[start + at] += (zlib.crc32(f"{name}/{at}".encode()) >> 1) << _TOKEN_BITS
    return read


def plain(read: Iterable[int]) -> list[int]:
    """The tokens of what the model reads, without the media behind them."""
    return [value & (1 << _TOKEN_BITS) - 1 for value in read]


def next_state(state: int, token: int) -> int:
    """The state after one more token."""
    return signed(state * _FACTOR + token + _SHIFT)


def kv(state_after: int) -> int:
    """The attention KV of a token, from the state after it."""
    return state_after ^ KV_MASK


def output_token(state: int) -> int:
    """The token sampled from a state."""
    return (state % _WRAP >> 33) % 1_000_000_007 + 3


def states(tokens: Iterable[int], salt: str | None = None) -> list[int]:
    """The states after 0, 1, 2, … tokens."""
    result = [first_state(salt)]
    for token in tokens:
        result.append(next_state(result[-1], token))
    return result


def outputs(tokens: Sequence[int], count: int, salt: str | None = None) -> list[int]:
    """The `count` tokens that the model samples after the prompt `tokens`."""
    state = first_state(salt)
    for token in tokens:
        state = next_state(state, token)
    result: list[int] = []
    for _ in range(count):
        result.append(output_token(state))
        state = next_state(state, result[-1])
    return result


@lru_cache(maxsize=8)
def _powers(base: int, size: int, device: str) -> torch.Tensor:
    import torch

    steps = torch.full((size,), signed(base), dtype=torch.int64, device=device)
    steps[0] = 1
    return torch.cumprod(steps, 0)


def _states(tokens: torch.Tensor, first: int) -> torch.Tensor:
    """The states after 0 … n tokens, shape [n + 1], all at once: the recurrence is linear and its factor has
    an inverse modulo 2**64."""
    import torch

    size, device = 1 << len(tokens).bit_length(), str(tokens.device)
    powers = _powers(_FACTOR, size + 1, device)[: len(tokens) + 1]
    inverse = _powers(pow(_FACTOR, -1, _WRAP), size + 1, device)[1 : len(tokens) + 1]
    states = powers * first
    states[1:] += powers[1:] * torch.cumsum((tokens + _SHIFT) * inverse, 0)
    return states


class Content:
    """What one request's cache must hold: `state[p]` after p tokens (shape [n + 1]) and `kv[p]` of token p
    (shape [n]), for the prompt and `extra` sampled tokens."""

    def __init__(self, prompt: Sequence[int], extra: int, salt: str | None, device: str = "cpu") -> None:
        import torch

        begun = _states(torch.tensor(prompt, dtype=torch.int64, device=device), first_state(salt))
        self.sampled: list[int] = []
        after: list[int] = []
        state = int(begun[-1])
        for _ in range(extra):
            self.sampled.append(output_token(state))
            state = next_state(state, self.sampled[-1])
            after.append(state)
        self.state = torch.cat((begun, torch.tensor(after, dtype=torch.int64, device=device)))
        self.kv = self.state[1:] ^ KV_MASK

    def drifted(self, start: int, end: int, state: int) -> torch.Tensor:
        """The states after start + 1 … end tokens when the run held `state` after `start` tokens."""
        expected = self.state[start + 1 : end + 1]
        delta = signed(state - int(self.state[start]))
        if delta == 0:
            return expected
        return expected + _powers(_FACTOR, end - start + 1, str(self.state.device))[1:] * delta


class Memory:
    """The cache memory: `pages`, int64, shape [blocks, words]; one block is one row, whichever group holds
    it. Attention keeps one word a token, Mamba fills its row with the state.

    `strange` (uint8, same shape) is 1 where a word was last written as a state: read as KV it might be no
    number at all, so a block must be cleared before attention reads any of it. Both are views of `raw` (int8,
    shape [blocks, bytes]), so that whatever moves a block's bytes moves both.
    """

    def __init__(self, blocks: int, words: int, device: str = "cpu") -> None:
        import torch

        # Nine bytes a word, in whole words.
        self._row = words + -(-words // 8)
        self.raw = torch.zeros((blocks, 8 * self._row), dtype=torch.int8, device=device)
        wide, narrow = self.raw.view(torch.int64), self.raw.view(torch.uint8)
        self.pages, self.strange = wide[:, :words], narrow[:, 8 * words : 9 * words]
        self.words = words
        self._words, self._strange = wide.view(-1), narrow.view(-1)
        self._tables: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def _places(self, block: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Column and offset of each of at least `length` tokens in blocks of `block` tokens."""
        import torch

        found = self._tables.get(block)
        if found is None or len(found[0]) < length:
            at = torch.arange(2 * length, device=self.pages.device)
            found = self._tables[block] = (at // block, at % block)
        return found

    def zero(self, blocks: Sequence[int]) -> None:
        """Clear blocks."""
        self.raw[list(blocks)] = 0

    def write_kv(self, blocks: torch.Tensor, block: int, start: int, values: torch.Tensor) -> None:
        """Write the KV of tokens [start, start + len(values)) through a block table (`block` tokens each)."""
        end = start + len(values)
        columns, offsets = self._places(block, end)
        rows, places = blocks[columns[start:end]] * self._row, offsets[start:end]
        self._words.index_copy_(0, rows + places, values)
        self._strange.index_fill_(0, 8 * (rows + self.words) + places, 0)

    def first_wrong_kv(
        self, blocks: torch.Tensor, block: int, expected: torch.Tensor, start: int = 0
    ) -> int | None:
        """The first token in [start, start + len(expected)) whose KV is not as expected, None if all are."""
        import torch

        end, first = start + len(expected), start // block
        held = self.pages[blocks[first : -(-end // block)], :block].reshape(-1)[start - first * block :]
        held = held[: len(expected)]
        if torch.equal(held, expected):
            return None
        return start + int((held != expected).nonzero()[0])

    def strange_after(self, block_id: int, start: int, end: int) -> bool:
        """Whether words [start, end) of a block hold anything that was last written as a state."""
        return bool(self.strange[block_id, start:end].any())

    def write_state(self, block: int, state: int) -> None:
        """Fill a block with a state."""
        self.pages[block] = state
        self.strange[block] = 1

    def read_state(self, block: int) -> int:
        """The state that a block holds."""
        return int(self.pages[block, 0])

    def holds_state(self, block: int, state: int) -> bool:
        """Whether the whole block holds that state."""
        return bool((self.pages[block] == state).all())
