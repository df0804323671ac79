"""Which of the shuffle servers a page shows, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ORDERS", "STATES", "ServerList", "server_list"]

STATES = ("open", "slow", "full", "leaving")
ORDERS = ("room", "load", "name")
# Requests that wait at a server which has much to do. A busier one makes the scale of all longer.
_MANY_WAITING = 32


@dataclass(frozen=True)
class ServerList:
    """A page of the servers that were asked for."""

    rows: list[dict[str, Any]]
    """Of the page, with ``state``, and with ``used`` and ``busy``: shares from 0 to 1, None where they are not known."""
    cells: list[dict[str, Any]]
    """The same of all that were found, in the same order."""
    known: int
    domains: list[str]
    page: int
    pages: int


def server_list(
    servers: Sequence[Mapping[str, Any]],
    *,
    name: str = "",
    state: str = "",
    domain: str = "",
    order: str = ORDERS[0],
    page: int = 1,
    limit: int = 100,
) -> ServerList:
    """Return those servers whose name or address has ``name`` in it. A page that is not there is the nearest one."""
    most = max([_MANY_WAITING, *(int(one.get("waiting_requests") or 0) for one in servers)])
    all_of_them = [_shown(one, most) for one in servers]
    part = name.lower()
    found = [
        one
        for one in all_of_them
        if (part in str(one.get("name") or "").lower() or part in str(one["address"]).lower())
        and (not state or one["state"] == state)
        and (not domain or one.get("domain") == domain)
    ]
    share = {"load": "busy", "name": None}.get(order, "used")
    found.sort(key=lambda one: str(one.get("name") or one["address"]))
    if share is not None:
        found.sort(key=lambda one: -(one[share] or 0.0))
    pages = max(1, -(-len(found) // limit))
    page = min(max(page, 1), pages)
    domains = sorted({str(one["domain"]) for one in all_of_them if one.get("domain")})
    rows = found[(page - 1) * limit : page * limit]
    return ServerList(rows, found, len(all_of_them), domains, page, pages)


def _shown(server: Mapping[str, Any], most: int) -> dict[str, Any]:
    free, held, waiting = (
        server.get(name) for name in ("free_bytes", "held_bytes", "waiting_requests")
    )
    total = None if free is None else free + (held or 0)
    flags = [one for one in ("leaving", "full", "slow") if server.get(one)]
    return {
        **server,
        "address": server.get("address") or "",
        "state": flags[0] if flags else "open",
        "used": None if not total else (held or 0) / total,
        "busy": None if waiting is None else waiting / most,
    }
