"""LK: theorems about the greatest hit, for any positions; each states its number of groups."""

from __future__ import annotations

from proofs.assume import assume, every, foretell, implies, refutes
from proofs.loops import Loop, by_induction
from proofs.theorems.kinds import Extent, Hit, Predicate, Serves, StateServes
from spec.fixed_point import fixed_point, shortened
from spec.lookup import attention_extent, attention_serves, greatest_hit, mamba_serves


def _nothing_longer(
    length: int, limit: int, grid: int, groups: tuple[Predicate, ...], *, one: int, other: int
) -> tuple[bool, ...]:
    """Every length on the grid above `length` was refused by a group; it matters at two of them."""
    return (
        length >= 0,
        length <= limit,
        length % grid == 0,
        *(
            refutes(
                (length < longer) & (longer <= limit) & (longer % grid == 0),
                every(serve(longer) for serve in groups),
            )
            for longer in (one, other)
        ),
    )


def _not_below(candidate: int, limit: int, grid: int, *, one: int) -> tuple[bool, ...]:
    return (candidate >= one, candidate <= limit, candidate % grid == 0)


def _turn_not_below(length: int, candidate: int, grid: int, *, one: int) -> tuple[bool, ...]:
    return (length >= one, length <= candidate, length % grid == 0)


_FROM_THE_TOP = Loop(greatest_hit, _nothing_longer, measure=lambda length: length)


@by_induction(
    _FROM_THE_TOP,
    Loop(fixed_point, _not_below, measure=lambda candidate: candidate),
    Loop(shortened, _turn_not_below, measure=lambda length: length),
)
def lk1_fixed_point(
    limit: int,
    grid: int,
    one: Predicate,
    two: Predicate,
    three: Predicate,
    *,
    hit: Hit = greatest_hit,
    fixed: Hit = fixed_point,
) -> None:
    """LK1: for three groups, of any kinds, the fixed point is the greatest length that all of them serve."""
    assume(grid >= 1)
    assume(limit >= 0)
    groups = tuple(_with_nothing(serves) for serves in (one, two, three))
    found = foretell("one", hit(limit, grid, groups))
    assert foretell("other", fixed(limit, grid, groups)) == found
    assert 0 <= found <= limit
    assert found % grid == 0
    assert every(serve(found) for serve in groups)


@by_induction(_FROM_THE_TOP)
def lk2_order_of_groups(
    limit: int,
    grid: int,
    one: Predicate,
    two: Predicate,
    three: Predicate,
    last: bool,
    *,
    hit: Hit = greatest_hit,
) -> None:
    """LK2: two neighbours among three groups change places and the hit stays; `last` tells which two.

    The groups serve whatever they like, so this gives all six orders of groups of any kinds.
    """
    assume(grid >= 1)
    assume(limit >= 0)
    groups = tuple(_with_nothing(serves) for serves in (one, two, three))
    found = foretell("one", hit(limit, grid, groups))
    swapped = (groups[0], groups[2], groups[1]) if last else (groups[1], groups[0], groups[2])
    assert foretell("other", hit(limit, grid, swapped)) == found


def _with_nothing(serves: Predicate) -> Predicate:
    """A group, which serves the length 0 in any case."""
    return lambda length: length == 0 or serves(length)


def _contiguous(extent: int, block: int, bound: int, visible: Predicate, *, missing: int) -> tuple[bool, ...]:
    """All block ends up to `extent` are there; it matters at one of them."""
    return (
        extent >= 0,
        (extent == 0) | (extent <= bound),
        extent % block == 0,
        implies((missing > 0) & (missing <= extent) & (missing % block == 0), visible(missing)),
    )


def _none_above(
    position: int, extent: int, block: int, unit: int, bound: int, visible: Predicate, *, fewer: int
) -> tuple[bool, ...]:
    """No interior position above the one that comes next is there; it matters at one of them."""
    top = min(extent + block - unit, bound // unit * unit)
    return (refutes((position < fewer) & (fewer <= top) & ((top - fewer) % unit == 0), visible(fewer)),)


_EXTENT = (
    Loop(attention_extent, _contiguous, measure=lambda extent, bound, block: bound - block - extent),
    Loop(attention_extent, _none_above, number=1),
)


@by_induction(*_EXTENT)
def lk3_longer_extent(
    block: int,
    unit: int,
    bound: int,
    fine: bool,
    entries: Predicate,
    added: Predicate,
    *,
    extent: Extent = attention_extent,
) -> None:
    """LK3: more entries, any number of them, shorten no attention extent while the bound stays."""
    assume(unit >= 1)
    assume(block >= unit)
    assume(bound >= 0)

    def more_entries(position: int) -> bool:
        return entries(position) | added(position)

    before = foretell("fewer", extent(entries, block, unit, bound, fine))
    after = extent(more_entries, block, unit, bound, fine)
    foretell("missing", after // block * block + block)
    assert after >= before


@by_induction(_FROM_THE_TOP)
def lk3_longer_hit(
    limit: int,
    grid: int,
    extents: tuple[int, int],
    longer: tuple[int, int],
    margins: tuple[int, int],
    states: Predicate,
    added: Predicate,
    *,
    hit: Hit = greatest_hit,
    serves: Serves = attention_serves,
    state_serves: StateServes = mamba_serves,
) -> None:
    """LK3: longer extents of two attention groups and more states of a Mamba group shorten no hit."""
    assume(grid >= 1)
    assume(limit >= 0)
    assume(extents[0] >= 0)
    assume(extents[1] >= 0)
    assume(longer[0] >= extents[0])
    assume(longer[1] >= extents[1])
    assume(margins[0] >= 0)
    assume(margins[1] >= 0)

    def more_states(position: int) -> bool:
        return states(position) | added(position)

    def longest(reach: tuple[int, int], mamba: Predicate) -> int:
        return hit(
            limit,
            grid,
            (
                lambda length: serves(length, margins[0], reach[0]),
                lambda length: serves(length, margins[1], reach[1]),
                lambda length: state_serves(length, mamba),
            ),
        )

    before = foretell("one", longest(extents, states))
    assert foretell("other", longest(longer, more_states)) >= before
