"""What the exit status of a worker process says to the cluster that started it."""

from __future__ import annotations

__all__ = ["LEFT", "LOST", "OVERFLOWED", "RESTART", "UNREACHED"]

#: It was asked to restart (``EX_TEMPFAIL``).
RESTART = 75

#: The cluster asked it to leave (``EX_UNAVAILABLE``). Status 0 says nothing: a task may have ended the
#: process, or a signal of somebody else's.
LEFT = 69

#: It lost the scheduler (``EX_IOERR``).
LOST = 74

#: It found no scheduler in the time that it had (``EX_NOHOST``).
UNREACHED = 68

#: Its tasks took more memory than its limit (``EX_OSERR``).
OVERFLOWED = 71
