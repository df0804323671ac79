"""When a wait has to end, whatever runs within it.

A thread that waits processes what comes, and that may run code of users that waits for something
itself: a class whose ``__setstate__`` asks the scheduler, say. That ends when the wait around it does.
"""

from __future__ import annotations

import sys
import threading
from time import monotonic
from types import FrameType

__all__ = ["ending", "shorter"]


class _Thread(threading.local):
    #: When the calling thread's wait ends, and the frame that waits.
    wait: tuple[float, FrameType] | None = None


_thread = _Thread()


def shorter(timeout: float | None) -> float | None:
    """Return a timeout, or what is left of the calling thread's wait if that is less."""
    wait = _thread.wait
    if wait is None:
        return timeout
    end, waiting = wait
    frame: FrameType | None = sys._getframe(1)
    while frame is not waiting:
        if frame is None:
            # A signal handler that raised has ended that wait before it could say so.
            _thread.wait = None
            return timeout
        frame = frame.f_back
    left = max(end - monotonic(), 0.0)
    return left if timeout is None else min(timeout, left)


class ending:
    """Have what the calling thread waits for within the block end in so many seconds."""

    __slots__ = ("_before", "_timeout")

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout

    def __enter__(self) -> None:
        self._before = _thread.wait
        _thread.wait = monotonic() + self._timeout, sys._getframe(1)

    def __exit__(self, *_: object) -> None:
        _thread.wait = self._before
