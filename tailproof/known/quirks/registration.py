"""Wrong variants of RT and CH3: which entries vLLM's managers register when a chunk is scheduled.

Source: vllm/v1/core/single_type_kv_cache_manager.py, `cache_blocks`, `_cache_partial_tail_block` and
`reachable_block_mask` of the managers; vllm/v1/core/kv_cache_coordinator.py, `get_num_cacheable_tokens` and
`replay_boundaries`.
"""

from __future__ import annotations

from reference.forecast import ChunkForecast
from reference.history import History
from reference.publish import publications
from spec.geometry import Geometry
from spec.observation import Entry
from spec.retention import cacheable, keeps_interval
from tailproof.judge.findings import Finding
from tailproof.judge.saves import learned_junction
from tailproof.judge.step import Step
from tailproof.known.quirks import split
from tailproof.known.quirks.case import Case, Wrong, quirk
from tailproof.known.quirks.witness import block_end_inside

MISSING_STATES = ("missing-checkpoint", "missing-mamba", "registered-elsewhere")


def unmarked(step: Step) -> bool:
    """Whether lookups drop and no group is marked as draft, so that vLLM takes every group for one, the Mamba
    groups too."""
    marked = any(group.draft for group in step.configuration.groups)
    return step.geometry.drops and not marked


def held_back(step: Step) -> int:
    """How many of the last computed tokens vLLM does not register for Mamba groups though their states are
    final: what draft modules still rewrite in attention."""
    return step.geometry.unfinished if unmarked(step) else 0


def boundaries(geometry: Geometry, prompt: int, wrong: Wrong) -> tuple[int, ...]:
    """The block ends that are kept for a resend or an extension."""
    if "attention.boundaries_past_hashes" in wrong and not geometry.drops:
        return ((prompt - 1) // geometry.grid * geometry.grid // geometry.mamba_block * geometry.mamba_block,)
    return geometry.replay_boundaries(prompt, geometry.mamba_block)


def masked(step: Step, chunk: ChunkForecast, position: int, wrong: Wrong) -> bool:
    """Whether the mask of sparse retention keeps the state of the block end at `position`."""
    geometry, block = step.geometry, step.geometry.mamba_block
    if position % block:
        return False
    junction = learned_junction(chunk, step.expected) // geometry.grid * geometry.grid // block * block
    kept = (*boundaries(geometry, chunk.history.prompt, wrong), junction)
    return position in kept or keeps_interval(position, block, step.configuration.retention)


def registered(case: Case, chunk: ChunkForecast, wrong: Wrong) -> set[int]:
    """The positions at which a chunk's Mamba states are registered, with these mistakes."""
    step, left, history = case.step, chunk.publications, chunk.history
    geometry, block = step.geometry, step.geometry.mamba_block
    states = {group.index for group in geometry.mamba}
    right = {position for group, position in left.must if group in states}
    found = {position for position in right if position == left.export}
    reach = cacheable(left.sure, block, geometry.align, False, geometry.fine)
    ends = {left.sure} & right
    if "attention.boundaries_past_hashes" in wrong:
        checkpoint = geometry.checkpoint(history.prompt)
        ends = {
            at
            for at in ends
            if masked(step, chunk, at, wrong)
            or (geometry.fine and at in (checkpoint, learned_junction(chunk, step.expected)))
        }
    if "registration.held_back" in wrong and held_back(step):
        final = max(left.sure - held_back(step), 0)
        reach = cacheable(final, block, geometry.align, False, geometry.fine)
        before = case.witness.chunks.get(history.id)
        old = {before.publications.sure} if before is not None and chunk.scheduled.start else set()
        ends = {at for at in ends | old if at <= reach and masked(step, chunk, at, wrong)}
        if geometry.fine and reach == geometry.checkpoint(history.prompt) > 0:
            ends.add(reach)
    if "registration.export_alone" in wrong and left.export:
        ends = {at for at in ends if masked(step, chunk, at, wrong)}
    found |= ends
    inside = block_end_inside(step, chunk)
    if "registration.partial_block" in wrong and 0 < inside <= reach and inside != left.overwritten:
        found |= {inside} if masked(step, chunk, inside, wrong) else set()
    if "registration.hash_boundary" in wrong and not geometry.fine and not left.export:
        boundary = geometry.checkpoint_on(history.prompt, geometry.unit)
        late = held_back(step) if "registration.held_back" in wrong else 0
        most = cacheable(left.sure, block, geometry.align, unmarked(step), False, late)
        found |= {boundary} if 0 < boundary == most else set()
    return found


def chunk_of(case: Case, entry: Entry) -> ChunkForecast | None:
    """The chunk that computed a missing entry: of this step, or the last one of its request before."""
    before = case.witness.chunks.get(entry.request)
    for chunk in (*case.step.expected.chunks, *([before] if before is not None else [])):
        left = chunk.publications
        if chunk.history.id == entry.request and (entry.group, entry.position) in left.must:
            return chunk
    return before


def visible_after(step: Step) -> set[tuple[int, int]]:
    return (step.cache.visible - step.withdrawn().keys()) | step.published().keys()


def _all_there(step: Step, chunk: ChunkForecast, positions: set[int]) -> bool:
    """Whether the states at these positions of a request's prefix are visible after the step, as far as they
    have a name."""
    visible, reach = visible_after(step), len(chunk.history.numbers) * step.geometry.unit
    return all(
        step.cache.key(group.index, chunk.history, position) in visible
        for group in step.geometry.mamba
        for position in positions
        if position <= reach
    )


def unregistered(case: Case, finding: Finding, name: str) -> bool:
    """Whether a state is missing because this quirk keeps it from being registered, and all else that the
    chunk should register with the quirks in force is there."""
    entry = finding.entry
    if finding.kind not in MISSING_STATES or entry is None or name not in case.wrong:
        return False
    chunk = chunk_of(case, entry)
    if chunk is None:
        return False

    def right(wrong: Wrong) -> bool:
        positions = registered(case, chunk, wrong)
        return entry.position not in positions and _all_there(case.step, chunk, positions)

    return case.due_to(name, right)


def _overrun(case: Case, finding: Finding) -> ChunkForecast | None:
    """The chunk that began inside the block whose end is registered though it ran past it."""
    entry = finding.entry
    if finding.kind != "stray-state" or entry is None:
        return None
    step = case.step
    for chunk in step.expected.chunks:
        if step.begins(chunk.history, entry):
            before = case.witness.chunks.get(chunk.history.id)
            for one in (chunk, *([before] if before is not None else [])):
                inside = block_end_inside(step, one) == entry.position
                if inside and masked(step, one, entry.position, case.wrong):
                    return one
    return None


def overran_rightly(case: Case, chunk: ChunkForecast) -> bool:
    """Whether a split that counts in Mamba blocks could have let a chunk run past the end of its block."""
    return split.possible(case.step, chunk, case.wrong - {"split.smallest_block"})


@quirk("registration.partial_block")
def registers_a_partial_block_as_full(case: Case, finding: Finding) -> bool:
    """The block that a chunk began inside of, and ran past the end of, is registered under that end with the
    state that the chunk began with: at once, and found by a later reader."""
    chunk = _overrun(case, finding)
    if chunk is not None:
        return overran_rightly(case, chunk)
    return not _counts_small(case) and (read_from(case, finding) or _put_from(case, finding))


def _counts_small(case: Case) -> bool:
    small = split.smallest_block(case.step.configuration) < case.step.geometry.mamba_block
    return small and "split.smallest_block" in case.wrong


def read_from(case: Case, finding: Finding) -> bool:
    """Whether a wrong state was read at a block end that an earlier chunk ran past."""
    if finding.kind != "state" or finding.request is None:
        return False
    step, history = case.step, case.step.histories[finding.request]
    at, unit = finding.position or 0, case.step.geometry.unit
    known = at % unit == 0 and 0 < at <= len(history.numbers) * unit
    group = finding.group
    return known and group is not None and step.cache.key(group, history, at) in case.witness.overrun


def _put_from(case: Case, finding: Finding) -> bool:
    """Whether the state of a block that a chunk ran past was put into the store under the block's end."""
    entry, step = finding.entry, case.step
    if finding.kind not in ("put-wrong", "put-stray") or entry is None or step.kind(entry) != "mamba":
        return False
    now = [block_end_inside(step, one) for one in step.expected.chunks if step.begins(one.history, entry)]
    return entry.position in now or step.key(entry) in case.witness.overrun


@quirk("split.smallest_block")
def counts_in_the_smallest_block(case: Case, finding: Finding) -> bool:
    """The split counts in the smallest block of all groups, not in the Mamba block: chunks jump over stops,
    and past the end of the block that they began in, whose registered state is then that of their start."""
    if split.explains(case, finding, "split.smallest_block"):
        return True
    chunk = _overrun(case, finding)
    if chunk is not None:
        return not overran_rightly(case, chunk) and split.possible(case.step, chunk, case.wrong)
    return _counts_small(case) and (read_from(case, finding) or _put_from(case, finding))


@quirk("registration.export_alone")
def registers_the_export_alone(case: Case, finding: Finding) -> bool:
    """A chunk that exports a state registers that one only, not the state at its end."""
    return unregistered(case, finding, "registration.export_alone")


@quirk("registration.held_back")
def holds_states_back(case: Case, finding: Finding) -> bool:
    """Mamba states are held back as not final, like the attention of draft modules, and registered late or
    never; what is registered late may have moved on."""
    step, entry = case.step, finding.entry
    if not held_back(step):
        return False
    if finding.kind == "stray-state" and entry is not None:
        final = [
            one.publications.sure - held_back(step)
            for one in step.expected.chunks
            if step.begins(one.history, entry)
        ]
        checkpoint = step.geometry.checkpoint(step.histories[entry.request].prompt)
        return entry.position == checkpoint and entry.position in final
    if finding.kind == "state" and finding.request is not None and finding.group is not None:
        history, at = step.histories[finding.request], finding.position or 0
        known = at % step.geometry.unit == 0 and 0 < at <= len(history.numbers) * step.geometry.unit
        return known and step.cache.key(finding.group, history, at) in case.witness.late
    if finding.kind == "exception-allocate_new_blocks":
        return "AssertionError" in finding.message and any(
            _takes_the_running_block(case, one) for one in step.oracle.live()
        )
    return unregistered(case, finding, "registration.held_back")


def _takes_the_running_block(case: Case, history: History) -> bool:
    """Whether the last chunk of a request registered its running block at the prompt's checkpoint, which is
    held back to there; the next step moves that block, and vLLM asserts that it did not."""
    last, geometry = case.witness.chunks.get(history.id), case.step.geometry
    checkpoint = geometry.checkpoint(history.prompt)
    if last is None or history.state != "running" or checkpoint % geometry.mamba_block == 0:
        return False
    return last.publications.sure - held_back(case.step) == checkpoint


@quirk("registration.hash_boundary")
def registers_on_the_hash_unit(case: Case, finding: Finding) -> bool:
    """With coarse hits a state is registered at the prompt's last boundary of the hash unit, not of the grid
    of hits, whatever the block there holds; what the block was registered under before is lost."""
    if "registration.hash_boundary" not in case.wrong:
        return False
    if finding.kind != "lost":
        return _registers_stray(case, finding, "registration.hash_boundary")
    return any(
        _registers_stray(case, other, "registration.hash_boundary") and _same_table(case, finding, other)
        for other in case.findings
    )


def _same_table(case: Case, lost: Finding, stray: Finding) -> bool:
    """Whether a request that the stray state is of could have had the lost entry in the same table."""
    one, other = lost.entry, stray.entry
    if one is None or other is None or one.group != other.group:
        return False
    return case.step.begins(case.step.histories[other.request], one)


def _registers_stray(case: Case, finding: Finding, name: str) -> bool:
    entry = finding.entry
    if finding.kind != "stray-state" or entry is None:
        return False
    return any(
        case.step.begins(chunk.history, entry)
        and case.due_to(
            name,
            lambda wrong, chunk=chunk: entry.position in registered(case, chunk, wrong),  # type: ignore[misc]
        )
        for chunk in case.step.expected.chunks
    )


@quirk("registration.promoted")
def promotes_after_an_export(case: Case, finding: Finding) -> bool:
    """The block that an export has taken is registered later under the end that it had before, and the export
    loses its key."""
    # Another request may have computed that end in this very step, so that its key is right.
    promoted = case.step.published().keys() & case.witness.displaced.keys()
    entry = finding.entry
    if entry is None:
        return False
    if finding.kind in ("stray-state", "transient"):
        return case.step.key(entry) in promoted
    lost = {case.witness.displaced[key] for key in promoted}
    return finding.kind in ("lost", "evicted-in-use") and case.step.key(entry) in lost


@quirk("registration.taken_back")
def keeps_what_was_taken_back(case: Case, finding: Finding) -> bool:
    """A request that was scheduled and then preempted in the same step leaves what its chunk would have
    registered."""
    entry, step = finding.entry, case.step
    if finding.kind not in ("stray-state", "uncomputed") or entry is None:
        return False
    return any(
        step.begins(step.histories[request], entry)
        and step.histories[request].state == "running"
        and _would_register(case, step.histories[request], entry)
        for request in step.observation.preempted
    )


def _would_register(case: Case, history: History, entry: Entry) -> bool:
    """Whether some chunk that the request could have been given registers an entry."""
    step, start = case.step, history.computed
    prefill = split.Prefill.of(history, start, history.junction)
    most = min(step.configuration.budget, history.known - start)
    ends = {
        split.split_end(step.geometry, step.configuration, prefill, asked, case.wrong)
        for asked in range(1, most + 1)
    }
    for end in ends - {start}:
        left = publications(step.configuration, step.geometry, history, start, end, 0)
        if (entry.group, entry.position) in left.must | left.may:
            return True
    return False
