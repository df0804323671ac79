"""An event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from tornado.ioloop import IOLoop

__all__ = ["LoopThread", "off_loop"]

_T = TypeVar("_T")


class LoopThread:
    """A tornado loop, as distributed's classes want it, that runs in a daemon thread until closed."""

    def __init__(self, name: str) -> None:
        ready = threading.Event()

        async def run() -> None:
            self.io_loop = IOLoop.current()
            self.asyncio_loop = asyncio.get_running_loop()
            self._ended = asyncio.Event()
            ready.set()
            await self._ended.wait()

        self._thread = threading.Thread(target=asyncio.run, args=(run(),), name=name, daemon=True)
        self._thread.start()
        ready.wait()

    @property
    def ident(self) -> int:
        """``threading.get_ident()`` of the loop's thread."""
        assert self._thread.ident is not None
        return self._thread.ident

    @property
    def inside(self) -> bool:
        """Whether the calling thread is the loop's."""
        return threading.get_ident() == self._thread.ident

    def soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function in the loop, in the order of the calls; nothing once it is closed."""
        with suppress(RuntimeError):
            self.asyncio_loop.call_soon_threadsafe(function, *args)

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Run a coroutine in the loop and wait for it, in another thread.

        Raises
        ------
        TimeoutError
            It did not end in time; it is cancelled.
        RuntimeError
            The loop is closed.
        Exception
            What the coroutine raises.
        """
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self.asyncio_loop)
        except RuntimeError:
            coroutine.close()
            raise
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def close(self, timeout: float = 5.0) -> None:
        """Cancel what runs in the loop and end the thread, waiting for it at most so many seconds."""
        self.soon(self._ended.set)
        if not self.inside:
            self._thread.join(timeout)


async def off_loop(function: Callable[..., _T], *args: Any) -> _T:
    """Call what blocks in a thread beside the loop's; here, where there are no threads any more."""
    loop = asyncio.get_running_loop()
    try:
        future = loop.run_in_executor(None, partial(function, *args))
    except RuntimeError:
        # The interpreter ends: nobody else needs this loop.
        return function(*args)
    return await future
