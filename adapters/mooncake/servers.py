"""A Mooncake master and a store owner of our own on loopback: start, watch, kill, restart, stop.

The master keeps the directory of keys, the owner the memory that they live in, so data outlasts the clients
that put it. All ports are drawn anew; those of the master and the service port of the owner accept
connections from this machine only. The two ports of the owner's transfer engine are open on every
interface: Mooncake has no setting for them.

No file, no socket in the file system and no named shared memory is made, so when the processes are gone,
everything is. Standard library only: it runs inside the target's own Python.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from types import TracebackType

from adapters.mooncake.installation import Installation, ServerError, remedy
from adapters.mooncake.process import ServerProcess
from adapters.mooncake.sockets import LOOPBACK, fresh_ports, is_free

METADATA = "P2PHANDSHAKE"
SEGMENT_BYTES = 64 << 20
READY_SECONDS = 15.0
REMOUNT_SECONDS = 30.0
_ANSWER_SECONDS = 5.0
_POLL_SECONDS = 0.005
_TRIES = 5
_TAKEN = "Address already in use"


class Server:
    """What the master and the owner have in common: a process, its ports, and its life.

    The kernel ends the process together with the thread that started it (see `ServerProcess`).
    """

    name: str
    program: str
    port_count: int
    # Whether its end means something to another server, so that it must be able to sign off.
    signs_off = False

    def __init__(self, installation: Installation, ready_seconds: float = READY_SECONDS) -> None:
        self._installation = installation
        self._ready_seconds = ready_seconds
        self._process: ServerProcess | None = None
        self._ports: tuple[int, ...] = ()

    @property
    def pid(self) -> int:
        """The process id of the last start; 0 before the first and after `stop`."""
        return self._process.pid if self._process is not None else 0

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.alive

    @property
    def log(self) -> str:
        """The end of what the process wrote, also after its death, but not after `stop`."""
        return self._process.log() if self._process is not None else ""

    def ports(self) -> frozenset[int]:
        """All TCP ports on which the process listens now."""
        return self._process.ports() if self._process is not None else frozenset()

    def start(self) -> None:
        """Start it on fresh ports and wait until it is ready; ports that others took meanwhile are replaced.

        Raises:
            ServerError: when a program or a library is missing, or it is not ready in time. It ended then.
        """
        if self.alive:
            raise ServerError(f"{self.name} runs already: stop it first")
        for _ in range(_TRIES):
            try:
                self._ports = fresh_ports(self.port_count)
            except OSError as problem:
                raise ServerError(f"{self.name} cannot start: {problem}") from problem
            if self._launch():
                return
        raise ServerError(f"{self.name} found its ports taken {_TRIES} times: try again")

    def restart(self) -> None:
        """Start it again on the ports it had, killing it first when it runs. What it held is lost.

        Raises:
            ServerError: when it is not ready in time, or somebody else holds one of its ports.
        """
        if not self._ports:
            raise ServerError(f"{self.name} cannot be restarted before it was started")
        self.kill()
        give_up = time.monotonic() + self._ready_seconds
        while not self._launch():
            if time.monotonic() > give_up:
                ports = ", ".join(map(str, self._ports))
                raise ServerError(f"{self.name} cannot restart: port {ports} is held by another program")
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        """Kill it without warning, as a crash would, and wait until it is gone."""
        if self._process is not None:
            self._process.end()

    def stop(self) -> None:
        """End it and give up everything it held; a second call does nothing."""
        process, self._process = self._process, None
        if process is not None:
            process.close(gently=self.signs_off)

    def check(self) -> None:
        """Tell whether it still runs.

        Raises:
            ServerError: when it was not started, or ended, with its last words.
        """
        if self._process is None:
            raise ServerError(f"{self.name} is not started")
        if not self._process.alive:
            raise ServerError(f"{self.name} ended: {self._process.last_words()}", self.log)

    def _launch(self) -> bool:
        """Whether it became ready; False when another program held one of the ports."""
        self.stop()
        program = self._installation.program(self.program)
        command = [str(program), *self._options(), "--logtostderr=1"]
        process = self._process = ServerProcess(command, self._installation.environment())
        try:
            if _within(self._ready_seconds, lambda: not process.alive or self._is_ready(process)):
                if process.alive:
                    return True
                problem = f"{self.name} did not start: {process.last_words()}"
            else:
                problem = (
                    f"{self.name} was not ready within {self._ready_seconds:g} s: {process.last_words()}"
                )
            log = process.log()
            process.end()
            if _TAKEN in log or not all(map(is_free, self._ports)):
                return False
            missing = self._installation.missing_libraries()
            if missing:
                problem = f"{self.name} lacks {', '.join(missing)}: {remedy(missing)}"
            raise ServerError(problem, log)
        except BaseException:
            self.kill()
            self.stop()
            raise

    def _options(self) -> list[str]:
        raise NotImplementedError

    def _is_ready(self, process: ServerProcess) -> bool:
        # Who answers on a port may be another program, so ask the kernel whose port it is.
        return set(self._ports) <= process.ports()


class Master(Server):
    """`mooncake_master`: the directory of keys. `flags` are passed on to it as they are."""

    name = "the Mooncake master"
    program = "mooncake_master"
    port_count = 2

    def __init__(
        self,
        installation: Installation,
        flags: tuple[str, ...] = (),
        ready_seconds: float = READY_SECONDS,
    ) -> None:
        super().__init__(installation, ready_seconds)
        self._flags = flags

    @property
    def address(self) -> str:
        """Where clients find it, as HOST:PORT; the same after a restart.

        Raises:
            ServerError: before the first start.
        """
        return f"{LOOPBACK}:{self._port(0)}"

    def keys(self) -> tuple[str, ...]:
        """The keys that the master lists now, in alphabetical order, without the help of any client.

        Raises:
            ServerError: when it does not answer.
        """
        return tuple(sorted(self._ask("/get_all_keys").splitlines()))

    def segment_ports(self) -> frozenset[int]:
        """The transfer ports of the memory segments that the master may use now.

        Raises:
            ServerError: when it does not answer, or not as expected.
        """
        text = self._ask("/get_segments_detail")
        try:
            segments = json.loads(text)["segments"]
            ports = [int(one["te_endpoint"].rpartition(":")[2]) for one in segments if one["status"] == "OK"]
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise ServerError(f"{self.name} describes its segments in an unknown form", text) from problem
        return frozenset(ports)

    def _options(self) -> list[str]:
        return [
            f"--rpc_address={LOOPBACK}",
            f"--rpc_port={self._port(0)}",
            f"--metrics_host={LOOPBACK}",
            f"--metrics_port={self._port(1)}",
            "--rpc_thread_num=2",
            "--enable_metric_reporting=false",
            *self._flags,
        ]

    def _is_ready(self, process: ServerProcess) -> bool:
        if not super()._is_ready(process):
            return False
        try:
            return json.loads(self._ask("/health")).get("service_ready") is True
        except (ServerError, ValueError, AttributeError):
            return False

    def _port(self, which: int) -> int:
        if not self._ports:
            raise ServerError(f"{self.name} is not started")
        return self._ports[which]

    def _ask(self, path: str) -> str:
        connection = http.client.HTTPConnection(LOOPBACK, self._port(1), timeout=_ANSWER_SECONDS)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as problem:
            raise ServerError(f"{self.name} does not answer: {problem}", self.log) from problem
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise ServerError(f"{self.name} answers {path} with status {answer.status}", text)
        return text


class StoreOwner(Server):
    """`mooncake_client` as the process that lends the store its memory, `segment_bytes` bytes of it."""

    name = "the Mooncake store owner"
    program = "mooncake_client"
    port_count = 1
    signs_off = True

    def __init__(
        self,
        installation: Installation,
        master: Master,
        segment_bytes: int = SEGMENT_BYTES,
        ready_seconds: float = READY_SECONDS,
    ) -> None:
        super().__init__(installation, ready_seconds)
        self._master = master
        self._segment_bytes = segment_bytes

    def mounted(self) -> bool:
        """Whether the master may use the memory of this very process now.

        Raises:
            ServerError: when the master does not answer.
        """
        return bool(self._master.segment_ports() & self.ports())

    def _options(self) -> list[str]:
        return [
            f"--host={LOOPBACK}",
            f"--port={self._ports[0]}",
            f"--global_segment_size={self._segment_bytes}",
            f"--master_server_address={self._master.address}",
            f"--metadata_server={METADATA}",
            "--protocol=tcp",
        ]

    def _is_ready(self, process: ServerProcess) -> bool:
        if not super()._is_ready(process):
            return False
        return self.mounted()


class Servers:
    """A master and an owner together. Use it in a `with`, or call `start` and `stop`.

    `segment_bytes` is the memory of the store, `flags` are passed on to the master.
    """

    def __init__(
        self,
        installation: Installation,
        segment_bytes: int = SEGMENT_BYTES,
        flags: tuple[str, ...] = (),
    ) -> None:
        self.master = Master(installation, flags)
        self.owner = StoreOwner(installation, self.master, segment_bytes)

    def __enter__(self) -> Servers:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start both and wait until the store can be used.

        Raises:
            ServerError: when one of them cannot start; neither runs then.
        """
        try:
            self.master.start()
            self.owner.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End both; a second call does nothing."""
        try:
            self.owner.stop()
        finally:
            self.master.stop()

    def check(self) -> None:
        """Tell whether both still run.

        Raises:
            ServerError: when one does not, with its last words.
        """
        self.master.check()
        self.owner.check()

    def keys(self) -> tuple[str, ...]:
        """The keys that the master lists now, in alphabetical order.

        Raises:
            ServerError: when it does not answer.
        """
        return self.master.keys()

    def restart_master(self) -> None:
        """Start the master again on the ports it had, without a key, and wait until the owner has lent it its
        memory again.

        Raises:
            ServerError: when the master is not ready in time, or the owner does not come back.
        """
        self.master.restart()
        if not _within(REMOUNT_SECONDS, self.owner.mounted):
            self.check()
            raise ServerError(
                f"{self.owner.name} did not come back within {REMOUNT_SECONDS:g} s", self.owner.log
            )


def _within(seconds: float, happened: Callable[[], bool]) -> bool:
    give_up = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > give_up:
            return False
        time.sleep(_POLL_SECONDS)
    return True
