"""The Trace: one readable, versioned history that any system under test can be asked to run.

A trace fixes every token of a run. Prompts are written as named segments, so that what two requests
share is visible; output tokens are a function of the prefix (`reference.exact_model`). Lengths are in
tokens unless a field says otherwise. Decoding from JSON lives in `adapters.protocol`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

FORMAT = 1
KINDS = ("full", "window", "mamba")
POLICIES = ("fcfs", "priority")
STORES = ("off",)
GATE_KINDS = ("put", "get")
GATE_ACTIONS = ("hold", "release", "fail")
TOKEN_SPACE = 2_000_000_011
LONGEST_SEGMENT = 1_000_000
TURN = "@"


class TraceError(ValueError):
    """A trace that cannot be run; the text is one line that says what is wrong and where."""


@dataclass(frozen=True, slots=True)
class Group:
    """One KV cache group: the layers that share a block table.

    `block` is in tokens, before any scaling by DCP. `draft` marks the layers of the draft model.
    `checkpoint_alignment` (Mamba only) is the alignment in tokens at which a backend can export one
    state inside a prefill chunk; None means that states are kept at chunk ends only. `window` (kind window
    only) is the sliding window in tokens, the token itself included. `replicated` (draft groups only) tells
    that DCP does not shard the group.
    """

    kind: str
    block: int
    draft: bool = False
    checkpoint_alignment: int | None = None
    window: int | None = None
    replicated: bool = False


@dataclass(frozen=True, slots=True)
class Configuration:
    """The setting of the system under test.

    `unit` is the hash unit U; `speculative` the draft tokens per decode step; `retention` the Mamba
    retention interval in tokens (None keeps every multiple of the block, 0 only what is reachable);
    `blocks` the pool size in blocks, null block included; `budget` the tokens per step; `long_prefill`
    the cap in tokens on one request's share of a step while others wait (0: none); `live` the most
    requests running at once. `multi_module` gives each draft token a module of its own (MTP), each reading
    one token further ahead; `asynchronous` schedules a step before the outputs of the one before it are
    known; `events` publishes KV events.
    """

    groups: tuple[Group, ...]
    unit: int
    eagle: bool = False
    speculative: int = 0
    multi_module: bool = False
    dcp: int = 1
    retention: int | None = 0
    junctions: bool = False
    blocks: int = 512
    budget: int = 8192
    long_prefill: int = 0
    live: int = 8
    policy: str = "fcfs"
    asynchronous: bool = False
    events: bool = False
    store: str = "off"
    profile: str = "drop"


@dataclass(frozen=True, slots=True)
class Submit:
    """A request arrives. `prompt` is a sequence of (segment name, tokens taken from its start); the segment
    `@ID` is everything of an earlier request: its prompt and its outputs (a next turn)."""

    id: str
    prompt: tuple[tuple[str, int], ...]
    outputs: int = 1
    priority: int = 0
    salt: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """`steps` engine steps, each exactly one schedule and one update; of the drafts that a decode
    step verifies, the first `accept` are accepted."""

    steps: int = 1
    accept: int = 0


@dataclass(frozen=True, slots=True)
class Abort:
    """The client of request `id` goes away. Aborting a request that has ended already does nothing."""

    id: str


@dataclass(frozen=True, slots=True)
class ResetLocal:
    """The local prefix cache is emptied; with `running`, running requests are preempted first."""

    running: bool = False


@dataclass(frozen=True, slots=True)
class ResetStore:
    """The external store is emptied."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Transfers of one `kind` (put or get) are held, released, or made to fail."""

    kind: str
    action: str


@dataclass(frozen=True, slots=True)
class DropKeys:
    """The external store loses `count` of its keys, the most recently stored first."""

    count: int


@dataclass(frozen=True, slots=True)
class KillMaster:
    """The store's master process is killed."""


@dataclass(frozen=True, slots=True)
class RestartMaster:
    """The store's master process is started again, empty."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Engine steps until no request is left, bounded; `accept` as in Run."""

    accept: int = 0


Step = Submit | Run | Abort | ResetLocal | ResetStore | Gate | DropKeys | KillMaster | RestartMaster | Settle

STEPS: dict[str, type[Step]] = {
    "submit": Submit,
    "run": Run,
    "abort": Abort,
    "reset_local": ResetLocal,
    "reset_store": ResetStore,
    "gate": Gate,
    "drop_keys": DropKeys,
    "kill_master": KillMaster,
    "restart_master": RestartMaster,
    "settle": Settle,
}
NAMES: dict[type[Step], str] = {step: name for name, step in STEPS.items()}
STORE_STEPS = (ResetStore, Gate, DropKeys, KillMaster, RestartMaster)


@dataclass(frozen=True, slots=True)
class Trace:
    """A configuration and the steps to run under it."""

    configuration: Configuration
    steps: tuple[Step, ...]
    format: int = FORMAT
    note: str = ""

    def submits(self) -> Iterator[Submit]:
        """The submit steps, in order."""
        return (step for step in self.steps if isinstance(step, Submit))


def prompt_length(prompt: Sequence[tuple[str, int]]) -> int:
    """Tokens of a prompt."""
    return sum(length for _, length in prompt)


def prompt_tokens(
    prompt: Sequence[tuple[str, int]], turns: Mapping[str, Sequence[int]] | None = None
) -> list[int]:
    """Token ids of a prompt: the i-th token of a segment depends on the segment's name and i only.

    `turns` holds the tokens of earlier requests, prompt and outputs, for segments that continue them.
    """
    tokens: list[int] = []
    for name, length in prompt:
        if name.startswith(TURN):
            tokens.extend((turns or {})[name.removeprefix(TURN)][:length])
            continue
        tokens.extend(_segment(name, length))
    return tokens


@lru_cache(maxsize=512)
def _segment(name: str, length: int) -> tuple[int, ...]:
    base = zlib.crc32(name.encode()) * 65_537 % TOKEN_SPACE
    return tuple([(base + index * 48_271) % TOKEN_SPACE + 3 for index in range(length)])


def validate(trace: Trace) -> None:
    """Refuse a trace that no system could run as written.

    Geometry (which group layouts exist) is checked by `spec.geometry.Geometry.of`.

    Raises:
        TraceError: with one line naming the step and what is wrong with it.
    """
    configuration = trace.configuration
    if trace.format != FORMAT:
        raise TraceError(f"format {trace.format} is not supported, this version reads format {FORMAT}")
    _check_configuration(configuration)
    if not trace.steps:
        raise TraceError("steps: a trace needs at least one step")
    seen: dict[str, int] = {}
    for index, step in enumerate(trace.steps):
        where = f"steps[{index}] ({NAMES[type(step)]})"
        if isinstance(step, STORE_STEPS) and configuration.store == "off":
            raise TraceError(f"{where}: needs a store, but configuration.store is 'off'")
        if isinstance(step, Submit):
            _check_submit(step, where, seen)
            seen[step.id] = prompt_length(step.prompt) + step.outputs
        elif isinstance(step, Abort) and step.id not in seen:
            raise TraceError(f"{where}: request {step.id!r} was never submitted before this step")
        elif isinstance(step, Run) and step.steps < 1:
            raise TraceError(f"{where}: steps must be 1 or more, got {step.steps}")
        if isinstance(step, Run | Settle) and not 0 <= step.accept <= configuration.speculative:
            raise TraceError(
                f"{where}: accept must lie in 0..{configuration.speculative} (configuration.speculative), "
                f"got {step.accept}"
            )


def _check_configuration(configuration: Configuration) -> None:
    for name, low in (("blocks", 2), ("budget", 1), ("live", 1), ("long_prefill", 0), ("speculative", 0)):
        value = getattr(configuration, name)
        if value < low:
            raise TraceError(f"configuration.{name}: must be {low} or more, got {value}")
    if configuration.policy not in POLICIES:
        raise TraceError(f"configuration.policy: {configuration.policy!r} is none of {', '.join(POLICIES)}")
    if configuration.store not in STORES:
        raise TraceError(
            f"configuration.store: {configuration.store!r} is not supported yet, only 'off' (the store tier "
            "joins later)"
        )


def _check_submit(step: Submit, where: str, seen: Mapping[str, int]) -> None:
    if not step.id:
        raise TraceError(f"{where}: id must not be empty")
    if step.id in seen:
        raise TraceError(f"{where}: request {step.id!r} was submitted before")
    if step.salt == "":
        raise TraceError(f"{where}: salt must not be empty, leave it out for no salt")
    if not step.prompt:
        raise TraceError(f"{where}: prompt needs at least one segment")
    for name, length in step.prompt:
        if not 1 <= length <= LONGEST_SEGMENT:
            raise TraceError(
                f"{where}: segment {name!r} has length {length}, it must lie in 1..{LONGEST_SEGMENT}"
            )
        if name.startswith(TURN):
            longest = seen.get(name.removeprefix(TURN))
            if longest is None:
                raise TraceError(
                    f"{where}: segment {name!r} continues a request that was not submitted before"
                )
            if length > longest:
                raise TraceError(
                    f"{where}: segment {name!r} has length {length}, that request has {longest} tokens in all"
                )
    if step.outputs < 1:
        raise TraceError(f"{where}: outputs must be 1 or more, got {step.outputs}")
