"""What ``secret=`` stands for."""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path

from treadle import _core

__all__ = ["new_secret", "secret_file_in", "stripped"]

logger = logging.getLogger("treadle.client")


def new_secret() -> bytes:
    """Return a random secret of hexadecimal digits.

    Random bytes may end with white space, and whoever reads them from a file has another secret.
    """
    return secrets.token_hex(32).encode()


def stripped(secret: bytes | str | Path | None) -> bytes | str | Path | None:
    """Return a secret without white space at its end, which its file does not keep either."""
    if isinstance(secret, str):
        return secret.rstrip(" \t\n\f\r")
    if isinstance(secret, bytes):
        return secret.rstrip(b" \t\n\f\r")
    return secret


def secret_file_in(directory: str, given: bytes | str | Path | None) -> Path:
    """Return the file of the cluster's secret: this user's own, if none was given.

    With that other processes of the user can join. Where the user has no place for one, the cluster
    has its own, which nobody else learns of.
    """
    if isinstance(given, Path):
        return given
    if given is None:
        try:
            return _core.user_secret_file()
        except (OSError, ValueError) as error:
            logger.info("Only this process can use this cluster: %s", error)
        given = new_secret()
    secret = given.encode() if isinstance(given, str) else given
    path = Path(directory, "secret")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
    return path
