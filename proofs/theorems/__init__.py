"""Theorems: each derived rule once, as plain functions that assume and assert, for every engine to run.

A theorem takes integers, booleans, small tuples of them and membership predicates; its keyword-only
parameters name the functions of the spec that it is about, so that a wrong variant can be planted. Lengths
are in tokens. `proofs.loops` tells how loops are stated.
"""

from __future__ import annotations

from collections.abc import Callable

from proofs.theorems import ch, cp, lk, lt, pm, ts

# By name; a theorem is called after its rule.
THEOREMS: dict[str, Callable[..., None]] = {
    name: function
    for module in (ch, cp, lk, lt, pm, ts)
    for name, function in sorted(vars(module).items())
    if name[2:3].isdigit()
}
