"""What ``secret=`` stands for."""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path

from treadle import _core

__all__ = ["keep_user_file", "kept", "new_secret", "secret_file_in"]

logger = logging.getLogger("treadle.client")

_VARIABLE = "TREADLE_SECRET_FILE"


def new_secret() -> bytes:
    """Return a random secret of hexadecimal digits.

    Random bytes may end with white space, and whoever reads them from a file has another secret.
    """
    return secrets.token_hex(32).encode()


def keep_user_file() -> None:
    """Make the path in ``TREADLE_SECRET_FILE`` absolute.

    Somebody may change the directory in which paths begin before the file is read again.
    """
    if path := os.environ.get(_VARIABLE):
        os.environ[_VARIABLE] = os.path.abspath(path)


def kept(secret: bytes | str | Path | None) -> bytes | str | Path | None:
    """Return a secret as it is kept; without one it is the user's.

    There is no white space at its end, which its file does not keep either. The path of a file is
    absolute, as that of the user's is from now on: see :func:`keep_user_file`.
    """
    keep_user_file()
    if isinstance(secret, os.PathLike):
        return Path(os.path.abspath(secret))
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
