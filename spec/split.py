"""CH: where a prefill chunk may end, given what it must not jump over; one chunk of any number of chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def first_stop(start: int, most: int, stops: Callable[[int], Iterable[int]]) -> int:
    """CH1: where the chunk from `start`, which would end at `most`, must end to jump over no required stop.

    `stops(e)` are the positions (tokens) that a chunk [start, e) must not jump over; they may depend on e,
    since a chunk may export a state only where it is long enough.
    """
    end = most
    while True:
        nearest = min((stop for stop in stops(end) if start < stop < end), default=end)
        if nearest == end:
            return end
        end = nearest


def chunk_end(
    start: int, tokens: int, budget: int, maximum: int, block: int, stops: Callable[[int], Iterable[int]]
) -> int:
    """CH1, CH2: where the chunk from `start` ends; `start` itself when it is left to a later step.

    `tokens` is the length to prefill, `budget` what is left of the step's `maximum`, `block` the Mamba block,
    all in tokens. A chunk that does not complete the prefill ends on a block boundary or a required stop
    where it can. Where it cannot, a whole budget is used up and a rest of one is left alone.
    """
    reach = min(start + budget, tokens)
    aligned = reach // block * block
    most = aligned if start < aligned and reach < tokens else reach
    end = first_stop(start, most, stops)
    stands = end < most or end == tokens or end % block == 0 or end in stops(end)
    return end if stands or budget == maximum else start
