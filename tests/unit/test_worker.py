"""Worker processes: what becomes of crashes, hangs and failed starts, and that nothing is left behind.

The interpreter that a worker is given is a script of this test: it runs the real worker loop on a small
system whose behaviour is chosen by the names of prompt segments.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from spec.observation import Failure, Outcome
from spec.trace import Configuration, Group, Settle, Submit, Trace, TraceError
from tailproof.targets import worker as process
from tailproof.targets.worker import TargetProblem, Worker, staged_packages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

CONFIGURATION = Configuration(groups=(Group("full", 8), Group("mamba", 8)), unit=4)
ROOT = Path(__file__).resolve().parents[2]

SYSTEM = """
import os, signal, subprocess, sys, time
from adapters import worker
from adapters.protocol import AdapterError, Description, MovedError
from spec.observation import Observation
from spec.trace import NAMES, Submit

class Session:
    def step(self, at, step):
        for name, length in getattr(step, "prompt", ()):
            if name == "exit":
                print("last words", file=sys.stderr, flush=True)
                os._exit(length % 8)
            if name == "signal":
                os.kill(os.getpid(), length)
            if name == "chatter":
                os.write(1, b"lost? " * length)
            if name == "noise":
                print("x" * 20_000, "the end of the noise", file=sys.stderr, flush=True)
                os._exit(1)
            if name == "hang":
                a_function_that_hangs()
            if name == "slow":
                time.sleep(length / 10)
            if name == "error":
                raise AdapterError("the adapter cannot go on")
            if name == "garbage":
                opened[0].write(b"\\x05\\x00\\x00\\x00nojsn")
                opened[0].flush()
                time.sleep(600)
            if name == "child":
                child = subprocess.Popen(["sleep", "600"])
                print("child", child.pid, file=sys.stderr, flush=True)
                if length == 1:
                    os._exit(1)
        yield Observation(at=at, do=NAMES[type(step)], free=os.getpid())

    def target_seconds(self):
        return 0.25

    def units(self):
        return (4, 8)

    def close(self):
        pass

def a_function_that_hangs():
    while True:
        pass

class System:
    def describe(self):
        START
        return Description("fake", "1.2", {"core": "ready"})

    def open(self, configuration, omit):
        if configuration.live == 3:
            os._exit(5)
        return Session()

worker.load_system = lambda name: System()
opened = []
fdopen = os.fdopen
worker.os.fdopen = lambda fd, mode: opened.append(fdopen(fd, mode)) or opened[0]
sys.exit(worker.main(sys.argv[-2:]))
"""


def interpreter(folder: Path, start: str = "pass") -> Path:
    """A script that stands in for a target's Python; `start` is run when the worker starts."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\n" + SYSTEM.replace("START", start), encoding="utf-8")
    path.chmod(0o755)
    return path


def trace(*names: tuple[str, int]) -> Trace:
    """One submit per name, of a segment with that name and length, then a settle."""
    steps = (Submit(f"r{index}", (segment,)) for index, segment in enumerate(names))
    return Trace(CONFIGURATION, (*steps, Settle()))


PLAIN = trace(("plain", 9))
Make = Callable[..., Worker]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILPROOF_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes workers, and sees to it that they and all their children are gone in the end."""
    made: list[Worker] = []

    def one(start: str = "pass", hello: float = 20.0, first: float = 20.0, other: float = 20.0) -> Worker:
        made.append(
            Worker(
                "fake",
                interpreter(tmp_path, start),
                "vllm",
                start_seconds=hello,
                first_case_seconds=first,
                case_seconds=other,
            )
        )
        return made[-1]

    yield one
    for worker in made:
        worker.close()
    left = [pid for pid in processes_of(tmp_path) if settled_alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def processes_of(folder: Path) -> list[int]:
    """Processes whose command line names a path in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def settled_alive(pid: int, seconds: float = 5.0) -> bool:
    """Whether a process still runs after a while."""
    end = time.monotonic() + seconds
    while alive(pid):
        if time.monotonic() > end:
            return True
        time.sleep(0.02)
    return False


def failure_of(outcome: Outcome) -> Failure:
    """The failure that ends an outcome."""
    failure = outcome.observations[-1].failure
    assert failure is not None
    return failure


def pid_of(outcome: Outcome) -> int:
    """The process that gave an outcome, which the fake system reports as free blocks."""
    return outcome.observations[0].free


# Normal replies


def test_a_case_is_answered(make: Make) -> None:
    worker = make()
    assert worker.describe().version == "1.2"
    outcome = worker.run(PLAIN)
    assert [(seen.at, seen.do, seen.failure) for seen in outcome.observations] == [
        (0, "submit", None),
        (1, "settle", None),
    ]
    assert outcome.target_seconds == 0.25
    assert outcome.units == (4, 8)
    assert outcome.seconds > 0


def test_queued_cases_are_answered_in_order_by_one_process(make: Make) -> None:
    worker = make()
    traces = [trace(*[("plain", 5)] * count) for count in (1, 3, 2)]
    for item in traces:
        worker.start(item)
    outcomes = [worker.finish() for _ in traces]
    assert [len(outcome.observations) for outcome in outcomes] == [2, 4, 3]
    assert len({pid_of(outcome) for outcome in outcomes}) == 1
    assert pid_of(outcomes[0]) != os.getpid()


def test_what_the_target_prints_disturbs_nothing(make: Make) -> None:
    assert len(make().run(trace(("chatter", 50_000), ("plain", 3))).observations) == 3


def test_a_refused_trace_and_an_adapter_error_are_no_observations(make: Make) -> None:
    worker = make()
    with pytest.raises(TraceError, match=r"^steps\[0\] \(submit\): outputs must be 1 or more"):
        worker.run(Trace(CONFIGURATION, (Submit("A", (("plain", 3),), outputs=0),)))
    with pytest.raises(TargetProblem, match=r"^fake: the adapter cannot go on$") as problem:
        worker.run(trace(("error", 1)))
    assert "AdapterError" in problem.value.detail
    assert worker.run(PLAIN).observations[-1].failure is None


# Crashes


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        (("exit", 7), "the worker died with exit code 7"),
        (("exit", 8), "the worker died with exit code 0"),
        (("signal", int(signal.SIGKILL)), "the worker died with signal SIGKILL"),
        (("signal", int(signal.SIGSEGV)), "the worker died with signal SIGSEGV"),
    ],
)
def test_a_crash_is_placed_at_its_step(make: Make, segment: tuple[str, int], message: str) -> None:
    worker = make()
    outcome = worker.run(trace(("plain", 3), ("plain", 3), segment, ("plain", 3)))
    assert [(seen.at, seen.do) for seen in outcome.observations] == [(2, "submit")]
    failure = failure_of(outcome)
    assert (failure.kind, failure.message) == ("crash", message)
    assert worker.run(PLAIN).observations[-1].failure is None


def test_the_cases_behind_a_crash_are_answered_by_a_new_worker(make: Make) -> None:
    worker = make()
    crashes = trace(("plain", 3), ("exit", 1)), trace(("plain", 1), ("exit", 2))
    for item in (PLAIN, *crashes, trace(*[("plain", 3)] * 4), PLAIN):
        worker.start(item)
    first, one, two, longer, last = (worker.finish() for _ in range(5))
    assert failure_of(one).message.endswith("exit code 1")
    assert failure_of(two).message.endswith("exit code 2")
    assert [len(outcome.observations) for outcome in (first, longer, last)] == [2, 5, 2]
    assert pid_of(first) != pid_of(longer) == pid_of(last)


def test_a_case_queued_after_the_crash_does_not_get_the_answer_of_the_crashed_one(make: Make) -> None:
    worker = make()
    worker.start(trace(("exit", 4)))
    time.sleep(0.5)
    worker.start(trace(("plain", 3), ("plain", 3)))
    assert failure_of(worker.finish()).message.endswith("exit code 4")
    assert len(worker.finish().observations) == 3


def test_a_crash_before_the_first_step_is_placed_at_the_first_step(make: Make) -> None:
    worker = make()
    worker.run(trace(*[("plain", 3)] * 4))
    crashed = worker.run(replace(PLAIN, configuration=replace(CONFIGURATION, live=3)))
    assert failure_of(crashed).message == "the worker died with exit code 5"
    assert crashed.observations[-1].at == 0


def test_the_end_of_the_error_output_is_kept(make: Make) -> None:
    worker = make()
    assert failure_of(worker.run(trace(("exit", 1)))).detail == "last words\n"
    detail = failure_of(worker.run(trace(("noise", 1)))).detail
    assert detail.endswith("the end of the noise\n")
    assert len(detail) == 6000


def test_a_crash_takes_the_children_of_the_worker_along(make: Make) -> None:
    failure = failure_of(make(other=2.0, first=2.0).run(trace(("child", 1))))
    child = int(failure.detail.split()[1])
    try:
        assert not settled_alive(child)
    finally:
        if alive(child):
            os.kill(child, signal.SIGKILL)


def test_a_worker_that_sends_garbage_and_lives_on_is_ended(make: Make) -> None:
    worker = make(other=3.0, first=3.0)
    began = time.monotonic()
    failure = failure_of(worker.run(trace(("garbage", 1))))
    assert (failure.kind, failure.message) == ("crash", "the worker sent no proper answer")
    assert time.monotonic() - began < 15
    assert worker.run(PLAIN).observations[-1].failure is None


# Hangs


def test_a_hang_is_an_observation_with_the_stack(make: Make) -> None:
    worker = make(other=0.6, first=5.0)
    worker.run(PLAIN)
    worker.start(trace(("plain", 3), ("hang", 1)))
    worker.start(PLAIN)
    outcome = worker.finish()
    failure = failure_of(outcome)
    assert (outcome.observations[-1].at, outcome.observations[-1].do) == (1, "submit")
    assert (failure.kind, failure.message) == ("hang", "no answer within 1 s")
    assert "a_function_that_hangs" in failure.detail
    assert "Fatal Python error: Aborted" in failure.detail
    assert worker.finish().observations[-1].failure is None


def test_the_first_case_of_a_process_has_a_limit_of_its_own(make: Make) -> None:
    worker = make(other=0.3, first=10.0)
    slow = trace(("slow", 12))
    assert worker.run(slow).observations[-1].failure is None
    assert failure_of(worker.run(slow)).kind == "hang"
    # The process after the hang is new.
    assert worker.run(slow).observations[-1].failure is None


# Starts that fail


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("sys.exit('no such module')", "fake: the worker did not start: no such module"),
        ("os._exit(1)", "fake: the worker did not start: no output"),
        (
            "raise MovedError('1.2', ['Scheduler.split', 'BlockPool'])",
            "fake: vLLM 1.2 has moved private names that the adapter needs: Scheduler.split, BlockPool",
        ),
        ("raise AdapterError('no torch here')", "fake: no torch here"),
        ("raise ValueError('two\\nlines')", "fake: ValueError: two"),
    ],
)
def test_a_worker_that_does_not_start_is_a_problem_of_one_line(make: Make, start: str, message: str) -> None:
    worker = make(start)
    for ask in (worker.describe, lambda: worker.run(PLAIN)):
        with pytest.raises(TargetProblem) as problem:
            ask()
        assert str(problem.value) == message
    assert not worker._pending


def test_a_worker_that_cannot_be_reached_is_a_problem_of_one_line(make: Make, tmp_path: Path) -> None:
    with pytest.raises(TargetProblem, match=r"^fake: the worker did not start within 0 s$"):
        make("time.sleep(600)", hello=0.5).describe()
    with (
        closing(Worker("fake", tmp_path / "nowhere", "vllm")) as worker,
        pytest.raises(TargetProblem, match=r"^fake: cannot start [^\n]*nowhere: [^\n]*No such file[^\n]*$"),
    ):
        worker.describe()


# Nothing is left


def test_close_ends_a_hanging_worker_and_its_children(make: Make, tmp_path: Path) -> None:
    worker = make()
    pid = pid_of(worker.run(trace(("child", 2))))
    worker.start(trace(("hang", 1)))
    folder = Path(worker._folder.name)
    child = int((folder / "stderr").read_text().split()[1])
    assert alive(pid)
    assert alive(child)
    worker.close()
    assert not settled_alive(pid)
    assert not settled_alive(child)
    assert not folder.exists()
    worker.close()


PARENT = """
import sys, time
from pathlib import Path
from spec.trace import *
from tailproof.targets.worker import Worker
worker = Worker("fake", Path(sys.argv[1]), "vllm")
configuration = Configuration(groups=(Group("full", 8), Group("mamba", 8)), unit=4)
case = lambda name: Trace(configuration, (Submit("A", ((name, 3),)), Settle()))
print(worker.run(case("plain")).observations[0].free, flush=True)
if sys.argv[2] != "idle":
    worker.start(case(sys.argv[2]))
print("started", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("state", ["idle", "slow", "hang"])
def test_a_worker_does_not_outlive_its_killed_parent(tmp_path: Path, state: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(interpreter(tmp_path)), state],
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        cwd=ROOT,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    try:
        assert parent.stdout.readline() == "started\n"
        assert alive(pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait(10)
        assert not settled_alive(pid)
    finally:
        parent.kill()
        parent.stdout.close()
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


# Staged packages


def files_under(folder: Path) -> set[str]:
    """Paths of all files in a folder, bytecode left out."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_the_staged_folder_holds_what_a_worker_needs_and_nothing_else(tmp_path: Path) -> None:
    folder = staged_packages()
    assert folder.is_relative_to(tmp_path)
    due: set[str] = set()
    for package in ("spec", "adapters"):
        due |= {path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py")}
    assert files_under(folder) == due
    assert (folder / "spec/trace.py").read_bytes() == (ROOT / "spec/trace.py").read_bytes()
    assert staged_packages() == folder
    code = "import adapters.worker, spec.exact_model, spec.trace; print('fine')"
    whole = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert whole.stdout == "fine\n"


def test_the_staged_folder_is_named_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = staged_packages()
    copy = tmp_path / "copy"
    for package in ("spec", "adapters", "reference"):
        shutil.copytree(ROOT / package, copy / package)
    monkeypatch.setattr(process, "_ROOT", copy)
    assert staged_packages() == real
    (copy / "reference" / "engine.py").write_text("changed")
    assert staged_packages() == real
    (copy / "spec" / "trace.py").write_text("changed")
    changed = staged_packages()
    assert changed != real
    assert (changed / "spec" / "trace.py").read_text() == "changed"
    (copy / "spec" / "trace.py").rename(copy / "spec" / "other.py")
    assert staged_packages() not in (real, changed)


IMPORTING = "import vllm; return Description('fake', '1', {'core': 'ready'}, origin=vllm.__file__)"


def package(folder: Path) -> Path:
    """The folder, with a package in it that is called like the system."""
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text("")
    return folder


def test_an_overlay_whose_name_looks_like_two_folders_is_still_that_one(tmp_path: Path) -> None:
    package(tmp_path / "full")
    overlay = package(tmp_path / "full:reg")
    with closing(Worker("fake", interpreter(tmp_path, IMPORTING), "vllm", (overlay,))) as worker:
        origin = Path(worker.describe().origin)
        assert origin.resolve() == overlay / "vllm" / "__init__.py"
        assert len(worker.run(PLAIN).observations) == 2


def test_such_a_name_is_refused_where_no_link_can_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t:mp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t:mp"))
    overlay = package(tmp_path / "full:reg")
    with (
        closing(Worker("fake", interpreter(tmp_path, IMPORTING), "vllm", (overlay,))) as worker,
        pytest.raises(TargetProblem, match=r"^fake: .*full:reg has a ':' in it, and .*: set TMPDIR to one w"),
    ):
        worker.describe()


@pytest.mark.parametrize(
    "start",
    ["import sys; sys.path.insert(0, OTHER); " + IMPORTING, "return Description('fake', '1', {})"],
)
def test_a_worker_that_imported_another_package_is_refused(tmp_path: Path, start: str) -> None:
    other, overlay = package(tmp_path / "other"), package(tmp_path / "overlay")
    python = interpreter(tmp_path, start.replace("OTHER", repr(str(other))))
    with closing(Worker("fake", python, "vllm", (overlay,))) as worker:
        for _ in range(2):
            with pytest.raises(TargetProblem) as problem:
                worker.describe()
            found = other / "vllm" if "OTHER" in start else "nowhere"
            assert str(problem.value).startswith(
                f"fake: vllm was imported from {found}, not from {overlay / 'vllm'}; something that {python} "
            )


def test_an_overlay_of_links_to_the_files_of_another_package_is_no_other(tmp_path: Path) -> None:
    other, overlay = package(tmp_path / "other"), tmp_path / "overlay"
    (overlay / "vllm").mkdir(parents=True)
    (overlay / "vllm" / "__init__.py").symlink_to(other / "vllm" / "__init__.py")
    with closing(Worker("fake", interpreter(tmp_path, IMPORTING), "vllm", (overlay,))) as worker:
        assert worker.describe().version == "1"
