"""Builds vLLM's own configuration objects from a trace's configuration."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from adapters.vllm import boundaries
from spec.trace import Configuration

MODEL_LENGTH = 65_536
_MODEL = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 8,
    "ffn_dim": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "word_embed_proj_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": MODEL_LENGTH,
}
QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_TARGET_DEVICE": "cpu",
    "HF_HUB_OFFLINE": "1",
}


class ConfigurationFactory:
    """Makes a `VllmConfig` per configuration. The first one of a process costs seconds, so one is kept for
    each of EAGLE on and off, and its fields are set anew for every case."""

    def __init__(self, release: boundaries.Release) -> None:
        self._release = release
        self._kept: dict[bool, Any] = {}
        self._events: Any = None

    def vllm_config(self, configuration: Configuration) -> Any:
        """The `VllmConfig` of a configuration; valid until the next call."""
        config = self._kept.get(configuration.eagle)
        if config is None:
            config = self._kept[configuration.eagle] = _fresh_vllm_config(configuration.eagle)
        mamba_block = next(group.block for group in configuration.groups if group.kind == "mamba")
        scheduler, cache = config.scheduler_config, config.cache_config
        scheduler.max_num_seqs = configuration.live
        scheduler.max_num_batched_tokens = configuration.budget
        scheduler.max_num_scheduled_tokens = configuration.budget
        scheduler.long_prefill_token_threshold = configuration.long_prefill
        scheduler.policy = configuration.policy
        scheduler.async_scheduling = configuration.asynchronous
        # As the engine core does once the groups are known (vllm/v1/engine/core.py).
        cache.block_size = min(group.block for group in configuration.groups)
        cache.mamba_block_size = mamba_block
        cache.mamba_cache_mode = "align"
        cache.prefix_match_unit = configuration.unit
        cache.num_gpu_blocks = configuration.blocks
        cache.enable_prefix_caching = True
        if self._release.has("CacheConfig.enable_mamba_shared_prefix_checkpoint"):
            cache.enable_mamba_shared_prefix_checkpoint = configuration.junctions
        config.parallel_config.decode_context_parallel_size = configuration.dcp
        config.kv_events_config = self._events_config() if configuration.events else None
        if configuration.eagle:
            speculative = config.speculative_config
            speculative.num_speculative_tokens = configuration.speculative
            # A draft model would have to exist on disk; the scheduler only asks which method it is, and how
            # many modules it has.
            speculative.method = "mtp" if configuration.multi_module else "eagle"
            speculative.draft_model_config = _Modules(configuration.speculative)
            if self._release.has("SpeculativeConfig.disable_lookahead_block_hashes"):
                speculative.disable_lookahead_block_hashes = configuration.profile != "lookahead"
        return config

    def _events_config(self) -> Any:
        from vllm.config.kv_events import KVEventsConfig

        if self._events is None:
            self._events = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        return self._events


class _Modules:
    """What the scheduler reads of a draft model's configuration."""

    def __init__(self, count: int) -> None:
        self.hf_config = self
        self.num_nextn_predict_layers = count


def _fresh_vllm_config(eagle: bool) -> Any:
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        ModelConfig,
        SchedulerConfig,
        SpeculativeConfig,
        VllmConfig,
    )

    with tempfile.TemporaryDirectory(prefix="tailproof-model-") as folder:
        Path(folder, "config.json").write_text(json.dumps(_MODEL))
        return VllmConfig(
            model_config=ModelConfig(
                model=folder,
                dtype="float32",
                seed=0,
                skip_tokenizer_init=True,
                max_model_len=MODEL_LENGTH,
            ),
            cache_config=CacheConfig(block_size=16, cache_dtype="auto", enable_prefix_caching=True),
            scheduler_config=SchedulerConfig(
                max_num_seqs=16,
                max_num_batched_tokens=MODEL_LENGTH,
                max_model_len=MODEL_LENGTH,
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
                async_scheduling=False,
            ),
            speculative_config=(
                SpeculativeConfig(method="ngram", num_speculative_tokens=1) if eagle else None
            ),
            device_config=DeviceConfig("cpu"),
        )


def kv_cache_config(configuration: Configuration, release: boundaries.Release) -> Any:
    """The `KVCacheConfig` of a configuration: one layer per group, no tensors."""
    import torch
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
        SlidingWindowSpec,
    )

    groups = []
    for index, group in enumerate(configuration.groups):
        if group.kind == "full":
            spec: Any = FullAttentionSpec(
                block_size=group.block,
                num_kv_heads=1,
                head_size=1,
                dtype=torch.float32,
                **boundaries.options("FullAttentionSpec", release, {"dcp_sharded": not group.replicated}),
            )
        elif group.kind == "window":
            spec = SlidingWindowSpec(
                block_size=group.block,
                num_kv_heads=1,
                head_size=1,
                dtype=torch.float32,
                sliding_window=group.window,
                extra_retained_tokens=max(configuration.speculative - 1, 0) * configuration.multi_module,
            )
        else:
            exports = {
                "num_prefill_checkpoint_blocks": int(group.checkpoint_alignment is not None),
                "prefill_checkpoint_alignment": group.checkpoint_alignment,
            }
            spec = MambaSpec(
                block_size=group.block,
                shapes=((1, 1),),
                dtypes=(torch.float32,),
                mamba_cache_mode="align",
                num_speculative_blocks=configuration.speculative,
                **boundaries.options("MambaSpec", release, exports),
            )
        groups.append(KVCacheGroupSpec([f"layer{index}"], spec, is_eagle_group=group.draft))
    retention = {"prefix_cache_retention_interval": configuration.retention}
    return KVCacheConfig(
        num_blocks=configuration.blocks,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        **boundaries.options("KVCacheConfig", release, retention),
    )


def quiet_environment() -> None:
    """Settings that vLLM reads from the environment, where the user has not set them."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
