"""Wrong variants of AC3: what vLLM's KV events tell.

Source: vllm/v1/core/block_pool.py, `cache_full_blocks`.
"""

from __future__ import annotations

from reference.forecast import ChunkForecast
from spec.geometry import GroupGeometry
from spec.observation import Event
from spec.retention import cacheable
from tailproof.judge.findings import Finding
from tailproof.known.quirks.case import Case, quirk
from tailproof.known.quirks.registration import held_back, unmarked

_KINDS = ("event-without-entries", "event-skips-blocks")


@quirk("told.whole_range")
def tells_the_whole_range(case: Case, finding: Finding) -> bool:
    """A stored event of a group that registers only some blocks (Mamba, windows) lists the tokens of the
    whole range of full blocks that a chunk completed, beside the hashes of those registered."""
    event = finding.event
    if event is None or not event.matches or finding.kind not in _KINDS:
        return False
    chunks = [*case.step.expected.chunks]
    if case.step.configuration.asynchronous or case.step.geometry.hash_lookahead:
        # What a step completes is registered, and told, once its hash is known: with a later answer.
        chunks += case.witness.chunks.values()
    sparse = [group for group in case.step.geometry.groups if group.kind != "full"]
    return any(_tells(case, event, group, chunk) for group in sparse for chunk in chunks)


def _tells(case: Case, event: Event, group: GroupGeometry, chunk: ChunkForecast) -> bool:
    """Whether an event has the whole range of a chunk's full blocks in a group and names those of it that
    are registered, in order."""
    step, end = case.step, event.start + event.tokens
    if event.start % group.block or end not in _ends(case, group, chunk):
        return False
    first = -(-chunk.scheduled.start // group.block) * group.block
    # Where hashes cover tokens to come, what has none yet is told by an event of its own.
    if event.start > first and not step.geometry.hash_lookahead:
        return False
    places = [entry.position for entry in event.entries]
    ours = all(entry.group == group.index and step.begins(chunk.history, entry) for entry in event.entries)
    return ours and places == sorted(set(places)) and all(at % group.block == 0 for at in places)


def _ends(case: Case, group: GroupGeometry, chunk: ChunkForecast) -> set[int]:
    """Where the full blocks end that vLLM counts as cached in a group once the chunk is known."""
    geometry = case.step.geometry
    drops = group.drops or (group.kind == "mamba" and unmarked(case.step))
    late = geometry.unfinished if group.drops else held_back(case.step)
    history, left = chunk.history, chunk.publications
    # Accepted drafts may be registered with the answer of their own step.
    last = chunk.scheduled.end
    named = geometry.hashed(history.prompt + history.told)
    ends = set()
    for computed in range(left.sure, last + 1):
        most = cacheable(computed, group.block, geometry.align, drops, geometry.fine, late)
        ends |= {reach // group.block * group.block for reach in (most, min(most, named))}
    return ends
