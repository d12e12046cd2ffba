"""Runs a program in a process group of its own, and ends it with all that it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

PROGRESS_SECONDS = 10.0
PATIENCE_SECONDS = 5.0


def end(process: subprocess.Popen[bytes], patience: float = 0.0) -> None:
    """End a process and all that it has started; given `patience`, in seconds, it may end by itself first."""
    for number in (signal.SIGTERM, signal.SIGKILL) if patience else (signal.SIGKILL,):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience or None)
    # Not before the end of the process: who listens to it holds the stream until then.
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def run(
    command: Sequence[str],
    output: IO[bytes],
    *,
    seconds: float | None = None,
    tick: Callable[[float], object] = lambda passed: None,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    holding: Sequence[int] = (),
) -> int:
    """The exit code of a program, whose words go to `output`. `tick` is told now and then how many seconds
    have passed. `environment` is added to our own, and `holding` are file descriptors that the program
    inherits. Whatever breaks in, an interrupt too, the program ends with it.

    Raises:
        subprocess.TimeoutExpired: after so many seconds.
    """
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        pass_fds=holding,
    )
    try:
        while True:
            left = PROGRESS_SECONDS if seconds is None else began + seconds - time.monotonic()
            try:
                return process.wait(max(min(left, PROGRESS_SECONDS), 0.0))
            except subprocess.TimeoutExpired:
                passed = time.monotonic() - began
                if seconds is not None and passed >= seconds:
                    raise
                tick(passed)
    except BaseException:
        end(process, PATIENCE_SECONDS)
        raise


def last_error(output: str, marks: tuple[str, ...] = ("ERROR",), otherwise: str = "no output") -> str:
    """The line of a program's words that says best what went wrong: the last one with a mark, else the last
    one."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and "[notice]" not in line]
    # pip announces a traceback with "ERROR: Exception:"; what went wrong is then in the last line.
    errors = [line for line in lines if line.startswith(marks) and line != "ERROR: Exception:"]
    return (errors or lines or [otherwise])[-1]
