"""Settings of listeners and connections."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from treadle import _core
from treadle.common._numbers import integer
from treadle.common._secret import kept

__all__ = ["ConnectOptions", "ListenOptions", "Tls", "complete", "settings"]

# A prefix of files, (CA, certificate, key), or an object like `distributed.Security`.
Tls = Any


class _Options(TypedDict, total=False):
    """What both take."""

    tls: Tls
    secret: bytes | str | Path | None
    insecure: bool
    stripes: int | None
    max_stripes: int
    shared_memory: bool
    prefetch: int
    timeout: float
    max_object: int | None


class ListenOptions(_Options, total=False):
    """What :func:`treadle.transfer.listen` takes."""

    contact: str | Sequence[str]


class ConnectOptions(_Options, total=False):
    """What :func:`treadle.transfer.connect` takes."""

    connect_timeout: float


_DEFAULTS: dict[str, Any] = {
    "tls": None,
    "secret": None,
    "insecure": False,
    "contact": (),
    "stripes": None,
    "max_stripes": 16,
    "shared_memory": True,
    "prefetch": 1 << 20,
    "timeout": 30.0,
    "max_object": None,
    "connect_timeout": 30.0,
}


# A connection opens as many stripes as raise its rate, far fewer than that.
_RANGES = {
    "stripes": (1, 2**16),
    "max_stripes": (1, 2**16),
    "prefetch": (0, 2**63 - 1),
    "max_object": (0, 2**63 - 1),
}


def settings(options: ListenOptions | ConnectOptions) -> dict[str, Any]:
    """Return all settings as the native code wants them."""
    result: dict[str, Any] = {**_DEFAULTS, **options}
    for name, (least, most) in _RANGES.items():
        if result[name] is not None:
            result[name] = integer(name, result[name], least, most)
    result["tls"] = _tls(result["tls"])
    secret = kept(result["secret"])
    if isinstance(secret, str):
        secret = secret.encode()
    elif isinstance(secret, os.PathLike):
        secret = _core.read_secret(os.fspath(secret))
    result["secret"] = secret
    contact = result["contact"]
    result["contact"] = [contact] if isinstance(contact, str) else list(contact)
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
    from treadle.common._security import certificates_of

    files = certificates_of(security)
    if files is None:
        raise ValueError("tls: the Security object has no certificate (tls_client_cert, …)")
    return files["ca"], files["certificate"], files["key"]
