"""Makes a target ready from the shell: its environment, and the libraries that its store tier needs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tailproof.targets import environments
from tailproof.targets.libraries import prepare_store
from tailproof.targets.problems import LibraryProblem, TargetProblem


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m tailproof.targets.setup TARGET` prints the interpreter.

    When the store tier cannot be made ready, it says so, and the core tier is ready all the same.

    Exit codes: 0 ready, 2 wrong usage, 3 the environment cannot be built, 130 interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if len(words) != 1:
        print("usage: python -m tailproof.targets.setup TARGET", file=sys.stderr)
        return 2
    try:
        python = environments.ensure(words[0], _say).python
        try:
            prepare_store(python, _say)
        except LibraryProblem as problem:
            _say(f"the store tier cannot run, all else can: {problem}")
    except TargetProblem as problem:
        _say(str(problem))
        return 3
    except KeyboardInterrupt:
        _say("interrupted: nothing was built; the same command starts again")
        return 130
    print(python)
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
