"""What becomes of loads and of the requests that wait for them; hangs, so no variant foretells them.

Source: vllm/v1/core/sched/scheduler.py, `_update_waiting_for_remote_kv`, `_request_remaining_blocks`; and
vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store/scheduler.py, `build_connector_meta`.
"""

from __future__ import annotations

from reference.history import History
from tailproof.judge.findings import Finding
from tailproof.judge.step import Step
from tailproof.known.quirks.case import Case, quirk

# Failures of one request's load in a row from which on it is taken to be asked for again and again.
_AGAIN = 3


def blocks_of(step: Step, tokens: int) -> int:
    """Blocks that a request of so many tokens holds at most: all of attention, the running state, the state
    that it began with, and one for an export."""
    speculative = step.configuration.speculative
    attention = sum(-(-tokens // group.block) for group in (*step.geometry.attention, *step.geometry.windows))
    return attention + (3 + speculative) * len(step.geometry.mamba)


@quirk("loads.told_after_reset")
def tells_of_a_reset_too_late(case: Case, finding: Finding) -> bool:
    """A reset preempts a request, and the connector is told of it in the step that resumes it: the connector
    forgets what it has just noted for it, and the step ends in an exception, or a load is never issued."""
    if finding.kind == "load-unreported":
        return finding.request in case.witness.reset_loads
    if finding.kind != "exception-build_connector_meta":
        return False
    failure = case.step.observation.failure
    kinds = ("AssertionError", "TypeError", "KeyError")
    live = {one.id for one in case.step.oracle.live()}
    return failure is not None and failure.message.startswith(kinds) and bool(case.witness.reset & live)


def _waiting(case: Case) -> list[History]:
    """Live requests whose load failed and that were not admitted since."""
    failed = case.step.expected.store.failed_before
    return [one for one in case.step.oracle.live() if one.id in failed]


@quirk("loads.reserves_twice")
def reserves_for_itself(case: Case, finding: Finding) -> bool:
    """Requests whose load failed still count among the prefills in flight, so one is admitted only where it
    fits beside what all of them need, itself too."""
    if finding.kind != "stuck" or finding.rule != "LV2":
        return False
    needs = [blocks_of(case.step, one.known) for one in _waiting(case)]
    # What a load is admitted by may count a block more than this, so a pool that is filled does not hold it.
    return any(need + sum(needs) >= case.step.observation.free for need in needs)


@quirk("loads.retried")
def asks_again_and_again(case: Case, finding: Finding) -> bool:
    """A request whose load failed asks the store again, is told of the same hit, and loads again; while the
    transfer keeps failing, nothing is computed."""
    if finding.kind != "stuck" or finding.rule != "LV2":
        return False
    failing = case.step.expected.store.failing
    return any(case.witness.failures[request] >= _AGAIN for request in failing)


@quirk("loads.fill_the_pool")
def loads_fill_the_pool(case: Case, finding: Finding) -> bool:
    """Requests that have loaded hold the whole pool: none of them can take the block that it needs to go on,
    and none runs that could be preempted."""
    if finding.kind != "stuck":
        return False
    step = case.step
    running = any(one.state == "running" for one in step.oracle.live())
    loaded = [one for one in step.oracle.live() if one.id in step.expected.store.loaded]
    return bool(loaded) and not running and step.observation.free <= len(step.geometry.mamba)
