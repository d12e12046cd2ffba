"""Wrong variants of AC3: what vLLM's KV events tell.

Source: vllm/v1/core/block_pool.py, `cache_full_blocks`.
"""

from __future__ import annotations

from tailproof.judge.findings import Finding
from tailproof.known.quirks.case import Case, quirk


@quirk("told.whole_range")
def tells_the_whole_range(case: Case, finding: Finding) -> bool:
    """A stored event of a group that registers only some blocks (Mamba, windows) lists the tokens of the
    whole range of full blocks that a request went through, beside the hashes of those registered."""
    event = finding.event
    if (
        event is None
        or not event.matches
        or finding.kind not in ("event-without-entries", "event-skips-blocks")
    ):
        return False
    geometry = case.step.geometry
    sparse = [group for group in geometry.groups if group.kind != "full"]
    if event.entries:
        sparse = [group for group in sparse if group.index == event.entries[-1].group]
    end = event.start + event.tokens
    return any(
        event.tokens % group.block == 0
        and all(
            entry.position % group.block == 0 and event.start < entry.position <= end
            for entry in event.entries
        )
        for group in sparse
    )
