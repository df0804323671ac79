"""Where others reach this host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

__all__ = ["reachable"]


def reachable(address: str) -> str:
    """Return an address of this host that whoever reaches an address can reach.

    Parameters
    ----------
    address
        The address of the scheduler or of the master of shuffles, or the URL of a registry.
    """
    from distributed.utils import get_ip

    host, port = _first(address)
    find: Callable[..., str] = get_ip
    own = "127.0.0.1" if host in ("", "127.0.0.1", "localhost") else find(host, port)
    return f"[{own}]:0" if ":" in own else f"{own}:0"


def _first(address: str) -> tuple[str, int]:
    """Return the first host of an address, and its port; any port where there is none."""
    kind, _, rest = address.partition(":")
    if kind == "static":
        address = _listed(Path(rest)) if rest.startswith(("/", ".")) else rest
    place = address.partition(",")[0].rpartition("://")[2].partition("/")[0]
    bracketed, end, after = place.rpartition("]")
    if end:
        return bracketed.strip("["), _port(after.strip(":"))
    host, colon, port = place.rpartition(":")
    return (host, _port(port)) if colon else (place, _port(""))


def _port(text: str) -> int:
    # The route to a host does not depend on it.
    return int(text) if text.isdecimal() and int(text) else 80


def _listed(path: Path) -> str:
    """Return the first line of a file that has an address; an empty one without such a file."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    texts = (line.partition("#")[0].strip() for line in lines)
    return next(filter(None, texts), "")
