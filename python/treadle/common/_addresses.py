"""Addresses of schedulers, and what this process needs to be let in there."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from treadle.common import _scheduler_file
from treadle.common._certificates import of_prefix
from treadle.common._secret import kept
from treadle.common._security import default_is_tls

__all__ = ["Credentials", "complete", "forget", "has_tls", "is_own", "known", "of_file", "remember"]

SCHEME = "treadle://"
SCHEME_TLS = "treadle+tls://"


class Credentials(NamedTuple):
    """What a connection needs beyond an address: keyword arguments of ``_core.Connection``."""

    secret: bytes | str | Path | None = None
    certificates: Mapping[str, str] | None = None
    insecure: bool = False
    #: The id of the cluster that is meant.
    cluster: str | None = None


_lock = threading.Lock()
_known: dict[str, Credentials] = {}


def complete(address: str, certificates: Mapping[str, str] | None = None) -> str:
    """Return an address with its scheme: certificates decide, or Dask's configuration, if it has none.

    ``tcp://`` and ``tls://`` are what people are used to write.
    """
    if address.startswith("tls://"):
        return SCHEME_TLS + address.removeprefix("tls://")
    if address.startswith("tcp://"):
        return (SCHEME_TLS if certificates else SCHEME) + address.removeprefix("tcp://")
    if "://" in address:
        return address
    return f"{SCHEME_TLS if certificates or default_is_tls() else SCHEME}{address}"


def is_own(address: str) -> bool:
    """Return whether a complete address is one of Treadle's schedulers, and not of distributed's."""
    return address.startswith((SCHEME, SCHEME_TLS))


def has_tls(address: str) -> bool:
    """Return whether connections to a complete address are encrypted."""
    return address.startswith(SCHEME_TLS)


def remember(
    address: str,
    *,
    secret: bytes | str | Path | None = None,
    certificates: Mapping[str, str] | None = None,
    insecure: bool = False,
) -> None:
    """Let clients of this process connect to a scheduler by nothing but its address."""
    with _lock:
        _known[complete(address, certificates)] = Credentials(secret, certificates, insecure)


def forget(address: str) -> None:
    """Undo :func:`remember`."""
    with _lock:
        _known.pop(complete(address), None)


def known(address: str) -> Credentials:
    """Return what :func:`remember` was told of an address: nothing, if nothing."""
    with _lock:
        return _known.get(complete(address), Credentials())


def of_file(path: str | os.PathLike[str]) -> tuple[str, Credentials]:
    """Return what a scheduler file says: an address, and what lets this user in there.

    Raises
    ------
    ValueError
        As :func:`treadle.common._scheduler_file.read` says.
    OSError
        Others may have written it, or can read what they should not.
    """
    found = _scheduler_file.read(path)
    secret = None if found.secret_file is None else kept(Path(found.secret_file))
    certificates = None if found.tls is None else of_prefix(found.tls)
    return found.address, Credentials(secret, certificates, cluster=found.cluster)
