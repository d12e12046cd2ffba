"""The exact model's content in torch tensors, in the very blocks that the system under test hands out.

The recurrence of `spec.exact_model` is linear, so whole chunks are computed at once (`Content`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from spec.exact_model import FACTOR, KV_MASK, SHIFT, WRAP, first_state, next_state, output_token, signed


@lru_cache(maxsize=8)
def _powers(base: int, size: int, device: str) -> torch.Tensor:

    steps = torch.full((size,), signed(base), dtype=torch.int64, device=device)
    steps[0] = 1
    return torch.cumprod(steps, 0)


def _states(tokens: torch.Tensor, first: int) -> torch.Tensor:
    """The states after 0 … n tokens, shape [n + 1], all at once: the recurrence is linear and its factor has
    an inverse modulo 2**64."""

    size, device = 1 << len(tokens).bit_length(), str(tokens.device)
    powers = _powers(FACTOR, size + 1, device)[: len(tokens) + 1]
    inverse = _powers(pow(FACTOR, -1, WRAP), size + 1, device)[1 : len(tokens) + 1]
    states = powers * first
    states[1:] += powers[1:] * torch.cumsum((tokens + SHIFT) * inverse, 0)
    return states


class Content:
    """What one request's cache must hold: `state[p]` after p tokens (shape [n + 1]) and `kv[p]` of token p
    (shape [n]), for the prompt and `extra` sampled tokens."""

    def __init__(self, prompt: Sequence[int], extra: int, salt: str | None, device: str = "cpu") -> None:

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
        return expected + _powers(FACTOR, end - start + 1, str(self.state.device))[1:] * delta


class Memory:
    """The cache memory: `pages`, int64, shape [blocks, words]; one block is one row, whichever group holds
    it. Attention keeps one word a token, Mamba fills its row with the state.

    `strange` (uint8, same shape) is 1 where a word was last written as a state: read as KV it might be no
    number at all, so a block must be cleared before attention reads any of it. Both are views of `raw` (int8,
    shape [blocks, bytes]), so that whatever moves a block's bytes moves both.
    """

    def __init__(self, blocks: int, words: int, device: str = "cpu") -> None:

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
