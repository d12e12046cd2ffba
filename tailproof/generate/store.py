"""Generates traces with a store: saves, loads and lookups held back, failing and lost, and what follows.

As in `tailproof.generate.core`, a case is drawn from `(seed, index)` alone. What gates hold is let go by a
settle; gates that fail are opened again before the last settle, but for a small share of cases.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from spec.geometry import Geometry
from spec.trace import Configuration, ResetLocal, Trace
from tailproof.generate.drawing import LONGEST_PROMPT, Axes, Draft, drawn_configuration, pool
from tailproof.generate.episodes import EPISODES, StoreDraft, killed, produce

_FAR_ALIGNMENT = 112
_STEPS_A_PROMPT = 8


@dataclass(frozen=True, slots=True)
class StoreAxes:
    """What may be drawn beside the layout (`layout`). `roles` are those of both engines, repeated as often as
    they weigh; shares say how many cases look up beside the schedule, save what is decoded, load on two
    threads, end requests whose load failed, kill the master, and leave gates failing to the end."""

    layout: Axes = field(
        default_factory=lambda: Axes(
            multiples=(1, 2, 2, 4),
            pressure=0.3,
            asynchronous=0.0,
            events=0.0,
            windows=0.0,
            multi_module=0.0,
        )
    )
    roles: tuple[tuple[str, str], ...] = (
        *[("both", "off")] * 8,
        *[("producer", "consumer")] * 4,
        *[("both", "both")] * 4,
        ("consumer", "both"),
        ("producer", "off"),
        ("consumer", "off"),
    )
    lookup_async: float = 0.5
    decode_saves: float = 0.4
    receivers: float = 0.35
    fail: float = 0.25
    master: float = 0.006
    left_failing: float = 0.06


def store_case(seed: int, index: int, axes: StoreAxes | None = None) -> Trace:
    """The `index`-th store trace of a seed."""
    axes = axes or StoreAxes()
    rng = random.Random(f"store/{seed}/{index}")
    configuration = _configuration(rng, axes)
    align = Geometry.of(configuration).align
    draft = Draft(rng, configuration, pressure=rng.random() < axes.layout.pressure)
    draft.adapters, draft.media = axes.layout.adapters, axes.layout.media
    share = min(configuration.budget, configuration.long_prefill or configuration.budget)
    most = min(LONGEST_PROMPT, _STEPS_A_PROMPT * share)
    draft.longest = max(most - rng.randint(0, configuration.unit), 3 * configuration.unit)
    draft.grids = (configuration.unit, configuration.groups[0].block, min(align, draft.longest))
    case = StoreDraft(draft, kills=rng.random() < axes.master)
    produce(case)
    for _ in range(rng.choice((1, 2, 2, 3))):
        rng.choice(EPISODES)(case)
    if case.kills:
        killed(case, case.engine())
    _end(case, left_failing=rng.random() < axes.left_failing)
    return Trace(replace(configuration, blocks=pool(draft)), tuple(draft.steps))


def _configuration(rng: random.Random, axes: StoreAxes) -> Configuration:
    """A layout, rarely one whose alignment nearly no prompt reaches, with a store."""
    far = rng.random() < 0.12
    configuration = drawn_configuration(rng, axes.layout)
    while not far and Geometry.of(configuration).align > _FAR_ALIGNMENT:
        configuration = drawn_configuration(rng, axes.layout)
    first, second = rng.choice(axes.roles)
    return replace(
        configuration,
        store=first,
        second=second,
        lookup_async=rng.random() < axes.lookup_async,
        decode_saves=rng.random() < axes.decode_saves,
        receivers=2 if rng.random() < axes.receivers else 1,
        load_failures="fail" if rng.random() < axes.fail else "recompute",
    )


def _end(case: StoreDraft, *, left_failing: bool) -> None:
    """Everything is let go and comes to rest, and much of it is sent again."""
    rng = case.rng
    engines = range(len(case.configuration.roles))
    if not left_failing:
        for (engine, kind), action in list(case.gates.items()):
            if action != "hold" or rng.random() < 0.5:
                case.gate(engine, kind, "release")
    for engine in engines:
        case.settle(engine)
    if rng.random() < 0.6:
        for engine in engines:
            if rng.random() < 0.8:
                case.add(ResetLocal(engine=engine))
        order = list(range(len(case.draft.prompts)))
        rng.shuffle(order)
        for index in order[: rng.choice((1, 2, 3))]:
            engine = case.engine()
            case.arrive(engine, case.draft.prompts[index], case.draft.salts[index])
            if rng.random() < 0.5:
                case.settle(engine)
        for engine in engines:
            if engine in case.busy:
                case.settle(engine)
