"""What one planted fault of the real vLLM is: where, what changes, and which rule must see it."""

from __future__ import annotations

from dataclasses import dataclass

from tailproof.planted.vllm.edits import Edit
from tailproof.planted.vllm.shape import Shape

# The modules that are mutated, inside the vllm package.
MANAGERS = "v1/core/single_type_kv_cache_manager.py"
COORDINATOR = "v1/core/kv_cache_coordinator.py"
MANAGER = "v1/core/kv_cache_manager.py"
POOL = "v1/core/block_pool.py"
SIZES = "v1/core/kv_cache_utils.py"
SCHEDULER = "v1/core/sched/scheduler.py"
ASYNCHRONOUS = "v1/core/sched/async_scheduler.py"
ENDS = "v1/core/sched/utils.py"
POSITIONS = "v1/kv_cache_interface.py"
EXPORTS = "model_executor/layers/mamba/checkpoint.py"
COPIES = "v1/worker/utils.py"
_STORE = "distributed/kv_transfer/kv_connector/v1/mooncake/store"
TAILS = f"{_STORE}/scheduler.py"
TRANSFERS = f"{_STORE}/data.py"


@dataclass(frozen=True, slots=True)
class SystemMutant:
    """One single-place change.

    `text` says in words what it does, `file` and `function` (qualified name) where, `place` at which shape,
    `edit` how. `rules` are those that may be named when it is seen. `equivalent`, when given, is the reason
    why no run can tell it from the original, `hole` why fuzzing misses it. `tier` is the tier that runs the
    function.
    """

    name: str
    text: str
    file: str
    function: str
    place: Shape
    edit: Edit
    rules: tuple[str, ...]
    equivalent: str = ""
    tier: str = "core"
    hole: str = ""
