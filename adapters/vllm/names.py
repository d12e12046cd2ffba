"""Every name of vLLM that the adapter uses, and the check that they are all there."""

from __future__ import annotations

import importlib
from typing import Any

from adapters.protocol import MovedError
from adapters.vllm import boundaries

# What the adapter stands in for; everything else is the real system.
REPLACED = (
    "model forward (d, e): exact hybrid model",
    "model runner: zeroing (a), Mamba state copies (c, g), placing of exported checkpoints (f)",
    "drafter and sampler: a function of the prefix, accepted as the trace says",
    "KVCacheManager.get_computed_blocks, BlockPool.get_new_blocks: watched, the calls go through unchanged",
    "KV event publisher: keeps what it is given",
    "encoder: its budget and cache have the size that the trace gives them; it encodes nothing",
    "engine core: its order of schedule and update, its sizes of blocks and units",
)

NAMES: dict[str, tuple[str, ...]] = {
    "vllm.config": (
        "CacheConfig",
        "DeviceConfig",
        "ModelConfig",
        "SchedulerConfig",
        "SpeculativeConfig",
        "VllmConfig",
    ),
    "vllm.config.kv_events": ("KVEventsConfig",),
    "vllm.distributed.kv_events": ("AllBlocksCleared", "BlockRemoved", "BlockStored"),
    "vllm.lora.request": ("LoRARequest",),
    "vllm.multimodal.inputs": ("MultiModalFeatureSpec", "PlaceholderRange"),
    "vllm.model_executor.layers.mamba.checkpoint": ("compute_mamba_prefill_checkpoints",),
    "vllm.sampling_params": ("SamplingParams",),
    "vllm.utils.hashing": ("sha256",),
    "vllm.v1.core.kv_cache_utils": (
        "get_block_hash",
        "get_group_id",
        "get_request_block_hasher",
        "init_none_hash",
        "maybe_convert_block_hash",
        "resolve_cache_hit_alignment_tokens",
        "resolve_kv_cache_block_sizes",
    ),
    "vllm.v1.core.sched.async_scheduler": ("AsyncScheduler.schedule",),
    "vllm.v1.core.sched.scheduler": (
        "Scheduler.add_request",
        "Scheduler.finish_requests",
        "Scheduler.reset_prefix_cache",
        "Scheduler.schedule",
        "Scheduler.update_draft_token_ids",
        "Scheduler.update_from_output",
    ),
    "vllm.v1.core.encoder_cache_manager": ("EncoderCacheManager",),
    "vllm.v1.core.block_pool": ("BlockPool.get_num_free_blocks", "BlockHashToBlockMap"),
    "vllm.v1.kv_cache_interface": (
        "FullAttentionSpec",
        "KVCacheConfig",
        "KVCacheGroupSpec",
        "MambaSpec",
        "SlidingWindowSpec",
    ),
    "vllm.v1.outputs": ("DraftTokenIds", "ModelRunnerOutput"),
    "vllm.v1.request": ("Request", "RequestStatus.FINISHED_ABORTED"),
    "vllm.v1.structured_output": ("StructuredOutputManager",),
    "vllm.v1.worker.utils": ("copy_kv_cache_blocks_inplace",),
}

INSTANCE_NAMES: dict[str, tuple[str, ...]] = {
    "Scheduler": (
        "encoder_cache_manager",
        "kv_cache_manager",
        "kv_event_publisher",
        "max_num_encoder_input_tokens",
        "requests",
        "running",
        "waiting",
    ),
    "KVCacheManager": ("block_pool", "coordinator", "get_computed_blocks"),
    "KVCacheCoordinator": ("enable_partial_hash_hits", "single_type_managers"),
    "BlockPool": ("cached_block_hash_to_block", "free_block_queue", "get_new_blocks"),
    "FreeKVCacheBlockQueue": ("fake_free_list_head", "fake_free_list_tail"),
    "BlockHashToBlockMap": ("_cache",),
    "SchedulerOutput": (
        "kv_cache_block_copies",
        "new_block_ids_to_zero",
        "num_scheduled_tokens",
        "preempted_req_ids",
        "scheduled_cached_reqs",
        "scheduled_new_reqs",
        "scheduled_spec_decode_tokens",
    ),
    "CachedRequestData": (
        "new_block_ids",
        "num_computed_tokens",
        "num_output_tokens",
        "req_ids",
        "resumed_req_ids",
    ),
    "Request": ("all_token_ids", "block_hashes", "num_tokens", "prefill_stats", "shared_prefix_boundary"),
    "MooncakeStoreScheduler": ("_pinned_saves", "client"),
    "LookupKeyClient": ("ctx", "executor", "futures", "lookup", "socket"),
    "MooncakeStoreWorker": ("kv_recv_threads", "kv_send_thread", "lookup_server", "recv_request_queue"),
    "LookupKeyServer": ("ctx", "running", "socket", "thread"),
}

# What the store tier uses beside, checked when it is first opened.
_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector"
_STORE = f"{_CONNECTOR}.v1.mooncake.store"
STORE_NAMES: dict[str, tuple[str, ...]] = {
    "vllm.config": ("KVTransferConfig", "set_current_vllm_config"),
    "vllm.distributed.kv_transfer.kv_transfer_state": ("ensure_kv_transfer_initialized",),
    "vllm.distributed.parallel_state": ("init_distributed_environment", "initialize_model_parallel"),
    f"{_CONNECTOR}.factory": ("KVConnectorFactory.create_connector",),
    f"{_CONNECTOR}.v1": ("KVConnectorRole.WORKER",),
    f"{_STORE}.worker": ("KVCacheStoreSendingThread", "LookupKeyClient.lookup", "queue"),
    "vllm.forward_context": ("set_forward_context",),
    "vllm.v1.core.sched.scheduler": ("Scheduler.reset_connector_cache",),
    "vllm.v1.worker.cpu.shm": (),
    "vllm.v1.worker.kv_connector_model_runner_mixin": (
        "KVConnectorModelRunnerMixin._get_kv_connector_output",
    ),
}
STORE_REPLACED = (
    "store tier, store client: a gate before the real one; clients are kept from case to case",
    "store tier, connector: its transfer queues count, its lookups and loads are watched, the calls go "
    "through unchanged",
    "store tier, CUDA events and streams: vLLM's own CPU stand-ins (vllm.v1.worker.cpu.shm)",
)


def missing_names(release: boundaries.Release, table: dict[str, tuple[str, ...]] = NAMES) -> list[str]:
    """The names of a table that this vLLM does not have though a release like it should, dotted."""
    missing = []
    for module, names in table.items():
        if not release.owes(module):
            continue
        try:
            found: Any = importlib.import_module(module)
        except ImportError as problem:
            if problem.name is None or not problem.name.startswith("vllm"):
                raise
            missing.append(module)
            continue
        for name in names:
            if not release.owes(f"{module}.{name}"):
                continue
            value = found
            for part in name.split("."):
                value = getattr(value, part, None)
            # An abstract method of a base class is a name without what it stands for.
            if value is None or getattr(value, "__isabstractmethod__", False):
                missing.append(f"{module}.{name}")
    return missing


def check_instance(kind: str, value: object, version: str) -> None:
    """Check the attributes that the adapter reads of one object of the target.

    Raises:
        MovedError: naming those that are missing.
    """
    missing = [f"{kind}.{name}" for name in INSTANCE_NAMES[kind] if not hasattr(value, name)]
    if missing:
        raise MovedError(version, missing)
