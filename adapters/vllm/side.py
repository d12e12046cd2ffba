"""What an engine does with a store, asked by the engine at fixed places; this one has no store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from adapters.memory import Content
from adapters.vllm.reading import Prefixes
from spec.observation import Observation
from spec.trace import Configuration

if TYPE_CHECKING:
    from adapters.vllm.runner import Sampled


class Side:
    """The side of an engine without a store: nothing is attached, waited for or seen.

    `idle_steps` is how many steps without progress count as stuck, `prefixes` what names hashes where the
    engines of a case share it.
    """

    idle_steps = 3
    prefixes: Prefixes | None = None

    def configured(self, vllm_config: Any, configuration: Configuration) -> Any:
        """The configuration of vLLM, with a connector in it if there is one."""
        return vllm_config

    def attach(self, vllm_config: Any, layout: Any, units: tuple[int, int | None], memory: Any) -> None:
        """Set up the worker's half; `units` are the hash unit and the grid of hits, in tokens."""

    def join(self, engine: Any) -> None:
        """Take note of the engine (`adapters.vllm.engine.Engine`), whose scheduler stands now."""

    def submitted(self, request: str, content: Content) -> None:
        """A request has arrived, whose cache must hold this."""

    def execute(self, output: Any, forward: Callable[[], dict[str, Sampled]]) -> dict[str, Sampled]:
        """The worker's part of a step around its forward; what was sampled, by request."""
        return forward()

    def answer(self) -> dict[str, Any]:
        """What the worker's answer to the scheduler holds beside the samples."""
        return {}

    def promoted(self, scheduled: Sequence[str]) -> set[str]:
        """Of the scheduled requests those that left the queue in an earlier step."""
        return set()

    def opens(self) -> bool:
        """Let what is held at the gates go, before a settle; whether anything was."""
        return False

    def holds_blocks(self) -> bool:
        """Whether loads or saves hold blocks."""
        return False

    def unsettled(self) -> bool:
        """Whether anything but requests is left to wait for."""
        return False

    def moved(self, observation: Observation) -> bool:
        """Whether a step brought loads or saves forward."""
        return False

    def seen(self) -> dict[str, Any]:
        """What an observation holds beside what the engine shows; asked once for each."""
        return {}

    def close(self) -> None:
        """Give up what the case held."""
