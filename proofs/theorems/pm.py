"""PM: theorems about the proof margin and the scan bound. Lengths are in tokens and of any size."""

from __future__ import annotations

from proofs.assume import assume, foretell, refutes
from proofs.loops import Loop, by_induction
from proofs.theorems.kinds import Bound, Checkpoint, Margin, Predicate, Serves, StateServes, Turn
from spec.checkpoint import resend_checkpoint
from spec.fixed_point import shortened
from spec.lookup import attention_serves, mamba_serves
from spec.proof import proof_margin, scan_bound


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


def _shortened_so_far(
    length: int, candidate: int, grid: int, serves: Predicate, *, challenger: int
) -> tuple[bool, ...]:
    return (
        length >= 0,
        length <= candidate,
        length % grid == 0,
        refutes((length < challenger) & (challenger <= candidate), serves(challenger)),
    )


@by_induction(Loop(shortened, _shortened_so_far, measure=lambda length: length))
def pm4_state_only_shortens(
    candidate: int,
    grid: int,
    length: int,
    states: Predicate,
    *,
    turn: Turn = shortened,
    serves: StateServes = mamba_serves,
) -> None:
    """PM4: a Mamba group's turn gives the greatest length up to the candidate at which it holds the state.

    So it accepts or shortens the candidate, and keeps every length that all groups serve, whatever their
    number: `length` stands for any of these.
    """
    assume(grid >= 1)
    assume(candidate >= 0)
    assume(length >= 0)
    assume(length % grid == 0)
    foretell("challenger", length)

    def serve(position: int) -> bool:
        return serves(position, states)

    left = turn(candidate, grid, serve)
    assert 0 <= left <= candidate
    assert left % grid == 0
    assert left == 0 or states(left)
    if length <= candidate and serve(length):
        assert length <= left
