"""Runs jobs in processes of their own, several at a time, each with a hard limit that nothing can outlast."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

GRACE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of job number `index`: its `value`, or else `problem` says why there is none."""

    index: int
    value: Any
    problem: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class _Worker:
    process: Any
    pipe: Connection
    index: int = -1
    began: float = 0.0


def run(
    jobs: Sequence[Callable[[], Any]],
    *,
    workers: int = 2,
    seconds: float = 60.0,
    started: Callable[[int], None] = lambda index: None,
    reuse: bool = True,
) -> Iterator[Outcome]:
    """Yield the outcome of every job, as it comes in.

    A job is called in a child process, so it may be any callable; its value must be picklable. A job that
    takes longer than `seconds` (and a short grace in which it may stop by itself) is ended with its process;
    `problem` then is "limit reached". `started` is told the number of every job that begins.
    Without `reuse` every job has a process of its own, so that it does not matter what ran before it.
    """
    context = multiprocessing.get_context("fork")
    waiting = list(range(len(jobs)))[::-1]
    busy: list[_Worker] = []
    idle: list[_Worker] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                worker = idle.pop() if idle else _start(context, jobs)
                worker.index, worker.began = waiting.pop(), time.monotonic()
                started(worker.index)
                worker.pipe.send(worker.index)
                busy.append(worker)
            ends = min(worker.began for worker in busy) + seconds + GRACE_SECONDS
            ready = wait([worker.pipe for worker in busy], timeout=max(0.0, ends - time.monotonic()))
            for worker in list(busy):
                outcome = _outcome(worker, worker.pipe in ready, seconds)
                if outcome is None:
                    continue
                busy.remove(worker)
                if reuse and worker.process.is_alive() and outcome.problem == "":
                    idle.append(worker)
                else:
                    _end(worker)
                yield outcome
    finally:
        for worker in [*busy, *idle]:
            _end(worker)


def _start(context: Any, jobs: Sequence[Callable[[], Any]]) -> _Worker:
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, jobs), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _serve(pipe: Connection, jobs: Sequence[Callable[[], Any]]) -> None:
    while True:
        try:
            index = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            answer = (jobs[index](), "")
        except KeyboardInterrupt:
            return
        except BaseException as problem:
            answer = (None, f"{type(problem).__name__}: {problem}")
        pipe.send(answer)


def _outcome(worker: _Worker, ready: bool, seconds: float) -> Outcome | None:
    taken = time.monotonic() - worker.began
    if ready:
        try:
            value, problem = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join(1.0)
            return Outcome(worker.index, None, f"the process ended: {worker.process.exitcode}", taken)
        return Outcome(worker.index, value, problem, taken)
    if taken > seconds + GRACE_SECONDS:
        return Outcome(worker.index, None, "limit reached", taken)
    return None


def _end(worker: _Worker) -> None:
    worker.pipe.close()
    if worker.process.is_alive():
        worker.process.kill()
    worker.process.join(5.0)
