"""Times all proofs, about the spec and about the default target's source: `python bench/proofs.py [RUNS]`."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path


def main(runs: int) -> None:
    """Prove everything with Z3 so many times on two cores, in fresh processes each time."""
    # This file is called like the package that it measures, and its folder comes first.
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).parent.resolve()]
    from proofs.catalogue import spec_theorems
    from tailproof.jobs.prove import prove

    theorems = spec_theorems()
    walls, slowest = [], ""
    for number in range(runs):
        report = prove(theorems, engines=("z3",), workers=2)
        walls.append(report.seconds)
        worst = max(report.theorems, key=lambda proved: proved.seconds)
        slowest = f"{worst.theorem.id} {worst.seconds:.2f} s"
        proved = sum(item.verdict == "proved" for item in report.theorems)
        print(f"run {number + 1}: {proved} of {len(theorems)} proved in {report.seconds:.2f} s, {slowest}")
    print(f"median of {runs}: {statistics.median(walls):.2f} s for {len(theorems)} theorems on two cores")
    _time_source(runs)


def _time_source(runs: int) -> None:
    from tailproof.jobs.prove import prove_source
    from tailproof.targets.opening import DEFAULT, Target
    from tailproof.targets.sources import source_of

    root = source_of(Target.parse(DEFAULT))
    walls = []
    for number in range(runs):
        report = prove_source(DEFAULT, root)
        walls.append(report.seconds)
        proved = sum(item.verdict == "proved" for item in report.theorems)
        known = sum(bool(item.known) for item in report.theorems)
        print(f"source run {number + 1}: {proved} proved, {known} known refutations in {walls[-1]:.2f} s")
    print(f"median of {runs}: {statistics.median(walls):.2f} s for the source of {DEFAULT} on two cores")


if __name__ == "__main__":
    sys.modules.pop("proofs", None)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
