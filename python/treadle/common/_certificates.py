"""Certificates of connections: files that ``treadle certs`` made, paths, or PEM text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Certificates", "checked", "named", "of_prefix", "write_certificates"]

#: Where the CA, the certificate and its key are: paths, or PEM text.
Certificates = Mapping[str, str]


def of_prefix(prefix: str) -> dict[str, str]:
    """Return the paths of what ``treadle certs`` made for one node."""
    # A task may change the directory in which paths begin.
    prefix = os.path.abspath(prefix)
    authority = os.path.join(os.path.dirname(prefix), "ca.pem")
    return {"ca": authority, "certificate": f"{prefix}.pem", "key": f"{prefix}-key.pem"}


def checked(prefix: str, said: str) -> dict[str, str]:
    """Return the paths of :func:`of_prefix`, whose files are there.

    Raises
    ------
    ValueError
        A file is missing. The text begins with what was ``said``: an argument or an option.
    """
    found = of_prefix(prefix)
    for path in found.values():
        if not os.path.isfile(path):
            raise ValueError(
                f"{said}: there is no file {path}; give the prefix that `treadle certs` printed, "
                'such as "treadle-certs/node"'
            )
    return found


def named(certificates: Any) -> dict[str, str] | None:
    """Return what ``certificates=`` stands for: paths (or PEM text), or a prefix of files.

    Raises
    ------
    ValueError
        A file or an entry is missing.
    TypeError
        It is neither a dictionary nor a prefix.
    """
    if certificates is None:
        return None
    if isinstance(certificates, (str, os.PathLike)):
        prefix = os.fspath(certificates)
        return checked(prefix, f"certificates={prefix!r}")
    if not isinstance(certificates, Mapping):
        raise TypeError(
            "certificates= takes a prefix that `treadle certs` printed, or a dictionary "
            f'{{"ca": PATH, "certificate": PATH, "key": PATH}}, not {type(certificates).__name__}'
        )
    if missing := [name for name in ("ca", "certificate", "key") if name not in certificates]:
        raise ValueError(f"certificates= lacks {', '.join(map(repr, missing))}")
    return {name: _absolute(os.fspath(value)) for name, value in certificates.items()}


def _absolute(value: str) -> str:
    return value if "-----BEGIN " in value else os.path.abspath(value)


def write_certificates(directory: str, certificates: Certificates) -> str:
    """Write certificates as ``treadle certs`` does, for this user alone; return their prefix."""
    prefix = os.path.join(directory, "node")
    for name, path in of_prefix(prefix).items():
        value = certificates[name]
        text = value if "-----BEGIN " in value else Path(value).read_text(encoding="utf-8")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    return prefix
