"""Worlds: attribute bags that stand for what a lifted function reads of its scheduler, manager or request.

Each holds what the functions under proof read and no more. A function that reads something else does so from
something that a theorem says nothing about, so it counts as moved, not as wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from proofs.symbolic import Unsupported

READS = "reads"


class World:
    """A bag of attributes that refuses, by name, those that it does not hold."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "symbolic_length":
            raise AttributeError(name)
        raise Unsupported(f"{READS} {name} of {type(self).__name__}, which this theorem does not know")


@dataclass
class CacheConfig(World):
    """`block_size` is the Mamba block in tokens."""

    block_size: int


@dataclass
class SchedulerConfig(World):
    """The long-prefill threshold in tokens, 0 for none."""

    long_prefill_token_threshold: int


@dataclass
class Scheduler(World):
    """What the split of a prefill reads of the scheduler.

    `hash_block_size` is U and `block_size` is L in tokens, `max_num_scheduled_tokens` a step's whole budget.
    """

    cache_config: CacheConfig
    scheduler_config: SchedulerConfig
    max_num_scheduled_tokens: int
    use_eagle_block_drop: bool
    hash_block_size: int
    block_size: int
    mamba_partial_cache_hit: bool
    mamba_has_prefill_checkpoint_blocks: bool
    mamba_prefill_checkpoint_alignment: int | None
    mamba_shared_prefix_checkpoint: bool
    num_prefill_lookahead: int = 0


@dataclass
class Request(World):
    """A request: its prompt, its present length (longer when it resumes), and how far it is computed."""

    num_prompt_tokens: int
    num_tokens: int
    num_computed_tokens: int
    shared_prefix_boundary: int = 0
    request_id: str = "r"


@dataclass
class MambaSpec(World):
    """Layout of a Mamba group; `prefill_checkpoint_alignment` in tokens, None where nothing is exported."""

    block_size: int
    mamba_cache_mode: str = "align"
    prefill_checkpoint_alignment: int | None = None
    dcp_sharded: bool = False
    prefix_cacheable: bool = True


@dataclass
class AttentionSpec(World):
    """Layout of an attention group."""

    block_size: int
    dcp_sharded: bool = True
    prefix_cacheable: bool = True


@dataclass
class CacheGroup(World):
    """A group of layers with one layout."""

    kv_cache_spec: MambaSpec | AttentionSpec


@dataclass
class ManagerClass(World):
    """A manager class: whether it looks up hashes inside blocks."""

    supports_fine_grained_hash_lookup: bool
    name: str = "manager"

    @property
    def __name__(self) -> str:
        return self.name


@dataclass
class Block(World):
    """A block at an index of a request's table; `is_null` for a hole."""

    index: int
    is_null: bool = False
    block_hash_num_tokens: int | None = None


@dataclass
class Blocks(World):
    """A request's block table of any length, without holes unless `null`."""

    symbolic_length: int
    null: bool = False

    def __len__(self) -> int:
        return self.symbolic_length

    def __getitem__(self, index: int) -> Block:
        if index < 0 or index >= self.symbolic_length:
            raise IndexError("block index out of range")
        return Block(index, self.null)


@dataclass
class BlockPool(World):
    """A pool that notes under which lengths blocks are registered inside a block."""

    hash_block_size: int
    registered: list[tuple[int, int]] = field(default_factory=list)

    def cache_partial_block(
        self,
        request: Request,
        block: Block,
        num_tokens: int,
        kv_cache_group_id: int,
        block_size: int,
        replace_existing_hashes: bool = False,
    ) -> str:
        """Note that `block` is registered under the hash of the first `num_tokens` tokens."""
        self.registered.append((block.index, num_tokens))
        return "hash"


@dataclass
class Manager(World):
    """What registration reads of a group's manager; `block_size` in tokens.

    `drop_eagle_checkpoint_block` is the model-wide drop flag, `use_eagle` the group's own.
    """

    block_size: int
    block_pool: BlockPool
    kv_cache_spec: MambaSpec | AttentionSpec
    req_to_blocks: dict[str, Blocks]
    use_eagle: bool
    drop_eagle_checkpoint_block: bool
    cache_hit_alignment_tokens: int
    shared_prefix_checkpoint: bool = False
    has_prefill_checkpoint_blocks: bool = False
    num_speculative_blocks: int = 0
    kv_cache_group_id: int = 0
    _checkpoints: dict[str, tuple[int, int]] = field(default_factory=dict)
    _allocated_block_reqs: tuple[str, ...] = ()
    _partial_hit_reqs: dict[str, Any] = field(default_factory=dict)
    num_cached_block: dict[str, Any] = field(default_factory=dict)
    _producer_partial_tail_reqs: dict[str, Any] = field(default_factory=dict)


@dataclass
class Coordinator(World):
    """What publication reads of the coordinator of all groups; sizes in tokens."""

    enable_partial_hash_hits: bool
    scheduler_block_size: int
    num_reprefillable_tokens: int
    single_type_managers: tuple[Any, ...] = ()


@dataclass
class PublishingManager(World):
    """A group's manager as publication reads it."""

    use_eagle: bool
    block_size: int


@dataclass
class Store(World):
    """What lookup and tail saves read of the store's coordinator; sizes and margins in tokens."""

    hash_block_size: int
    lcm_block_size: int
    enable_partial_hash_hits: bool = True
    use_eagle: bool = False
    mamba_group_ids: tuple[int, ...] = (1,)
    eagle_proof_margin_by_group: Mapping[int, int] = field(default_factory=dict)


@dataclass
class Hashes(World):
    """Block hashes: only how many there are matters."""

    symbolic_length: int

    def __len__(self) -> int:
        return self.symbolic_length


@dataclass
class BlockIds(World):
    """The physical ids of a request's blocks: index + 1, so that none is the null block."""

    symbolic_length: int

    def __len__(self) -> int:
        return self.symbolic_length

    def __getitem__(self, index: int) -> int:
        if index < 0 or index >= self.symbolic_length:
            raise IndexError("block index out of range")
        return index + 1


@dataclass
class SaveRequest(World):
    """One save of a request: the prompt, what is computed by the end of the step, hashes and blocks."""

    num_prompt_tokens: int
    completed_token_len: int
    block_hashes: Hashes
    block_ids: tuple[Any, ...]
    publish_partial_tail: bool
    boundary_puts: list[BoundaryPut] | None = None


@dataclass
class BoundaryPut(World):
    """A block that is stored under the hash of the request's first `num_tokens` tokens."""

    group_id: int
    block_id: int
    num_tokens: int


@dataclass
class Tracker(World):
    """A request as the connector's scheduler tracks it; lengths in tokens."""

    token_len: int
    num_saved_tokens: int
    partial_tail_sent: bool
    allocated_block_ids: tuple[Any, ...] = ()
    token_ids: list[int] | None = None
    prefill_end_tokens: int = 0
    req_id: str = "r"


@dataclass
class SaveMeta(World):
    """What the connector's scheduler tells the workers about one save."""

    req_id: str
    token_len_chunk: int
    block_ids: tuple[Any, ...]
    can_save: bool
    load_spec: Any
    block_hashes: Any
    token_ids: Any
    token_ids_start: int
    num_prompt_tokens: int | None
    prefill_end_tokens: int
    completed_token_len: int
    publish_partial_tail: bool


class Quiet(World):
    """A logger that says nothing."""

    def debug(self, *_: object) -> None:
        """Nothing."""

    def warning_once(self, *_: object) -> None:
        """Nothing."""


def iter_layer_specs(spec: Any) -> tuple[Any, ...]:
    """The layouts of a group's layers: here all of a group have one."""
    return (spec,)


SCOPE: Mapping[str, Any] = {
    "NULL_BLOCK_ID": 0,
    "BoundaryPut": BoundaryPut,
    "MambaSpec": MambaSpec,
    "ReqMeta": SaveMeta,
    "iter_layer_specs": iter_layer_specs,
    "logger": Quiet(),
}
