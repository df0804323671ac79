"""Whether a shuffle service can be used, before a graph is made that needs it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from treadle.shuffle.service import _registries
from treadle.shuffle.service._errors import ShuffleError
from treadle.shuffle.service._service import Service

__all__ = ["why_not_served"]

# Seconds to reach a service, and for how long it counts what was found.
_PATIENCE = 5.0
_FRESH = 5.0

_found: dict[str, tuple[float, str | None]] = {}
_lock = threading.Lock()


def why_not_served(address: str, credentials: Mapping[str, Any]) -> str | None:
    """Return why the shuffle service at an address cannot take a shuffle; None: it can.

    Dask asks several times while it optimizes one graph: what was found is used for five seconds.
    """
    with _lock:
        known = _found.get(address)
        if known is None or time.monotonic() > known[0]:
            why = _why_not(address, credentials)
            known = _found[address] = time.monotonic() + _FRESH, why
        return known[1]


def _why_not(address: str, credentials: Mapping[str, Any]) -> str | None:
    try:
        if _registries.is_registry(address):
            # What a list does not know of a server is found out by the master.
            servers = [
                one | {"weight": not one["full"]} for one in _registries.servers(address, _PATIENCE)
            ]
        else:
            with Service(address, own_master=False, timeout=_PATIENCE, **credentials) as service:
                servers = service.state()["servers"]
    except (OSError, ShuffleError, ValueError) as error:
        return f"the shuffle servers cannot be reached: {error}"
    staying = [server for server in servers if not server["leaving"]]
    if not staying:
        if _registries.is_registry(address):
            return f"{address} has no shuffle servers"
        return f"no shuffle server has joined the shuffle master at {address}"
    if not any(server["weight"] for server in staying):
        names = ", ".join(sorted(server["name"] for server in staying))
        return f"no shuffle server at {address} has room ({names})"
    return None
