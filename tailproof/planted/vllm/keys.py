"""Faults of the keys themselves: what a key is made of, and how many a block may have."""

from __future__ import annotations

from tailproof.planted.vllm.edits import (
    becomes,
    kept,
    part,
    sign,
)
from tailproof.planted.vllm.mutant import (
    POOL,
    SIZES,
    SystemMutant,
)
from tailproof.planted.vllm.shape import (
    assigned,
    binary,
    boolean,
    branch,
    compare,
    number,
)

MUTANTS = (
    SystemMutant(
        "salt-left-out",
        "The salt is left out of the keys.",
        SIZES,
        "generate_block_hash_extra_keys",
        assigned("cache_salt_keys"),
        part("value", edit=becomes("[]")),
        ("SF1", "LK1", "PM4", "LV1"),
    ),
    SystemMutant(
        "salt-in-every-key",
        "The salt is in the key of every unit, not only of the first.",
        SIZES,
        "generate_block_hash_extra_keys",
        boolean("and", 2).naming("cache_salt"),
        kept("values", 1),
        (),
        equivalent="each key contains the one before, so the first unit's salt is in all of them already",
    ),
    SystemMutant(
        "key-of-first-unit",
        "A block's key is that of its first unit, not of its last.",
        SIZES,
        "BlockHashListWithBlockSize._get_value_at",
        binary("-", None, number(1)),
        becomes("idx * self.scale_factor"),
        ("RT1", "CH3", "SF1", "LV1"),
    ),
    SystemMutant(
        "keys-end-early",
        "The last full unit of a prompt has no key.",
        SIZES,
        "get_request_block_hasher.request_block_hasher",
        compare(">").naming("end_token_idx"),
        sign(">="),
        ("RT1", "LV1", "RT2"),
    ),
    SystemMutant(
        "second-key-refused",
        "A block that already has a key cannot get a second one.",
        POOL,
        "BlockPool._insert_block_hash",
        branch("block_hash").nth(2, of=2),
        kept("body"),
        ("RT1", "RT2", "LV1"),
    ),
)
