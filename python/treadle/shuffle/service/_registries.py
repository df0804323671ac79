"""Registries of shuffle servers that are no shuffle masters: ZooKeeper, etcd and lists."""

from __future__ import annotations

from typing import Any

from treadle import _core
from treadle.shuffle.service._errors import ShuffleError

__all__ = ["is_registry", "keeps_masters", "master_of", "masters", "servers"]

_LIST = "static:"
_SCHEMES = ("zk://", "zk+tls://", "etcd://", "etcd+tls://", _LIST)


def is_registry(address: str) -> bool:
    """Whether an address is the URL of a registry that is no shuffle master."""
    return address.startswith(_SCHEMES)


def keeps_masters(url: str) -> bool:
    """Whether a registry says which applications have masters, and where."""
    return not url.startswith(_LIST)


def servers(url: str, timeout: float) -> list[dict[str, Any]]:
    """Return the servers of a registry, as it knows them.

    Raises
    ------
    OSError
        It does not answer, or refuses.
    ValueError
        The URL or the credentials cannot be used.
    """
    found, _ = _core.list_registry(url, timeout)
    return found


def masters(url: str, timeout: float) -> list[str]:
    """Return where the masters of applications are.

    Raises
    ------
    OSError, ValueError
        As for :func:`servers`. ``ValueError`` for a list as well: it has no masters.
    """
    return [address for _, address, _ in _core.registry_masters(url, timeout)]


def master_of(url: str, shuffle: int, timeout: float) -> str:
    """Return where the master of a shuffle is.

    Raises
    ------
    OSError, ValueError
        As for :func:`masters`.
    ShuffleError
        It is not there.
    """
    for _, address, number in _core.registry_masters(url, timeout):
        if number == shuffle >> 32:
            return address
    raise ShuffleError(f"{url} has no master of shuffle {shuffle}: it has ended")
