"""When a wait has to end, whatever runs within it.

A thread that waits processes what comes, and that may run code of users that waits for something
itself: a class whose ``__setstate__`` asks the scheduler, say. That ends when the wait around it does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

__all__ = ["ending", "shorter"]


class _Thread(threading.local):
    #: When the calling thread's wait ends.
    end: float | None = None


_thread = _Thread()


def shorter(timeout: float | None) -> float | None:
    """Return a timeout, or what is left of the calling thread's wait if that is less."""
    end = _thread.end
    if end is None:
        return timeout
    left = max(end - monotonic(), 0.0)
    return left if timeout is None else min(timeout, left)


@contextmanager
def ending(timeout: float) -> Iterator[None]:
    """Have what the calling thread waits for within the block end in so many seconds."""
    before = _thread.end
    _thread.end = monotonic() + timeout
    try:
        yield
    finally:
        _thread.end = before
