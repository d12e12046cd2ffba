"""One server process that cannot outlive its parent, with its log and its end.

Standard library only: it runs inside the target's own Python.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from adapters.mooncake.sockets import listening_ports

_TAIL_BYTES = 6_000
_GRACE_SECONDS = 2.0
# Runs in the child before the server itself: the kernel is to kill it when the parent dies, unless the
# parent died already; and a crash must not write a core file anywhere.
_LAUNCH = """
import ctypes, os, resource, signal, sys
if ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0) or os.getppid() != int(sys.argv[1]):
    sys.exit("not started: its parent is gone")
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.execv(sys.argv[2], sys.argv[2:])
"""
_LOG_PREFIX = re.compile(r"^([IWEF])\d+ [\d:.]+ +\d+ \S+\] ")


class ServerProcess:
    """A running server, in a process group of its own: Ctrl-C does not reach it, its parent ends it.

    The kernel kills it when the thread that made it ends, however that happens. So make it from a thread
    that lives as long as the server is needed, which the main thread does.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # A file without a name: whatever happens, no log stays behind.
        self._log = tempfile.TemporaryFile(prefix="tailproof-")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=dict(environment),
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            self._log.close()
            raise

    @property
    def pid(self) -> int:
        """The process id, also of a process that ended."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def ports(self) -> frozenset[int]:
        """The TCP ports on which it listens."""
        return listening_ports(self.pid) if self.alive else frozenset()

    def end(self, *, gently: bool = False) -> None:
        """Make it end and wait for that: at once, or with a chance to sign off first. Its log stays."""
        if gently and self.alive:
            self._send(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)
        if self.alive:
            self._send(signal.SIGKILL)
        self._process.wait()

    def close(self, *, gently: bool = False) -> None:
        """End it as `end` does, and give up its log; a second call does nothing."""
        try:
            self.end(gently=gently)
        finally:
            # An interrupt may have cut a gentle end short.
            self.end()
            self._log.close()

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def log(self) -> str:
        """The end of what it wrote, at most some 6,000 bytes; empty once closed."""
        if self._log.closed:
            return ""
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), _TAIL_BYTES, max(size - _TAIL_BYTES, 0))
        return text.decode(errors="replace")

    def last_words(self) -> str:
        """How it ended, when it did, and the last error that it logged, or else its last line."""
        lines = [line.strip() for line in self.log().splitlines() if line.strip()]
        marked = [(mark, line[mark.end() :]) for line in lines if (mark := _LOG_PREFIX.match(line))]
        errors = [text for mark, text in marked if mark[1] in "EF"]
        said = (errors or [text for _, text in marked[-1:]] or lines or ["it logged nothing"])[-1]
        code = self._process.poll()
        if code is None:
            return said
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"{how}; {said}"
