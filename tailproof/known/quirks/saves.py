"""Wrong variants of TS: what vLLM offers to its store connector.

Source: vllm/v1/core/single_type_kv_cache_manager.py, `MambaManager.cache_blocks`.
"""

from __future__ import annotations

from tailproof.judge.findings import Finding
from tailproof.known.quirks.case import Case, quirk


@quirk("saves.export_not_offered")
def does_not_offer_exports(case: Case, finding: Finding) -> bool:
    """With coarse hits only the states of blocks up to the last alignment are offered to the store; an export
    lies in a column behind them."""
    entry, geometry = finding.entry, case.step.geometry
    if finding.kind not in ("missing-state", "missing-state-resumed") or entry is None or geometry.fine:
        return False
    chunk = next((one for one in case.step.expected.chunks if one.history.id == finding.request), None)
    chunk = chunk or case.witness.chunks.get(finding.request or "")
    if chunk is None or chunk.publications.export != entry.position:
        return False
    block = geometry.mamba_block
    column = -(-chunk.scheduled.end // block) - 2
    return column >= chunk.publications.sure // geometry.align * geometry.align // block
