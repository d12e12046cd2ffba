"""The registry: every rule once, with its reason, its source, and what would show that it is broken."""

from __future__ import annotations

from dataclasses import dataclass

_SEED_CORE = "seeds: core and Mooncake pull request"
_SEED_LOOKUP = "seeds: lookup and registration pull request"
_MANAGER = "vllm/v1/core/single_type_kv_cache_manager.py"
_COORDINATOR = "vllm/v1/core/kv_cache_coordinator.py"
_SCHEDULER = "vllm/v1/core/sched/scheduler.py"
_STORE = "vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store/scheduler.py"
_WORKER = "vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store/worker.py"
_ALL = ("old", "drop", "lookahead")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. `definition` names what defines it: functions of the spec, or where it is about what was seen,
    the type that holds it; what content a prefix has is the reference's to say, as dotted names.
    `theorems` name functions in `proofs.theorems`, `tiers` the fuzzing tiers that observe it, `faults` the
    planted faults of the reference that lockstep must report under exactly this rule; `store_faults` are
    those that need the store tier."""

    id: str
    statement: str
    reason: str
    source: str
    definition: tuple[str, ...]
    theorems: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    store_faults: tuple[str, ...] = ()
    profiles: tuple[str, ...] = _ALL

    @property
    def family(self) -> str:
        """The letters of the id."""
        return self.id.rstrip("0123456789")


def _derived(
    rule: str,
    statement: str,
    reason: str,
    source: str,
    definition: tuple[str, ...],
    *theorems: str,
    profiles: tuple[str, ...] = _ALL,
    store_faults: tuple[str, ...] = (),
) -> Rule:
    """A rule with theorems; with `store_faults` it is observed in the store tier too."""
    tiers = ("store",) if store_faults else ()
    return Rule(rule, statement, reason, source, definition, theorems, tiers, (), store_faults, profiles)


def _stored(
    rule: str, statement: str, reason: str, source: str, definition: tuple[str, ...], *faults: str
) -> Rule:
    return Rule(rule, statement, reason, source, definition, tiers=("store",), store_faults=faults)


def _observed(
    rule: str,
    statement: str,
    reason: str,
    source: str,
    definition: tuple[str, ...],
    *faults: str,
    store_faults: tuple[str, ...] = (),
) -> Rule:
    tiers = ("core", "store") if store_faults else ("core",)
    return Rule(rule, statement, reason, source, definition, (), tiers, faults, store_faults)


_RULES = (
    _derived(
        "CP1",
        "The resend checkpoint lies on the grid: U divides C and 0 ≤ C ≤ P − 1.",
        "A state off the grid has no hash, and a resend that reused all P tokens would have no logits.",
        _SEED_CORE,
        (
            "spec.checkpoint.resend_checkpoint",
            "spec.checkpoint.capped_and_dropped_checkpoint",
            "spec.checkpoint.lookahead_checkpoint",
        ),
        "cp1_on_the_grid",
    ),
    _derived(
        "CP2",
        "A resend leaves between 1 and U tokens to compute; with EAGLE between min(P, U) and 2U − 1 (P ≥ U).",
        "The last token is needed for logits; with EAGLE the last matched unit is needed by the draft.",
        _SEED_CORE,
        ("spec.checkpoint.resend_checkpoint",),
        "cp2_leaves_tokens",
        profiles=("drop",),
    ),
    _derived(
        "CP3",
        "With EAGLE and C > 0 the proof fits: C + U ≤ ⌊P/U⌋·U.",
        "The proof of C is the unit after it; without a hash for that unit C could never be confirmed.",
        _SEED_CORE,
        ("spec.checkpoint.resend_checkpoint", "spec.checkpoint.capped_and_dropped_checkpoint"),
        "cp3_proof_fits",
        profiles=("old", "drop"),
    ),
    _derived(
        "CP4",
        "C is maximal: no h = C + kU, k ≥ 1, has h ≤ P − 1 and, with EAGLE, h + U ≤ ⌊P/U⌋·U.",
        "Any lower checkpoint gives tokens away on every resend.",
        _SEED_CORE,
        ("spec.checkpoint.resend_checkpoint", "spec.checkpoint.lookahead_checkpoint"),
        "cp4_maximal",
        profiles=("drop", "lookahead"),
    ),
    _derived(
        "CP5",
        "C is monotone in P and safe for extension: a longer prompt may always use it.",
        "One state must serve resend and extension alike; backends export one only.",
        _SEED_CORE,
        ("spec.checkpoint.resend_checkpoint", "spec.checkpoint.capped_and_dropped_checkpoint"),
        "cp5_safe_for_extension",
        profiles=("old", "drop"),
    ),
    _derived(
        "CP6",
        "With EAGLE, C is never below the rule before 0.32; above it, by U, exactly when U | P and P ≥ 2U.",
        "Says precisely whom the change of the rule touches.",
        _SEED_CORE,
        ("spec.checkpoint.resend_checkpoint", "spec.checkpoint.capped_and_dropped_checkpoint"),
        "cp6_against_the_old_rule",
        profiles=("drop",),
    ),
    _observed(
        "CP7",
        "Agreement: the scheduler's split, the registration and the export use one C, that of the prompt.",
        "A state kept at one place and registered or looked up at another is a lost hit.",
        _SEED_LOOKUP,
        ("spec.geometry.Geometry.checkpoint",),
        "old-checkpoint",
        "registers-old-checkpoint",
    ),
    Rule(
        "PM1",
        "The proof scan is bounded by min(limit + M_g, hashes·U), not by the limit P − 1.",
        "Proof is only inspected; bounding it by the hit limit hides proof that is there.",
        _SEED_CORE,
        ("spec.proof.scan_bound",),
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
        ("spec.proof.scan_bound", "spec.lookup.attention_serves", "spec.lookup.greatest_hit"),
        theorems=("pm2_hit_within_the_limit",),
        tiers=("core",),
        faults=("off-grid-hit",),
    ),
    _observed(
        "PM3",
        "Each group that drops does so exactly once per candidate length.",
        "A second drop loses a unit that was proved; a missing one reuses what the draft must recompute.",
        _COORDINATOR,
        ("spec.proof.proof_margin", "spec.lookup.attention_serves"),
        "double-drop",
        "no-drop",
    ),
    Rule(
        "PM4",
        "A Mamba group may only accept or shorten the candidate.",
        "It has no say about attention KV, so a longer state does not make a longer hit.",
        _COORDINATOR,
        ("spec.fixed_point.shortened", "spec.lookup.mamba_serves"),
        theorems=("pm4_state_only_shortens",),
        tiers=("core",),
        faults=("state-extends-hit",),
    ),
    _derived(
        "PM5",
        "The scan never asks for a hash that does not exist.",
        "Only whole units are hashed.",
        _SEED_CORE,
        ("spec.proof.scan_bound",),
        "pm5_hash_exists",
    ),
    Rule(
        "LK1",
        "The hit is the greatest length, at most P − 1 and on the grid, that every group serves.",
        "Anything shorter is lost work, anything longer is reuse without content.",
        _COORDINATOR,
        (
            "spec.lookup.greatest_hit",
            "spec.lookup.attention_serves",
            "spec.lookup.window_serves",
            "spec.lookup.mamba_serves",
        ),
        theorems=("lk1_fixed_point",),
        tiers=("core",),
        faults=(
            "stops-early",
            "ignores-salt",
            "ignores-adapter",
            "ignores-media",
            "window-ignored",
        ),
    ),
    Rule(
        "LK2",
        "The hit does not depend on the order of the groups; each scans to its own bound, not another's hit.",
        "Group order is an accident of layer registration, and another group's hit hides proof past it.",
        _COORDINATOR,
        ("spec.lookup.greatest_hit", "spec.proof.scan_bound"),
        theorems=("lk2_order_of_groups",),
        tiers=("core",),
        faults=("bounded-by-first-layout",),
    ),
    _derived(
        "LK3",
        "For a fixed bound, more visible entries never shorten the hit.",
        "Otherwise caching more would serve less.",
        _COORDINATOR,
        ("spec.lookup.attention_extent", "spec.lookup.greatest_hit"),
        "lk3_longer_extent",
        "lk3_longer_hit",
    ),
    _stored(
        "LK4",
        "Local and external lookups obey the same rule: a store serves the greatest hit over its keys; a "
        "block that ends with the request may count as proof.",
        "One prompt, one answer: a store that is asked otherwise holds entries that nobody finds.",
        _WORKER,
        ("spec.lookup.greatest_hit", "spec.tail.is_asked"),
        "external-double-drop",
        "external-scan-capped",
        "external-coarse",
    ),
    _observed(
        "LK5",
        "The junction is the longest length that attention could serve, when above the hit; where attention "
        "has several layouts it lies between what all of them and what one of them could serve.",
        "It is where requests sharing a prefix would have met, had a state been kept there.",
        _COORDINATOR,
        ("spec.lookup.junction",),
        "no-junction",
    ),
    _observed(
        "RT1",
        "What must be visible is visible, and stays so unless its space is needed and nobody holds it; "
        "nothing is visible that was not computed.",
        "A missing entry is a lost hit, an extra one is reuse of content that is not there.",
        _MANAGER,
        (
            "spec.retention.keeps_chunk_end",
            "spec.retention.keeps_export",
            "spec.retention.attention_tail",
            "spec.retention.window_boundaries",
            "spec.retention.cacheable",
        ),
        "forgets-tail-entry",
        "forgets-window",
        "publishes-uncomputed",
        "loses-entry",
        "evicts-in-use",
    ),
    _observed(
        "RT2",
        "The resend checkpoint is kept under every retention setting.",
        "Sparse retention saves memory; it must not cost the resend.",
        _MANAGER,
        ("spec.retention.keeps_chunk_end", "spec.retention.keeps_export"),
        "retention-drops-checkpoint",
    ),
    Rule(
        "CH1",
        "A prefill chunk never jumps over a required stop, nor ends so near to the prompt's end that draft "
        "modules lack the tokens they read ahead.",
        "A state exists only where a chunk ends or an export is made, and what draft modules make up for "
        "want of tokens stays in their cache.",
        _SCHEDULER,
        ("spec.chunking.required_stops", "spec.chunking.junction_stop", "spec.split.chunk_end"),
        theorems=(
            "ch1_no_stop_is_jumped",
            "ch1_stop_unless_exported",
        ),
        tiers=("core",),
        faults=("runs-past-junction",),
    ),
    Rule(
        "CH2",
        "A step with unfinished requests and room computes at least one token and preempts nobody.",
        "Alignment may shorten a chunk, but a step that schedules nothing would repeat for ever.",
        _SCHEDULER,
        ("spec.chunking.must_advance", "spec.split.chunk_end"),
        theorems=("ch2_advances",),
        tiers=("core",),
        faults=(
            "stalls-once",
            "stalls-in-lookahead",
            "preempts-freely",
        ),
    ),
    Rule(
        "CH3",
        "A published Mamba position is a chunk end or an exported checkpoint.",
        "Elsewhere the state was never in memory.",
        _MANAGER,
        ("spec.chunking.exported", "spec.chunking.can_export"),
        theorems=("ch3_export_inside_its_chunk",),
        tiers=("core",),
        faults=("publishes-mid-chunk",),
    ),
    _observed(
        "CH4",
        "A transient state is never published: an export takes the place of a block end.",
        "The key of the block end would name a state that is no longer there.",
        _MANAGER,
        ("spec.retention.keeps_export",),
        "publishes-transient",
    ),
    _observed(
        "CH5",
        "Chunks of a request follow each other without gap or overlap; the first begins at its hit.",
        "New here: the start of a chunk is read from the observation, so it must be checked.",
        _SCHEDULER,
        ("spec.observation.Scheduled",),
        "skips-token",
    ),
    _derived(
        "TS1",
        "The external hit after a local reset equals the local hit before.",
        "A tail that lacks one key of the proof makes the whole resend a miss.",
        _SEED_CORE,
        ("spec.tail.tail_span", "spec.tail.normal_span", "spec.tail.is_saved"),
        "ts1_every_proof_key_is_saved",
        "ts1_external_hit_is_the_local_one",
        profiles=("drop",),
        store_faults=(
            "tail-without-margin",
            "tail-at-lower-key",
            "forgets-span-below-tail",
            "forgets-boundary-state",
        ),
    ),
    _stored(
        "TS2",
        "Nothing is put into a store before it is computed, and never other content than its key names.",
        "A store outlives the engine: a wrong entry is everybody's wrong answer until it is thrown out.",
        _SEED_CORE,
        ("spec.observation.Transfer",),
        "tail-before-computed",
        "saves-drafts",
    ),
    _stored(
        "TS3",
        "A key is put once: never while the store holds it.",
        "Every transfer of a long prompt costs what serving it saves.",
        _SEED_CORE,
        ("spec.observation.Transfer",),
        "tail-twice",
    ),
    _stored(
        "TS4",
        "What is put comes from blocks that a store job holds, and a job is that of a request that ran.",
        "A block that nobody holds is handed to another request while the transfer still reads it.",
        _SEED_CORE,
        ("spec.observation.Pin", "spec.observation.Transfer"),
        "pins-nothing",
        "pins-other-blocks",
    ),
    _stored(
        "TS5",
        "A junction adds no tail.",
        "Its proof ends on block ends, which the normal saves bring; other keys would only fill the store.",
        _SEED_CORE,
        ("spec.tail.tail_span",),
        "junction-tail",
    ),
    _derived(
        "TS6",
        "After preemption the original prompt length decides C, and with it the tail.",
        "The resend will be of the prompt, not of the prompt and what was generated before the preemption.",
        _SEED_CORE,
        ("spec.tail.tail_span",),
        "ts6_original_prompt_decides",
        profiles=("drop",),
        store_faults=("tail-of-horizon",),
    ),
    _derived(
        "TS7",
        "Gaps between the last normal save and the tail are closed, and one step publishes the tail.",
        "A resend needs every block up to its proof, under the very keys that a lookup asks for.",
        _SEED_CORE,
        (
            "spec.tail.tail_span",
            "spec.tail.tail_blocks",
            "spec.tail.tail_key",
            "spec.tail.is_asked",
            "spec.tail.completes",
        ),
        "ts7_no_gap",
        "ts7_keys_are_asked_for",
        "ts7_one_step_publishes",
        profiles=("drop",),
        store_faults=("tail-needs-state",),
    ),
    _observed(
        "EL1",
        "Whether hits may land inside a block is decided once, from all groups, and used everywhere.",
        "A component that decides otherwise rounds hits away or looks for keys that nobody writes.",
        _SEED_CORE,
        ("spec.geometry.Geometry.of", "spec.geometry.Geometry.grid"),
        "coarse-lookup",
    ),
    _observed(
        "EL2",
        "Hash unit and grid of hits of the worker equal the scheduler's.",
        "A worker that exports on another grid saves states where nobody looks for them.",
        _SEED_CORE,
        ("spec.geometry.Geometry.grid", "spec.observation.Outcome"),
        "worker-units",
    ),
    _derived(
        "LT1",
        "A pinned block is neither freed nor handed out.",
        "An asynchronous save would read another request's bytes.",
        _SEED_CORE,
        ("spec.lifetime.sound", "spec.lifetime.step"),
        "lt1_pinned_block_is_kept",
        store_faults=("pin-released-twice",),
    ),
    _derived(
        "LT2",
        "Every pin is released exactly once, when all ranks have reported, success or failure.",
        "A pin released twice frees a block that is in use; one never released leaks it.",
        _SEED_CORE,
        ("spec.lifetime.sound", "spec.lifetime.step"),
        "lt2_pin_released_once",
        store_faults=("pin-kept-on-failure", "pins-end-with-request"),
    ),
    Rule(
        "LT3",
        "At quiescence the free count is back where it started.",
        "A leaked block is lost until restart; enough of them stop the engine.",
        "vllm/v1/core/block_pool.py",
        ("spec.lifetime.step",),
        theorems=("lt3_free_count_returns",),
        tiers=("core", "store"),
        faults=("leaks-block",),
        store_faults=("abandoned-load-leaks",),
    ),
    Rule(
        "LT4",
        "A reset takes effect exactly when no request holds a block, and then empties the cache.",
        "A reset that half works serves old weights; one that never works stops training loops.",
        _SCHEDULER,
        ("spec.lifetime.reset",),
        theorems=("lt4_any_moment",),
        tiers=("core", "store"),
        faults=("reset-keeps-entries",),
        store_faults=("reset-ignores-pins",),
    ),
    _observed(
        "SF1",
        "Every token a request reuses was computed from exactly the same prefix, salt, adapter and media "
        "included.",
        "Anything else is another request's answer.",
        _SEED_CORE,
        ("spec.observation.FailedRead", "spec.exact_model.kv"),
        "stale-kv",
        store_faults=("load-without-bytes", "failed-load-used"),
    ),
    _observed(
        "SF2",
        "A Mamba state reused at h is the state after exactly h tokens.",
        "A wrong state corrupts every later token without an error.",
        _MANAGER,
        ("spec.observation.FailedRead", "spec.exact_model.states"),
        "stale-state",
        store_faults=("loads-other-state",),
    ),
    _observed(
        "SF3",
        "A state published in a step is not reused in the same step.",
        "It is only written when the step runs.",
        _MANAGER,
        ("spec.observation.Observation",),
        "same-step-reuse",
    ),
    _observed(
        "SF4",
        "Outputs with and without cache agree.",
        "What a user sees.",
        _SEED_LOOKUP,
        ("spec.exact_model.outputs", "spec.observation.Finished"),
        "wrong-output",
    ),
    _observed(
        "AC1",
        "Reported cached tokens are the local plus the external hit.",
        "Operators bill and tune by this number.",
        _SCHEDULER,
        ("spec.observation.Finished", "spec.observation.Admitted"),
        "miscounts-hit",
        store_faults=("reports-local-hit",),
    ),
    _observed(
        "AC2",
        "The prefix-cache counters move by the lookups, tokens and hits of each step, new and resumed "
        "requests apart.",
        "Hit rates on dashboards, and what is tuned by them, come from these numbers.",
        "vllm/v1/metrics/stats.py",
        ("spec.observation.Counters",),
        "miscounts-lookups",
    ),
    _observed(
        "AC3",
        "KV events describe exactly what was stored and removed, each with the tokens of its entries.",
        "Routers send requests where the events say that a prefix lies.",
        "vllm/v1/core/block_pool.py",
        ("spec.observation.Event",),
        "forgets-event",
        "tells-too-much",
        "tells-wrong-tokens",
    ),
    _observed(
        "LV1",
        "Every admitted request ends, when its last token is there or with a stated reason. A run that hangs "
        "breaks this rule, unless a load failed whose request still waits: then LV2.",
        "A request that hangs, vanishes or crashes the engine is worse than a lost hit.",
        _SCHEDULER,
        ("spec.liveness.settle_bound", "spec.liveness.broken_by_hang"),
        "never-finishes",
    ),
    _stored(
        "LV2",
        "A load that failed or vanished leads to recomputation, or to an error where that is asked for, and "
        "what it left is not used. A run that hangs breaks this rule exactly when a load failed whose "
        "request still waits.",
        "A store is another machine: it will fail, and the engine must go on without it.",
        _SCHEDULER,
        ("spec.liveness.after_failed_load", "spec.liveness.broken_by_hang"),
        "failed-load-retried",
        "failure-misnamed",
    ),
)

RULES: dict[str, Rule] = {rule.id: rule for rule in _RULES}
ORDER: dict[str, int] = {rule: index for index, rule in enumerate(RULES)}


def first(rules: list[str]) -> str:
    """The rule that a report names when one fault breaks several: the first in registry order."""
    return min(rules, key=ORDER.__getitem__)
