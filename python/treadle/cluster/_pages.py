"""Where the pages of a scheduler or of a shuffle server are."""

from __future__ import annotations

import ipaddress
import socket

__all__ = ["resolved"]


def resolved(http: str) -> tuple[str, str | None]:
    """Return ``IP:PORT`` of ``HOST:PORT``, and the name of the host if it is one of its own.

    Raises
    ------
    ValueError
        The host has no address, or there is no such port.
    """
    host, _, port = http.removeprefix("http://").rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{http!r}: give HOST:PORT, such as 127.0.0.1:7787")
    if host == "localhost":
        # Whatever a resolver says, it is this machine.
        return f"127.0.0.1:{port}", None
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        return f"{_address_of(host, http)}:{port}", host
    if ":" in bare and bare == host:
        raise ValueError(f"{http!r}: give an IPv6 address in brackets, such as [::1]:7787")
    return f"{host}:{port}", None


def _address_of(host: str, http: str) -> str:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"{http!r}: no such host ({error}): give another HOST:PORT") from None
    # IPv4 where there is both, as for other listeners.
    addresses = sorted(
        (family != socket.AF_INET, str(place[0])) for family, _, _, _, place in found
    )
    is_ipv6, address = addresses[0]
    return f"[{address}]" if is_ipv6 else address
