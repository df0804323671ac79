"""The local clusters of this process that are not closed."""

from __future__ import annotations

import atexit
import os
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.cluster._local_cluster import LocalCluster

__all__ = ["alive", "cluster_at"]

# Seconds that workers have to end when the program does, before they are killed.
_AT_EXIT = 1.0

alive: weakref.WeakSet[LocalCluster] = weakref.WeakSet()


def cluster_at(address: str) -> LocalCluster | None:
    """Return the cluster of this process whose scheduler has an address."""
    for cluster in list(alive):
        if cluster.scheduler_address == address:
            return cluster
    return None


def _after_fork() -> None:
    """Leave the parent's processes alone."""
    for cluster in list(alive):
        cluster._closed = True
    alive.clear()


os.register_at_fork(after_in_child=_after_fork)


def _close_all() -> None:
    """Close, as distributed does, the clusters that the program has left: their directories are removed."""
    for cluster in list(alive):
        if cluster._has_owner:
            continue
        # Nobody is there to be told, and the processes end with this one.
        with suppress(Exception):
            cluster._end(_AT_EXIT)


atexit.register(_close_all)
