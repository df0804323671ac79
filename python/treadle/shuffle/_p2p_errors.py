"""Errors of a shuffle that distributed's task functions do not wrap.

They wrap other errors in a ``RuntimeError`` that names only the shuffle and the phase.
"""

from __future__ import annotations

from treadle._compat.distributed import P2PConsistencyError, P2POutOfDiskError

__all__ = ["DamagedRows", "OutOfDisk"]


class DamagedRows(P2PConsistencyError):  # type: ignore[misc]
    """Rows are not those that were sent."""


class OutOfDisk(P2POutOfDiskError):  # type: ignore[misc]
    """A worker has no room for rows, neither in memory nor on its disk."""

    def __str__(self) -> str:
        return " ".join(map(str, self.args))
