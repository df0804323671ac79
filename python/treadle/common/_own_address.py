"""Where others reach this host."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["reachable"]


def reachable(address: str) -> str:
    """Return an address of this host that whoever reaches the scheduler, or the master of shuffles, can reach."""
    from distributed.utils import get_ip

    host, _, port = address.rpartition("://")[2].rpartition(":")
    host = host.strip("[]")
    find: Callable[..., str] = get_ip
    own = "127.0.0.1" if host in ("", "127.0.0.1", "localhost") else find(host, int(port))
    return f"[{own}]:0" if ":" in own else f"{own}:0"
