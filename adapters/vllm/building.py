"""Builds what an engine is made of: a real scheduler in a configuration, and the real requests for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adapters.protocol import AdapterError
from adapters.vllm import boundaries
from adapters.vllm.setup import MODEL_LENGTH, ConfigurationFactory, kv_cache_config
from adapters.vllm.side import Side
from spec.geometry import Geometry
from spec.trace import Configuration, Submit, TraceError, prompt_length

# Room for the encoder where a trace sets no bound, tokens.
_ROOM = 1 << 30
Units = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class Target:
    """The vLLM that is imported: its version, what sets it apart from others, and its configurations."""

    version: str
    release: boundaries.Release
    factory: ConfigurationFactory


def build_scheduler(
    target: Target, configuration: Configuration, geometry: Geometry, side: Side, memory: Any
) -> tuple[Any, Units]:
    """A scheduler, and the hash unit and the grid of hits that vLLM hands to its workers, in tokens.

    `memory` is the tensor of all blocks, for the worker's half of a connector.

    Raises:
        AdapterError: when vLLM resolves other sizes than the spec does.
    """
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.structured_output import StructuredOutputManager

    vllm_config = side.configured(target.factory.vllm_config(configuration), configuration)
    layout = kv_cache_config(configuration, target.release)
    boundaries.place_retention(target.release, configuration.retention)
    align, unit = resolve_kv_cache_block_sizes(layout, vllm_config)
    if (align, unit) != (geometry.align, geometry.unit):
        raise AdapterError(
            f"vLLM {target.version} resolves alignment {align} and unit {unit}, the spec "
            f"{geometry.align} and {geometry.unit}"
        )
    lookahead = boundaries.hash_lookahead(target.release, vllm_config)
    if lookahead != geometry.hash_lookahead:
        raise AdapterError(
            f"vLLM {target.version} covers {lookahead} tokens past a unit with its hash, the spec "
            f"{geometry.hash_lookahead}"
        )
    grid = boundaries.hit_alignment(target.release, layout, vllm_config, align, unit)
    units = unit, grid
    side.attach(vllm_config, layout, units, memory)
    manager = getattr(vllm_config, "_tailproof_grammar", None)
    if manager is None:
        manager = StructuredOutputManager(vllm_config)
        object.__setattr__(vllm_config, "_tailproof_grammar", manager)
    kind: Any = AsyncScheduler if configuration.asynchronous else Scheduler
    scheduler = kind(
        vllm_config=vllm_config,
        kv_cache_config=layout,
        structured_output_manager=manager,
        block_size=align,
        hash_block_size=unit,
        log_stats=True,
    )
    # The model of the configuration takes text only, so vLLM gives its encoder no room.
    room = configuration.encoder or _ROOM
    scheduler.max_num_encoder_input_tokens = room
    scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=room)
    return scheduler, units


class Requests:
    """Makes vLLM's requests of one case, in the order of their arrival."""

    def __init__(self, target: Target, configuration: Configuration, geometry: Geometry) -> None:
        from vllm.lora.request import LoRARequest
        from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        self._hasher = boundaries.request_hasher(target.release, configuration.unit, geometry.hash_lookahead)
        self._room = MODEL_LENGTH - configuration.speculative - 1
        self._arrivals = 0
        self._adapters: dict[str, int] = {}
        self._request: Any = Request
        self._sampling_params: Any = SamplingParams
        self._lora_request: Any = LoRARequest
        self._feature: Any = MultiModalFeatureSpec
        self._placeholder: Any = PlaceholderRange

    def refuse(self, at: int, step: Submit) -> None:
        """Refuse a request that no model of the configuration takes.

        Raises:
            TraceError: when it is too long.
        """
        if prompt_length(step.prompt) + step.outputs > self._room:
            raise TraceError(f"steps[{at}] (submit): prompt and outputs exceed {self._room} tokens")

    def make(self, step: Submit, tokens: list[int]) -> Any:
        """The request for a step of a trace with these prompt tokens."""
        self._arrivals += 1
        return self._request(
            request_id=step.id,
            prompt_token_ids=tokens,
            sampling_params=self._sampling_params(max_tokens=step.outputs, ignore_eos=True),
            pooling_params=None,
            arrival_time=float(self._arrivals),
            priority=step.priority,
            cache_salt=step.salt,
            lora_request=self._adapter(step.adapter),
            mm_features=self._features(step),
            block_hasher=self._hasher,
        )

    def _adapter(self, name: str | None) -> Any:
        if name is None:
            return None
        number = self._adapters.setdefault(name, len(self._adapters) + 1)
        return self._lora_request(lora_name=name, lora_int_id=number, lora_path=name)

    def _features(self, step: Submit) -> list[Any]:
        return [
            self._feature(
                data=None, modality="image", identifier=name, mm_position=self._placeholder(start, length)
            )
            for name, start, length in step.media
        ]
