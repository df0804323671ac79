"""What a ``distributed.Security`` and Dask's configuration ask of connections.

What Treadle does not serve of it is refused by name: nobody is to rely on what is not there.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dask.config
from distributed.security import Security

from treadle import _core

__all__ = [
    "certificates_of",
    "default_is_tls",
    "resolve",
    "temporary",
]

_ROLES = ("client", "worker", "scheduler")

# Days that temporary certificates are valid: as those of `Security.temporary()`.
_DAYS = 365


def resolve(security: Any) -> Security:
    """Return what ``security=`` stands for: Dask's configuration, where it says nothing.

    Raises
    ------
    TypeError
        It is none.
    """
    if security is None or security is False:
        return Security()
    if security is True:
        return temporary()
    if isinstance(security, dict):
        return Security(**security)
    if not isinstance(security, Security):
        raise TypeError(
            "security= takes a distributed.Security, a dictionary of its parameters, or True, not "
            f"{type(security).__name__}"
        )
    return security


def certificates_of(security: Any, role: str = "client") -> dict[str, str] | None:
    """Return the certificates for a role, or for another if there are none; None: it names none.

    Raises
    ------
    ValueError
        It asks for something that Treadle does not serve, or names only a part of what TLS needs.
    """
    fields = {name: getattr(security, name, None) for name in Security.__slots__}
    authority = fields["tls_ca_file"]
    found = None
    for each in (role, *_ROLES):
        certificate, key = fields[f"tls_{each}_cert"], fields[f"tls_{each}_key"]
        if key and not certificate:
            raise ValueError(f"the Security names tls_{each}_key without tls_{each}_cert")
        if certificate and not authority:
            raise ValueError(
                f"the Security names tls_{each}_cert without tls_ca_file: the CA that signed it "
                "says whom to trust"
            )
        if certificate and found is None:
            # Dask lets one file hold both.
            found = {"ca": authority, "certificate": certificate, "key": key or certificate}
    if authority and found is None:
        raise ValueError(
            "the Security names tls_ca_file without a certificate (tls_client_cert, ...): both "
            "sides of a connection show one"
        )
    if found is not None or fields["require_encryption"]:
        # Without encryption they mean nothing.
        _refuse_unserved(fields)
    return None if found is None else {name: os.fspath(value) for name, value in found.items()}


def _refuse_unserved(fields: Mapping[str, Any]) -> None:
    served = "Treadle's connections use TLS 1.3 with AES-128-GCM"
    if fields["tls_ciphers"]:
        raise ValueError(f"tls_ciphers={fields['tls_ciphers']!r} cannot be honoured: {served}")
    if fields["tls_max_version"] not in (None, ssl.TLSVersion.TLSv1_3):
        name = ssl.TLSVersion(fields["tls_max_version"]).name
        raise ValueError(f"tls_max_version={name} cannot be honoured: {served}")
    if fields["extra_conn_args"]:
        names = ", ".join(map(str, fields["extra_conn_args"]))
        raise ValueError(
            f"extra_conn_args ({names}) cannot be honoured: Treadle's connections are its own"
        )


def default_is_tls() -> bool:
    """Return whether Dask's configuration says that addresses without a scheme have TLS.

    Raises
    ------
    ValueError
        It names a protocol that Treadle does not speak.
    """
    scheme = dask.config.get("distributed.comm.default-scheme", "tcp")
    if scheme not in ("tcp", "tls"):
        raise ValueError(
            f"distributed.comm.default-scheme is {scheme!r}: Treadle serves tcp and tls"
        )
    return bool(scheme == "tls")


def temporary() -> Security:
    """Return certificates that are in memory only, for all roles of one cluster.

    The key of their CA is kept nowhere: nobody can make further ones.
    """
    with tempfile.TemporaryDirectory(prefix="treadle-") as directory:
        _core.create_certs(directory, ["node"], _DAYS, False)
        authority, certificate, key = (
            Path(directory, name).read_text() for name in ("ca.pem", "node.pem", "node-key.pem")
        )
    roles = {f"tls_{role}_cert": certificate for role in _ROLES}
    roles |= {f"tls_{role}_key": key for role in _ROLES}
    return Security(require_encryption=True, tls_ca_file=authority, **roles)
