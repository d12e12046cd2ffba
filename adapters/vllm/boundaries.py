"""What differs between the releases of vLLM that the adapter drives: what each has, what bridges the rest.

What a vLLM has is read off itself (`probe`): names that are there and arguments that are taken, never the
text of its version, which a checkout may lack or count in its own way. A table for each kind of difference,
and one function for each call that changed. Everything that is not here is the same in all of them.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spec.trace import Configuration, TraceError

Checkpoints = Callable[..., tuple[list[int], list[int]]]

# The release lines, in order. The oldest needs no marks: what it has, all have.
LINES = ("0.28", "0.29", "0.30", "0.31", "0.32", "0.33")
RETENTION = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"


@dataclass(frozen=True, slots=True)
class Mark:
    """What vLLM has since a release `line`: the `path` to it is a module, a colon and a name there; with
    `takes` it is an argument of what is there, with `names` a name in the code of the function there."""

    line: str
    path: str
    takes: str = ""
    names: str = ""

    def is_there(self) -> bool:
        """Whether the vLLM that can be imported has it.

        Raises:
            ImportError: when one of its modules is there but needs something that is not.
        """
        module, _, name = self.path.partition(":")
        try:
            found: Any = importlib.import_module(module)
        except ImportError as problem:
            if problem.name is None or not problem.name.startswith("vllm"):
                raise
            return False
        for part in filter(None, name.split(".")):
            found = getattr(found, part, None)
        if found is None or not (self.takes or self.names):
            return found is not None
        if self.names:
            return self.names in getattr(getattr(found, "__code__", None), "co_names", ())
        if dataclasses.is_dataclass(found):
            return any(field.init and field.name == self.takes for field in dataclasses.fields(found))
        return self.takes in inspect.signature(found).parameters


_UTILS = "vllm.v1.core.kv_cache_utils"
_SPECS = "vllm.v1.kv_cache_interface"
_PLACING = "vllm.model_executor.layers.mamba.checkpoint"

MARKS: Mapping[str, Mark] = {
    # Hits inside blocks under DCP are decided within the coordinator's constructor; the sizes that it decides
    # by got a function of their own in the same release.
    "dcp": Mark("0.29", f"{_UTILS}:resolve_dcp_kv_block_size"),
    "MambaSpec.num_prefill_checkpoint_blocks": Mark(
        "0.29", f"{_SPECS}:MambaSpec", takes="num_prefill_checkpoint_blocks"
    ),
    "KVCacheConfig.prefix_cache_retention_interval": Mark(
        "0.29", f"{_SPECS}:KVCacheConfig", takes="prefix_cache_retention_interval"
    ),
    "MambaSpec.prefill_checkpoint_alignment": Mark(
        "0.30", f"{_SPECS}:MambaSpec", takes="prefill_checkpoint_alignment"
    ),
    "FullAttentionSpec.dcp_sharded": Mark("0.31", f"{_SPECS}:FullAttentionSpec", takes="dcp_sharded"),
    "CacheConfig.enable_mamba_shared_prefix_checkpoint": Mark(
        "0.31", "vllm.config:CacheConfig", takes="enable_mamba_shared_prefix_checkpoint"
    ),
    _PLACING: Mark("0.31", f"{_PLACING}:compute_mamba_prefill_checkpoints"),
    f"{_UTILS}.resolve_cache_hit_alignment_tokens": Mark(
        "0.32", f"{_UTILS}:resolve_cache_hit_alignment_tokens"
    ),
    "placing by hits": Mark(
        "0.32", f"{_PLACING}:compute_mamba_prefill_checkpoints", takes="cache_hit_alignment_tokens"
    ),
    "placing by lookahead": Mark(
        "0.33", f"{_PLACING}:compute_mamba_prefill_checkpoints", takes="num_hash_lookahead_tokens"
    ),
    "hashing by lookahead": Mark(
        "0.33", f"{_UTILS}:get_request_block_hasher", takes="num_hash_lookahead_tokens"
    ),
    "SpeculativeConfig.disable_lookahead_block_hashes": Mark(
        "0.33", "vllm.config:SpeculativeConfig", takes="disable_lookahead_block_hashes"
    ),
    "VllmConfig.num_hash_lookahead_tokens": Mark("0.33", "vllm.config:VllmConfig.num_hash_lookahead_tokens"),
    # Since then a budget is measured against all that a request drafts; neither a name nor an argument came
    # with it, only what the check reads.
    "budget above drafts": Mark(
        "0.33", "vllm.config:VllmConfig._set_max_num_scheduled_tokens", names="num_lookahead_tokens"
    ),
}


@dataclass(frozen=True, slots=True)
class Release:
    """What was found in a vLLM: the `marks` (keys of `MARKS`) that it has."""

    marks: frozenset[str]

    @staticmethod
    def of(line: str) -> Release:
        """A vLLM that is just what a release line brought."""
        known = LINES[: LINES.index(line) + 1]
        return Release(frozenset(name for name, mark in MARKS.items() if mark.line in known))

    @property
    def line(self) -> str:
        """The newest release line whose marks are all there, with those of all lines before it."""
        line = LINES[0]
        for newer in LINES[1:]:
            if any(mark.line == newer and name not in self.marks for name, mark in MARKS.items()):
                break
            line = newer
        return line

    def has(self, name: str) -> bool:
        """Whether it has a name or an option; what is no mark, all have."""
        return name in self.marks or name not in MARKS

    def owes(self, name: str) -> bool:
        """Whether a name should be there: all have it, this vLLM has it, or it has a mark of a later line,
        and then what is missing has moved."""
        if self.has(name):
            return True
        place = LINES.index(MARKS[name].line)
        return any(LINES.index(MARKS[found].line) > place for found in self.marks)


def probe() -> Release:
    """What the vLLM has that can be imported here.

    Raises:
        ImportError: when it needs something that is not there.
    """
    return Release(frozenset(name for name, mark in MARKS.items() if mark.is_there()))


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that a configuration may ask for (`asks`), and that a vLLM has which has the `mark`, or which
    has it not, where the feature went as the mark came (`until`)."""

    name: str
    words: str
    asks: Callable[[Configuration], bool]
    mark: str
    until: bool = False

    def is_in(self, release: Release) -> bool:
        """Whether a vLLM has it."""
        return release.has(self.mark) is not self.until


FEATURES: tuple[Feature, ...] = (
    Feature("dcp", "hits inside blocks under DCP", lambda asked: asked.dcp > 1, "dcp"),
    Feature(
        "exports",
        "states exported inside a chunk (checkpoint_alignment)",
        lambda asked: any(group.checkpoint_alignment is not None for group in asked.groups),
        "MambaSpec.prefill_checkpoint_alignment",
    ),
    Feature(
        "junctions",
        "junction checkpoints",
        lambda asked: asked.junctions,
        "CacheConfig.enable_mamba_shared_prefix_checkpoint",
    ),
    Feature(
        "replicated",
        "draft groups that DCP does not shard (replicated)",
        lambda asked: any(group.replicated for group in asked.groups),
        "FullAttentionSpec.dcp_sharded",
    ),
    Feature(
        "lookahead",
        "hashes that cover the next token (profile lookahead)",
        lambda asked: asked.profile == "lookahead",
        "VllmConfig.num_hash_lookahead_tokens",
    ),
    Feature(
        "small-budget",
        "steps of no more tokens than a request drafts (budget)",
        lambda asked: asked.eagle and asked.budget <= asked.speculative,
        "budget above drafts",
        until=True,
    ),
)


def lacks(release: Release) -> tuple[str, ...]:
    """The names of the features that a vLLM does not have."""
    return tuple(feature.name for feature in FEATURES if not feature.is_in(release))


def profiles(release: Release) -> tuple[str, ...]:
    """The rule sets under which a vLLM runs with EAGLE, the one it uses by itself first."""
    return ("drop",) if "lookahead" in lacks(release) else ("lookahead", "drop")


def refuse(configuration: Configuration, release: Release, text: str) -> None:
    """Refuse a configuration that asks for what a vLLM does not have; `text` is its version as it says.

    Raises:
        TraceError: naming the feature.
    """
    for feature in FEATURES:
        if not feature.is_in(release) and feature.asks(configuration):
            raise TraceError(f"configuration: vLLM {text} has no {feature.words}")


def options(kind: str, release: Release, values: dict[str, Any]) -> dict[str, Any]:
    """Of the options of a class of vLLM, those that a vLLM knows."""
    return {name: value for name, value in values.items() if release.has(f"{kind}.{name}")}


def place_retention(release: Release, retention: int | None) -> None:
    """0.28 reads the retention interval from the process's environment, when a scheduler is built."""
    if release.has("KVCacheConfig.prefix_cache_retention_interval"):
        return
    if retention is None:
        os.environ.pop(RETENTION, None)
    else:
        os.environ[RETENTION] = str(retention)


def request_hasher(release: Release, unit: int, lookahead: int) -> Any:
    """vLLM's function that hashes a request's tokens; since 0.33 a hash may cover `lookahead` more tokens."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher

    if not release.has("hashing by lookahead"):
        return get_request_block_hasher(unit, sha256)
    return get_request_block_hasher(unit, sha256, num_hash_lookahead_tokens=lookahead)


def hash_lookahead(release: Release, vllm_config: Any) -> int:
    """How many tokens past its unit a hash covers, as vLLM decides it."""
    if release.has("VllmConfig.num_hash_lookahead_tokens"):
        return int(vllm_config.num_hash_lookahead_tokens)
    return 0


def hit_alignment(release: Release, layout: Any, vllm_config: Any, align: int, unit: int) -> int | None:
    """The grid of hits, in tokens, that the engine hands to its workers; none before 0.32."""
    if not release.has(f"{_UTILS}.resolve_cache_hit_alignment_tokens"):
        return None
    from vllm.v1.core.kv_cache_utils import resolve_cache_hit_alignment_tokens

    return int(resolve_cache_hit_alignment_tokens(layout, vllm_config, align, unit))


def prefill_checkpoints(release: Release, lookahead: int) -> Checkpoints:
    """vLLM's function that places exported checkpoints, with the arguments of 0.32.

    Since 0.33 it is told the hash `lookahead`, and drops nothing where there is one. 0.31 aligns to the hash
    unit only, and in 0.30 each backend does the same by itself.
    """
    if not release.has(_PLACING):
        return _checkpoints_before_031
    from vllm.model_executor.layers.mamba.checkpoint import compute_mamba_prefill_checkpoints

    if not release.has("placing by hits"):

        def checkpoints_031(*lengths: Any, cache_hit_alignment_tokens: int, **values: Any) -> Any:
            return compute_mamba_prefill_checkpoints(*lengths, **values)

        return checkpoints_031
    if not release.has("placing by lookahead"):
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
