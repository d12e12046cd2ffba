"""The store of one worker process: its servers and its connected clients, from case to case."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from adapters.mooncake.gate import Gate, GatedClient
from adapters.mooncake.installation import ServerError, find
from adapters.mooncake.servers import METADATA, Servers
from adapters.mooncake.sockets import LOOPBACK

BUFFER_BYTES = 16 << 20
RECOVERY_SECONDS = 30.0
# Read by Mooncake and by vLLM's connector; all traffic goes over TCP on loopback, none by local copies.
ENVIRONMENT = {
    "MC_FORCE_TCP": "1",
    "MC_STORE_MEMCPY": "0",
    "MC_LOG_LEVEL": "ERROR",
    "GLOG_minloglevel": "2",
    "VLLM_HOST_IP": LOOPBACK,
    "MOONCAKE_REQUESTER_LOCAL_HOSTNAME": LOOPBACK,
}
_PROBE = "tailproof-probe"
_DEATH_SECONDS = 1.0


class Backend:
    """A running store and the clients that were connected to it.

    A client takes seconds to close, so those of ended cases are kept and handed out again.

    Raises:
        ServerError: when the servers cannot be started, with what to do.
    """

    def __init__(self) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self.servers = Servers(find(Path(sys.executable)))
        self.servers.start()
        from mooncake.store import MooncakeDistributedStore

        self._make: Any = MooncakeDistributedStore
        self._free: list[Any] = []
        self._all: list[Any] = []
        self._killed = False
        self._folder = tempfile.TemporaryDirectory(prefix="tailproof-store-")
        self._configure()
        self._admin = self._connected()

    def _configure(self) -> None:
        """Tell vLLM's connector, which insists on a file, where the store is."""
        path = Path(self._folder.name, "mooncake.json")
        path.write_text(
            json.dumps(
                {
                    "metadata_server": METADATA,
                    "master_server_address": self.servers.master.address,
                    "protocol": "tcp",
                    "device_name": "",
                    "mode": "standalone-store",
                    "global_segment_size": 0,
                    "local_buffer_size": BUFFER_BYTES,
                }
            )
        )
        os.environ["MOONCAKE_CONFIG_PATH"] = str(path)
        os.environ["VLLM_RPC_BASE_PATH"] = self._folder.name

    def client(self, gate: Gate) -> GatedClient:
        """A connected client behind a gate.

        Raises:
            ServerError: when the store does not accept it.
        """
        return GatedClient(gate, self._free.pop() if self._free else self._connected(), self._free.append)

    def _connected(self) -> Any:
        client = self._make()
        code = client.setup(LOOPBACK, METADATA, 0, BUFFER_BYTES, "tcp", "", self.servers.master.address)
        if code != 0:
            raise ServerError(f"the store refuses a client with code {code}", self.servers.master.log)
        self._all.append(client)
        return client

    def fresh(self) -> None:
        """An empty store with both servers running, whatever the case before did to it.

        Raises:
            ServerError: when the store cannot be brought back.
        """
        if not self.servers.owner.alive:
            self.servers.owner.restart()
        if not self.servers.master.alive:
            self.restart_master()
        self._admin.remove_all(True)
        if left := self.servers.keys():
            raise ServerError(f"{len(left)} keys are left in a store that was emptied")

    def fault(self) -> str:
        """Which server ended though no trace killed it, in one line; empty when none did."""
        for server, meant in ((self.servers.master, self._killed), (self.servers.owner, False)):
            if not server.alive and not meant:
                return f"{server.name} ended by itself, or was killed from outside"
        return ""

    def keys(self) -> tuple[str, ...]:
        """The keys that the master lists; none while it is dead.

        Raises:
            ServerError: when it lives and does not answer.
        """
        try:
            return self.servers.keys() if self.servers.master.alive else ()
        except ServerError:
            # It may have died over the question.
            give_up = time.monotonic() + _DEATH_SECONDS
            while self.servers.master.alive:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.01)
            return ()

    def drop(self, key: str) -> None:
        """Lose a key.

        Raises:
            ServerError: when the store refuses.
        """
        code = self._admin.remove(key, True)
        if code < 0:
            raise ServerError(f"the store keeps a key that was to be dropped, code {code}")

    def kill_master(self) -> None:
        """Kill the master without warning."""
        self.servers.master.kill()
        self._killed = True

    def restart_master(self) -> None:
        """Start the master again, empty, and wait until a put goes through and every client has found it: the
        first call over a connection to the dead one fails.

        Raises:
            ServerError: when that does not happen in time.
        """
        self.servers.restart_master()
        self._killed = False
        give_up = time.monotonic() + RECOVERY_SECONDS
        while self._admin.put(_PROBE, b"probe") != 0 or any(
            client.batch_is_exist([_PROBE])[0] != 1 for client in self._all
        ):
            if time.monotonic() > give_up:
                raise ServerError("not every client works again after the restart of the master")
            time.sleep(0.01)
        self._admin.remove_all(True)
