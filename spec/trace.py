"""The Trace: one readable, versioned history that any system under test can be asked to run.

A trace fixes every token of a run. Prompts are written as named segments, so that what two requests
share is visible; output tokens are a function of the prefix (`spec.exact_model`). Lengths are in
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
STORES = ("off", "producer", "consumer", "both")
LOAD_FAILURES = ("recompute", "fail")
GATE_KINDS = ("put", "get", "lookup")
GATE_ACTIONS = ("hold", "release", "newest", "fail", "raise", "part", "full")
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

    `store` is the role of the engine towards an external store, `second` that of a second engine of the
    same kind on the same store ("off": there is none). `lookup_async` looks the store up beside the schedule,
    `decode_saves` also saves what is decoded, `receivers` are the threads that load, and `load_failures`
    tells what becomes of a request whose load failed: computed anew, or ended with an error.

    `encoder` bounds the tokens of media that a step may encode, and those that stay encoded (0: no bound).
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
    second: str = "off"
    lookup_async: bool = False
    decode_saves: bool = False
    receivers: int = 1
    load_failures: str = "recompute"
    encoder: int = 0
    profile: str = "drop"

    @property
    def roles(self) -> tuple[str, ...]:
        """The store role of each engine."""
        return (self.store,) if self.second == "off" else (self.store, self.second)


@dataclass(frozen=True, slots=True)
class Submit:
    """A request arrives. `prompt` is a sequence of (segment name, tokens taken from its start); the segment
    `@ID` is everything of an earlier request: its prompt and its outputs (a next turn).

    What tokens mean depends on `salt`, on `adapter` (the name of the adapter that computes them) and on
    `media`: items of (name, start, length), images say, that stand behind the prompt's tokens
    [start, start + length)."""

    id: str
    prompt: tuple[tuple[str, int], ...]
    outputs: int = 1
    priority: int = 0
    salt: str | None = None
    engine: int = 0
    adapter: str | None = None
    media: tuple[tuple[str, int, int], ...] = ()

    @property
    def root(self) -> str | None:
        """What the empty prefix stands under: salt and adapter, told apart; None without either."""
        return self.salt if self.adapter is None else f"{self.salt or ''}\0{self.adapter}"


@dataclass(frozen=True, slots=True)
class Run:
    """`steps` engine steps, each exactly one schedule and one update; of the drafts that a decode
    step verifies, the first `accept` are accepted."""

    steps: int = 1
    accept: int = 0
    engine: int = 0


@dataclass(frozen=True, slots=True)
class Abort:
    """The client of request `id` goes away. Aborting a request that has ended already does nothing."""

    id: str


@dataclass(frozen=True, slots=True)
class ResetLocal:
    """The local prefix cache is emptied; with `running`, running requests are preempted first."""

    running: bool = False
    engine: int = 0


@dataclass(frozen=True, slots=True)
class ResetStore:
    """The external store is emptied by way of an engine, which lets its saves and lookups end first: what its
    gates hold is released."""

    engine: int = 0


@dataclass(frozen=True, slots=True)
class Gate:
    """What an engine asks of the store, calls of one `kind` (put, get or lookup), from now on is held back
    (`hold`), goes through (`release`, those held first, in order), or gets an error: for all its keys
    (`fail`), by an exception (`raise`), for its last key only (`part`), or for want of room (`full`, puts
    only). Errors come to what is held too. `newest` lets the latest of the held calls go first and goes on
    holding."""

    kind: str
    action: str
    engine: int = 0


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
    """Engine steps until no request, load or save is left, bounded; `accept` as in Run. What gates hold is
    released first."""

    accept: int = 0
    engine: int = 0


# Segments, each with its length in tokens.
Prompt = tuple[tuple[str, int], ...]
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


def first_tokens(prompt: Prompt, length: int) -> Prompt:
    """The first `length` tokens of a prompt."""
    kept: list[tuple[str, int]] = []
    for name, tokens in prompt:
        if length <= 0:
            break
        kept.append((name, min(tokens, length)))
        length -= tokens
    return tuple(kept)


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
    items: dict[str, int] = {}
    for index, step in enumerate(trace.steps):
        where = f"steps[{index}] ({NAMES[type(step)]})"
        if isinstance(step, STORE_STEPS) and configuration.store == "off":
            raise TraceError(f"{where}: needs a store, but configuration.store is 'off'")
        engine = getattr(step, "engine", 0)
        if not 0 <= engine < len(configuration.roles):
            raise TraceError(
                f"{where}: engine must lie in 0..{len(configuration.roles) - 1}, got {engine} (a second "
                "engine needs configuration.second)"
            )
        if isinstance(step, Gate):
            _check_gate(step, where, configuration)
        if isinstance(step, DropKeys) and step.count < 1:
            raise TraceError(f"{where}: count must be 1 or more, got {step.count}")
        if isinstance(step, Submit):
            _check_submit(step, where, seen)
            _check_media(step, where, configuration, items)
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
    for name, low in (
        ("blocks", 2),
        ("budget", 1),
        ("live", 1),
        ("long_prefill", 0),
        ("speculative", 0),
        ("encoder", 0),
    ):
        value = getattr(configuration, name)
        if value < low:
            raise TraceError(f"configuration.{name}: must be {low} or more, got {value}")
    if configuration.policy not in POLICIES:
        raise TraceError(f"configuration.policy: {configuration.policy!r} is none of {', '.join(POLICIES)}")
    for name, values in (("store", STORES), ("second", STORES), ("load_failures", LOAD_FAILURES)):
        if getattr(configuration, name) not in values:
            raise TraceError(
                f"configuration.{name}: {getattr(configuration, name)!r} is none of {', '.join(values)}"
            )
    if configuration.receivers < 1:
        raise TraceError(f"configuration.receivers: must be 1 or more, got {configuration.receivers}")
    _check_store(configuration)


def _check_store(configuration: Configuration) -> None:
    if configuration.store == "off":
        if configuration.second != "off":
            raise TraceError("configuration.second: a second engine needs configuration.store")
        return
    for name, why in (
        ("asynchronous", "asynchronous scheduling"),
        ("events", "KV events"),
        ("multi_module", "multi-module MTP"),
    ):
        if getattr(configuration, name):
            raise TraceError(f"configuration.{name}: {why} is not followed together with a store")
    if any(group.kind == "window" for group in configuration.groups):
        raise TraceError("configuration.groups: sliding windows are not followed together with a store")


def _check_gate(step: Gate, where: str, configuration: Configuration) -> None:
    if step.kind not in GATE_KINDS or step.action not in GATE_ACTIONS:
        raise TraceError(
            f"{where}: no gate {step.kind} {step.action}, kinds are {', '.join(GATE_KINDS)}, actions are "
            f"{', '.join(GATE_ACTIONS)}"
        )
    if step.action == "full" and step.kind != "put":
        raise TraceError(f"{where}: only a put can lack room")
    if step.action == "part" and step.kind == "lookup":
        raise TraceError(f"{where}: a lookup fails whole, use fail or raise")
    if step.kind == "lookup" and step.action in ("hold", "newest") and not configuration.lookup_async:
        raise TraceError(
            f"{where}: a lookup within the schedule cannot be held, set configuration.lookup_async"
        )


def _check_submit(step: Submit, where: str, seen: Mapping[str, int]) -> None:
    if not step.id:
        raise TraceError(f"{where}: id must not be empty")
    if step.id in seen:
        raise TraceError(f"{where}: request {step.id!r} was submitted before")
    for name in ("salt", "adapter"):
        if getattr(step, name) == "":
            raise TraceError(f"{where}: {name} must not be empty, leave it out for no {name}")
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


def _check_media(step: Submit, where: str, configuration: Configuration, items: dict[str, int]) -> None:
    end = 0
    for name, start, length in step.media:
        if not name or length < 1 or start < end or start + length > prompt_length(step.prompt):
            raise TraceError(
                f"{where}: media [{name!r}, {start}, {length}] must have a name and lie in the prompt, "
                "after the item before it"
            )
        end = start + length
        if items.setdefault(name, length) != length:
            raise TraceError(f"{where}: media {name!r} has length {length}, before it had {items[name]}")
        if 0 < configuration.encoder < length:
            raise TraceError(
                f"{where}: media {name!r} has length {length}, but configuration.encoder is "
                f"{configuration.encoder}"
            )
