"""The Mooncake servers start, are killed and come back, and leave nothing behind, however they end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from adapters.mooncake import servers as servers_module
from adapters.mooncake import sockets
from adapters.mooncake.installation import Installation, ServerError, find, library_path, remedy
from adapters.mooncake.servers import Master, Server, Servers, StoreOwner
from tailproof.targets.environments import ensure
from tailproof.targets.libraries import prepare_store, store_problem
from tailproof.targets.opening import DEFAULT, Target, tier_states

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

ROOT = Path(__file__).resolve().parents[2]
SHARED_MEMORY = Path("/dev/shm")
TEMPORARY = Path("/tmp")
CLIENT = """
import os, sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", sys.argv[1]) == 0
for key in sys.argv[2:]:
    assert store.put(key, key.encode() * 100) == 0, key
    assert store.get(key) == key.encode() * 100, key
os._exit(0)
"""
PARENT = """
import json, subprocess, sys, time
from pathlib import Path
from adapters.mooncake.installation import Installation
from adapters.mooncake.servers import Servers
folder, libraries = sys.argv[1:3]
stray = subprocess.Popen(["sleep", "60"], start_new_session=True)
with Servers(Installation(Path(folder), Path(libraries) if libraries else None)) as servers:
    pair = (servers.master, servers.owner)
    held = {"pids": [one.pid for one in pair], "ports": [port for one in pair for port in one.ports()]}
    print(json.dumps({**held, "stray": stray.pid}), flush=True)
    time.sleep(60)
"""
STARTING = """
import sys
from pathlib import Path
from adapters.mooncake.installation import Installation
from adapters.mooncake.servers import Master
folder, libraries, marker = sys.argv[1:4]
print("starting", flush=True)
while True:
    master = Master(Installation(Path(folder), Path(libraries) if libraries else None), (marker,))
    master.start()
    master.stop()
"""


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python of the default target; its environment is built when it is missing."""
    return ensure(DEFAULT, lambda line: print(line, file=sys.stderr)).python


@pytest.fixture(scope="module")
def installation(python: Path) -> Installation:
    """Its Mooncake, with the system libraries that this machine lacks."""
    return find(python, prepare_store(python, lambda line: print(line, file=sys.stderr)))


class Held:
    """What servers held while they ran, to find what is left of it later."""

    def __init__(self, pids: set[int], ports: set[int]) -> None:
        self.pids = pids
        self.ports = ports
        self._memory = _names(SHARED_MEMORY)
        self._files = _names(TEMPORARY)

    def note(self, *running: Server) -> None:
        """Remember what these servers hold now."""
        for one in running:
            self.pids.add(one.pid)
            self.ports |= one.ports()

    def leftovers(self) -> list[str]:
        """What is still there, one line each."""
        found = [f"process {pid}" for pid in sorted(self.pids) if _runs(pid)]
        found += [f"child {pid}" for pid in _servers_of(os.getpid())]
        found += [f"port {port}" for port in sorted(self.ports & _listening())]
        found += [
            f"socket {name}"
            for name in _abstract_sockets()
            if any(name.endswith(f"_{port}.sock") for port in self.ports)
        ]
        found += [f"memory {name}" for name in sorted(_names(SHARED_MEMORY) - self._memory - _open_memory())]
        new = _names(TEMPORARY) - self._files
        found += [f"file {name}" for name in sorted(new) if name.startswith("mooncake")]
        return found

    def gone(self, seconds: float = 5.0) -> bool:
        """Whether nothing is left within the time; for the deaths that the kernel brings about."""
        give_up = time.monotonic() + seconds
        while self.leftovers():
            if time.monotonic() > give_up:
                return False
            time.sleep(0.01)
        return True


@pytest.fixture
def held() -> Iterator[Held]:
    """Nothing held at first; a test that leaves something behind fails."""
    holds = Held(set(), set())
    yield holds
    left = holds.leftovers()
    end_servers(holds.pids)
    assert left == []


def end_servers(pids: Iterable[int]) -> None:
    """Kill what a failed test left behind."""
    for pid in pids:
        if "/mooncake_" in _command(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def _stat(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _runs(pid: int) -> bool:
    # Who reaps an orphan, and when, is up to the machine; our own children we must reap ourselves.
    state = _stat(pid)
    return bool(state) and (state[0] != "Z" or int(state[1]) == os.getpid())


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _servers_of(parent: int) -> list[int]:
    return [pid for pid in _pids() if _stat(pid)[1:2] == [str(parent)] and "/mooncake_" in _command(pid)]


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""


def _listening() -> set[int]:
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def _abstract_sockets() -> list[str]:
    rows = [line.split() for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()]
    return [row[7] for row in rows if len(row) == 8 and row[7].startswith("@")]


def _open_memory() -> set[str]:
    """Shared memory that a living process uses: other programs of this machine come and go."""
    used = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
            used |= {line.rpartition("/dev/shm/")[2] for line in maps.splitlines() if "/dev/shm/" in line}
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    used.add(os.readlink(entry.path).rpartition("/dev/shm/")[2])
    return used


def put(servers: Servers, installation: Installation, python: Path, *keys: str) -> None:
    """Put keys with Mooncake's own client, in the Python of the target."""
    subprocess.run(
        [python, "-I", "-c", CLIENT, servers.master.address, *keys],
        env={**os.environ, **library_path(installation.libraries)},
        capture_output=True,
        timeout=60,
        check=True,
    )


def parent(installation: Installation, script: str, *words: str) -> subprocess.Popen[str]:
    """A program of its own, in a process group of its own, that runs servers."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            # A process started in the background may inherit an ignored SIGINT.
            f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{script}",
            str(installation.folder),
            str(installation.libraries or ""),
            *words,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )


def scripted(folder: Path, text: str) -> Installation:
    """Programs that are shell scripts of the test."""
    folder.mkdir(exist_ok=True)
    for name in ("mooncake_master", "mooncake_client"):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return Installation(folder)


def one_line(problem: ServerError) -> str:
    """The text of an error, which is one line."""
    text = str(problem)
    assert "\n" not in text
    return text


def test_start_and_stop_leave_nothing(installation: Installation, held: Held) -> None:
    servers = Servers(installation)
    servers.start()
    held.note(servers.master, servers.owner)
    servers.check()
    assert servers.keys() == ()
    assert servers.owner.mounted()
    assert len(servers.master.ports()) == 2
    # One for its service, one for handshakes, one for data.
    assert len(servers.owner.ports()) == 3
    servers.stop()
    assert held.leftovers() == []
    servers.stop()
    assert (servers.master.pid, servers.master.alive, servers.master.log) == (0, False, "")
    with pytest.raises(ServerError, match=r"^the Mooncake master is not started$"):
        servers.check()


def test_servers_that_are_leaked_are_seen(installation: Installation, held: Held) -> None:
    """Negative control of the check that nothing is left: it sees every kind of thing that could be."""
    servers = Servers(installation)
    servers.start()
    held.note(servers.master, servers.owner)
    plants = (SHARED_MEMORY / f"tailproof-plant-{os.getpid()}", TEMPORARY / f"mooncake-plant-{os.getpid()}")
    try:
        for plant in plants:
            plant.write_bytes(b"left over")
        kinds = [line.split()[0] for line in held.leftovers()]
        assert kinds == ["process"] * 2 + ["child"] * 2 + ["port"] * 5 + ["socket", "memory", "file"]
    finally:
        for plant in plants:
            plant.unlink()
        servers.stop()


def test_a_put_is_listed_and_lost_with_the_master(
    installation: Installation, python: Path, held: Held
) -> None:
    with Servers(installation) as servers:
        held.note(servers.master, servers.owner)
        put(servers, installation, python, "b@group:1", "a@group:0")
        # The client is gone, its keys are not: the owner holds them.
        assert servers.keys() == ("a@group:0", "b@group:1")

        address, pid, owner = servers.master.address, servers.master.pid, servers.owner.pid
        servers.master.kill()
        assert not servers.master.alive
        with pytest.raises(ServerError) as unanswered:
            servers.keys()
        assert one_line(unanswered.value).startswith("the Mooncake master does not answer: ")
        with pytest.raises(ServerError) as ended:
            servers.check()
        assert one_line(ended.value).startswith("the Mooncake master ended: signal SIGKILL; ")

        servers.restart_master()
        held.note(servers.master)
        servers.check()
        assert servers.master.address == address
        assert servers.master.pid != pid
        assert servers.owner.pid == owner
        assert servers.keys() == ()
        put(servers, installation, python, "c@group:0")
        assert servers.keys() == ("c@group:0",)


def test_a_running_master_can_be_restarted_too(installation: Installation, held: Held) -> None:
    with Servers(installation) as servers:
        held.note(servers.master, servers.owner)
        servers.restart_master()
        held.note(servers.master)
        servers.owner.restart()
        held.note(servers.owner)
        assert servers.owner.mounted()
        servers.master.kill()
    assert held.leftovers() == []


def test_an_owner_that_dies_is_noticed(installation: Installation, held: Held) -> None:
    with Servers(installation) as servers:
        held.note(servers.master, servers.owner)
        servers.owner.kill()
        assert not servers.owner.mounted()
        with pytest.raises(ServerError, match=r"^the Mooncake store owner ended: signal SIGKILL; "):
            servers.check()


def test_a_failure_inside_leaves_nothing(installation: Installation, held: Held) -> None:
    def fail() -> None:
        with Servers(installation) as servers:
            held.note(servers.master, servers.owner)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(held.ports) == 5
    assert held.leftovers() == []


def test_an_owner_without_its_master_leaves_nothing(installation: Installation, held: Held) -> None:
    master = Master(installation)
    master.start()
    held.note(master)
    master.kill()
    owner = StoreOwner(installation, master, ready_seconds=0.5)
    with pytest.raises(ServerError) as caught:
        owner.start()
    assert "the Mooncake store owner was not ready within 0.5 s" in one_line(caught.value)
    master.stop()
    assert held.leftovers() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_end_of_the_parent_leaves_nothing(
    installation: Installation, held: Held, number: signal.Signals
) -> None:
    process = parent(installation, PARENT)
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    held.pids.update(said["pids"])
    held.ports.update(said["ports"])
    try:
        assert len(held.leftovers()) == 2 + 5 + 1
        # As Ctrl-C in a terminal: to the whole group.
        os.killpg(process.pid, number)
        assert process.wait(20) != 0
        assert held.gone()
        # Negative control: a child that was not tied to the parent lives on, and would have been seen.
        assert Held({said["stray"]}, set()).leftovers() == [f"process {said['stray']}"]
    finally:
        os.kill(said["stray"], signal.SIGKILL)
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("wait", [0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.13])
def test_the_end_of_the_parent_while_it_starts_servers_leaves_nothing(
    installation: Installation, wait: float, number: signal.Signals
) -> None:
    marker = f"--cluster_id=tailproof-{uuid.uuid4().hex}"
    process = parent(installation, STARTING, marker)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(wait)
    os.killpg(process.pid, number)
    process.wait(20)
    process.stdout.close()
    left: list[int] = []
    for _ in range(500):
        left = [pid for pid in _pids() if marker in _command(pid)]
        if not left:
            return
        time.sleep(0.01)
    end_servers(left)
    pytest.fail(f"still there: {left}")


def test_the_end_of_the_thread_that_started_a_server_ends_it(installation: Installation, held: Held) -> None:
    """Not a wish but how the kernel has it; whoever starts servers must know."""
    master = Master(installation)

    def start() -> None:
        master.start()
        held.note(master)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    give_up = time.monotonic() + 5
    while master.alive and time.monotonic() < give_up:
        time.sleep(0.01)
    assert not master.alive
    master.stop()


def test_two_at_once_do_not_meet(installation: Installation, python: Path, held: Held) -> None:
    with Servers(installation) as one, Servers(installation) as other:
        held.note(one.master, one.owner, other.master, other.owner)
        assert len(held.pids) == 4
        assert len(held.ports) == 10
        put(one, installation, python, "only@one")
        assert one.keys() == ("only@one",)
        assert other.keys() == ()


def squatter() -> socket.socket:
    """Another program that listens where a server wants to."""
    taken = socket.create_server((sockets.LOOPBACK, 0))
    assert not sockets.is_free(taken.getsockname()[1])
    return taken


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_port_taken_meanwhile_is_replaced(
    installation: Installation, held: Held, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """The ports of the master are the first two, that of the owner is the third."""
    drawn: list[tuple[int, ...]] = []
    fresh = sockets.fresh_ports

    with squatter() as taken:

        def unlucky(count: int) -> tuple[int, ...]:
            ports = list(fresh(count))
            if len(drawn) == place // 2:
                ports[place % 2] = taken.getsockname()[1]
            drawn.append(tuple(ports))
            return drawn[-1]

        monkeypatch.setattr(servers_module, "fresh_ports", unlucky)
        with Servers(installation) as servers:
            held.note(servers.master, servers.owner)
            assert [len(ports) for ports in drawn] == ([2, 2, 1] if place < 2 else [2, 1, 1])
            assert taken.getsockname()[1] not in held.ports
            servers.check()


def test_ports_that_are_always_taken_end_the_start(
    installation: Installation, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    with squatter() as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(servers_module, "fresh_ports", lambda count: (port, *sockets.fresh_ports(1)))
        with pytest.raises(ServerError) as caught:
            Servers(installation).start()
    assert one_line(caught.value) == "the Mooncake master found its ports taken 5 times: try again"
    assert held.leftovers() == []


def test_a_master_whose_port_is_taken_cannot_restart(installation: Installation, held: Held) -> None:
    master = Master(installation, ready_seconds=2.0)
    master.start()
    held.note(master)
    master.kill()
    with socket.create_server((sockets.LOOPBACK, int(master.address.rpartition(":")[2]))):
        with pytest.raises(ServerError, match=r"cannot restart: port .* is held by another program$"):
            master.restart()
        assert not master.alive
    master.restart()
    held.note(master)
    assert master.keys() == ()
    master.stop()


def test_fresh_ports_are_free_different_and_not_for_outgoing_connections() -> None:
    ports = sockets.fresh_ports(50)
    assert len(set(ports)) == 50
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert first < 20_000 or all(17_000 < port < first for port in ports)


def test_a_server_that_fails_says_why_in_one_line(tmp_path: Path, held: Held) -> None:
    failing = scripted(tmp_path, "echo 'E1129 19:17:05.6 23171 a.cpp:26] no such device'; echo later; exit 3")
    with pytest.raises(ServerError) as caught:
        Servers(failing).start()
    assert one_line(caught.value) == "the Mooncake master did not start: exit code 3; no such device"
    assert caught.value.detail.endswith("no such device\nlater\n")
    assert held.leftovers() == []


def test_a_server_that_hangs_is_ended(tmp_path: Path, held: Held) -> None:
    hanging = scripted(
        tmp_path, "trap '' TERM; echo waiting; echo $$ > " + str(tmp_path / "pid") + "\nsleep 60"
    )
    began = time.monotonic()
    with pytest.raises(ServerError) as caught:
        Master(hanging, ready_seconds=0.5).start()
    assert one_line(caught.value) == "the Mooncake master was not ready within 0.5 s: waiting"
    assert time.monotonic() - began < 10
    held.pids.add(int((tmp_path / "pid").read_text()))
    assert held.leftovers() == []


def test_a_missing_program_says_what_to_install(installation: Installation, tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    with pytest.raises(ServerError) as caught:
        find(python)
    assert one_line(caught.value) == (
        f"{python} has no Mooncake: run {python} -m pip install mooncake-transfer-engine-non-cuda"
    )
    folder = tmp_path / "lib" / "python3.11" / "site-packages" / "mooncake"
    folder.mkdir(parents=True)
    shutil.copy(installation.program("mooncake_master"), folder)
    missing = f"{folder / 'mooncake_client'} is missing: reinstall mooncake-transfer-engine-non-cuda"
    with pytest.raises(ServerError) as caught:
        find(python)
    assert one_line(caught.value) == missing
    assert store_problem(python) == missing
    shutil.copy(installation.program("mooncake_client"), folder)
    assert find(python).folder == folder
    (folder / "mooncake_client").chmod(0o644)
    with pytest.raises(ServerError, match="may not be run: reinstall"):
        find(python)


def test_a_missing_library_says_what_to_install(
    installation: Installation, tmp_path: Path, held: Held
) -> None:
    """The real program, asking for a library that no machine has."""
    folder = tmp_path / "mooncake"
    folder.mkdir()
    for place in installation.folder.parent.glob("mooncake_*.libs"):
        (tmp_path / place.name).symlink_to(place)
    for name in ("mooncake_master", "mooncake_client"):
        program = (installation.folder / name).read_bytes()
        (folder / name).write_bytes(program.replace(b"\0libibverbs.so.1\0", b"\0libibverbs.so.X\0"))
        (folder / name).chmod(0o755)
    lacking = Installation(folder, installation.libraries)
    assert lacking.missing_libraries() == ("libibverbs.so.X",)
    assert installation.missing_libraries() == ()
    with pytest.raises(ServerError) as caught:
        Servers(lacking).start()
    assert one_line(caught.value) == (
        "the Mooncake master lacks libibverbs.so.X: install the system package that has libibverbs.so.X"
    )
    assert remedy(("libibverbs.so.1",)) == (
        "install the system package libibverbs1 (Debian's name; on Fedora libibverbs)"
    )
    assert held.leftovers() == []


@pytest.mark.parametrize(
    "name", ["MC_STORE_CLIENT_METRIC", "GLOG_minloglevel", "MC_RPC_PROTOCOL", "http_proxy"]
)
def test_settings_of_the_caller_do_not_reach_the_servers(
    installation: Installation, held: Held, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Servers(installation) as servers:
        held.note(servers.master, servers.owner)
        for server in (servers.master, servers.owner):
            assert name not in Path(f"/proc/{server.pid}/environ").read_text()
        assert servers.keys() == ()


def test_the_targets_say_that_the_store_tier_can_run(installation: Installation) -> None:
    assert installation.folder.is_dir()
    assert tier_states(Target.parse(DEFAULT))["store"] == "ready"


def test_two_starts_at_the_same_moment_both_work(
    installation: Installation, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both masters draw the same ports first; whoever loses draws again."""
    same = sockets.fresh_ports(2)
    lock = threading.Barrier(2)
    stop = threading.Event()
    fresh = sockets.fresh_ports
    drawn = threading.local()

    def unlucky(count: int) -> tuple[int, ...]:
        if not getattr(drawn, "before", False):
            drawn.before = True
            return same
        return fresh(count)

    monkeypatch.setattr(servers_module, "fresh_ports", unlucky)
    masters = (Master(installation), Master(installation))
    ready = [threading.Event(), threading.Event()]

    def run(which: int) -> None:
        lock.wait()
        masters[which].start()
        ready[which].set()
        stop.wait(60)
        masters[which].stop()

    threads = [threading.Thread(target=run, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    assert all(event.wait(30) for event in ready)
    held.note(*masters)
    assert len(held.ports) == 4
    assert set(same) & held.ports
    assert [master.keys() for master in masters] == [(), ()]
    stop.set()
    for thread in threads:
        thread.join()
