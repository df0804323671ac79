"""What unpickles results, and may so run code that waits, outside of the client's event loop."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from treadle.common._callbacks import Callbacks
from treadle.views._flag import Flag

if TYPE_CHECKING:
    from treadle import Client

__all__ = ["Apart"]

# Seconds for the other thread to end what it is at, before this one waits for more to come.
_SOON = 0.02


class Apart:
    """Calls functions: here, or where that is the client's event loop, in a thread that waits or in one of its own.

    In the loop, whatever asks the client gets a coroutine, and keeps all others from what comes.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._left: deque[Callable[[], None]] = deque()
        self._thread: Callbacks | None = None
        self._is_busy = False

    def call(self, function: Callable[[], None]) -> None:
        """Call a function after those that were left by the loop."""
        loop = self._client._asyncio_loop
        if loop is None or asyncio._get_running_loop() is not loop:
            self.catch_up()
            function()
            return
        self._left.append(function)
        if self._thread is None or self._thread.process != os.getpid():
            self._thread = Callbacks()
        self._thread.put(self._work)

    def catch_up(self) -> None:
        """Call what the loop has left."""
        while self._left:
            try:
                function = self._left.popleft()
            except IndexError:
                return
            try:
                function()
            except KeyboardInterrupt:
                # As whatever a signal handler has interrupted: it is made up for by the next one.
                self._left.appendleft(function)
                raise

    def is_set(self, flag: Flag) -> bool:
        """Whether a flag is set, by what the loop has left at the latest."""
        self.catch_up()
        return flag.is_set() or (self._is_busy and flag.wait(_SOON))

    def close(self) -> None:
        """End its thread, after what was left."""
        if self._thread is not None:
            self._thread.put(None)

    def _work(self) -> None:
        self._is_busy = True
        try:
            self.catch_up()
        finally:
            self._is_busy = False
