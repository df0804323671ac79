"""What can go wrong in a shuffle, as distributed's task functions know it.

They raise these as they are, and wrap all else in an error that names only shuffle and phase.
"""

from __future__ import annotations

from distributed.shuffle._exceptions import P2PConsistencyError, P2POutOfDiskError

__all__ = ["DamagedRows", "OutOfDisk"]


class DamagedRows(P2PConsistencyError):
    """Rows are not what they were when they were made."""


class OutOfDisk(P2POutOfDiskError):
    """A worker has no room for rows, in memory and on its disk."""

    def __str__(self) -> str:
        return " ".join(map(str, self.args))
