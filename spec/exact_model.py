"""The exact hybrid model: content that shows, bit for bit, which prefix it was computed from.

The Mamba state after p tokens is an int64 recurrence over them, the attention KV of token p a function
of the state after it, and the next output token a function of the state that the run really held. So a
wrong state spreads into later KV and outputs as it would in a real model. `adapters.memory` holds it in
tensors and computes whole chunks at once; that must agree with the plain loop here (`states`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

WRAP = 1 << 64
FACTOR = 6_364_136_223_846_793_005
SHIFT = 1_442_695_040_888_963_407
KV_MASK = 0x5DEECE66D1CE4E5B
_START = 0x1234_5678_9ABC_DEF1
_TOKEN_BITS = 32


def signed(value: int) -> int:
    """`value` modulo 2**64 as an int64."""
    value %= WRAP
    return value - WRAP if value >= WRAP >> 1 else value


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
    return signed(state * FACTOR + token + SHIFT)


def kv(state_after: int) -> int:
    """The attention KV of a token, from the state after it."""
    return state_after ^ KV_MASK


def output_token(state: int) -> int:
    """The token sampled from a state."""
    return (state % WRAP >> 33) % 1_000_000_007 + 3


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
