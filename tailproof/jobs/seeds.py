"""The seed table: for each case that this project started from, the spec's value beside the observed one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from adapters.protocol import Description
from spec.geometry import GeometryError
from spec.observation import Outcome
from spec.trace import Configuration, Group, ResetLocal, Settle, Submit, Trace, TraceError
from tailproof.judge.findings import Divergence
from tailproof.judge.lockstep import compare
from tailproof.targets.opening import OpenTarget, Target, open_target, tier_states
from tailproof.targets.problems import TargetProblem

RESEND = "B"


@dataclass(frozen=True, slots=True)
class SeedCase:
    """A case: a prompt sent, and sent again. Sizes in tokens. `exports` lets the backend export states inside
    chunks, on the unit; `marked` marks the attention group as that of the draft model. `stored` attaches a
    store and empties the local cache in between; `dcp` scales the attention blocks."""

    id: str
    setting: str
    prompt: int
    unit: int
    block: int
    eagle: bool = True
    exports: bool = False
    marked: bool = False
    stored: bool = False
    dcp: int = 1

    @property
    def tier(self) -> str:
        """The tier that it runs in."""
        return "store" if self.stored else "core"

    @property
    def align(self) -> int:
        """L, in tokens."""
        return self.block * self.dcp

    def trace(self, profile: str = "drop") -> Trace:
        """The trace that plays it under a rule set."""
        groups = (
            Group("full", self.block, draft=self.marked),
            Group("mamba", self.block, checkpoint_alignment=self.unit if self.exports else None),
        )
        configuration = Configuration(
            groups=groups,
            unit=self.unit,
            eagle=self.eagle,
            speculative=3 if self.eagle else 0,
            blocks=256,
            budget=32_768,
            dcp=self.dcp,
            store="both" if self.stored else "off",
            # With a connector vLLM keeps the drop in every version.
            profile=profile if self.eagle and not self.stored else "drop",
        )
        prompt = (("a", self.prompt),)
        reset = (ResetLocal(),) if self.stored else ()
        steps = (Submit("A", prompt), Settle(), *reset, Submit(RESEND, prompt), Settle())
        return Trace(configuration, steps, note=self.setting)


@dataclass(frozen=True, slots=True)
class SeedResult:
    """A case with the hit of the resend in tokens: as the spec has it under each profile (`specs`; `spec`
    is that
    of the profile drop), and as observed per target (None: it never ran, or the target lacks what the case
    needs, then named in `lacking`). `profiles` tells under which profile each target runs."""

    case: SeedCase
    specs: Mapping[str, int]
    observed: dict[str, int | None] = field(default_factory=dict)
    divergences: dict[str, Divergence | None] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)
    profiles: dict[str, str] = field(default_factory=dict)

    @property
    def spec(self) -> int:
        """The hit under the profile drop."""
        return self.specs["drop"]

    def due(self, target: str) -> int:
        """The hit under the profile that a target runs under."""
        return self.specs[self.profiles[target]]

    def is_wrong(self, target: str) -> bool:
        """Whether a target was seen to hit something else than is due."""
        return target not in self.lacking and self.observed[target] != self.due(target)


_SPLITS, _EXPORTS = "resend without reset", "resend without reset, states exported inside chunks"
CASES = (
    SeedCase("lookup-capped-below-proof", _SPLITS, 7040, 128, 896),
    SeedCase("cap-applied-twice", _SPLITS, 7296, 128, 896),
    SeedCase("proof-scan-off-by-one-unit", _SPLITS, 16_000, 16, 560),
    SeedCase("proof-scan-unaligned-prompt", _SPLITS, 16_001, 16, 560),
    SeedCase("unaligned-prompt", _SPLITS, 7449, 128, 896),
    SeedCase(
        "registration-by-per-group-flag", f"{_SPLITS}, attention marked as draft", 7449, 128, 896, marked=True
    ),
    SeedCase("lookup-capped-below-proof-exports", _EXPORTS, 7040, 128, 896, exports=True),
    SeedCase("cap-applied-twice-exports", _EXPORTS, 7296, 128, 896, exports=True),
    SeedCase("proof-scan-off-by-one-unit-exports", _EXPORTS, 16_000, 16, 560, exports=True),
    SeedCase(
        "incomplete-external-tail",
        "a store, local reset, resend; DCP 8, so attention blocks of 7168 tokens",
        7449,
        128,
        896,
        stored=True,
        dcp=8,
    ),
)


def hit_of(outcome: Outcome, request: str) -> int | None:
    """Tokens that a request reused when it was first admitted; None when it never was."""
    for observation in outcome.observations:
        loading = observation.store.loading if observation.store is not None else ()
        for admitted in (*loading, *observation.admitted):
            if admitted.request == request:
                return admitted.local + admitted.external
    return None


def run_seeds(targets: Mapping[str, OpenTarget]) -> list[SeedResult]:
    """Run every case on the reference, for the spec's values, and on each open target.

    Raises:
        TargetProblem: when a target cannot go on.
    """
    results = [SeedResult(case, _specs(case)) for case in CASES]
    for name, opened in targets.items():
        described = opened.describe()
        for result in results:
            _observe(result, name, described, opened)
    return results


@dataclass(slots=True)
class SeedMatrix:
    """The seed table over several targets; `problems` maps those that could not run to one line each."""

    results: list[SeedResult]
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """1 when a hit is not as due, 3 when a target could not run, else 0."""
        wrong = any(result.is_wrong(name) for result in self.results for name in result.observed)
        return 1 if wrong else 3 if self.problems else 0


def seed_matrix(names: Sequence[str], progress: Callable[[str], None]) -> SeedMatrix:
    """Run every case on each target, one after the other, each in a worker of its own. A target that cannot
    run
    becomes a problem of the matrix, the others go on.

    Raises:
        TargetNameError: for a name that means nothing.
    """
    parsed = {name: Target.parse(name) for name in names}
    matrix = SeedMatrix([SeedResult(case, _specs(case)) for case in CASES])
    for name, target in parsed.items():
        progress(f"{name}: starting")
        try:
            with closing(open_target(target, progress)) as opened:
                seen = run_seeds({name: opened})
        except TargetProblem as problem:
            matrix.problems[name] = str(problem)
            continue
        for result, one in zip(matrix.results, seen, strict=True):
            result.observed.update(one.observed)
            result.divergences.update(one.divergences)
            result.lacking.update(one.lacking)
            result.profiles.update(one.profiles)
    return matrix


def _specs(case: SeedCase) -> dict[str, int]:
    reference = open_target(Target.parse("reference"), lambda line: None)
    specs: dict[str, int] = {}
    for profile in ("drop", "lookahead"):
        hit = hit_of(reference.run(case.trace(profile)), RESEND)
        assert hit is not None
        specs[profile] = hit
    return specs


def _observe(result: SeedResult, name: str, described: Description, opened: OpenTarget) -> None:
    result.profiles[name] = described.profiles[0]
    trace = result.case.trace(described.profiles[0])
    result.observed[name] = result.divergences[name] = None
    state = tier_states(Target.parse(name)).get(result.case.tier, "ready")
    if result.case.stored and state != "ready":
        result.lacking[name] = f"{result.case.id}: {state}"
        return
    try:
        outcome = opened.run(trace)
    except (TraceError, GeometryError) as problem:
        result.lacking[name] = str(problem)
        return
    result.observed[name] = hit_of(outcome, RESEND)
    result.divergences[name] = compare(trace, outcome)
