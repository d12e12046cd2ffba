"""What block copies leave behind. No variant foretells it: which bytes a block held before is not observed.

Source: vllm/v1/worker/utils.py, `copy_kv_cache_blocks_inplace`: all copies of a step are made at once, before
anything is computed, from blocks that the lookups of the step have found.
"""

from __future__ import annotations

from reference.forecast import AdmissionForecast
from tailproof.judge.findings import Finding
from tailproof.known.quirks.case import Case, quirk


def _copy(case: Case, finding: Finding) -> tuple[AdmissionForecast, int] | None:
    """For wrong KV in the attention block that a request hit inside of, and so got a copy of: its admission,
    and where that block begins."""
    if finding.kind != "kv-of-hit" or finding.group is None or finding.position is None:
        return None
    step = case.step
    admission = next(one for one in step.expected.admissions if one.history.id == finding.request)
    group, hit = step.geometry.groups[finding.group], admission.admitted.local
    begin = hit // group.block * group.block
    if group.kind != "full" or not begin <= finding.position < hit:
        return None
    return admission, begin


@quirk("copies.chained")
def copies_a_copy(case: Case, finding: Finding) -> bool:
    """An earlier request of the step resumes inside the same block of the same prefix and registers a key for
    its private copy. The later one's lookup finds that key, so its copy is made from the private copy of the
    first, before that has its content: what both share of the block is wrong."""
    copy = _copy(case, finding)
    if copy is None:
        return False
    later, begin = copy
    block = case.step.geometry.groups[finding.group or 0].block
    admissions = case.step.expected.admissions
    for earlier in admissions[: admissions.index(later)]:
        other = earlier.admitted.local
        inside = other % block > 0 and other // block * block == begin
        shared = min(later.admitted.local, other)
        alike = earlier.history.tokens[:shared] == later.history.tokens[:shared]
        if inside and alike and (finding.position or 0) < shared and _seen(case, finding, later, begin):
            return True
    return False


def _seen(case: Case, finding: Finding, later: AdmissionForecast, begin: int) -> bool:
    """Whether the lookup of a request saw a key of the block that appeared in this very step."""
    block = case.step.geometry.groups[finding.group or 0].block
    return any(
        entry.group == finding.group
        and begin < entry.position <= begin + block
        and case.step.begins(later.history, entry)
        for entry in later.admitted.appeared
    )


@quirk("copies.in_progress")
def copies_what_is_being_computed(case: Case, finding: Finding) -> bool:
    """Another request of the step computes a part of the block, whose key is visible already: the copy misses
    what is computed now, from the first such token on."""
    copy = _copy(case, finding)
    if copy is None:
        return False
    later, begin = copy
    hit = later.admitted.local
    return _seen(case, finding, later, begin) and any(
        chunk.history is not later.history
        and finding.position == max(chunk.scheduled.start, begin)
        and chunk.history.tokens[:hit] == later.history.tokens[:hit]
        for chunk in case.step.expected.chunks
    )
