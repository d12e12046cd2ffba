"""The engines that scenarios run on: the reference, its planted faults, and others that err."""

from __future__ import annotations

from reference.engine import SlowEngine
from reference.store_engine import StoreEngine
from tailproof.targets.opening import FAULTS, Target


class KeepsLocal(StoreEngine):
    """A shorter local hit stays whole, off the alignment or not."""

    def kept_of_local(self, hit: int) -> int:
        return hit


ENGINES: dict[str, type[SlowEngine]] = {"keeps-local": KeepsLocal}


def engine_of(name: str) -> type[SlowEngine]:
    """The engine of a target `reference` or `reference+NAME`."""
    reference, _, fault = name.partition("+")
    assert reference == "reference", name
    if fault in ENGINES:
        return ENGINES[fault]
    return FAULTS[Target.parse(name).argument] if fault else SlowEngine
