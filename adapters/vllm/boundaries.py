"""What differs between the versions of vLLM that the adapter drives: what each has, what bridges the rest.

A table for each kind of difference, and one function for each call that changed. Everything that is not
here is the same in all of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spec.trace import Configuration, TraceError

Version = tuple[int, ...]
Checkpoints = Callable[..., tuple[list[int], list[int]]]

NEWEST: Version = (0, 33)
RETENTION = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that a configuration may ask for (`asks`) and that vLLM has since a version, or has `until`
    one (which is the first without it)."""

    name: str
    words: str
    asks: Callable[[Configuration], bool]
    since: Version = ()
    until: Version | None = None

    def is_in(self, version: Version) -> bool:
        """Whether a version has it."""
        return version >= self.since and (self.until is None or version < self.until)


FEATURES: tuple[Feature, ...] = (
    Feature("dcp", "hits inside blocks under DCP", lambda asked: asked.dcp > 1, (0, 29)),
    Feature(
        "exports",
        "states exported inside a chunk (checkpoint_alignment)",
        lambda asked: any(group.checkpoint_alignment is not None for group in asked.groups),
        (0, 30),
    ),
    Feature("junctions", "junction checkpoints", lambda asked: asked.junctions, (0, 31)),
    Feature(
        "replicated",
        "draft groups that DCP does not shard (replicated)",
        lambda asked: any(group.replicated for group in asked.groups),
        (0, 31),
    ),
    Feature(
        "lookahead",
        "hashes that cover the next token (profile lookahead)",
        lambda asked: asked.profile == "lookahead",
        (0, 33),
    ),
    Feature(
        "small-budget",
        "steps of no more tokens than a request drafts (budget)",
        lambda asked: asked.eagle and asked.budget <= asked.speculative,
        until=(0, 33),
    ),
)

# Names and options that came later than the oldest version, with the version that has them first.
ARRIVED: dict[str, Version] = {
    "MambaSpec.num_prefill_checkpoint_blocks": (0, 29),
    "KVCacheConfig.prefix_cache_retention_interval": (0, 29),
    "MambaSpec.prefill_checkpoint_alignment": (0, 30),
    "FullAttentionSpec.dcp_sharded": (0, 31),
    "CacheConfig.enable_mamba_shared_prefix_checkpoint": (0, 31),
    "vllm.model_executor.layers.mamba.checkpoint": (0, 31),
    "vllm.v1.core.kv_cache_utils.resolve_cache_hit_alignment_tokens": (0, 32),
    "SpeculativeConfig.disable_lookahead_block_hashes": (0, 33),
    "VllmConfig.num_hash_lookahead_tokens": (0, 33),
}


def version_of(text: str) -> Version:
    """The version in a version's text ("0.33.0rc1+cpu"); a text that holds none counts as the newest."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else NEWEST


def lacks(version: Version) -> tuple[str, ...]:
    """The names of the features that a version does not have."""
    return tuple(feature.name for feature in FEATURES if not feature.is_in(version))


def profiles(version: Version) -> tuple[str, ...]:
    """The rule sets under which a version runs with EAGLE, the one it uses by itself first."""
    return ("lookahead", "drop") if version >= (0, 33) else ("drop",)


def refuse(configuration: Configuration, version: Version, text: str) -> None:
    """Refuse a configuration that asks for what a version does not have; `text` is the version as it says.

    Raises:
        TraceError: naming the feature.
    """
    for feature in FEATURES:
        if not feature.is_in(version) and feature.asks(configuration):
            raise TraceError(f"configuration: vLLM {text} has no {feature.words}")


def has(name: str, version: Version) -> bool:
    """Whether a version has a name or an option (`ARRIVED`)."""
    return version >= ARRIVED.get(name, ())


def options(kind: str, version: Version, values: dict[str, Any]) -> dict[str, Any]:
    """Of the options of a class of vLLM, those that a version knows."""
    return {name: value for name, value in values.items() if has(f"{kind}.{name}", version)}


def place_retention(version: Version, retention: int | None) -> None:
    """0.28 reads the retention interval from the process's environment, when a scheduler is built."""
    if has("KVCacheConfig.prefix_cache_retention_interval", version):
        return
    if retention is None:
        os.environ.pop(RETENTION, None)
    else:
        os.environ[RETENTION] = str(retention)


def request_hasher(version: Version, unit: int, lookahead: int) -> Any:
    """vLLM's function that hashes a request's tokens; since 0.33 a hash may cover `lookahead` more tokens."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher

    if version < (0, 33):
        return get_request_block_hasher(unit, sha256)
    return get_request_block_hasher(unit, sha256, num_hash_lookahead_tokens=lookahead)


def hash_lookahead(version: Version, vllm_config: Any) -> int:
    """How many tokens past its unit a hash covers, as vLLM decides it."""
    if has("VllmConfig.num_hash_lookahead_tokens", version):
        return int(vllm_config.num_hash_lookahead_tokens)
    return 0


def hit_alignment(version: Version, layout: Any, vllm_config: Any, align: int, unit: int) -> int | None:
    """The grid of hits, in tokens, that the engine hands to its workers; none before 0.32."""
    if version < (0, 32):
        return None
    from vllm.v1.core.kv_cache_utils import resolve_cache_hit_alignment_tokens

    return int(resolve_cache_hit_alignment_tokens(layout, vllm_config, align, unit))


def prefill_checkpoints(version: Version, lookahead: int) -> Checkpoints:
    """vLLM's function that places exported checkpoints, with the arguments of 0.32.

    Since 0.33 it is told the hash `lookahead`, and drops nothing where there is one. 0.31 aligns to the hash
    unit only, and in 0.30 each backend does the same by itself.
    """
    if version < (0, 31):
        return _checkpoints_before_031
    from vllm.model_executor.layers.mamba.checkpoint import compute_mamba_prefill_checkpoints

    if version < (0, 32):

        def checkpoints_031(*lengths: Any, cache_hit_alignment_tokens: int, **values: Any) -> Any:
            return compute_mamba_prefill_checkpoints(*lengths, **values)

        return checkpoints_031
    if version < (0, 33):
        function: Checkpoints = compute_mamba_prefill_checkpoints
        return function

    def checkpoints_033(*lengths: Any, drop_eagle_block: bool, **values: Any) -> Any:
        return compute_mamba_prefill_checkpoints(
            *lengths,
            **values,
            drop_eagle_block=drop_eagle_block and not lookahead,
            num_hash_lookahead_tokens=lookahead,
        )

    return checkpoints_033


def _checkpoints_before_031(
    ends: list[int],
    counts: list[int],
    *,
    hash_block_size: int,
    mamba_block_size: int,
    checkpoint_alignment: int,
    drop_eagle_block: bool,
    cache_hit_alignment_tokens: int,
) -> tuple[list[int], list[int]]:
    from vllm.v1.kv_cache_interface import (
        get_mamba_prefill_checkpoint_position,
        is_mamba_prefill_checkpoint_valid,
    )

    offsets, columns = [], []
    for end, count in zip(ends, counts, strict=True):
        position = get_mamba_prefill_checkpoint_position(end, hash_block_size, drop_eagle_block)
        valid = is_mamba_prefill_checkpoint_valid(
            end - count, end, position, hash_block_size, mamba_block_size, checkpoint_alignment
        )
        offsets.append(position - end + count if valid else 0)
        columns.append(-(-end // mamba_block_size) - 2 if valid else -1)
    return offsets, columns
