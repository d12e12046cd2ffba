"""The catalogue: every theorem with its rule, its subject and the functions that it is about."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from proofs import inputs
from proofs.symbolic import Unsupported
from proofs.theorems import THEOREMS
from spec.rules import RULES

SPEC = "spec"


@dataclass(frozen=True, slots=True)
class Theorem:
    """A theorem: `subject` is the spec or a target, `about` the functions it is about, `run` the theorem."""

    id: str
    rule: str
    subject: str
    about: tuple[str, ...]
    run: Callable[..., object]

    @property
    def pure(self) -> bool:
        """Whether it takes plain values only, and no functions."""
        try:
            kinds = [parameter.kind for parameter in inputs.of(self.run)]
        except Unsupported:
            return False
        return not any(kind in (inputs.PREDICATE, inputs.FUNCTION) for kind in kinds)


def planted_parameters(theorem: Callable[..., object]) -> dict[str, Callable[..., object]]:
    """The keyword-only parameters of a theorem and the functions that they stand for."""
    return {
        parameter.name: parameter.default
        for parameter in inspect.signature(theorem).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def spec_theorems(rules: Iterable[str] = ()) -> tuple[Theorem, ...]:
    """The theorems about the spec in the order of the registry: all, or those of the named rules."""
    wanted = set(rules)
    found = []
    for rule in RULES.values():
        if wanted and rule.id not in wanted:
            continue
        for name in rule.theorems:
            run = THEOREMS[name]
            about = tuple(
                f"{function.__module__}.{function.__qualname__}"
                for function in planted_parameters(run).values()
            )
            found.append(Theorem(name, rule.id, SPEC, about, run))
    return tuple(found)
