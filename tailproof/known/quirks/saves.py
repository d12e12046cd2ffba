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
    block, align = geometry.mamba_block, geometry.align
    # Where each export of the request lies, and how many blocks count as cached when it is made.
    return any(
        export == entry.position and end // block - 1 >= end // align * align // block
        for end, export in _exports(case, entry.request).items()
    )


def _exports(case: Case, request: str) -> dict[int, int]:
    """The exports of a request since it last began, those of this step too, by the block end whose place each
    took."""
    left = [one.publications for one in case.step.expected.chunks if one.history.id == request]
    now = {one.overwritten: one.export for one in left if one.export}
    return {**case.step.histories[request].exports, **now}
