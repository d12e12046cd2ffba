"""What every generator draws alike: layouts, pools, prompts and their lengths, arrivals."""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from spec.trace import TURN, Configuration, Group, Prompt, Step, Submit, first_tokens, prompt_length

LONGEST_PROMPT = 200
Media = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Axes:
    """What may be drawn. `units` and block multiples give the sizes in tokens; `attention` other attention
    blocks, as multiples of the Mamba block (0: the unit); `pressure`, `asynchronous` and `events` the share
    of cases with a pool too small for everything, with asynchronous scheduling and with KV events; `profiles`
    the rule sets under which cases with EAGLE run, the first one more often; `adapters` and `media` the share
    of new prompts under an adapter and with media in them."""

    units: tuple[int, ...] = (2, 4, 8)
    multiples: tuple[int, ...] = (1, 2, 4)
    styles: tuple[str, ...] = ("splits", "unit", "half", "block", "two")
    annotations: tuple[str, ...] = ("none", "attention", "separate", "replicated")
    retentions: tuple[str, ...] = ("none", "zero", "align", "twice")
    speculative: tuple[int, ...] = (1, 1, 3, 5)
    attention: tuple[int, ...] = (0, 2, 3)
    dcp: tuple[int, ...] = (2, 4, 8)
    pressure: float = 0.2
    asynchronous: float = 0.25
    events: float = 0.2
    adapters: float = 0.04
    media: float = 0.08
    more: float = 0.18
    windows: float = 0.2
    multi_module: float = 0.15
    junctions: float = 0.4
    small_budget: bool = True
    profiles: tuple[str, ...] = ("drop",)

    def within(self, profiles: tuple[str, ...], lacks: Collection[str]) -> Axes:
        """What may be drawn for a target that runs under these rule sets and lacks these features."""
        axes = replace(self, profiles=profiles)
        if "exports" in lacks:
            axes = replace(axes, styles=("splits",))
        if "replicated" in lacks:
            axes = replace(axes, annotations=tuple(one for one in axes.annotations if one != "replicated"))
        if "junctions" in lacks:
            axes = replace(axes, junctions=0.0)
        if "small-budget" in lacks:
            axes = replace(axes, small_budget=False)
        return replace(axes, dcp=()) if "dcp" in lacks else axes


@dataclass(slots=True)
class Draft:
    """A trace in the making: `live` are the requests that may still run, `longest` bounds prompts, in tokens,
    whose lengths are drawn near multiples of `grids` (none given: of U and B). `adapters` and `media` are the
    shares of the axes; `pictures` tells what media each request has."""

    rng: random.Random
    configuration: Configuration
    pressure: bool
    steps: list[Step] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)
    salts: list[str | None] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    live: list[str] = field(default_factory=list)
    longest: int = LONGEST_PROMPT
    grids: tuple[int, ...] = ()
    adapters: float = 0.0
    media: float = 0.0
    pictures: list[Media] = field(default_factory=list)


def pool(draft: Draft) -> int:
    """The pool: enough for all requests of a case and all that they leave in the cache, or, under pressure,
    anything from just enough for the largest request."""
    rng, configuration = draft.rng, draft.configuration
    needs = []
    for step in draft.steps:
        if isinstance(step, Submit):
            length = prompt_length(step.prompt) + step.outputs + 2 * configuration.speculative + 1
            full = [group for group in configuration.groups if group.kind == "full"]
            blocks = sum(-(-length // (group.block * configuration.dcp)) + 2 for group in full)
            needs.append(blocks + (5 + configuration.speculative))
    if draft.pressure:
        return max(needs) + 1 + rng.choice((0, 2, max(needs) // 4, max(needs)))
    # Without pressure also room for every state that stays, and for requests that start again.
    block = next(group.block for group in configuration.groups if group.kind == "mamba")
    return 4 * sum(needs) + 2 * sum(LONGEST_PROMPT // block for _ in needs) + 2


def drawn_configuration(rng: random.Random, axes: Axes) -> Configuration:
    """A setting without a store; its pool is still to be sized (`pool`)."""
    unit = rng.choice(axes.units)
    block = unit * rng.choice(axes.multiples)
    eagle = rng.random() < 0.6
    style = rng.choice(axes.styles)
    alignments = {
        "splits": None,
        "unit": unit,
        "half": max(unit // 2, 1),
        "block": block,
        "two": 2 * unit,
    }
    annotation = rng.choice(axes.annotations) if eagle else "none"
    attention, dcp = _attention(rng, axes, unit, block)
    if annotation == "replicated" and block > unit and attention == block:
        dcp = rng.choice(axes.dcp)
    groups = [Group("full", attention, draft=annotation == "attention")]
    groups.append(Group("mamba", block, checkpoint_alignment=alignments[style]))
    if annotation in ("separate", "replicated"):
        groups.append(Group("full", attention, draft=True, replicated=annotation == "replicated"))
    groups.extend(_more_groups(rng, axes, unit, block, dcp))
    sizes = [group.block * (dcp if group.kind == "full" and not group.replicated else 1) for group in groups]
    align = math.lcm(*sizes)
    retention = {"none": None, "zero": 0, "align": align, "twice": 2 * align}[rng.choice(axes.retentions)]
    speculative = min(rng.choice(axes.speculative), block - 1) if eagle else 0
    budgets: tuple[int, ...] = (block, block + 1, 2 * block - 1, 3 * block, 5 * block + 3, 400, 400, 400)
    if rng.random() < 0.15:
        budgets = (max(block - 1, 1), max(block // 2, 1))
    modules = speculative > 1 and align >= speculative and rng.random() < axes.multi_module
    if not axes.small_budget:
        budgets = tuple(max(budget, speculative + 1) for budget in budgets)
    if modules:
        budgets = tuple(max(budget, 2 * speculative) for budget in budgets)
    drawn = Configuration(
        groups=tuple(groups),
        unit=unit,
        eagle=eagle,
        speculative=speculative,
        multi_module=modules,
        dcp=dcp,
        retention=retention,
        junctions=rng.random() < axes.junctions,
        budget=rng.choice(budgets),
        long_prefill=_threshold(rng, unit, block, style),
        live=rng.choice((1, 2, 4, 8)),
        policy="priority" if rng.random() < 0.15 else "fcfs",
        asynchronous=rng.random() < axes.asynchronous,
        events=rng.random() < axes.events,
        profile=_profile(rng, axes) if eagle else "drop",
    )
    # A share of a step that draft modules read past could never end a prefill.
    short = modules and 0 < drawn.long_prefill < 2 * speculative
    return replace(drawn, long_prefill=2 * speculative) if short else drawn


def _threshold(rng: random.Random, unit: int, block: int, style: str) -> int:
    """The threshold of long prefills in tokens, mostly none. Some make a chunk begin off the unit, where a
    backend that exports on half a unit still could."""
    if rng.random() >= (0.4 if style == "half" else 0.15):
        return 0
    return rng.choice((block, 2 * block, 3 * unit + 1, unit + max(unit // 2, 1)))


def _profile(rng: random.Random, axes: Axes) -> str:
    return (
        axes.profiles[0] if len(axes.profiles) == 1 or rng.random() < 0.7 else rng.choice(axes.profiles[1:])
    )


def _more_groups(rng: random.Random, axes: Axes, unit: int, block: int, dcp: int) -> list[Group]:
    """Now and then a second Mamba group, attention of another block size, or a sliding window."""
    more: list[Group] = []
    if rng.random() < axes.more:
        more.append(Group("full", rng.choice((block, 2 * block, 3 * block))))
    if dcp == 1 and rng.random() < axes.windows:
        size = rng.choice((unit, block, block, 2 * block))
        window = max(rng.choice((2, size, size + 1, 2 * size + 1, 3 * block)), 2)
        more.append(Group("window", size, window=window))
    return more


def _attention(rng: random.Random, axes: Axes, unit: int, block: int) -> tuple[int, int]:
    """The attention block and DCP; plain where hits would be coarse, since vLLM builds equal blocks then."""
    choice = rng.random()
    if block == unit or choice < 0.6:
        return block, 1
    if choice < 0.8:
        return rng.choice(axes.attention) * block or unit, 1
    return block, rng.choice(axes.dcp) if axes.dcp else 1


def accepted(draft: Draft) -> int:
    """How many drafts a decode step accepts."""
    return draft.rng.randint(0, draft.configuration.speculative)


def submit(
    draft: Draft, prompt: Prompt, salt: str | None, outputs: int | None = None, engine: int = 0
) -> None:
    """A request arrives at an engine; its outputs are drawn unless given."""
    rng = draft.rng
    name = f"r{len(draft.prompts)}"
    block = draft.configuration.groups[0].block
    longest = 4 * block + 8 if draft.pressure else 2 * block + 2
    if outputs is None:
        outputs = rng.choice((1, 1, 2, 3, rng.randint(1, longest)))
    priority = rng.randint(0, 2) if draft.configuration.policy == "priority" else 0
    adapter, media = _beside(draft, name, prompt)
    draft.pictures.append(media)
    draft.steps.append(Submit(name, prompt, outputs, priority, salt, engine, adapter, media))
    draft.prompts.append(prompt)
    draft.lengths.append(prompt_length(prompt) + outputs)
    draft.salts.append(salt)
    draft.live.append(name)


def _beside(draft: Draft, request: str, prompt: Prompt) -> tuple[str | None, Media]:
    """The adapter and the media of a prompt.

    They belong to its segments, so that a resend or an extension has them again; now and then something is
    different all the same. They are drawn apart from all else: a case without them stays what it was.
    """
    setting = repr(draft.configuration)
    case, own = random.Random(f"beside/{setting}"), random.Random(f"beside/{setting}/{request}")
    adapter = "x" if case.random() < draft.adapters and own.random() < 0.7 else None
    if case.random() >= draft.media:
        return adapter, ()
    unit, items, start = draft.configuration.unit, list[tuple[str, int, int]](), 0
    for name, length in prompt:
        if name.startswith(TURN):
            found = draft.pictures[int(name.removeprefix(f"{TURN}r"))]
        else:
            found = _pictures(random.Random(f"beside/{setting}/{name}"), unit)
        items += [(item, start + at, size) for item, at, size in found if at + size <= length]
        start += length
    if items and own.random() < 0.2:
        at = own.randrange(len(items))
        item, begin, size = items.pop(at)
        after = items[at][1] if at < len(items) else start
        if own.random() < 0.7:
            moved = begin + 1 if own.random() < 0.5 and begin + 1 + size <= after else begin
            other = item if moved > begin else item.replace("i", "k")
            items.insert(at, (other, moved, size))
    return adapter, tuple(items)


def _pictures(rng: random.Random, unit: int) -> Media:
    """The media of a segment: some items one after the other, seldom touching."""
    items: list[tuple[str, int, int]] = []
    at = rng.choice((0, 1, unit - 1, unit, rng.randint(0, 3 * unit)))
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        size = max(rng.choice((1, unit - 1, unit, unit + 1, 2 * unit + 1, 5 * unit)), 1)
        items.append((f"{rng.choice('ij')}{size}", at, size))
        at += size + rng.choice((0, 1, unit, rng.randint(1, 4 * unit)))
    return tuple(items)


def next_prompt(draft: Draft) -> tuple[Prompt, str | None]:
    """A prompt and its salt: new, or akin to one before."""
    rng = draft.rng
    if not draft.prompts or rng.random() < 0.2:
        return new_prompt(draft)
    return akin(draft, rng.randrange(len(draft.prompts)))


def new_prompt(draft: Draft) -> tuple[Prompt, str | None]:
    """A prompt that shares nothing, and its salt."""
    salt = "s" if draft.rng.random() < 0.05 else None
    return ((f"p{len(draft.prompts)}", drawn_length(draft)),), salt


def akin(draft: Draft, index: int) -> tuple[Prompt, str | None]:
    """A prompt and its salt: the next turn of an earlier request, a resend, an extension, or a prompt that
    shares a prefix and then differs."""
    rng = draft.rng
    base, salt = draft.prompts[index], draft.salts[index]
    unit = draft.configuration.unit
    choice = rng.random()
    if rng.random() < 0.04:
        salt = "t" if salt is None else None
    if choice < 0.15:
        return next_turn(draft, index), salt
    if choice < 0.45:
        return base, salt
    if choice < 0.65:
        more = rng.choice((1, unit - 1, unit, unit + 1, 2 * unit, rng.randint(1, 40)))
        return longer(base, max(more, 1), f"p{len(draft.prompts)}"), salt
    shared = min(drawn_length(draft), prompt_length(base) - 1)
    if shared < 1:
        return base, salt
    tail = max(drawn_length(draft) - shared, rng.randint(1, 2 * unit))
    return (*first_tokens(base, shared), (f"p{len(draft.prompts)}", tail)), salt


def next_turn(draft: Draft, index: int) -> Prompt:
    """What an earlier request was given and gave, all or nearly all of it, and something new."""
    rng = draft.rng
    whole = draft.lengths[index]
    kept = max(whole - rng.choice((0, 0, 0, 1, draft.configuration.unit)), 1)
    return (f"{TURN}r{index}", kept), (f"p{len(draft.prompts)}", rng.randint(1, 24))


def drawn_length(draft: Draft) -> int:
    """A length near a multiple of a grid, or any."""
    rng, configuration = draft.rng, draft.configuration
    grid = rng.choice(draft.grids or (configuration.unit, configuration.groups[0].block))
    top = rng.choice((4, 8, draft.longest // grid))
    length = grid * rng.randint(1, max(top, 1)) + rng.choice((-1, 0, 0, 1, rng.randint(-grid, grid)))
    return min(max(length, 1), draft.longest)


def longer(prompt: Prompt, more: int, fresh: str) -> Prompt:
    """A prompt with `more` tokens of its last segment, or of a fresh one where it ends in an earlier request,
    which has no more."""
    name, length = prompt[-1]
    if name.startswith(TURN):
        return (*prompt, (fresh, more))
    return (*prompt[:-1], (name, length + more))
