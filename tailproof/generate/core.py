"""Generates traces: random histories biased to where prefix-cache faults live, the same for the same seed.

A case is drawn from `(seed, index)` alone, so any case of a run can be made again without the others.
"""

from __future__ import annotations

import random
from dataclasses import replace

from spec.trace import Abort, ResetLocal, Run, Settle, Trace
from tailproof.generate.drawing import Axes, Draft, accepted, drawn_configuration, next_prompt, pool, submit


def case(seed: int, index: int, axes: Axes | None = None) -> Trace:
    """The `index`-th trace of a seed."""
    rng = random.Random(f"{seed}/{index}")
    configuration = drawn_configuration(rng, axes or Axes())
    axes = axes or Axes()
    draft = Draft(rng, configuration, pressure=rng.random() < axes.pressure)
    draft.adapters, draft.media = axes.adapters, axes.media
    if draft.pressure and rng.random() < 0.3:
        # A victim that is less important than who needs its blocks may have been scheduled already.
        draft.configuration = replace(configuration, policy="priority")
    for _ in range(rng.choice((2, 3, 3, 4, 5, 6))):
        _episode(draft)
    draft.steps.append(Settle(accept=accepted(draft)))
    if rng.random() < 0.6:
        _resend_all(draft)
    return Trace(replace(draft.configuration, blocks=pool(draft)), tuple(draft.steps))


def _episode(draft: Draft) -> None:
    """Some arrivals, then some steps, then perhaps an end that comes early."""
    rng = draft.rng
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        submit(draft, *next_prompt(draft))
    choice = rng.random()
    if choice < 0.45:
        draft.steps.append(Settle(accept=accepted(draft)))
        draft.live.clear()
        if rng.random() < 0.1:
            draft.steps.append(ResetLocal())
    elif choice < 0.9:
        draft.steps.append(Run(rng.choice((1, 1, 2, 3, 5)), accept=accepted(draft)))
        if rng.random() < 0.25:
            # A request that starts again prefills its outputs too, which takes some of them.
            draft.steps.append(Run(rng.choice((1, 2, 5)), accept=accepted(draft)))
            draft.steps.append(ResetLocal(running=rng.random() < 0.8))
    if draft.live and rng.random() < 0.18:
        draft.steps.append(Abort(rng.choice(draft.live)))


def _resend_all(draft: Draft) -> None:
    order = list(range(len(draft.prompts)))
    draft.rng.shuffle(order)
    for index in order[:4]:
        submit(draft, draft.prompts[index], draft.salts[index])
        if draft.rng.random() < 0.7:
            draft.steps.append(Settle(accept=accepted(draft)))
    draft.steps.append(Settle(accept=accepted(draft)))
