"""Faults of sliding windows: what they need, keep and give up."""

from __future__ import annotations

from tailproof.planted.vllm.edits import (
    becomes,
    dropped,
    kept,
    part,
    shifted,
    sign,
)
from tailproof.planted.vllm.mutant import (
    MANAGERS,
    SystemMutant,
)
from tailproof.planted.vllm.shape import (
    assigned,
    binary,
    branch,
    call,
    compare,
    conditional,
    named,
    number,
)

_LOOKUP = "SlidingWindowManager.find_longest_cache_hit"
_NEED = "SlidingWindowManager._contiguous_blocks_for_hit"
_MASK = "SlidingWindowManager.reachable_block_mask"
_SKIPPED = "SlidingWindowManager.get_num_skipped_tokens"

MUTANTS = (
    SystemMutant(
        "window-one-short",
        "A sliding window is served with one token less than it needs.",
        MANAGERS,
        _NEED,
        binary("-", named("window_size"), number(1)),
        part("right", edit=becomes("2")),
        ("LK1", "SF1", "RT1"),
    ),
    SystemMutant(
        "window-without-drop",
        "With a drop, a sliding window needs no block more.",
        MANAGERS,
        _NEED,
        branch("use_eagle"),
        dropped,
        ("LK1", "SF1", "RT1"),
    ),
    SystemMutant(
        "window-run-not-contiguous",
        "A gap does not end the run of blocks that a window needs.",
        MANAGERS,
        _LOOKUP,
        assigned("num_contiguous_blocks").nth(2, of=2),
        dropped,
        ("LK1", "SF1", "LV1", "RT1"),
        hole=(
            "By reading: only a window of several blocks with a gap in what is kept can tell; not reached."
        ),
    ),
    SystemMutant(
        "window-run-off-grid",
        "A window's run may end off the grid of hits.",
        MANAGERS,
        _LOOKUP,
        branch("post_pop_blocks"),
        dropped,
        (),
        equivalent="states lie on the grid, and the window is asked again at the length of the state",
    ),
    SystemMutant(
        "window-kept-one-short",
        "One block less than a window needs is kept for a boundary.",
        MANAGERS,
        _MASK,
        binary("-", named("end"), named("need")),
        shifted(1),
        ("RT1",),
    ),
    SystemMutant(
        "window-kept-without-drop",
        "The block that a window drops is not kept for it.",
        MANAGERS,
        _MASK,
        conditional().naming("use_eagle"),
        becomes("0"),
        ("RT1",),
    ),
    SystemMutant(
        "window-segments-one-short",
        "One block less than a window needs is kept for each segment.",
        MANAGERS,
        _MASK,
        compare(">=").naming("per_segment", "shift"),
        sign(">"),
        ("RT1",),
    ),
    SystemMutant(
        "window-frees-too-much",
        "A window gives up a token that it still reads.",
        MANAGERS,
        _SKIPPED,
        call("max"),
        part("args", 1, edit=shifted(1)),
        ("SF1", "LV1"),
    ),
    SystemMutant(
        "window-frees-retained",
        "A window gives up the tokens that later modules still read.",
        MANAGERS,
        _SKIPPED,
        binary("-", None, named("extra_retained_tokens")),
        kept("left"),
        (),
        equivalent="only draft modules read these tokens, which the exact model does not have",
    ),
)
