"""The main thread of a worker process, which is the only one that a signal interrupts."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue

__all__ = ["MainThread"]


class MainThread:
    """Runs what it is given, in the process's main thread."""

    def __init__(self) -> None:
        self._functions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._interrupt = False
        #: Whether what runs there may be interrupted.
        self.interruptible: Callable[[], bool] = lambda: False

    def run(self) -> None:
        """Run what is given, one after another, until :meth:`stop`. In the main thread."""
        while (function := self._functions.get()) is not None:
            function()

    def give(self, function: Callable[[], None]) -> None:
        """Have a function run, which raises nothing."""
        self._functions.put(function)

    def stop(self) -> None:
        """Have :meth:`run` return, after what it runs."""
        self._functions.put(None)

    def interrupt(self) -> None:
        """Raise ``KeyboardInterrupt`` in what runs there, out of a system call, too."""
        ident = threading.main_thread().ident
        assert ident is not None
        self._interrupt = True
        signal.pthread_kill(ident, signal.SIGINT)

    def interrupted(self) -> bool:
        """Whether a SIGINT is one of :meth:`interrupt`, and not of somebody who wants an end.

        Raises
        ------
        KeyboardInterrupt
            It is, and something runs that may be interrupted.
        """
        interrupted, self._interrupt = self._interrupt, False
        if interrupted and self.interruptible():
            raise KeyboardInterrupt
        return interrupted
