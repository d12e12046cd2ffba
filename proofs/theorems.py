"""Theorems: each derived rule once, as a plain function that assumes and asserts, for every engine to run.

A theorem takes integers, booleans, small tuples of them and membership predicates; its keyword-only
parameters name the functions of the spec that it is about, so that a wrong variant can be planted.
Lengths are in tokens. Where a function of the spec searches length by length, the theorem covers fewer
than `CANDIDATES` grid steps, of any size, so that an engine that explores paths comes to an end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from proofs.assume import assume
from spec.checkpoint import capped_and_dropped_checkpoint, resend_checkpoint
from spec.lookup import attention_extent, attention_serves, greatest_hit, mamba_serves
from spec.proof import proof_margin, scan_bound

CANDIDATES = 6

Predicate = Callable[[int], bool]
Checkpoint = Callable[[int, int, bool], int]
Margin = Callable[[int, int, bool, bool], int]
Bound = Callable[[int, int, int, int], int]
Serves = Callable[[int, int, int], bool]
StateServes = Callable[[int, Predicate], bool]
Extent = Callable[[Predicate, int, int, int, bool], int]
Hit = Callable[[int, int, Iterable[Predicate]], int]


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


def pm1_scan_reaches_the_proof(
    prompt: int,
    unit: int,
    block: int,
    drops: bool,
    *,
    checkpoint: Checkpoint = resend_checkpoint,
    margin: Margin = proof_margin,
    bound: Bound = scan_bound,
) -> None:
    """PM1: for C > 0 and fine hits, the scan over the hashes of P tokens reaches C and all of its proof.

    With EAGLE, attention that drops must be seen through C + U, attention that does not through C.
    """
    assume(prompt >= 1)
    assume(unit >= 1)
    assume(block >= unit)
    position = checkpoint(prompt, unit, True)
    assume(position > 0)
    reach = bound(prompt - 1, margin(block, unit, drops, True), prompt // unit, unit)
    if drops:
        assert reach >= position + unit
    else:
        assert reach >= position


def pm2_hit_within_the_limit(
    limit: int,
    margin: int,
    hashes: int,
    unit: int,
    extent: int,
    hit: int,
    *,
    bound: Bound = scan_bound,
    serves: Serves = attention_serves,
) -> None:
    """PM2: no extent within the scan bound serves a length beyond the limit, whatever the margin."""
    assume(limit >= 0)
    assume(margin >= 0)
    assume(hashes >= 0)
    assume(unit >= 1)
    assume(extent >= 0)
    assume(extent <= bound(limit, margin, hashes, unit))
    assume(hit >= 0)
    assume(serves(hit, margin, extent))
    assert hit <= limit
    assert hit == 0 or hit <= hashes * unit - margin


def pm5_hash_exists(
    limit: int, margin: int, hashes: int, unit: int, asked: int, *, bound: Bound = scan_bound
) -> None:
    """PM5: unit number `asked` (from 1), wherever it ends within the bound, has a hash."""
    assume(limit >= 0)
    assume(margin >= 0)
    assume(hashes >= 0)
    assume(unit >= 1)
    assume(asked >= 1)
    assume(asked * unit <= bound(limit, margin, hashes, unit))
    assert asked <= hashes


def lk2_order_of_groups(
    limit: int,
    grid: int,
    extents: tuple[int, int],
    margins: tuple[int, int],
    states: Predicate,
    *,
    hit: Hit = greatest_hit,
    serves: Serves = attention_serves,
    state_serves: StateServes = mamba_serves,
) -> None:
    """LK2: two attention groups and a Mamba group give one hit in each of their six orders."""
    assume(grid >= 1)
    assume(limit >= 0)
    assume(limit < CANDIDATES * grid)
    assume(extents[0] >= 0)
    assume(extents[1] >= 0)
    assume(margins[0] >= 0)
    assume(margins[1] >= 0)

    def one(length: int) -> bool:
        return serves(length, margins[0], extents[0])

    def two(length: int) -> bool:
        return serves(length, margins[1], extents[1])

    def state(length: int) -> bool:
        return state_serves(length, states)

    found = hit(limit, grid, (one, two, state))
    assert hit(limit, grid, (one, state, two)) == found
    assert hit(limit, grid, (two, one, state)) == found
    assert hit(limit, grid, (two, state, one)) == found
    assert hit(limit, grid, (state, one, two)) == found
    assert hit(limit, grid, (state, two, one)) == found


def lk3_more_entries(
    limit: int,
    unit: int,
    multiple: int,
    bound: int,
    margin: int,
    fine: bool,
    added: int,
    to_states: bool,
    entries: Predicate,
    states: Predicate,
    *,
    hit: Hit = greatest_hit,
    extent: Extent = attention_extent,
    serves: Serves = attention_serves,
    state_serves: StateServes = mamba_serves,
) -> None:
    """LK3: one more entry at `added`, a state or else attention KV, shortens no hit while the bound stays.

    Blocks are `multiple` units; a coarse lookup lands on them.
    """
    block = multiple * unit
    grid = unit if fine else block
    assume(unit >= 1)
    assume(multiple >= 1)
    assume(multiple < CANDIDATES)
    assume(limit >= 0)
    assume(limit < CANDIDATES * grid)
    assume(bound >= 0)
    assume(bound < CANDIDATES * grid)
    assume(margin >= 0)

    def more_entries(position: int) -> bool:
        return (not to_states and position == added) or entries(position)

    def more_states(position: int) -> bool:
        return (to_states and position == added) or states(position)

    def longest(attention: Predicate, mamba: Predicate) -> int:
        reach = extent(attention, block, unit, bound, fine)
        return hit(
            limit,
            grid,
            (lambda length: serves(length, margin, reach), lambda length: state_serves(length, mamba)),
        )

    assert longest(more_entries, more_states) >= longest(entries, states)
