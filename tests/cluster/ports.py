"""Ports that a test binds later, or twice: meanwhile the system gives them to nobody."""

from __future__ import annotations

import os
import socket
from pathlib import Path

# From here on the system chooses, for whoever connects or asks for any port.
_CHOSEN = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
# Each process of a run of tests has a block of ports, and no port twice.
_BLOCK = 500
_FIRST = max(_CHOSEN - 40 * _BLOCK, 1024)
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
# Another run of tests begins elsewhere.
_next = os.getpid()


def free_port() -> int:
    """A port of this machine that nobody uses, and that nobody else is given."""
    global _next
    for _ in range(_BLOCK):
        _next += 1
        port = _FIRST + _worker % 40 * _BLOCK + _next % _BLOCK
        with socket.socket() as trial:
            try:
                trial.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"all ports of the block of {port} are used")
