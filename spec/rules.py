"""The registry: every rule once, read from `rules.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. `definition` names what defines it: functions of the spec, or where it is about what was seen,
    the type that holds it; what content a prefix has is the exact model's to say, as dotted names.
    `theorems` name functions in `proofs.theorems`, `tiers` the fuzzing tiers that observe it, `faults` the
    planted faults of the reference that lockstep must report under exactly this rule; `store_faults` are
    those that need the store tier."""

    id: str
    statement: str
    reason: str
    source: str
    definition: tuple[str, ...]
    theorems: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    store_faults: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ("old", "drop", "lookahead")

    @property
    def family(self) -> str:
        """The letters of the id."""
        return self.id.rstrip("0123456789")


def read(text: str) -> dict[str, Rule]:
    """The rules of a document with one TOML table each. Raises ValueError, naming the rule and the field,
    for a field that is unknown, missing, or neither text nor a list of text as it should be."""
    return {rule: _rule(rule, table) for rule, table in tomllib.loads(text).items()}


def _rule(rule: str, table: object) -> Rule:
    if not isinstance(table, dict):
        raise ValueError(f"{rule}: must be a table")
    known = {field.name: field for field in fields(Rule) if field.name != "id"}
    if strange := table.keys() - known.keys():
        raise ValueError(f"{rule}: unknown field {min(strange)!r}, known are {', '.join(known)}")
    for name, field in known.items():
        if name not in table:
            if field.default is MISSING:
                raise ValueError(f"{rule}: {name} is missing")
        elif field.type == "str":
            if not isinstance(table[name], str):
                raise ValueError(f"{rule}: {name} must be text")
        elif not isinstance(table[name], list) or not all(isinstance(item, str) for item in table[name]):
            raise ValueError(f"{rule}: {name} must be a list of text")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in table.items()
    }
    return Rule(rule, **values)


RULES: dict[str, Rule] = read(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ORDER: dict[str, int] = {rule: index for index, rule in enumerate(RULES)}


def first(rules: list[str]) -> str:
    """The rule that a report names when one fault breaks several: the first in registry order."""
    return min(rules, key=ORDER.__getitem__)
