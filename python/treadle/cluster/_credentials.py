"""What the connections of a cluster of this process have: its secret, and certificates."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from treadle import _core
from treadle.common._certificates import Certificates, write_certificates
from treadle.common._secret import secret_file_in
from treadle.common._security import certificates_of

__all__ = ["ClusterCredentials"]

_ROLES = ("scheduler", "worker", "client")


class ClusterCredentials:
    """The secret of a cluster, and the certificates of each role.

    Parameters
    ----------
    directory
        Where the cluster keeps its files.
    secret
        By default the user's own.
    certificates
        Those of all roles. By default ``security`` names them, or there is no TLS.
    insecure
        Allow other machines without TLS.

    Attributes
    ----------
    secret
        The file of the secret.
    """

    def __init__(
        self,
        directory: str,
        secret: bytes | str | Path | None,
        certificates: Certificates | None,
        security: Any,
        insecure: bool,
    ) -> None:
        self._directory = directory
        self.secret = secret_file_in(directory, secret)
        self.insecure = insecure
        self._certificates = _by_role(certificates, security)

    def of(self, role: str) -> dict[str, Any]:
        """Return what the connections of a role need."""
        return {
            "secret": self.secret,
            "certificates": self._certificates.get(role),
            "insecure": self.insecure,
        }

    def prefix(self, role: str) -> str | None:
        """Return where the certificates of a role are, for ``--tls``; None: there is no TLS."""
        certificates = self._certificates.get(role)
        if certificates is None:
            return None
        directory = os.path.join(self._directory, f"tls-{role}")
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)
            return write_certificates(directory, certificates)
        return os.path.join(directory, "node")

    @property
    def are_the_users_own(self) -> bool:
        """Whether all processes of this user have them: the user's secret, and no TLS."""
        return not self._certificates and self.secret == _core.user_secret_file()


def _by_role(given: Certificates | None, security: Any) -> dict[str, Certificates]:
    """Return the certificates of each role; none where there is no TLS."""
    if given is not None:
        return dict.fromkeys(_ROLES, given)
    certificates: dict[str, Certificates] = {}
    if security is not None:
        for role in _ROLES:
            if found := certificates_of(security, role):
                certificates[role] = found
    return certificates
