"""Settings of listeners and connections."""

from __future__ import annotations

import os
from typing import Any, TypedDict

__all__ = ["ConnectOptions", "ListenOptions", "Tls", "complete", "settings"]

# A prefix of files, (CA, certificate, key), or an object like `distributed.Security`.
Tls = Any


class ListenOptions(TypedDict, total=False):
    """What :func:`treadle.transfer.listen` takes."""

    tls: Tls
    secret: bytes | str | None
    insecure: bool
    stripes: int | None
    max_stripes: int
    shared_memory: bool
    prefetch: int
    timeout: float
    max_object: int | None


class ConnectOptions(ListenOptions, total=False):
    """What :func:`treadle.transfer.connect` takes."""

    connect_timeout: float


_DEFAULTS: ConnectOptions = {
    "tls": None,
    "secret": None,
    "insecure": False,
    "stripes": None,
    "max_stripes": 16,
    "shared_memory": True,
    "prefetch": 1 << 20,
    "timeout": 30.0,
    "max_object": None,
    "connect_timeout": 30.0,
}


def settings(options: ConnectOptions) -> dict[str, Any]:
    """Return all settings as the native code wants them."""
    result: dict[str, Any] = {**_DEFAULTS, **options}
    result["tls"] = _tls(result["tls"])
    if isinstance(result["secret"], str):
        result["secret"] = result["secret"].encode()
    return result


def complete(address: str, tls: Tls) -> str:
    """Return the address with its scheme, which certificates decide where it has none."""
    if "://" in address or tls is None:
        return address
    return f"treadle+tls://{address}"


def _tls(tls: Tls) -> Any:
    if tls is None or isinstance(tls, str):
        return tls
    if isinstance(tls, os.PathLike):
        return os.fspath(tls)
    if isinstance(tls, (tuple, list)):
        if len(tls) != 3:
            raise ValueError(f"tls: give CA, certificate and key, not {len(tls)} things")
        return tuple(os.fspath(part) for part in tls)
    if hasattr(tls, "tls_ca_file"):
        return _of_security(tls)
    raise TypeError(
        "tls: give the prefix of files that `treadle certs` made, (CA, certificate, key), or a "
        f"distributed.Security, not {type(tls).__name__}"
    )


def _of_security(security: Any) -> tuple[str, str, str]:
    """Return CA, certificate and key: as a client, or whatever else there are settings for."""
    for role in ("client", "worker", "scheduler"):
        cert = getattr(security, f"tls_{role}_cert", None)
        if cert:
            # Dask lets one file hold both.
            key = getattr(security, f"tls_{role}_key", None) or cert
            if not security.tls_ca_file:
                raise ValueError("tls: the Security object names no tls_ca_file")
            return security.tls_ca_file, cert, key
    raise ValueError("tls: the Security object has no certificate (tls_client_cert, …)")
