"""CP: theorems about the resend checkpoint. Lengths are in tokens and of any size."""

from __future__ import annotations

from proofs.assume import assume
from proofs.theorems.kinds import Checkpoint
from spec.checkpoint import capped_and_dropped_checkpoint, resend_checkpoint


def cp1_on_the_grid(
    prompt: int, unit: int, eagle: bool, *, checkpoint: Checkpoint = resend_checkpoint
) -> None:
    """CP1: U divides C, and 0 ≤ C ≤ P − 1."""
    assume(prompt >= 1)
    assume(unit >= 1)
    position = checkpoint(prompt, unit, eagle)
    assert position % unit == 0
    assert position >= 0
    assert position <= prompt - 1


def cp2_leaves_tokens(
    prompt: int, unit: int, eagle: bool, *, checkpoint: Checkpoint = resend_checkpoint
) -> None:
    """CP2: a resend leaves 1 to U tokens; with EAGLE at least min(P, U), and at most 2U − 1 where P ≥ U."""
    assume(prompt >= 1)
    assume(unit >= 1)
    left = prompt - checkpoint(prompt, unit, eagle)
    assert left >= 1
    if not eagle:
        assert left <= unit
    elif prompt >= unit:
        assert left >= unit
        assert left <= 2 * unit - 1
    else:
        assert left >= prompt


def cp3_proof_fits(prompt: int, unit: int, *, checkpoint: Checkpoint = resend_checkpoint) -> None:
    """CP3: with EAGLE and C > 0 the unit after C has a hash, C + U ≤ ⌊P/U⌋·U."""
    assume(prompt >= 1)
    assume(unit >= 1)
    position = checkpoint(prompt, unit, True)
    assume(position > 0)
    assert position + unit <= prompt // unit * unit


def cp4_maximal(
    prompt: int, unit: int, eagle: bool, further: int, *, checkpoint: Checkpoint = resend_checkpoint
) -> None:
    """CP4: no length `further` units past C leaves a token and, with EAGLE, has its proof in the prompt."""
    assume(prompt >= 1)
    assume(unit >= 1)
    assume(further >= 1)
    higher = checkpoint(prompt, unit, eagle) + further * unit
    if eagle:
        assert higher > prompt - 1 or higher + unit > prompt // unit * unit
    else:
        assert higher > prompt - 1


def cp5_safe_for_extension(
    prompt: int, added: int, unit: int, eagle: bool, *, checkpoint: Checkpoint = resend_checkpoint
) -> None:
    """CP5: a prompt longer by `added` tokens has no lower C, and may use the C of the shorter one."""
    assume(prompt >= 1)
    assume(added >= 0)
    assume(unit >= 1)
    position = checkpoint(prompt, unit, eagle)
    extended = prompt + added
    assert checkpoint(extended, unit, eagle) >= position
    assert position <= extended - 1
    if eagle and position > 0:
        assert position + unit <= extended // unit * unit


def cp6_against_the_old_rule(
    prompt: int,
    unit: int,
    *,
    checkpoint: Checkpoint = resend_checkpoint,
    before: Checkpoint = capped_and_dropped_checkpoint,
) -> None:
    """CP6: with EAGLE, C is U above the rule before 0.32 where U | P and P ≥ 2U, and equal elsewhere."""
    assume(prompt >= 1)
    assume(unit >= 1)
    position = checkpoint(prompt, unit, True)
    old = before(prompt, unit, True)
    if prompt % unit == 0 and prompt >= 2 * unit:
        assert position == old + unit
    else:
        assert position == old
