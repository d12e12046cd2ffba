"""TS: theorems about tail saves with fine hits, for any U, B_g and L; one arbitrary key or block of each."""

from __future__ import annotations

from proofs.assume import assume
from proofs.theorems.kinds import (
    Asked,
    BlocksOf,
    Bound,
    Completes,
    KeyOf,
    Margin,
    Saved,
    Serves,
    SpanOf,
    Tail,
)
from spec.checkpoint import resend_checkpoint
from spec.lookup import attention_serves
from spec.proof import proof_margin, scan_bound
from spec.tail import completes, is_asked, is_saved, normal_span, tail_blocks, tail_key, tail_span


def ts1_every_proof_key_is_saved(
    prompt: int,
    unit: int,
    block: int,
    blocks: int,
    eagle: bool,
    drops: bool,
    key: int,
    *,
    normal: SpanOf = normal_span,
    tail: Tail = tail_span,
    saved: Saved = is_saved,
    margin: Margin = proof_margin,
) -> None:
    """TS1: every key that a lookup needs to prove the checkpoint C is in the store.

    `key` is any key that the lookup asks for, L is `blocks` blocks.
    """
    assume(prompt >= 1)
    assume(unit >= 1)
    assume(block >= unit)
    assume(blocks >= 1)
    align = blocks * block
    position = resend_checkpoint(prompt, unit, eagle)
    assume(position > 0)
    above = margin(block, unit, eagle and drops, True)
    assume(is_asked(key, position + above, block))
    span = tail(prompt, prompt, unit, align, above, eagle)
    assert saved(key, normal(prompt, align), span, block)


def ts1_external_hit_is_the_local_one(
    prompt: int,
    unit: int,
    block: int,
    align: int,
    eagle: bool,
    longer: int,
    *,
    tail: Tail = tail_span,
    margin: Margin = proof_margin,
    bound: Bound = scan_bound,
    serves: Serves = attention_serves,
) -> None:
    """TS1: with the tail in the store a lookup there finds the checkpoint C and nothing longer, as locally.

    `longer` is any longer length on the grid; the group drops whenever EAGLE does.
    """
    assume(prompt >= 1)
    assume(unit >= 1)
    assume(block >= unit)
    assume(align >= block)
    position = resend_checkpoint(prompt, unit, eagle)
    assume(position > 0)
    above = margin(block, unit, eagle, True)
    span = tail(prompt, prompt, unit, align, above, eagle)
    reach = bound(prompt - 1, above, prompt // unit, unit)
    assert span.end <= reach
    assert serves(position, above, span.end)
    assume(longer > position)
    assume(longer % unit == 0)
    assert longer > prompt - 1 or not serves(longer, above, reach)


def ts6_original_prompt_decides(
    prompt: int, horizon: int, unit: int, align: int, margin: int, eagle: bool, *, tail: Tail = tail_span
) -> None:
    """TS6: how far a resumed request prefills changes nothing about its tail, which is that of the prompt."""
    assume(prompt >= 1)
    assume(horizon >= prompt)
    assume(unit >= 1)
    assume(align >= unit)
    assume(margin >= 0)
    span = tail(prompt, horizon, unit, align, margin, eagle)
    position = resend_checkpoint(prompt, unit, eagle)
    if position > 0:
        assert span.end == position + margin
        assert span.start <= position < span.start + align
        assert span.start % align == 0
    else:
        assert span.start == span.end


def ts7_no_gap(
    prompt: int,
    unit: int,
    align: int,
    block: int,
    eagle: bool,
    drops: bool,
    token: int,
    *,
    normal: SpanOf = normal_span,
    tail: Tail = tail_span,
    margin: Margin = proof_margin,
) -> None:
    """TS7: normal and tail saves together hold every token that the resend needs, all of them computed.

    It takes no more of the sizes than their order.
    """
    assume(prompt >= 1)
    assume(unit >= 1)
    assume(block >= unit)
    assume(align >= block)
    above = margin(block, unit, eagle and drops, True)
    position = resend_checkpoint(prompt, unit, eagle)
    assume(position > 0)
    saved, added = normal(prompt, align), tail(prompt, prompt, unit, align, above, eagle)
    assert saved.start == 0
    assert added.start <= saved.end
    assert added.end <= prompt
    assert saved.end <= prompt
    if 0 <= token < position + above:
        assert saved.start <= token < saved.end or added.start <= token < added.end


def ts7_keys_are_asked_for(
    prompt: int,
    unit: int,
    block: int,
    blocks: int,
    eagle: bool,
    drops: bool,
    index: int,
    *,
    tail: Tail = tail_span,
    indices: BlocksOf = tail_blocks,
    key_of: KeyOf = tail_key,
    asked: Asked = is_asked,
    margin: Margin = proof_margin,
) -> None:
    """TS7: each block of the tail goes under a key that a lookup asks for, and the last key ends the proof.

    `index` is any block of the tail, L is `blocks` blocks.
    """
    assume(prompt >= 1)
    assume(unit >= 1)
    assume(block >= unit)
    assume(blocks >= 1)
    align = blocks * block
    above = margin(block, unit, eagle and drops, True)
    span = tail(prompt, prompt, unit, align, above, eagle)
    touched = indices(span, block)
    assume(touched.start <= index)
    assume(index < touched.end)
    key = key_of(index, span, block)
    assert asked(key, span.end, block)
    assert key > span.start
    assert index * block < key
    if index == touched.end - 1:
        assert key == span.end


def ts7_one_step_publishes(
    start: int, middle: int, end: int, prompt: int, *, published: Completes = completes
) -> None:
    """TS7: of two steps that follow each other exactly one completes a prompt that both together complete.

    So it is exactly one of any number of steps, and a new Mamba state has no say in it.
    """
    assume(prompt >= 1)
    assume(start >= 0)
    assume(start <= middle)
    assume(middle <= end)
    first, second = published(start, middle, prompt), published(middle, end, prompt)
    assert not (first and second)
    assert (first or second) == (start < prompt <= end)
