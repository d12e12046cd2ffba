"""Geometry: a validated cache layout, and the sizes that every rule is stated in.

What vLLM refuses to build is refused here for the same reason; what it would build but never does (a
draft flag without EAGLE, a draft Mamba layer) is refused by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from spec.checkpoint import lookahead_checkpoint
from spec.profiles import PROFILES, Profile
from spec.proof import proof_margin
from spec.retention import replay_boundaries
from spec.trace import KINDS, Configuration, Group


class GeometryError(ValueError):
    """A layout that cannot exist; the text is one line with the reason."""


@dataclass(frozen=True, slots=True)
class GroupGeometry:
    """One group: `block` in tokens as the cache manager sees it (scaled by DCP), `drops` whether its
    lookup drops for EAGLE, `margin` its M_g in tokens, `window` its sliding window in tokens (0: none).
    Groups of equal `layout` are looked up together."""

    index: int
    kind: str
    block: int
    drops: bool
    margin: int
    checkpoint_alignment: int | None
    window: int = 0
    replicated: bool = False

    @property
    def layout(self) -> tuple[str, int, int, bool]:
        """What tells one layout from another."""
        return self.kind, self.block, self.window, self.replicated


@dataclass(frozen=True, slots=True)
class Geometry:
    """A layout: `unit` U, `align` L, `mamba_block` B, `fine` whether hits may land inside a block (EL1),
    `grid` where hits land, all in tokens; `junctions` whether junction checkpoints are really in force;
    `lookahead` how many tokens past a chunk the draft model reads (0 without EAGLE), `hash_lookahead` how
    many
    past its unit a hash covers; `annotated` whether any group is marked as draft; `smallest` the smallest
    block in tokens, not scaled by DCP."""

    groups: tuple[GroupGeometry, ...]
    unit: int
    align: int
    mamba_block: int
    fine: bool
    eagle: bool
    junctions: bool
    profile: Profile
    lookahead: int = 0
    annotated: bool = False
    smallest: int = 0
    hash_lookahead: int = 0

    @property
    def drops(self) -> bool:
        """Whether lookups drop for EAGLE at all."""
        return self.eagle and self.profile.drops

    @property
    def grid(self) -> int:
        """Where hits land: U when fine, L when coarse."""
        return self.unit if self.fine else self.align

    @property
    def attention(self) -> tuple[GroupGeometry, ...]:
        """The full attention groups."""
        return tuple(group for group in self.groups if group.kind == "full")

    @property
    def windows(self) -> tuple[GroupGeometry, ...]:
        """The sliding-window groups."""
        return tuple(group for group in self.groups if group.kind == "window")

    @property
    def unfinished(self) -> int:
        """How many of the last computed tokens have KV of the draft model that is not final yet: each draft
        module reads one token further ahead than the one before it. Modified in 0.33: none where hashes cover
        what the modules read, since such KV then has no name."""
        return max(self.lookahead - 1, 0) if self.drops else 0

    @property
    def mamba(self) -> tuple[GroupGeometry, ...]:
        """The Mamba groups."""
        return tuple(group for group in self.groups if group.kind == "mamba")

    def checkpoint(self, tokens: int) -> int:
        """C of `tokens` tokens on the hit grid (CP7: the one function that every component must use)."""
        return self.checkpoint_on(tokens, self.grid)

    def block_checkpoint(self, tokens: int) -> int:
        """The last block-aligned position of `tokens` tokens whose state a lookup could use."""
        return self.checkpoint_on(tokens, self.mamba_block)

    def checkpoint_on(self, tokens: int, grid: int) -> int:
        """C of `tokens` tokens on any grid. Modified in 0.33: with lookahead hashes it leaves room for all
        tokens that the hash of C covers."""
        if self.hash_lookahead > 1:
            return lookahead_checkpoint(tokens, grid, self.hash_lookahead)
        return self.profile.checkpoint(tokens, grid, self.eagle)

    def hashed(self, tokens: int) -> int:
        """How far the hashes of `tokens` known tokens reach, in tokens."""
        return max(tokens - self.hash_lookahead, 0) // self.unit * self.unit

    def replay_boundaries(self, prompt: int, block: int) -> tuple[int, ...]:
        """Block ends at which a resend or an extension of the prompt could resume (`spec.retention`)."""
        return replay_boundaries(prompt, block, self.align, self.grid, self.drops, self.hash_lookahead)

    @staticmethod
    def of(configuration: Configuration) -> Geometry:
        """The geometry of a configuration.

        Raises:
            GeometryError: when no such layout exists.
        """
        groups, unit = configuration.groups, configuration.unit
        _check_values(configuration)
        blocks = scaled_blocks(configuration)
        for index, block in enumerate(blocks):
            if block % unit:
                raise GeometryError(
                    f"configuration.groups[{index}]: the unit {unit} does not divide the block size {block}"
                )
        align = alignment(configuration)
        _check_retention(configuration.retention, align)
        mamba = [group for group in groups if group.kind == "mamba"]
        _check_speculation(configuration, mamba[0].block)
        fine = any(group.block > unit or (configuration.dcp > 1 and group.block >= unit) for group in mamba)
        # A sliding window is looked up by whole blocks, so it allows hits inside others' blocks only when its
        # own blocks are units.
        fine = fine and all(group.block == unit for group in groups if group.kind == "window")
        lookahead = configuration.speculative if configuration.multi_module else int(configuration.eagle)
        _check_lookahead(configuration, lookahead)
        profile = PROFILES[configuration.profile]
        drops = _dropping(groups, configuration.eagle and profile.drops)
        return Geometry(
            groups=tuple(
                GroupGeometry(
                    index=index,
                    kind=group.kind,
                    block=block,
                    drops=drops[index],
                    margin=proof_margin(block, unit, drops[index], fine),
                    checkpoint_alignment=group.checkpoint_alignment,
                    window=group.window or 0,
                    replicated=group.replicated,
                )
                for index, (group, block) in enumerate(zip(groups, blocks, strict=True))
            ),
            unit=unit,
            align=align,
            mamba_block=mamba[0].block,
            fine=fine,
            eagle=configuration.eagle,
            junctions=configuration.junctions
            and _drafting(groups, drops, profile)
            and fine
            and lookahead <= 1,
            profile=profile,
            lookahead=lookahead,
            annotated=any(group.draft for group in groups),
            smallest=min(group.block for group in groups),
            hash_lookahead=lookahead if profile.lookahead else 0,
        )


def scaled_blocks(configuration: Configuration) -> list[int]:
    """The block of each group in tokens, as the cache manager sees it: full attention is spread over DCP."""
    return [
        group.block * (configuration.dcp if group.kind == "full" and not group.replicated else 1)
        for group in configuration.groups
    ]


def alignment(configuration: Configuration) -> int:
    """L, in tokens."""
    return math.lcm(*scaled_blocks(configuration))


def _dropping(groups: tuple[Group, ...], eagle: bool) -> list[bool]:
    """Which groups drop: the flagged ones and those that share their layout; all attention if none is."""
    if not eagle:
        return [False] * len(groups)
    flagged = {_layout(group) for group in groups if group.draft}
    if not flagged:
        return [group.kind != "mamba" for group in groups]
    return [_layout(group) in flagged for group in groups]


def _drafting(groups: tuple[Group, ...], drops: list[bool], profile: Profile) -> bool:
    """Whether junction checkpoints can be in force at all: vLLM narrows them to where a group drops.
    Modified in
    0.33: where nothing drops, to where a group is marked as draft. (They also need that a sibling can resume
    inside a block and that the last tokens of a chunk are final.)"""
    return any(drops) if profile.drops else any(group.draft for group in groups)


def _layout(group: Group) -> tuple[str, int, int | None, bool]:
    return group.kind, group.block, group.window, group.replicated


def _check_values(configuration: Configuration) -> None:
    groups = configuration.groups
    if configuration.unit < 1:
        raise GeometryError(f"configuration.unit: must be 1 or more, got {configuration.unit}")
    if configuration.dcp < 1:
        raise GeometryError(f"configuration.dcp: must be 1 or more, got {configuration.dcp}")
    if configuration.profile not in PROFILES:
        raise GeometryError(
            f"configuration.profile: {configuration.profile!r} is none of {', '.join(PROFILES)}"
        )
    if PROFILES[configuration.profile].lookahead and configuration.store != "off":
        raise GeometryError(f"configuration.profile: {configuration.profile!r} is not in force with a store")
    for index, group in enumerate(groups):
        where = f"configuration.groups[{index}]"
        if group.kind not in KINDS:
            raise GeometryError(f"{where}: group kind {group.kind!r} is not known, use {', '.join(KINDS)}")
        if group.block < 1:
            raise GeometryError(f"{where}: block must be 1 or more, got {group.block}")
        if group.draft and not configuration.eagle:
            raise GeometryError(f"{where}: a draft group needs eagle (a flag without the model-wide drop)")
        if group.draft and group.kind == "mamba":
            raise GeometryError(f"{where}: a draft model has no Mamba layers, so a Mamba group is no draft")
        _check_window(group, where, configuration.dcp)
        if group.replicated and not group.draft:
            raise GeometryError(f"{where}: only the groups of a draft model are replicated, so set draft too")
        if group.checkpoint_alignment is not None:
            if group.kind != "mamba":
                raise GeometryError(f"{where}: checkpoint_alignment belongs to Mamba groups only")
            if group.checkpoint_alignment < 1:
                raise GeometryError(
                    f"{where}: checkpoint_alignment must be 1 or more, got {group.checkpoint_alignment}"
                )
    mamba = {(group.block, group.checkpoint_alignment) for group in groups if group.kind == "mamba"}
    if len(mamba) != 1 or all(group.kind != "full" for group in groups):
        raise GeometryError(
            "configuration.groups: needs at least one full attention group, and Mamba groups of one block "
            "size and one checkpoint style"
        )


def _check_window(group: Group, where: str, dcp: int) -> None:
    if group.kind != "window":
        if group.window is not None:
            raise GeometryError(f"{where}: window belongs to groups of kind window only")
        return
    if group.window is None or group.window < 2:
        raise GeometryError(f"{where}: a sliding-window group needs a window of 2 or more tokens")
    if dcp > 1:
        raise GeometryError(f"{where}: DCP does not know sliding windows, set configuration.dcp to 1")


def _check_lookahead(configuration: Configuration, lookahead: int) -> None:
    if not configuration.multi_module:
        return
    if not configuration.eagle or configuration.speculative < 2:
        raise GeometryError("configuration.multi_module: needs eagle and two or more speculative tokens")
    if configuration.budget < 2 * lookahead:
        raise GeometryError(
            f"configuration.budget: {configuration.budget} tokens a step cannot end a prefill whose draft "
            f"modules read {lookahead} tokens ahead, use at least {2 * lookahead}"
        )


def _check_speculation(configuration: Configuration, mamba_block: int) -> None:
    if configuration.eagle and configuration.speculative < 1:
        raise GeometryError("configuration.speculative: EAGLE needs at least one speculative token")
    if not configuration.eagle and configuration.speculative:
        raise GeometryError("configuration.speculative: speculative tokens need eagle here")
    # One decode step would cross several Mamba blocks, which no real layout allows (blocks are hundreds).
    if configuration.speculative >= mamba_block:
        raise GeometryError(
            f"configuration.speculative: {configuration.speculative} draft tokens need a Mamba block of more "
            f"tokens, got {mamba_block}"
        )


def _check_retention(retention: int | None, align: int) -> None:
    if retention is not None and (retention < 0 or retention % align):
        raise GeometryError(
            f"configuration.retention: must be null, 0 or a positive multiple of the alignment {align}, "
            f"got {retention}"
        )
