"""LV: when a request must have ended, and what a load that failed must lead to."""

from __future__ import annotations


def settle_bound(tokens: int, requests: int) -> int:
    """LV1: engine steps within which `requests` requests of `tokens` tokens in all (prompts and outputs) must
    have ended; a step computes at least one token, and a preempted request starts again."""
    return 4 * (tokens + requests) + 16


def after_failed_load(policy: str) -> str:
    """LV2: what becomes of a request whose load failed: "waiting" to be computed anew under the policy
    recompute, "error" under the policy fail. There is no third: nothing of the load is used, and the request
    never waits for it any longer."""
    return {"recompute": "waiting", "fail": "error"}[policy]


def broken_by_hang(failed_load: bool) -> str:
    """The rule that a run which goes on no more has broken: LV2 where a request waits whose load failed,
    since a failed load leads to recomputation or an error and never to a hang; else LV1."""
    return "LV2" if failed_load else "LV1"
