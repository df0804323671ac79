"""An event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from tornado.ioloop import IOLoop

from treadle import _core

__all__ = ["LoopThread", "call_in", "made_apart", "made_off_loop", "off_loop"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class LoopThread:
    """A tornado loop, as distributed's classes want it, that runs in a daemon thread until closed.

    ``SystemExit`` and ``KeyboardInterrupt`` do not end it, other than asyncio's own.

    Parameters
    ----------
    name
        The thread's name.
    ended
        Called in the thread with what has ended the loop, unless that is :meth:`close`.
    """

    def __init__(self, name: str, ended: Callable[[BaseException], object]) -> None:
        self.asyncio_loop = asyncio.new_event_loop()
        ready = threading.Event()

        async def run() -> None:
            self.io_loop = IOLoop.current()
            self._ended = asyncio.Event()
            ready.set()
            await self._ended.wait()

        def serve() -> None:
            try:
                _run_through(self.asyncio_loop, run())
            except BaseException as error:
                logger.exception("The event loop of %s ended", name)
                ended(error)
            finally:
                _run_through(self.asyncio_loop, _finish())
                self.asyncio_loop.close()

        self._thread = threading.Thread(target=serve, name=name, daemon=True)
        self._thread.start()
        ready.wait()
        _loops.add(self)

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


def _run_through(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, whatever raises ``SystemExit`` in the loop meanwhile."""
    task = loop.create_task(coroutine)
    while not task.done():
        try:
            loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt):
            # Whoever waits for what raised it is told; others need the loop.
            logger.exception("The event loop goes on")


async def _finish() -> None:
    """Cancel what runs in the loop, and end its own threads."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


_loops: weakref.WeakSet[LoopThread] = weakref.WeakSet()


def _after_fork() -> None:
    """End this child before a loop that it was forked in goes on here, with the parent's sockets."""
    for loop in list(_loops):
        if loop.inside:
            what = f"a function that the event loop of {loop._thread.name} called"
            loop.asyncio_loop.call_soon(_core.end_forked_child, what)
    _loops.clear()


os.register_at_fork(after_in_child=_after_fork)


def call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    """Call a function in a loop: now, if that is running here; never, if it is closed."""
    if asyncio._get_running_loop() is loop:
        function()
        return
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        if not loop.is_closed():
            raise


async def off_loop(function: Callable[..., _T], *args: Any) -> _T:
    """Call what blocks in a thread beside the loop's; here, where there are no threads any more."""
    loop = asyncio.get_running_loop()
    try:
        future = loop.run_in_executor(None, partial(function, *args))
    except RuntimeError:
        # The interpreter ends: nobody else needs this loop.
        return function(*args)
    return await future


class _Making(Generic[_T]):
    """Something that one thread makes for another, which may give it up. It is ended once then."""

    def __init__(self, make: Callable[[], _T], end: Callable[[_T], object]) -> None:
        self._make = make
        self._end = end
        self._made: list[_T] = []
        self._unwanted = threading.Event()

    def run(self) -> _T:
        made = self._make()
        self._made.append(made)
        if self._unwanted.is_set():
            self._end_made()
        return made

    def give_up(self) -> None:
        """End it, or have :meth:`run` do that when it is made."""
        self._unwanted.set()
        self._end_made()

    def _end_made(self) -> None:
        try:
            made = self._made.pop()
        except IndexError:
            return
        self._end(made)


def made_apart(make: Callable[[], _T], end: Callable[[_T], object]) -> _T:
    """Make something in a thread of its own. If nobody waits for it any more, end it.

    A signal handler may raise in the main thread at any instruction: there, half of it would be left.
    """
    making = _Making(make, end)
    made: Future[_T] = Future()

    def run() -> None:
        try:
            made.set_result(making.run())
        except BaseException as error:
            made.set_exception(error)

    try:
        threading.Thread(target=run, name="treadle-making", daemon=True).start()
        return made.result()
    except BaseException:
        making.give_up()
        raise


async def made_off_loop(make: Callable[[], _T], end: Callable[[_T], object]) -> _T:
    """Make something in a thread beside the loop's. If nobody waits for it any more, end it.

    The thread goes on when the coroutine is cancelled, and ends what it makes after that itself.
    """
    making = _Making(make, end)
    try:
        return await off_loop(making.run)
    except BaseException:
        await off_loop(making.give_up)
        raise
