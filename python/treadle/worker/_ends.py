"""Why a worker has ended."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from treadle import _core

__all__ = ["Cause", "End", "end_of"]


class Cause(Enum):
    """What has ended a worker, by the names that the native side has."""

    #: It was drained: it, or the cluster, wanted that.
    DRAINED = "drained"
    #: The cluster wanted it closed.
    ASKED = "asked"
    #: The scheduler ended.
    OVER = "over"
    #: It told the scheduler what cannot be.
    DISMISSED = "dismissed"
    #: There is no connection to the scheduler any more.
    LOST = "lost"
    #: Something in it has failed.
    FAILED = "failed"
    #: Its own process closed it.
    CLOSED = "closed"
    #: Its own process closed it, and another shall replace that.
    RESTARTED = "restarted"
    #: Its tasks took more memory than its limit.
    OVERFLOWED = "overflowed"


class End(NamedTuple):
    """Why a worker has ended: what programs compare, and what people read."""

    cause: Cause
    reason: str


def end_of(native: _core.Worker, timeout: float) -> End | None:
    """Wait until a worker has ended; return why, or None after so many seconds."""
    found = native.wait(timeout)
    return None if found is None else End(Cause(found[0]), found[1])
