"""Addresses of schedulers, and what this process needs to be let in there."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Credentials", "complete", "forget", "known", "of_file", "of_security", "remember"]

SCHEME = "treadle://"
SCHEME_TLS = "treadle+tls://"


class Credentials(NamedTuple):
    """What a connection needs beyond an address: keyword arguments of ``_core.Connection``."""

    secret: bytes | str | None = None
    certificates: Mapping[str, str] | None = None
    insecure: bool = False


_lock = threading.Lock()
_known: dict[str, Credentials] = {}


def complete(address: str, certificates: Mapping[str, str] | None = None) -> str:
    """Return an address with its scheme, which certificates decide where it has none."""
    if address.startswith("tcp://"):
        # What people are used to write.
        address = address.removeprefix("tcp://")
    if "://" in address:
        return address
    return f"{SCHEME_TLS if certificates else SCHEME}{address}"


def remember(
    address: str,
    *,
    secret: bytes | str | None = None,
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


def of_security(security: Any) -> Mapping[str, str] | None:
    """Return the certificates that a ``distributed.Security`` names, if it has any.

    Raises
    ------
    ValueError
        It demands encryption but has no certificate for a client.
    """
    authority = getattr(security, "tls_ca_file", None)
    for role in ("client", "worker", "scheduler"):
        certificate = getattr(security, f"tls_{role}_cert", None)
        if certificate and authority:
            # Dask lets one file hold both.
            key = getattr(security, f"tls_{role}_key", None) or certificate
            return {"ca": str(authority), "certificate": str(certificate), "key": str(key)}
    if getattr(security, "require_encryption", False):
        raise ValueError("the Security object demands encryption but names no certificates")
    return None


def of_file(path: str | os.PathLike[str]) -> tuple[str, Credentials]:
    """Return what a scheduler file says: an address, and where the secret is.

    Raises
    ------
    ValueError, KeyError
        The file is not (yet) one.
    """
    with open(path, encoding="utf-8") as file:
        values = json.load(file)
    secret = None
    if secret_file := values.get("secret_file"):
        with open(secret_file, "rb") as file_of_secret:
            secret = file_of_secret.read().strip()
    return str(values["address"]), Credentials(secret)
