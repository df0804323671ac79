"""The log of tasks that fail: nobody may look at their futures."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Hashable

from treadle.errors import _pickled as errors

__all__ = ["FailureLog"]

logger = logging.getLogger("treadle.worker")

# Tasks that are logged within a second.
_MOST = 10
# Characters of a key and of an exception.
_LONGEST = 1000


class FailureLog:
    """Logs what tasks raise, as distributed's workers do, but at most ten in a second. In any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._second = 0
        self._count = 0

    def task_failed(self, key: Hashable, exception: BaseException) -> None:
        """Log it, unless the task was cancelled."""
        if isinstance(exception, asyncio.CancelledError):
            return
        with self._lock:
            if (second := int(time.monotonic())) != self._second:
                self._second, self._count = second, 0
            self._count += 1
            count = self._count
        if count > _MOST:
            return
        # Not before a task fails.
        from treadle.common._stderr import aside

        more = "" if count < _MOST else "\nMore that fail within this second are not logged."
        text, traceback = errors.texts(exception)
        told = (
            f"Compute Failed\nKey:       {repr(key)[:_LONGEST]}\nException: {text[:_LONGEST]}\n"
            f"Traceback:\n{traceback.rstrip()}{more}"
        )
        # The task does not wait for whoever reads standard error.
        aside(lambda: logger.error("%s", told))
