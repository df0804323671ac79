"""Names of workers."""

from __future__ import annotations

__all__ = ["name_of"]


def name_of(text: str) -> str | int:
    """Return a worker's name as users know it: distributed's ``LocalCluster`` numbers workers."""
    return int(text) if text.isdecimal() and str(int(text)) == text else text
