"""TS: which attention KV and which states a store must hold so that a resend hits as it would have locally.

Hits are fine here: coarse ones have no tail. Positions are in tokens; a key names the KV of a request's
first so many tokens. `unit` is U, `block` B_g, `align` L, with U | B_g | L; `margin` is M_g.
"""

from __future__ import annotations

from dataclasses import dataclass

from spec.checkpoint import resend_checkpoint


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens from `start` to before `end`."""

    start: int
    end: int


def normal_span(prompt: int, align: int) -> Span:
    """What normal saves hold once a prompt is computed: everything below its last L boundary."""
    return Span(0, prompt // align * align)


def tail_span(prompt: int, horizon: int, unit: int, align: int, margin: int, eagle: bool) -> Span:
    """TS1, TS6, TS7: what the tail save adds for a group: from the L boundary below the resend checkpoint C
    through the proof of C.

    The checkpoint is that of the prompt. `horizon`, to where a resumed request prefills, has no say: the
    resend will be of the prompt.
    """
    checkpoint = resend_checkpoint(prompt, unit, eagle)
    if checkpoint == 0:
        return Span(0, 0)
    return Span(checkpoint // align * align, checkpoint + margin)


def tail_blocks(span: Span, block: int) -> Span:
    """The indices of the blocks that the tail touches; it begins on a block boundary since B_g | L."""
    return Span(span.start // block, -(-span.end // block))


def tail_key(index: int, span: Span, block: int) -> int:
    """The key under which the tail saves block number `index`: its end, clipped to the end of the tail."""
    return min((index + 1) * block, span.end)


def is_saved(key: int, normal: Span, tail: Span, block: int) -> bool:
    """Whether a group's KV is in the store under `key` once both saves are done."""
    if normal.start < key <= normal.end and key % block == 0:
        return True
    return tail.start < key <= tail.end and (key % block == 0 or key == tail.end)


def is_asked(key: int, proof_end: int, block: int) -> bool:
    """Whether a lookup asks for `key` to prove KV through `proof_end`: full blocks, then the entry inside the
    next block that ends the proof."""
    return 0 < key <= proof_end and (key % block == 0 or key == proof_end)


def completes(start: int, end: int, prompt: int) -> bool:
    """TS7: whether the step that computes [start, end) is the one whose save publishes the tail: it computes
    the prompt's last token, with or without a new Mamba state of its own."""
    return start < prompt <= end
