"""What ``secret=`` stands for."""

from __future__ import annotations

from pathlib import Path

__all__ = ["stripped"]


def stripped(secret: bytes | str | Path | None) -> bytes | str | Path | None:
    """Return a secret without white space at its end, which its file does not keep either."""
    if isinstance(secret, str):
        return secret.rstrip(" \t\n\f\r")
    if isinstance(secret, bytes):
        return secret.rstrip(b" \t\n\f\r")
    return secret
