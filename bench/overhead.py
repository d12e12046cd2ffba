"""Share of a worker's time that is spent inside the real vLLM: `.venv/bin/python bench/overhead.py`.

Compares within one run: small fuzz cases, and 8 live requests with prompts of 2,000 tokens.
"""

from __future__ import annotations

import statistics
import sys
from contextlib import closing

from spec.trace import Configuration, Group, Settle, Submit, Trace
from tailproof.generate.core import case
from tailproof.targets.opening import DEFAULT, Target, open_target

REPEATS = 15


def large() -> Trace:
    """Eight live requests of 2,000 tokens sharing prefixes in pairs, 16 outputs each."""
    groups = Group("full", 64), Group("mamba", 64)
    submits = [
        Submit(f"r{index}", ((f"p{index // 2}", 1200), (f"q{index}", 800)), outputs=16) for index in range(8)
    ]
    configuration = Configuration(groups, 16, eagle=True, speculative=3, blocks=1024, budget=2048, live=8)
    return Trace(configuration, (*submits, Settle(accept=1)))


def main() -> None:
    """Print median and range of the share for both kinds of case."""
    kinds = {"fuzz cases": [case(1, index) for index in range(40)], "8 x 2,000 tokens": [large()]}
    with closing(open_target(Target.parse(DEFAULT), lambda line: print(line, file=sys.stderr))) as opened:
        for trace in kinds["fuzz cases"][:5]:
            opened.run(trace)
        for name, traces in kinds.items():
            shares = []
            for _ in range(REPEATS):
                outcomes = [opened.run(trace) for trace in traces]
                target = sum(outcome.target_seconds for outcome in outcomes)
                shares.append(target / sum(outcome.seconds for outcome in outcomes))
            print(
                f"{name:<18} share in vLLM: median {statistics.median(shares):.0%}, "
                f"{min(shares):.0%} to {max(shares):.0%} over {REPEATS} runs"
            )


if __name__ == "__main__":
    main()
