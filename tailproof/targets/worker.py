"""Runs a worker process in a target's own Python, and turns what happens to it into observations."""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from adapters.codec import trace_document
from adapters.protocol import Description, Hello, Job, Reply, read_message, write_message
from spec.observation import Failure, Observation, Outcome
from spec.trace import NAMES, Trace, TraceError
from tailproof.targets.cache import cache_folder, placed
from tailproof.targets.libraries import store_environment
from tailproof.targets.problems import TargetProblem
from tailproof.targets.process import end

START_SECONDS = 300.0
FIRST_CASE_SECONDS = 180.0
CASE_SECONDS = 60.0
_STACK_SECONDS = 3.0
_ROOT = Path(__file__).resolve().parents[2]
_SHARED = ("spec", "adapters")


def outcome_of(target: str, reply: Reply) -> Outcome:
    """The outcome in a reply.

    Raises:
        TraceError: when the trace was refused.
        TargetProblem: when the adapter could not go on.
    """
    if reply.outcome is not None:
        return reply.outcome
    if reply.kind == "trace":
        raise TraceError(reply.message)
    raise TargetProblem(f"{target}: {reply.message}", reply.detail)


def staged_packages() -> Path:
    """A folder holding exactly the packages that a worker may import, keyed by their content."""
    files = sorted(_worker_files())
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.encode() + b"\0" + (_ROOT / file).read_bytes() + b"\0")

    def make(draft: Path) -> Path:
        whole = draft / "packages"
        for file in files:
            (whole / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_ROOT / file, whole / file)
        return whole

    return placed(cache_folder() / "workers" / digest.hexdigest()[:16], make)


def _worker_files() -> Iterator[str]:
    for package in _SHARED:
        for path in (_ROOT / package).rglob("*.py"):
            yield path.relative_to(_ROOT).as_posix()


class Worker:
    """One worker process. It is started on first use and again after it died; cases may be queued.

    `python` is the interpreter of the target, `overlay` folders that come before what it has installed: a
    target that is then imported from elsewhere is refused. The limits in seconds are for the start, the first
    case of a process, and every other case.
    """

    def __init__(
        self,
        name: str,
        python: Path,
        system: str,
        overlay: tuple[Path, ...] = (),
        *,
        start_seconds: float = START_SECONDS,
        first_case_seconds: float = FIRST_CASE_SECONDS,
        case_seconds: float = CASE_SECONDS,
    ) -> None:
        self.name = name
        self._python = python
        self._system = system
        self._overlay = overlay
        self._start_seconds = start_seconds
        self._first_case_seconds = first_case_seconds
        self._case_seconds = case_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._replies: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
        self._pending: deque[tuple[Trace, str]] = deque()
        self._fresh = True
        self._folder = tempfile.TemporaryDirectory(prefix="tailproof-worker-")
        self._description: Description | None = None

    def describe(self) -> Description:
        """What the target says of itself.

        Raises:
            TargetProblem: when the worker does not start.
        """
        self._ensure_started()
        assert self._description is not None
        return self._description

    def start(self, trace: Trace, omit: str = "") -> None:
        """Queue a case; its result comes from `finish`, in the order of the starts.

        Raises:
            TargetProblem: when the worker does not start.
        """
        # While answers are due, a dead worker is the business of `finish`, which places its crash.
        if not self._pending:
            self._ensure_started()
        self._pending.append((trace, omit))
        self._send(trace, omit)

    def finish(self) -> Outcome:
        """The outcome of the oldest queued case. A crash or a hang is an observation in it.

        Raises:
            TargetProblem: when the adapter cannot go on.
            TraceError: when the worker refuses the trace.
        """
        trace, _ = self._pending.popleft()
        limit = self._first_case_seconds if self._fresh else self._case_seconds
        try:
            reply = self._replies.get(timeout=limit)
        except queue.Empty:
            return self._broke_off(trace, self._hang(limit))
        if reply is None:
            return self._broke_off(trace, self._crash())
        self._fresh = False
        return outcome_of(self.name, reply)

    def run(self, trace: Trace, omit: str = "") -> Outcome:
        """Run one case; like `start` and `finish`."""
        self.start(trace, omit)
        return self.finish()

    def cancel(self) -> None:
        """Forget queued cases; the worker is stopped, since it may be in the middle of one."""
        self._pending.clear()
        self._stop()

    def close(self) -> None:
        """Stop the worker."""
        self._pending.clear()
        self._stop()
        self._folder.cleanup()

    def _ensure_started(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        errors = Path(self._folder.name, "stderr")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["PYTHONPATH"] = os.pathsep.join(
            str(self._separable(folder)) for folder in (staged_packages(), *self._overlay)
        )
        # Small tensors: more threads only fight over the cores that the parent needs.
        environment.setdefault("OMP_NUM_THREADS", "1")
        environment.update(store_environment(self._python))
        # vLLM keeps what it learned of a model there; versions that share it learn it anew at each start.
        environment.setdefault("VLLM_CACHE_ROOT", str(cache_folder() / "vllm" / _key(self.name)))
        # What the target leaves in its folder for temporary files ends with the worker.
        environment["TMPDIR"] = self._folder.name
        command = [str(self._python), "-P", "-m", "adapters.worker", self._system, str(self._progress)]
        try:
            with errors.open("wb") as sink:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=sink,
                    env=environment,
                    cwd=self._folder.name,
                    start_new_session=True,
                )
        except OSError as problem:
            raise TargetProblem(f"{self.name}: cannot start {self._python}: {problem}") from None
        self._fresh = True
        self._replies = queue.SimpleQueue()
        greeting: queue.SimpleQueue[Hello | None] = queue.SimpleQueue()
        assert self._process.stdout is not None
        threading.Thread(
            target=_listen, args=(self._process.stdout, greeting, self._replies), daemon=True
        ).start()
        self._greet(greeting)

    def _greet(self, greeting: queue.SimpleQueue[Hello | None]) -> None:
        try:
            hello = greeting.get(timeout=self._start_seconds)
        except queue.Empty:
            self._stop()
            raise TargetProblem(
                f"{self.name}: the worker did not start within {self._start_seconds:.0f} s", self._errors()
            ) from None
        if hello is None:
            self._stop()
            last = (self._errors().strip().splitlines() or ["no output"])[-1]
            raise TargetProblem(f"{self.name}: the worker did not start: {last}", self._errors())
        if hello.description is None:
            self._stop()
            raise TargetProblem(f"{self.name}: {hello.message}", hello.detail)
        self._must_come_from_overlay(hello.description)
        self._description = hello.description

    def _separable(self, folder: Path) -> Path:
        """The folder, or a link to it where its own name would be taken for two on a search path.

        By the environment it must go, since the target starts processes of its own, which search there too.
        """
        if os.pathsep not in str(folder):
            return folder
        link = Path(self._folder.name, hashlib.sha256(str(folder).encode()).hexdigest()[:12])
        if os.pathsep in str(link):
            raise TargetProblem(
                f"{self.name}: {folder} has a {os.pathsep!r} in it, and so has the folder for temporary "
                "files: set TMPDIR to one without"
            )
        if not link.is_symlink():
            link.symlink_to(folder)
        return link

    def _must_come_from_overlay(self, description: Description) -> None:
        """Refuse a target that was imported from elsewhere than where it was to be."""
        # The folders of the package, since an overlay may be made of links to the files of another.
        due = [os.path.realpath(folder / self._system) for folder in self._overlay]
        found = os.path.realpath(os.path.dirname(description.origin)) if description.origin else "nowhere"
        if due and found not in due:
            self._stop()
            raise TargetProblem(
                f"{self.name}: {self._system} was imported from {found}, not from {due[0]}; something that "
                f"{self._python} runs as it starts (a .pth file, a sitecustomize) puts another one first: "
                "take it out, or use python:PATH"
            )

    @property
    def _progress(self) -> Path:
        return Path(self._folder.name, "progress")

    def _send(self, trace: Trace, omit: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            write_message(cast(BinaryIO, self._process.stdin), Job(trace_document(trace), omit))

    def _broke_off(self, trace: Trace, failure: Failure) -> Outcome:
        """The outcome of a case whose worker died; cases queued behind it are sent to a new worker."""
        at = 0
        with contextlib.suppress(OSError):
            at = int.from_bytes(self._progress.read_bytes()[:4], "little")
        at = min(at, len(trace.steps) - 1)
        waiting = list(self._pending)
        if waiting:
            self._ensure_started()
            for queued, omit in waiting:
                self._send(queued, omit)
        return Outcome((Observation(at=at, do=NAMES[type(trace.steps[at])], failure=failure),))

    def _hang(self, limit: float) -> Failure:
        assert self._process is not None
        # faulthandler in the worker prints every thread's stack on SIGABRT.
        self._process.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STACK_SECONDS)
        self._stop()
        return Failure("hang", f"no answer within {limit:.0f} s", self._errors())

    def _crash(self) -> Failure:
        assert self._process is not None
        try:
            code = self._process.wait(_STACK_SECONDS)
        except subprocess.TimeoutExpired:
            self._stop()
            return Failure("crash", "the worker sent no proper answer", self._errors())
        self._stop()
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Failure("crash", f"the worker died with {cause}", self._errors())

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end(process)

    def _errors(self) -> str:
        with contextlib.suppress(OSError):
            return Path(self._folder.name, "stderr").read_text(errors="replace")[-6000:]
        return ""


def _key(name: str) -> str:
    """The name of a target's cache: planted faults share that of what they were planted in."""
    return hashlib.sha256(name.partition("+")[0].encode()).hexdigest()[:12]


def _listen(
    source: BinaryIO | Any,
    greeting: queue.SimpleQueue[Hello | None],
    replies: queue.SimpleQueue[Reply | None],
) -> None:
    try:
        greeting.put(read_message(source, Hello))
        while True:
            reply = read_message(source, Reply)
            replies.put(reply)
            if reply is None:
                return
    except (EOFError, OSError, ValueError):
        greeting.put(None)
        replies.put(None)
