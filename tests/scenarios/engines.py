"""The engines that scenarios run on: the reference, its planted faults, and others that err."""

from __future__ import annotations

from reference.engine import SlowEngine
from tailproof.targets.opening import FAULTS, Target

ENGINES: dict[str, type[SlowEngine]] = {}


def engine_of(name: str) -> type[SlowEngine]:
    """The engine of a target `reference` or `reference+NAME`."""
    reference, _, fault = name.partition("+")
    assert reference == "reference", name
    if fault in ENGINES:
        return ENGINES[fault]
    return FAULTS[Target.parse(name).argument] if fault else SlowEngine
