"""Names of systems under test, and how each is opened."""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from adapters.protocol import Description, Job, trace_document
from adapters.worker import run_job
from reference.engine import SlowEngine
from spec.observation import Outcome
from spec.trace import Configuration, Trace
from tailproof.environments import ensure, known_targets, locate
from tailproof.mutants import MUTANTS
from tailproof.process import TargetProblem, Worker, outcome_of
from tailproof.system_libraries import store_problem

DEFAULT = "vllm==0.32.0"
TIERS = ("core", "store", "engine")
LATER = {"store": "joins with the store tier", "engine": "joins with the engine tier"}
SERVERS_READY = "its servers can be started; the tier itself joins with the next landing"


class TargetNameError(ValueError):
    """A target name that means nothing; one line with what would."""


class OpenTarget(Protocol):
    """A target that can run cases."""

    def describe(self) -> Description:
        """What it is."""
        ...

    def start(self, trace: Trace, omit: str = "") -> None:
        """Queue a case."""
        ...

    def finish(self) -> Outcome:
        """The outcome of the oldest queued case."""
        ...

    def run(self, trace: Trace, omit: str = "") -> Outcome:
        """Run one case."""
        ...

    def cancel(self) -> None:
        """Forget queued cases."""
        ...

    def close(self) -> None:
        """Give up what it holds."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed name: `kind` is installed, checkout, interpreter or reference; `argument` what follows."""

    name: str
    kind: str
    argument: str = ""

    @staticmethod
    def parse(name: str) -> Target:
        """The target of that name.

        Raises:
            TargetNameError: when there is none.
        """
        if name == "reference":
            return Target(name, "reference")
        prefix, _, rest = name.partition("+")
        if prefix == "reference" and rest:
            if rest not in MUTANTS:
                near = difflib.get_close_matches(rest, MUTANTS, 3, 0.4) or sorted(MUTANTS)[:3]
                raise TargetNameError(f"no planted fault is called {rest!r}; near are {', '.join(near)}")
            return Target(name, "reference", rest)
        for mark, kind in (("vllm==", "installed"), ("vllm@", "checkout"), ("python:", "interpreter")):
            if name.startswith(mark) and name != mark:
                return Target(name, kind, name.removeprefix(mark))
        raise TargetNameError(
            f"unknown target {name!r}: use vllm==VERSION, vllm@PATH, python:PATH, reference or reference+NAME"
        )


def baseline_name(target: Target, opened: OpenTarget) -> str:
    """The name under which the baseline knows what runs: a checkout or interpreter counts as the version that
    it says it is."""
    if target.kind in ("checkout", "interpreter"):
        return f"vllm=={opened.describe().version}"
    return target.name


def open_target(target: Target, progress: Callable[[str], None]) -> OpenTarget:
    """Open a target, building its environment if needed.

    Raises:
        TargetProblem: when it cannot be run here.
        EnvironmentProblem: when its environment cannot be built.
    """
    if target.kind == "reference":
        return ReferenceTarget(target)
    if target.kind == "installed":
        if target.name not in known_targets():
            known = ", ".join(known_targets())
            raise TargetProblem(
                f"{target.name}: no environment is known for this version (known: {known}); "
                "use vllm@PATH or python:PATH"
            )
        return Worker(target.name, ensure(target.name, progress).python, "vllm")
    path = Path(target.argument).expanduser().absolute()
    if target.kind == "interpreter":
        if not path.is_file():
            raise TargetProblem(f"{target.name}: there is no interpreter at {path}")
        return Worker(target.name, path, "vllm")
    if not (path / "vllm" / "__init__.py").is_file():
        raise TargetProblem(f"{target.name}: {path} holds no vllm package")
    return Worker(target.name, ensure(DEFAULT, progress).python, "vllm", (path,))


def tier_states(target: Target) -> dict[str, str]:
    """Whether each tier of a target can run, without starting it: "ready" or the reason why not."""
    states = dict(LATER)
    if target.kind == "reference":
        return {"core": "ready", **states}
    if target.kind == "installed":
        known = target.name in known_targets()
        ready = known and locate(target.name).ready
        reason = f"not installed: tailproof targets add {target.name}" if known else "no lock ships for it"
        states["store"] = _store_state(locate(target.name).python) if ready else reason
        return {"core": "ready" if ready else reason, **states}
    path = Path(target.argument).expanduser().absolute()
    if not path.exists():
        return {"core": f"{path} does not exist", **states}
    if target.kind == "interpreter":
        states["store"] = _store_state(path)
    elif (environment := locate(DEFAULT)).ready:
        states["store"] = _store_state(environment.python)
    return {"core": "ready", **states}


def _store_state(python: Path) -> str:
    return store_problem(python) or SERVERS_READY


class _ReferenceSystem:
    def __init__(self, engine: type[SlowEngine]) -> None:
        self._engine = engine

    def describe(self) -> Description:
        return Description("reference", "0", {"core": "ready"})

    def open(self, configuration: Configuration, omit: str) -> SlowEngine:
        return self._engine(configuration)


class ReferenceTarget:
    """The slow engine, or one of its planted faults, in this process."""

    def __init__(self, target: Target) -> None:
        self.name = target.name
        self._system = _ReferenceSystem(MUTANTS[target.argument] if target.argument else SlowEngine)
        self._pending: deque[Trace] = deque()

    def describe(self) -> Description:
        """What it is."""
        return self._system.describe()

    def start(self, trace: Trace, omit: str = "") -> None:
        """Queue a case."""
        self._pending.append(trace)

    def finish(self) -> Outcome:
        """Run the oldest queued case.

        Raises:
            TraceError: when the trace is refused.
            TargetProblem: when the engine itself fails.
        """
        reply = run_job(self._system, Job(trace_document(self._pending.popleft())))
        return outcome_of(self.name, reply)

    def run(self, trace: Trace, omit: str = "") -> Outcome:
        """Run one case."""
        self.start(trace, omit)
        return self.finish()

    def cancel(self) -> None:
        """Forget queued cases."""
        self._pending.clear()

    def close(self) -> None:
        """Nothing to give up."""
