"""The thread in which the callbacks of futures are called."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

__all__ = ["current"]


class Callbacks:
    """One thread, and what it is to call, in order.

    Not an executor: those have locks, which stay locked where a signal handler raises while the main
    thread submits something. To put something into this queue is one step.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.put = self._queue.put
        self._thread = threading.Thread(target=self._run, name="Dask-Callback-Thread", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            # It was logged.
            with suppress(BaseException):
                call()
            # What it refers to shall not wait for the next one.
            del call

    def finish(self) -> None:
        """Call what is in the queue, and end."""
        if self.process == os.getpid():
            self._queue.put(None)
            self._thread.join()


_current: Callbacks | None = None


def current() -> Callbacks:
    """Return this process's, which callbacks are put into.

    Raises
    ------
    RuntimeError
        Its thread cannot be started.
    """
    global _current
    if _current is None or _current.process != os.getpid():
        callbacks = Callbacks()
        # As those of an executor: what is done is reported before the program ends.
        atexit.register(callbacks.finish)
        _current = callbacks
    return _current
