"""Where others reach this host."""

from __future__ import annotations

from collections.abc import Callable

from treadle import _core

__all__ = ["reachable"]


def reachable(address: str) -> str:
    """Return an address of this host that whoever reaches an address can reach.

    Parameters
    ----------
    address
        The address of the scheduler or of the master of shuffles, or the URL of a registry.
    """
    host, port = _core.registry_server(address) or _split(address)
    own = "127.0.0.1" if host in ("", "127.0.0.1", "localhost") else _own(host, port)
    return f"[{own}]:0" if ":" in own else f"{own}:0"


def _own(host: str, port: int) -> str:
    from distributed.utils import get_ip

    find: Callable[..., str] = get_ip
    return find(host, port)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    # The route to a host does not depend on the port.
    return host.strip("[]"), int(port) if port.isdecimal() else 80
