"""All planted faults of the real vLLM, in the order of what they break."""

from __future__ import annotations

from tailproof.planted.vllm import (
    accounting,
    keys,
    lifetime,
    lookups,
    positions,
    publication,
    retention,
    sharing,
    splits,
    store,
    windows,
)
from tailproof.planted.vllm.mutant import SystemMutant

FAMILIES: dict[str, tuple[SystemMutant, ...]] = {
    "positions": positions.MUTANTS,
    "splits": splits.MUTANTS,
    "lookups": lookups.MUTANTS,
    "windows": windows.MUTANTS,
    "retention": retention.MUTANTS,
    "publication": publication.MUTANTS,
    "keys": keys.MUTANTS,
    "sharing": sharing.MUTANTS,
    "lifetime": lifetime.MUTANTS,
    "accounting": accounting.MUTANTS,
    "store": store.MUTANTS,
}

MUTANTS: dict[str, SystemMutant] = {one.name: one for family in FAMILIES.values() for one in family}
assert len(MUTANTS) == sum(len(family) for family in FAMILIES.values()), "a name is used twice"
