"""The catalogue of the source tier: every theorem with its rule, its functions and its styles."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from proofs.source import after_split, interface, publication, scheduling, sizes, store
from proofs.source.lift import Site
from proofs.theorems import cp


@dataclass(frozen=True, slots=True)
class Case:
    """One theorem in one style.

    `lifts` are the keyword-only parameters that a target's functions stand for, `fixed` those that choose the
    style. `turns` says that loops over ranges are followed for one chosen turn (`containers.choose`).
    """

    id: str
    rule: str
    theorem: Callable[..., object]
    lifts: Mapping[str, Site]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    turns: bool = False

    @property
    def about(self) -> tuple[str, ...]:
        """The functions that the theorem is about, as file and name."""
        return tuple(f"{site.file}: {site.name}" for site in self.lifts.values())


def _named(base: str, style: Mapping[str, Any]) -> str:
    words = [name if value is True else str(value) for name, value in style.items() if value is not False]
    return f"{base}[{', '.join(words) or 'plain'}]" if style else base


def _cases(
    rule: str,
    theorem: Callable[..., object],
    lifts: Mapping[str, Site],
    *flags: str,
    turns: bool = False,
    prefix: str = "",
    **choices: Iterable[Any],
) -> Iterator[Case]:
    """A theorem in every style: `flags` are on and off, the others as chosen."""
    places = {**dict.fromkeys(flags, (False, True)), **choices}
    for values in itertools.product(*places.values()):
        style = dict(zip(places, values, strict=True))
        yield Case(_named(prefix + theorem.__name__, style), rule, theorem, lifts, style, turns)


def _all() -> Iterator[Case]:
    checkpoint = {"checkpoint": interface.CHECKPOINT}
    valid = {"valid": interface.VALID}
    split = {"split": scheduling.SPLIT}
    puts = {"puts": store.TAIL_PUTS}
    for rule, theorem in (
        ("CP1", cp.cp1_on_the_grid),
        ("CP2", cp.cp2_leaves_tokens),
        ("CP3", cp.cp3_proof_fits),
        ("CP4", cp.cp4_maximal),
        ("CP5", cp.cp5_safe_for_extension),
    ):
        yield from _cases(rule, theorem, checkpoint, prefix="checkpoint_")
    yield from _cases("CP7", interface.checkpoint_is_the_specs, checkpoint)
    yield from _cases("CH3", interface.validity_is_the_specs, valid)
    yield from _cases("CH3", interface.valid_export_is_inside, valid)
    yield from _cases("PM1", sizes.margin_is_the_specs, {"margin": sizes.MARGIN})
    yield from _cases("EL2", sizes.dcp_scales_attention_only, {"dcp_block": sizes.DCP_BLOCK})
    hits = {"partial_hits": sizes.PARTIAL_HITS}
    yield from _cases("EL1", sizes.fine_hits_need_a_smaller_unit, hits)
    yield from _cases("EL1", sizes.fine_hits_need_every_manager, hits)
    yield from _cases("CP7", scheduling.coarser_checkpoint_is_lower, checkpoint, "eagle")
    yield from _cases("CP7", scheduling.split_passes_no_checkpoint, split, "eagle", "exports")
    yield from _cases("CH2", scheduling.split_advances, split, "eagle", "exports")
    yield from _cases("CH1", scheduling.split_stops, split, "eagle", "exports")
    yield from _cases(
        "CH1", scheduling.split_stops_below_the_junction, split, "eagle", "inside", exports=(False,)
    )
    yield from _cases(
        "CH1", scheduling.split_stops_below_the_junction, split, "eagle", exports=(True,), inside=(False,)
    )
    yield from _cases("CP7", scheduling.split_passes_no_checkpoint_when_cut, split, "exact")
    yield from _cases("CH1", scheduling.split_stops_at_the_junction_from_inside, split, "eagle")
    yield from _cases("CP7", scheduling.split_keeps_the_prompts_checkpoint, split, "eagle")
    yield from _cases("CP7", scheduling.split_stops_on_the_grid_of_hits, split, "eagle", "single")
    worker = {"worker": after_split.WORKER}
    yield from _cases("CP7", after_split.worker_exports_the_specs, worker, "eagle")
    yield from _cases("CP7", after_split.split_and_worker_agree, {**split, **worker}, "eagle")
    reserve = {"reserve": after_split.RESERVE}
    yield from _cases("CH2", after_split.reservation_leaves_the_lookahead, reserve)
    yield from _cases(
        "LV1", after_split.reservation_keeps_the_split_advancing, {**split, **reserve}, "eagle", "modules"
    )
    published = {"published": publication.CACHEABLE, "rounded": publication.ALIGN}
    yield from _cases("RT1", publication.cacheable_is_the_specs, published)
    yield from _cases("RT2", publication.mamba_publishes_what_is_computed, published, "modules")
    mask = {"mask": publication.MASK}
    yield from _cases(
        "RT1",
        publication.mask_keeps_the_interval,
        mask,
        retention=("dense", "boundaries", "block", "interval"),
    )
    yield from _cases(
        "RT1",
        publication.mask_keeps_replay_boundaries,
        {**mask, "boundaries": publication.BOUNDARIES},
        "eagle",
    )
    tail = {"register": publication.ATTENTION_TAIL}
    yield from _cases("PM1", publication.attention_tail_is_the_specs, tail)
    state = {"register": publication.STATE_TAIL}
    yield from _cases("CP7", publication.state_is_registered_at_the_checkpoint, state, "eagle", "fits")
    needs = {"needs": publication.NEEDS_EXPORT}
    yield from _cases("CP7", publication.reservation_is_the_specs, needs)
    yield from _cases("PM2", store.lookup_length_is_on_the_grid, {"lookup": store.LOOKUP})
    yield from _cases("TS1", store.tail_puts_are_the_specs, puts, "eagle", turns=True)
    yield from _cases("TS6", store.tail_belongs_to_the_prompt, puts, "eagle", turns=True)
    yield from _cases("TS7", store.one_save_publishes_the_tail, {"save": store.SAVE})


CASES: tuple[Case, ...] = tuple(_all())


def cases(rules: Iterable[str] = ()) -> tuple[Case, ...]:
    """All cases, or those of the named rules."""
    wanted = set(rules)
    return tuple(case for case in CASES if not wanted or case.rule in wanted)
