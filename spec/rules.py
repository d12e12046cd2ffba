"""The registry: every rule once, with its reason, its source, and what would show that it is broken."""

from __future__ import annotations

from dataclasses import dataclass

_SEED_CORE = "seeds: core and Mooncake pull request"
_SEED_LOOKUP = "seeds: lookup and registration pull request"
_MANAGER = "vllm/v1/core/single_type_kv_cache_manager.py"
_COORDINATOR = "vllm/v1/core/kv_cache_coordinator.py"
_SCHEDULER = "vllm/v1/core/sched/scheduler.py"
_STORE = "joins with the store tier"
_CORE_LATER = "joins with the whole core tier"
_ALL = ("old", "drop", "lookahead")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. `theorems` name functions in `proofs.theorems`, `tiers` the fuzzing tiers that observe it,
    `faults` the planted faults of the reference that lockstep must report under exactly this rule;
    `pending` says why a rule is not checked yet (then it has neither)."""

    id: str
    statement: str
    reason: str
    source: str
    theorems: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    profiles: tuple[str, ...] = _ALL
    pending: str | None = None

    @property
    def family(self) -> str:
        """The letters of the id."""
        return self.id.rstrip("0123456789")


def _derived(
    rule: str,
    statement: str,
    reason: str,
    source: str,
    *theorems: str,
    profiles: tuple[str, ...] = _ALL,
) -> Rule:
    return Rule(rule, statement, reason, source, theorems=theorems, profiles=profiles)


def _observed(rule: str, statement: str, reason: str, source: str, *faults: str) -> Rule:
    return Rule(rule, statement, reason, source, tiers=("core",), faults=faults)


def _pending(rule: str, statement: str, reason: str, why: str) -> Rule:
    return Rule(rule, statement, reason, _SEED_CORE, pending=why)


_RULES = (
    _derived(
        "CP1",
        "The resend checkpoint lies on the grid: U divides C and 0 ≤ C ≤ P − 1.",
        "A state off the grid has no hash, and a resend that reused all P tokens would have no logits.",
        _SEED_CORE,
        "cp1_on_the_grid",
    ),
    _derived(
        "CP2",
        "A resend leaves between 1 and U tokens to compute; with EAGLE between min(P, U) and 2U − 1 (P ≥ U).",
        "The last token is needed for logits; with EAGLE the last matched unit is needed by the draft.",
        _SEED_CORE,
        "cp2_leaves_tokens",
        profiles=("drop",),
    ),
    _derived(
        "CP3",
        "With EAGLE and C > 0 the proof fits: C + U ≤ ⌊P/U⌋·U.",
        "The proof of C is the unit after it; without a hash for that unit C could never be confirmed.",
        _SEED_CORE,
        "cp3_proof_fits",
        profiles=("old", "drop"),
    ),
    _derived(
        "CP4",
        "C is maximal: no h = C + kU, k ≥ 1, has h ≤ P − 1 and, with EAGLE, h + U ≤ ⌊P/U⌋·U.",
        "Any lower checkpoint gives tokens away on every resend.",
        _SEED_CORE,
        "cp4_maximal",
        profiles=("drop", "lookahead"),
    ),
    _derived(
        "CP5",
        "C is monotone in P and safe for extension: a longer prompt may always use it.",
        "One state must serve resend and extension alike; backends export one only.",
        _SEED_CORE,
        "cp5_safe_for_extension",
        profiles=("old", "drop"),
    ),
    _derived(
        "CP6",
        "With EAGLE, C is never below the rule before 0.32; above it, by U, exactly when U | P and P ≥ 2U.",
        "Says precisely whom the change of the rule touches.",
        _SEED_CORE,
        "cp6_against_the_old_rule",
        profiles=("drop",),
    ),
    _observed(
        "CP7",
        "Agreement: the scheduler's split, the registration and the export use one C, that of the prompt.",
        "A state kept at one place and registered or looked up at another is a lost hit.",
        _SEED_LOOKUP,
        "old-checkpoint",
        "registers-old-checkpoint",
    ),
    Rule(
        "PM1",
        "The proof scan is bounded by min(limit + M_g, hashes·U), not by the limit P − 1.",
        "Proof is only inspected; bounding it by the hit limit hides proof that is there.",
        _SEED_CORE,
        theorems=("pm1_scan_reaches_the_proof",),
        tiers=("core",),
        faults=("scan-capped",),
        profiles=("drop", "lookahead"),
    ),
    Rule(
        "PM2",
        "The hit is at most P − 1 and on the grid.",
        "Looking past the limit for proof must not let the hit itself pass it.",
        _SEED_CORE,
        theorems=("pm2_hit_within_the_limit",),
        tiers=("core",),
        faults=("off-grid-hit",),
    ),
    _observed(
        "PM3",
        "Each group that drops does so exactly once per candidate length.",
        "A second drop loses a unit that was proved; a missing one reuses what the draft must recompute.",
        _COORDINATOR,
        "double-drop",
        "no-drop",
    ),
    _observed(
        "PM4",
        "A Mamba group may only accept or shorten the candidate.",
        "It has no say about attention KV, so a longer state does not make a longer hit.",
        _COORDINATOR,
        "state-extends-hit",
    ),
    _derived(
        "PM5",
        "The scan never asks for a hash that does not exist.",
        "Only whole units are hashed.",
        _SEED_CORE,
        "pm5_hash_exists",
    ),
    _observed(
        "LK1",
        "The hit is the greatest length, at most P − 1 and on the grid, that every group serves.",
        "Anything shorter is lost work, anything longer is reuse without content.",
        _COORDINATOR,
        "stops-early",
        "ignores-salt",
    ),
    _derived(
        "LK2",
        "The hit does not depend on the order of the groups.",
        "Group order is an accident of layer registration.",
        _COORDINATOR,
        "lk2_order_of_groups",
    ),
    _derived(
        "LK3",
        "For a fixed bound, more visible entries never shorten the hit.",
        "Otherwise caching more would serve less.",
        _COORDINATOR,
        "lk3_more_entries",
    ),
    _pending("LK4", "Local and external lookups obey the same rule.", "One prompt, one answer.", _STORE),
    _observed(
        "LK5",
        "The junction is the longest length the attention of one layout could serve, when above the hit.",
        "It is where requests sharing a prefix would have met, had a state been kept there.",
        _COORDINATOR,
        "no-junction",
    ),
    _observed(
        "RT1",
        "What must be visible is visible and stays so; nothing is visible that was not computed.",
        "A missing entry is a lost hit, an extra one is reuse of content that is not there.",
        _MANAGER,
        "forgets-tail-entry",
        "publishes-uncomputed",
        "loses-entry",
    ),
    _observed(
        "RT2",
        "The resend checkpoint is kept under every retention setting.",
        "Sparse retention saves memory; it must not cost the resend.",
        _MANAGER,
        "retention-drops-checkpoint",
    ),
    _observed(
        "CH1",
        "A prefill chunk never jumps over a required stop.",
        "A state exists only where a chunk ends or an export is made.",
        _SCHEDULER,
        "runs-past-junction",
    ),
    _observed(
        "CH2",
        "A step with unfinished requests and room computes at least one token and preempts nobody.",
        "Alignment may shorten a chunk, but a step that schedules nothing would repeat for ever.",
        _SCHEDULER,
        "stalls-once",
        "preempts-freely",
    ),
    _observed(
        "CH3",
        "A published Mamba position is a chunk end or an exported checkpoint.",
        "Elsewhere the state was never in memory.",
        _MANAGER,
        "publishes-mid-chunk",
    ),
    _observed(
        "CH4",
        "A transient state is never published: an export takes the place of a block end.",
        "The key of the block end would name a state that is no longer there.",
        _MANAGER,
        "publishes-transient",
    ),
    _observed(
        "CH5",
        "Chunks of a request follow each other without gap or overlap; the first begins at its hit.",
        "New here: the start of a chunk is read from the observation, so it must be checked.",
        _SCHEDULER,
        "skips-token",
    ),
    _pending("TS1", "The external hit after a local reset equals the local hit before.", "Tails.", _STORE),
    _pending("TS2", "Nothing is put into a store before it is computed.", "Wrong bytes.", _STORE),
    _pending("TS3", "One successful put per key and prompt.", "Wasted transfers.", _STORE),
    _pending("TS4", "What is pinned is exactly what is put.", "Wrong or leaked pins.", _STORE),
    _pending("TS5", "A junction adds no tail.", "Wasted transfers.", _STORE),
    _pending("TS6", "After preemption the original prompt length decides C.", "Lost tails.", _STORE),
    _pending("TS7", "Gaps between the last normal save and the tail are closed.", "Lost tails.", _STORE),
    _observed(
        "EL1",
        "Whether hits may land inside a block is decided once, from all groups, and used everywhere.",
        "A component that decides otherwise rounds hits away or looks for keys that nobody writes.",
        _SEED_CORE,
        "coarse-lookup",
    ),
    _pending(
        "EL2", "Hash unit and checkpoint unit of the worker equal the scheduler's.", "CP7.", _CORE_LATER
    ),
    _pending("LT1", "A pinned block is neither freed nor handed out.", "Wrong bytes.", _STORE),
    _pending("LT2", "Every pin is released exactly once.", "Leaks and early frees.", _STORE),
    _observed(
        "LT3",
        "At quiescence the free count is back where it started.",
        "A leaked block is lost until restart; enough of them stop the engine.",
        "vllm/v1/core/block_pool.py",
        "leaks-block",
    ),
    _observed(
        "LT4",
        "A reset takes effect exactly when no request holds a block, and then empties the cache.",
        "A reset that half works serves old weights; one that never works stops training loops.",
        _SCHEDULER,
        "reset-keeps-entries",
    ),
    _observed(
        "SF1",
        "Every token a request reuses was computed from exactly the same prefix, salt included.",
        "Anything else is another request's answer.",
        _SEED_CORE,
        "stale-kv",
    ),
    _observed(
        "SF2",
        "A Mamba state reused at h is the state after exactly h tokens.",
        "A wrong state corrupts every later token without an error.",
        _MANAGER,
        "stale-state",
    ),
    _observed(
        "SF3",
        "A state published in a step is not reused in the same step.",
        "It is only written when the step runs.",
        _MANAGER,
        "same-step-reuse",
    ),
    _observed(
        "SF4",
        "Outputs with and without cache agree.",
        "What a user sees.",
        _SEED_LOOKUP,
        "wrong-output",
    ),
    _observed(
        "AC1",
        "Reported cached tokens are the local plus the external hit.",
        "Operators bill and tune by this number.",
        _SCHEDULER,
        "miscounts-hit",
    ),
    _pending("AC2", "Counters add up over a run.", "Dashboards.", _CORE_LATER),
    _pending("AC3", "KV events describe exactly what was stored and removed.", "Routers.", _CORE_LATER),
    _observed(
        "LV1",
        "Every admitted request ends, when its last token is there or with a stated reason.",
        "A request that hangs, vanishes or crashes the engine is worse than a lost hit.",
        _SCHEDULER,
        "never-finishes",
    ),
    _pending("LV2", "A failed or vanished load leads to recomputation, not to a hang.", "Hangs.", _STORE),
)

RULES: dict[str, Rule] = {rule.id: rule for rule in _RULES}
ORDER: dict[str, int] = {rule: index for index, rule in enumerate(RULES)}


def first(rules: list[str]) -> str:
    """The rule that a report names when one fault breaks several: the first in registry order."""
    return min(rules, key=ORDER.__getitem__)
