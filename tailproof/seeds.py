"""The seed table: for each case that this project started from, the spec's value beside the observed one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spec.observation import Outcome
from spec.trace import Configuration, Group, Settle, Submit, Trace
from tailproof.findings import Divergence
from tailproof.lockstep import compare
from tailproof.targets import OpenTarget, Target, open_target

RESEND = "B"


@dataclass(frozen=True, slots=True)
class SeedCase:
    """A case: a prompt sent, and sent again. Sizes in tokens."""

    id: str
    setting: str
    prompt: int
    unit: int
    block: int
    eagle: bool = True

    @property
    def trace(self) -> Trace:
        """The trace that plays it."""
        group = Group("full", self.block), Group("mamba", self.block)
        configuration = Configuration(
            groups=group,
            unit=self.unit,
            eagle=self.eagle,
            speculative=3 if self.eagle else 0,
            blocks=256,
            budget=32_768,
        )
        prompt = (("a", self.prompt),)
        steps = (Submit("A", prompt), Settle(), Submit(RESEND, prompt), Settle())
        return Trace(configuration, steps, note=self.setting)


@dataclass(frozen=True, slots=True)
class SeedResult:
    """A case with the hit of the resend in tokens: as the spec has it, and as observed per target."""

    case: SeedCase
    spec: int
    observed: Mapping[str, int | None]
    divergences: Mapping[str, Divergence | None]


CASES = (
    SeedCase("lookup-capped-below-proof", "resend without reset", 7040, 128, 896),
    SeedCase("cap-applied-twice", "resend without reset", 7296, 128, 896),
    SeedCase("proof-scan-off-by-one-unit", "resend without reset", 16_000, 16, 560),
    SeedCase("proof-scan-unaligned-prompt", "resend without reset", 16_001, 16, 560),
)
LATER = ("incomplete-external-tail: needs a store, joins with the store tier",)


def hit_of(outcome: Outcome, request: str) -> int | None:
    """Tokens that a request reused when it was first admitted; None when it never was."""
    for observation in outcome.observations:
        for admitted in observation.admitted:
            if admitted.request == request:
                return admitted.local + admitted.external
    return None


def run_seeds(targets: Mapping[str, OpenTarget]) -> list[SeedResult]:
    """Run every case on the reference, for the spec's value, and on each open target.

    Raises:
        TargetProblem: when a target cannot go on.
    """
    reference = open_target(Target.parse("reference"), lambda line: None)
    results = []
    for case in CASES:
        spec = hit_of(reference.run(case.trace), RESEND)
        assert spec is not None
        observed: dict[str, int | None] = {}
        divergences: dict[str, Divergence | None] = {}
        for name, opened in targets.items():
            outcome = opened.run(case.trace)
            observed[name] = hit_of(outcome, RESEND)
            divergences[name] = compare(case.trace, outcome)
        results.append(SeedResult(case, spec, observed, divergences))
    return results
