"""Proves one theorem of the source tier about one source tree."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from proofs import engine
from proofs.source import containers, worlds
from proofs.source.catalogue import Case
from proofs.source.lift import Moved, SourceTree
from proofs.source.witness import failing_values, shown, unshown
from proofs.stand_ins import BUILTINS
from proofs.twins import Twins

MOVED = "moved"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is known about a case: `verdict` is proved, refuted, unknown, unsupported or moved.

    A refutation has the counterexample's values as text, how the theorem fails on them in plain Python, and
    `values` that show both sides there.
    """

    verdict: str
    reason: str = ""
    paths: int = 0
    seconds: float = 0.0
    units: int = 0
    counterexample: Mapping[str, str] | None = None
    failure: str = ""
    values: Mapping[str, str] = field(default_factory=dict)


def prove(case: Case, tree: SourceTree, seconds: float = 600.0) -> Finding:
    """Lift the case's functions out of the tree and explore its theorem; the `seconds` are a last net."""
    try:
        planted: dict[str, Any] = {name: tree.lift(site, worlds.SCOPE) for name, site in case.lifts.items()}
    except Moved as reason:
        return Finding(MOVED, str(reason))
    planted |= case.fixed
    result = engine.prove(case.theorem, planted=planted, seconds=seconds, twins=_twins(case))
    if result.verdict == "unsupported" and f": {worlds.READS} " in result.reason:
        return Finding(MOVED, result.reason.partition(": ")[2], result.paths, result.seconds, result.units)
    found = result.counterexample
    if found is None:
        return Finding(result.verdict, result.reason, result.paths, result.seconds, result.units)
    values = {name: ast.literal_eval(text) for name, text in found.values.items()}
    return Finding(
        result.verdict,
        result.reason,
        result.paths,
        result.seconds,
        result.units,
        dict(found.values),
        found.failure,
        failing_values(case.theorem, values, planted),
    )


def _twins(case: Case) -> Twins:
    stand_ins = {**BUILTINS, "range": containers.one_turn_range} if case.turns else BUILTINS
    return Twins(
        builtins=stand_ins,
        replaced={
            shown: unshown,
            containers.distinct: containers.symbolic_distinct,
            containers.repeated: containers.symbolic_repeated,
            containers.choose: containers.symbolic_choose,
        },
    )
