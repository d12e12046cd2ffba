"""Names of systems under test, and how each is opened."""

from __future__ import annotations

import difflib
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from adapters.codec import trace_document
from adapters.protocol import Description, Job
from adapters.vllm.boundaries import LINES
from adapters.worker import run_job
from reference.engine import SlowEngine
from reference.session import Fault, SlowSession
from spec.observation import Outcome
from spec.trace import Configuration, Trace
from tailproof.planted.reference import MUTANTS
from tailproof.planted.reference_store import STORE_MUTANTS
from tailproof.planted.vllm.catalogue import MutantError, check_name, mutant
from tailproof.targets.environments import ensure, known_targets, locate
from tailproof.targets.libraries import store_problem
from tailproof.targets.overlay import installed_package, mutant_overlay
from tailproof.targets.problems import TargetProblem
from tailproof.targets.versions import fetched, folder_of
from tailproof.targets.worker import Worker, outcome_of

DEFAULT = "vllm==0.32.0"
# Versions whose Python files run over the environment of the default target.
OVERLAYS = ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.33.0")
FAULTS: dict[str, Fault] = {**MUTANTS, **STORE_MUTANTS}
TIERS = ("core", "store", "engine")
LATER = {
    "store": f"its environment is not installed: tailproof targets add {DEFAULT}",
    "engine": "not implemented",
}


# Versions whose connector the store tier does not follow.
OLD_STORE = ("0.28.0", "0.29.0")
OTHER_STORE = "the store tier follows the connector of vLLM 0.30 and later"


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
    """A parsed name: `kind` is installed (an environment of its own, or files over that of the default
    target), checkout, interpreter or reference; `argument` what follows, `fault` what is planted in an
    installed version."""

    name: str
    kind: str
    argument: str = ""
    fault: str = ""

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
            if rest not in FAULTS:
                near = difflib.get_close_matches(rest, FAULTS, 3, 0.4) or sorted(FAULTS)[:3]
                raise TargetNameError(f"no planted fault is called {rest!r}; near are {', '.join(near)}")
            return Target(name, "reference", rest)
        for mark, kind in (("vllm==", "installed"), ("vllm@", "checkout"), ("python:", "interpreter")):
            if name.startswith(mark) and name != mark:
                rest = name.removeprefix(mark)
                version, plus, fault = rest.partition("+")
                if kind == "installed" and plus:
                    return _planted(name, version, fault)
                return Target(name, kind, rest)
        raise TargetNameError(
            f"unknown target {name!r}: use vllm==VERSION, vllm@PATH, python:PATH, reference or reference+NAME"
        )


@dataclass(frozen=True, slots=True)
class Line:
    """The release line whose known faults are a target's: `line` as "0.32", empty for the reference, which
    has none; `why` it is that one, in a plain sentence."""

    line: str
    why: str


def line_of(text: str) -> str:
    """The release line that `vllm==0.33.0`, `0.33.0` or `0.33` names.

    Raises:
        TargetNameError: when it names none that is known.
    """
    found = re.fullmatch(r"(?:vllm==)?(\d+\.\d+)(?:\.\d+)?", text)
    if found is None or found[1] not in LINES:
        raise TargetNameError(f"{text!r} is no known release line; known are {', '.join(LINES)}")
    return found[1]


def release_line(target: Target, opened: OpenTarget, override: str | None = None) -> Line:
    """The line whose known faults count for a target: that of its version where we installed it, else the one
    that was found by what it has. `override` is a line that is to count instead.

    Raises:
        TargetProblem: when the target does not start.
        TargetNameError: when the override is no known line.
    """
    if override is not None:
        line = line_of(override)
        return Line(line, f"as asked for, the known faults of {line} are used")
    if target.kind == "reference":
        return Line("", "the reference has no known faults")
    own = ".".join(target.argument.split(".")[:2])
    if target.kind == "installed" and own in LINES:
        return Line(own, f"{target.name} is of the line {own}: its known faults are used")
    found = opened.describe()
    line, newest = found.line, LINES[-1]
    number = re.match(r"(\d+)\.(\d+)", found.version)
    newer = number is not None and (int(number[1]), int(number[2])) > tuple(map(int, newest.split(".")))
    beyond = f", and {newest} is the newest line that is known" if newer and line == newest else ""
    return Line(
        line,
        f"the {target.kind} says version {found.version} and has the marks of {line}{beyond}: "
        f"the known faults of {line} are used",
    )


def open_target(target: Target, progress: Callable[[str], None]) -> OpenTarget:
    """Open a target, building its environment if needed.

    Raises:
        TargetProblem: when it cannot be run here.
    """
    if target.kind == "reference":
        return ReferenceTarget(target)
    if target.kind == "installed":
        return _open_version(target, progress)
    path = Path(target.argument).expanduser().absolute()
    if target.kind == "interpreter":
        if not path.is_file():
            raise TargetProblem(f"{target.name}: there is no interpreter at {path}")
        return Worker(target.name, path, "vllm")
    if not (path / "vllm" / "__init__.py").is_file():
        raise TargetProblem(f"{target.name}: {path} holds no vllm package")
    return Worker(target.name, ensure(DEFAULT, progress).python, "vllm", (path,))


def _planted(name: str, version: str, fault: str) -> Target:
    if f"vllm=={version}" != DEFAULT:
        raise TargetNameError(f"{name}: faults are planted in {DEFAULT} only")
    try:
        check_name(fault)
        if (environment := locate(DEFAULT)).ready:
            mutant(installed_package(environment.python), fault)
    except MutantError as problem:
        raise TargetNameError(str(problem)) from None
    return Target(name, "installed", version, fault)


def _open_version(target: Target, progress: Callable[[str], None]) -> Worker:
    if target.fault:
        python = ensure(DEFAULT, progress).python
        try:
            folder = mutant_overlay(target.fault, python)
        except MutantError as problem:
            raise TargetProblem(f"{target.name}: {problem}") from problem
        return Worker(target.name, python, "vllm", (folder,))
    if target.name in known_targets():
        return Worker(target.name, ensure(target.name, progress).python, "vllm")
    if target.argument not in OVERLAYS:
        known = ", ".join(known_versions())
        raise TargetProblem(
            f"{target.name}: no environment is known for this version (known: {known}); "
            "use vllm@PATH or python:PATH"
        )
    overlay = fetched(target.argument, progress).parent
    return Worker(target.name, ensure(DEFAULT, progress).python, "vllm", (overlay,))


def known_versions() -> tuple[str, ...]:
    """Names of the versions that can be made ready here, in order."""
    return tuple(sorted({*known_targets(), *(f"vllm=={version}" for version in OVERLAYS)}))


def tier_states(target: Target) -> dict[str, str]:
    """Whether each tier of a target can run, without starting it: "ready" or the reason why not."""
    states = dict(LATER)
    if target.kind == "reference":
        return {"core": "ready", **states, "store": "ready"}
    if target.kind == "installed":
        reason = _missing(Target.parse(DEFAULT) if target.fault else target)
        base = target.name if target.name in known_targets() else DEFAULT
        old = target.argument in OLD_STORE
        states["store"] = reason or (OTHER_STORE if old else _store_state(locate(base).python))
        return {"core": reason or "ready", **states}
    path = Path(target.argument).expanduser().absolute()
    if not path.exists():
        return {"core": f"{path} does not exist", **states, "store": f"{path} does not exist"}
    if target.kind == "interpreter":
        states["store"] = _store_state(path)
    elif (environment := locate(DEFAULT)).ready:
        states["store"] = _store_state(environment.python)
    return {"core": "ready", **states}


def must_run(target: Target, tier: str) -> None:
    """Refuse a tier that an open target cannot run.

    Raises:
        TargetProblem: with the reason.
    """
    if tier != "core" and (state := tier_states(target)[tier]) != "ready":
        raise TargetProblem(f"tier {tier} cannot run: {state}")


def _missing(target: Target) -> str:
    """What a version still needs before it can run; empty when nothing."""
    if target.name in known_targets():
        ready = locate(target.name).ready
        return "" if ready else f"not installed: tailproof targets add {target.name}"
    if target.argument not in OVERLAYS:
        return "no lock ships for it"
    ready = folder_of(target.argument).is_dir() and locate(DEFAULT).ready
    return "" if ready else f"not fetched: tailproof targets add {target.name}"


def _store_state(python: Path) -> str:
    return store_problem(python) or "ready"


class _ReferenceSystem:
    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def describe(self) -> Description:
        return Description("reference", "0", {"core": "ready"})

    def open(self, configuration: Configuration, omit: str) -> SlowSession:
        return SlowSession(configuration, self._fault)


class ReferenceTarget:
    """The slow engine, one of its planted faults, or a `fault` that is none of these, in this process."""

    def __init__(self, target: Target, fault: Fault | None = None) -> None:
        self.name = target.name
        named: Fault = FAULTS[target.argument] if target.argument else SlowEngine
        self._system = _ReferenceSystem(fault or named)
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
