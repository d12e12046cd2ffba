"""Ports on loopback: which are fresh, and which a process holds, as the kernel tells (Linux only).

Standard library only: it runs inside the target's own Python.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
# Mooncake draws ports of its own below 17,000.
_LOWEST = 18_000
_HIGHEST = 60_999
_NARROW = 2_000
_TRIES = 1_000
_LISTENING = "0A"
# Shared with nothing: a program that seeds its random numbers must not draw the same ports every time.
_RANDOM = random.SystemRandom()


def fresh_ports(count: int) -> tuple[int, ...]:
    """`count` different ports that nobody listens on at this moment.

    They lie below the range from which the kernel takes the ports of outgoing connections, where that
    leaves enough room: so a port stays free while its server is down.

    Raises:
        OSError: when no free port was found.
    """
    ports: set[int] = set()
    for _ in range(_TRIES):
        if len(ports) == count:
            break
        port = _RANDOM.randrange(_LOWEST, _end())
        if is_free(port):
            ports.add(port)
    if len(ports) < count:
        raise OSError("no free port on loopback")
    return tuple(sorted(ports, key=lambda _port: _RANDOM.random()))


def _end() -> int:
    with contextlib.suppress(OSError, ValueError):
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        if first - _LOWEST >= _NARROW:
            return first
    return _HIGHEST


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` of loopback now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: what is left of closed connections does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def listening_ports(pid: int) -> frozenset[int]:
    """The TCP ports on which the process `pid` listens; empty when there is no such process."""
    held = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                held.add(os.readlink(entry.path))
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and f"socket:[{fields[9]}]" in held:
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return frozenset(found)
