"""What the exit status of a worker process says to the cluster that started it."""

from __future__ import annotations

__all__ = ["LEFT", "OVERFLOWED", "RESTART"]

#: It was asked to restart (``EX_TEMPFAIL``).
RESTART = 75

#: The cluster asked it to leave (``EX_UNAVAILABLE``). Status 0 says nothing: a task may have ended the
#: process, or a signal of somebody else's.
LEFT = 69

#: Its tasks took more memory than its limit (``EX_OSERR``).
OVERFLOWED = 71
