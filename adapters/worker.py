"""The worker: runs traces on one system under test, in that system's own Python, one reply per job.

Started as `python -P -m adapters.worker SYSTEM PROGRESS`, where PROGRESS is a file into which the worker
writes the index of the step it is in, so that a crash or hang can be placed. Jobs come on standard input,
replies leave on standard output; whatever the target prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import signal
import sys
import time
import traceback
from typing import BinaryIO

from adapters.codec import parse_trace
from adapters.protocol import (
    AdapterError,
    Hello,
    Job,
    MovedError,
    Reply,
    Session,
    System,
    read_message,
    write_message,
)
from spec.geometry import GeometryError
from spec.observation import Failure, Observation, Outcome
from spec.trace import NAMES, Trace, TraceError

_OURS = ("adapters", "reference", "spec")
_PR_SET_PDEATHSIG = 1
_LIBRARIES = (*sys.stdlib_module_names, "torch", "numpy", "msgspec", "pydantic")


def run_job(system: System, job: Job, progress: int | None = None) -> Reply:
    """Run one job. An exception inside the target ends the trace and is an observation; one of ours is
    an error reply."""
    began = time.perf_counter()
    if progress is not None:
        os.pwrite(progress, bytes(4), 0)
    try:
        trace = parse_trace(job.trace)
        session = system.open(trace.configuration, job.omit)
    except Exception as problem:
        return _error(problem)
    try:
        answer = _run_steps(session, trace, progress)
        seconds = time.perf_counter() - began
        if isinstance(answer, Reply):
            return answer
        return Reply(outcome=Outcome(tuple(answer), seconds, session.target_seconds(), session.units()))
    finally:
        session.close()


def _run_steps(session: Session, trace: Trace, progress: int | None) -> list[Observation] | Reply:
    """The observations of a trace, or an error reply."""
    observations: list[Observation] = []
    for at, step in enumerate(trace.steps):
        if progress is not None:
            os.pwrite(progress, at.to_bytes(4, "little"), 0)
        try:
            for observation in session.step(at, step):
                observations.append(observation)
                if observation.failure is not None:
                    return observations
        except (AdapterError, TraceError) as problem:
            return _error(problem)
        except Exception as problem:
            ours, function = _blame(problem)
            if ours:
                return _error(problem)
            text = f"{type(problem).__name__}: {problem}".splitlines()[0].rstrip(": ")
            failure = Failure("exception", f"{text} in {function}", traceback.format_exc(), function)
            engine = getattr(step, "engine", 0)
            return [*observations, Observation(at=at, do=NAMES[type(step)], failure=failure, engine=engine)]
    return observations


def _error(problem: Exception) -> Reply:
    if isinstance(problem, TraceError | GeometryError):
        return Reply(kind="trace", message=str(problem))
    kind = "moved" if isinstance(problem, MovedError) else "adapter"
    text = str(problem) if isinstance(problem, AdapterError) else f"{type(problem).__name__}: {problem}"
    return Reply(kind=kind, message=(text.splitlines() or [""])[0], detail=traceback.format_exc())


def _blame(problem: BaseException) -> tuple[bool, str]:
    """Whether an exception is ours, and the function it came from: what counts is the innermost frame of
    our code or of the target's, since either may have called a library that raised."""
    frame = problem.__traceback__
    ours, function = False, ""
    while frame is not None:
        package = str(frame.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _LIBRARIES:
            ours = package in _OURS
            function = frame.tb_frame.f_code.co_name
        frame = frame.tb_next
    return ours, function


def load_system(name: str) -> System:
    """The system called `name` ("vllm").

    Raises:
        AdapterError: when there is no such system.
    """
    if name == "vllm":
        from adapters.vllm.system import VllmSystem

        return VllmSystem()
    raise AdapterError(f"no adapter is called {name!r}")


def serve(system_name: str, progress_path: str, source: BinaryIO, sink: BinaryIO) -> int:
    """Answer jobs until the source ends; returns the exit code."""
    progress = os.open(progress_path, os.O_RDWR | os.O_CREAT)
    try:
        system = load_system(system_name)
        description = system.describe()
    except Exception as problem:
        kind = "moved" if isinstance(problem, MovedError) else "adapter"
        message = f"{type(problem).__name__}: {problem}".splitlines()[0]
        if isinstance(problem, AdapterError):
            message = str(problem)
        write_message(sink, Hello(kind=kind, message=message, detail=traceback.format_exc()))
        return 1
    # What start-up made lives on; scanning it in every collection would be charged to the cases.
    gc.collect()
    gc.freeze()
    write_message(sink, Hello(description=description))
    while (job := read_message(source, Job)) is not None:
        write_message(sink, run_job(system, job, progress))
    return 0


def _die_with_parent() -> None:
    """A target that hangs must not run on when the tool is killed (Linux only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(arguments: list[str]) -> int:
    """Entry point of the worker process."""
    _die_with_parent()
    faulthandler.enable()
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return serve(arguments[0], arguments[1], sys.stdin.buffer, sink)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
