"""What connections must be: by arguments, ``security=``, an address, or Dask's configuration."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import dask.config
from distributed.security import Security

from treadle._compat.distributed import security_loaded
from treadle.common._addresses import Credentials, complete, has_tls
from treadle.common._certificates import Certificates
from treadle.common._security import certificates_of, default_is_tls, resolve, temporary

__all__ = ["Demands", "check_options", "security_of_cluster"]

# What a scheduler listens at by default.
PORT = 7786

# What `protocol=` may be, and whether it has TLS.
_PROTOCOLS = {"tcp": False, "treadle": False, "tls": True, "treadle+tls": True}

# Schemes of addresses that no scheduler of Treadle has.
_OF_DASK = {"inproc", "ucx", "ucxx", "ws", "wss"}

# What else `distributed.Client` takes; the rest is for the cluster that it starts.
_OF_CLIENTS = {
    "connection_limit",
    "deserializers",
    "direct_to_workers",
    "extensions",
    "heartbeat_interval",
    "serializers",
}


class Demands:
    """What was asked of a client's connection.

    Parameters
    ----------
    address, scheduler_file, security
        As the client was told.
    own
        Credentials that it was given by name.
    role
        Whose certificates of a ``Security`` it shows.

    Raises
    ------
    ValueError, TypeError
        Something of it cannot be honoured.
    """

    def __init__(
        self, address: Any, scheduler_file: Any, security: Any, own: Credentials, role: str
    ) -> None:
        if address is not None and scheduler_file is not None:
            raise ValueError("give an address or scheduler_file=, not both")
        if security is True and (address is not None or scheduler_file is not None):
            raise ValueError(
                "security=True makes certificates for a cluster that the client starts; to connect "
                "to one that runs, give security=Security(tls_ca_file=..., tls_client_cert=..., "
                "tls_client_key=...) with its certificates"
            )
        if security is None and isinstance(address, str):
            # A task's client is told by its worker what it needs.
            if role == "client" and own.certificates is None:
                security = security_loaded(address)
        elif security is None:
            security = getattr(address, "security", None)
        #: What was given by name.
        self.given = own
        #: Whether nothing was said of security but in Dask's configuration.
        self.configured = security is None or security is False
        self.security: Security = resolve(security)
        found = certificates_of(self.security, role)
        if found and not self.configured:
            if own.certificates is not None:
                raise ValueError("give the certificates with security= or certificates=, not both")
            own = own._replace(certificates=found)
        #: What was given by name, or with ``security=``.
        self.own = own
        # An address or a cluster that has no TLS does not need them.
        self._at_hand = found if self.configured else None

    def complete(self, address: str) -> str:
        """Return an address with its scheme."""
        certificates = self.own.certificates
        if "://" not in address:
            certificates = certificates or self._at_hand
        address = complete(address, certificates)
        scheme, _, place = address.partition("://")
        if scheme in _OF_DASK:
            raise ValueError(
                f"{address} is an address of Dask's scheduler; treadle.attach(client) takes a "
                "distributed.Client of that cluster"
            )
        # A port alone is an address of this machine.
        whole = ":" in place.rpartition("]")[2] or place.isdigit()
        if scheme in ("treadle", "treadle+tls") and not whole:
            raise ValueError(f'{address!r} has no port: write "{address}:{PORT}"')
        return address

    def credentials(self, address: str, known: Credentials) -> Credentials:
        """Return what lets the client in at an address, of which something may be known.

        Raises
        ------
        ValueError
            Encryption is demanded, and the address has none.
        """
        certificates = self.own.certificates or known.certificates
        if has_tls(address):
            certificates = certificates or self._at_hand
            if certificates is None:
                raise ValueError(
                    f"{address} needs certificates: certificates=PREFIX, such as "
                    '"treadle-certs/node" where `treadle certs` made them, or '
                    "security=Security(tls_ca_file=..., tls_client_cert=..., tls_client_key=...)"
                )
        elif self.security.require_encryption:
            who = "distributed.comm.require-encryption" if self.configured else "security="
            raise ValueError(
                f"{who} demands encryption, and {address} has none: write treadle+tls:// for a "
                "scheduler that has certificates (`treadle scheduler --tls`)"
            )
        return known._replace(
            secret=self.own.secret or known.secret,
            certificates=certificates,
            insecure=self.own.insecure or known.insecure,
        )


def security_of_cluster(
    security: Any, protocol: str | None, host: str | None, certificates: Certificates | None
) -> tuple[str | None, Security | None]:
    """Return a local cluster's host without a scheme, and what its connections are encrypted with.

    Raises
    ------
    ValueError, TypeError
        What is demanded cannot be honoured, or contradicts itself.
    """
    if host is not None and "://" in host:
        scheme, _, host = host.partition("://")
        if protocol is not None and protocol.removesuffix("://") != scheme:
            raise ValueError(f"host= says {scheme}://, and protocol= {protocol!r}")
        protocol = scheme
    tls = None
    if protocol is not None:
        tls = _PROTOCOLS.get(protocol.removesuffix("://"))
        if tls is None:
            raise ValueError(f"protocol={protocol!r} is not served: give 'tcp://' or 'tls://'")
    configured = security is None or security is False
    security = resolve(security)
    found = certificates_of(security, "scheduler")
    if certificates is not None:
        if found and not configured:
            raise ValueError("give the certificates with security= or certificates=, not both")
        found, configured = dict(certificates), False
    if tls is False:
        if security.require_encryption or (found and not configured):
            raise ValueError(
                f"protocol={protocol!r} has no encryption, which the certificates or the "
                "configuration demand: give protocol='tls://', or none"
            )
        return host, None
    if found:
        return host, security
    if tls or security.require_encryption or default_is_tls():
        return host, temporary()
    return host, None


def check_options(options: Mapping[str, Any], *, starts: bool) -> None:
    """Refuse options of ``distributed.Client`` that cannot be honoured; warn of those without effect.

    ``starts`` says whether the client starts its cluster.

    Raises
    ------
    NotImplementedError
        One of them decides what is trusted.
    ValueError
        Some are of a cluster to be started, and there is one.
    """
    if not starts and (surplus := sorted(options.keys() - _OF_CLIENTS)):
        raise ValueError(
            f"Unexpected keyword arguments: {surplus}; a client that connects to a cluster takes no "
            "options for starting one"
        )
    for name in ("serializers", "deserializers"):
        if options.get(name) is not None:
            raise NotImplementedError(f"Treadle always uses pickle; {name}= is not supported")
    direct = options.get("direct_to_workers")
    if direct is None:
        direct = dask.config.get("distributed.client.direct-to-workers", None)
    without_effect = {
        "heartbeat_interval": options.get("heartbeat_interval") is not None
        and "connections tell by themselves when they end",
        "direct_to_workers": direct is False and "values always come from the workers directly",
        "connection_limit": options.get("connection_limit", 512) != 512
        and "a client has one connection to each node",
    }
    for name, reason in without_effect.items():
        if reason:
            warnings.warn(
                f"treadle.Client: {name}= has no effect: {reason}", UserWarning, stacklevel=4
            )
