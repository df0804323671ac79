"""Transfers for :mod:`asyncio`: the same names as in :mod:`treadle.transfer`, to be awaited.

>>> from treadle.transfer import aio
>>> async def receive():  # doctest: +SKIP
...     async with await aio.listen("127.0.0.1:0") as listener:
...         async for connection in listener:
...             print(await connection.recv())

Native threads move the bytes, and wake the event loop through a descriptor: no thread waits for an
operation, and nothing but pickling keeps the loop busy. A listener or a connection belongs to the
event loop in which it was made; different loops, in different threads, do not touch each other's.

Cancelling the task that awaits a ``send`` gives the transfer up on both sides. Cancelling one that
awaits a ``recv`` loses nothing: the object is the next to be received.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from treadle import _core, transfer
from treadle.transfer._errors import ConnectionClosed, TransferCancelled
from treadle.transfer._options import ConnectOptions, ListenOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Connection", "Listener", "Transfer", "connect", "listen"]

T = TypeVar("T")
Progress = bool | Callable[[int, int], None] | None

# Seconds between two reports of progress.
_REPORT = 0.2
# After so many objects of a batch other tasks get their turn.
_TURN = 256


async def listen(address: str = "127.0.0.1:0", **options: Unpack[ListenOptions]) -> Listener:
    """Listen for connections; see :func:`treadle.transfer.listen`."""
    return Listener(transfer.listen(address, **options))


async def connect(address: str, **options: Unpack[ConnectOptions]) -> Connection:
    """Connect to a listener; see :func:`treadle.transfer.connect`.

    The handshake is waited for on a thread of the loop's executor.
    """
    loop = asyncio.get_running_loop()
    connecting = loop.run_in_executor(None, partial(transfer.connect, address, **options))
    try:
        return Connection(await asyncio.shield(connecting))
    except asyncio.CancelledError:
        connecting.add_done_callback(_abandon)
        raise


def _abandon(connecting: asyncio.Future[_core.TransferConnection]) -> None:
    """Close a connection that nobody waits for any more."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result()._start_close()


class _Notices:
    """Wakes those who wait for a change, in the event loop that it was made in."""

    def __init__(self, native: _core.TransferConnection | _core.Listener) -> None:
        self.loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()
        # Which keeps the descriptor open.
        self._native = native
        self._descriptor = native._notifier()
        # Weakly, so that the loop does not keep what nobody uses any more.
        self.loop.add_reader(self._descriptor, _ready, weakref.ref(self))
        self._open = True

    async def until(self, poll: Callable[[], T | None]) -> T:
        """Wait until ``poll`` returns something, or raises; it is asked after every change."""
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError("this belongs to another event loop: make a connection in this one")
        if (result := poll()) is not None:
            return result
        future: asyncio.Future[T] = self.loop.create_future()
        entry = (future, poll)
        self._waiting.append(entry)
        try:
            return await future
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
            # A cancellation whose exception is kept keeps this frame, too. What came in the same turn goes
            # back at once, so that it stays the next.
            del future, entry

    def look(self) -> None:
        """Something changed."""
        with suppress(BlockingIOError):
            os.read(self._descriptor, 8)
        for entry in list(self._waiting):
            future, poll = entry
            if future.done():
                continue
            try:
                result = poll()
            except Exception as error:
                future.set_exception(error)
            else:
                if result is None:
                    continue
                future.set_result(result)
            self._waiting.remove(entry)

    def close(self) -> None:
        """Wake nobody any more. Whoever waits learns now of what has changed."""
        self.look()
        if self._open:
            self._open = False
            if not self.loop.is_closed():
                self.loop.remove_reader(self._descriptor)

    def __del__(self) -> None:
        if self._open and not self.loop.is_closed():
            # The loop may run in another thread; the descriptor stays open until it has looked.
            with suppress(RuntimeError):  # it was just closed
                self.loop.call_soon_threadsafe(_forget, self.loop, self._descriptor, self._native)


def _ready(notices: weakref.ref[_Notices]) -> None:
    if (found := notices()) is not None:
        found.look()


def _forget(loop: asyncio.AbstractEventLoop, descriptor: int, _native: object) -> None:
    loop.remove_reader(descriptor)


async def _within(timeout: float | None, what: str, awaitable: Awaitable[T]) -> T:
    if timeout is None:
        return await awaitable
    try:
        return await asyncio.wait_for(awaitable, timeout)
    except asyncio.TimeoutError:
        raise TimeoutError(f"{what}: timed out after {timeout} s") from None


class Listener:
    """Accepts connections; made by :func:`listen`.

    ``async for`` accepts one after another, until it is closed.
    """

    def __init__(self, native: _core.Listener) -> None:
        self._native = native
        self._notices = _Notices(native)

    @property
    def address(self) -> str:
        """Where it listens, with its port."""
        return self._native.address

    async def accept(self, timeout: float | None = None) -> Connection:
        """Wait for the next connection, at most ``timeout`` seconds."""
        accepting = self._notices.until(self._native._try_accept)
        return Connection(await _within(timeout, f"accepting at {self.address}", accepting))

    async def close(self) -> None:
        """Stop listening. Connections that were accepted stay open."""
        self._native.close()
        self._notices.close()

    async def __aenter__(self) -> Listener:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Connection]:
        while True:
            try:
                connection = await self.accept()
            except ConnectionClosed:
                return
            yield connection

    def __repr__(self) -> str:
        return f"<treadle.transfer.aio.Listener at {self.address}>"


class Transfer:
    """An object that is being sent; see :class:`treadle.transfer.Transfer`."""

    def __init__(self, native: _core.Transfer, notices: _Notices) -> None:
        self._native = native
        self._notices = notices
        self.done = native.done
        self.cancel = native.cancel
        self.cancelled = native.cancelled

    @property
    def progress(self) -> tuple[int, int]:
        """``(done, total)``: bytes that left, of so many."""
        return self._native.progress

    @property
    def timings(self) -> dict[str, float] | None:
        """Seconds that each stage took, when it is done."""
        return self._native.timings

    async def result(self, timeout: float | None = None) -> None:
        """Wait until the peer has it. It goes on when this is cancelled or times out."""
        await _within(timeout, "sending", self._notices.until(self._look))
        self._native.result()

    async def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until the peer has it; return what :meth:`result` would raise, or ``None``."""
        await _within(timeout, "sending", self._notices.until(self._look))
        return self._native.exception()

    def _look(self) -> bool | None:
        return self._native.done() or None

    def __repr__(self) -> str:
        return repr(self._native)


class Connection:
    """A connection to another process; made by :func:`connect` and ``Listener.accept``.

    See :class:`treadle.transfer.Connection`.
    """

    def __init__(self, native: _core.TransferConnection) -> None:
        self._native = native
        self._notices = _Notices(native)
        # Who waits for the next object first gets it first.
        self._turn = asyncio.Lock()
        self._last: dict[str, float] | None = None
        self.stats = native.stats

    @property
    def address(self) -> str:
        """The other side, as people write it."""
        return self._native.address

    @property
    def closed(self) -> bool:
        """Whether the connection is over, on whichever side that began."""
        return self._native.closed

    @property
    def last_timings(self) -> dict[str, float] | None:
        """As of :class:`treadle.transfer.Connection`."""
        return self._last

    async def send(
        self, obj: Any, *, timeout: float | None = None, progress: Progress = None
    ) -> None:
        """Send an object; returns when its memory may be used again."""
        await _within(timeout, f"sending to {self.address}", self._send(obj, progress))

    async def _send(self, obj: Any, progress: Progress) -> None:
        started = await self.start_send(obj)
        try:
            with _Reports(self._notices.loop, progress, "Sending", lambda: started.progress):
                await started.result()
        except BaseException:
            started.cancel()
            raise
        self._last = started.timings

    async def start_send(self, obj: Any) -> Transfer:
        """Begin to send an object.

        Waits only while several MiB of small objects have not left yet.
        """
        if not self._native._has_room():
            await self._notices.until(lambda: self._native._has_room() or None)
        return Transfer(self._native.start_send(obj), self._notices)

    async def send_many(self, objects: Iterable[Any], timeout: float | None = None) -> None:
        """Send many objects, in order; returns when their memory may be used again."""
        await _within(timeout, f"sending to {self.address}", self._send_many(objects))

    async def _send_many(self, objects: Iterable[Any]) -> None:
        started = []
        try:
            for number, obj in enumerate(objects, 1):
                one = await self.start_send(obj)
                if one.done():
                    await one.result()
                else:
                    started.append(one)
                if number % _TURN == 0:
                    await asyncio.sleep(0)
            for one in started:
                await one.result()
        except BaseException:
            for one in started:
                one.cancel()
            raise

    async def recv(self, *, timeout: float | None = None, progress: Progress = None) -> Any:
        """Wait for the next object."""
        receiving = self._receive(None, progress)
        return await _within(timeout, f"receiving from {self.address}", receiving)

    async def recv_into(
        self,
        array: T,
        *,
        timeout: float | None = None,
        progress: Progress = None,
    ) -> T:
        """Wait for the next object, an array or tensor of the same type and shape, and receive it into ``array``."""
        receiving = self._receive(array, progress)
        await _within(timeout, f"receiving from {self.address}", receiving)
        return array

    async def recv_many(self, max: int | None = None, timeout: float | None = None) -> list[Any]:  # noqa: A002
        """Wait for the next object, and take those that came with it, at most ``max``."""
        receiving = self._receive_many(max)
        return await _within(timeout, f"receiving from {self.address}", receiving)

    async def _receive(self, array: Any, progress: Progress) -> Any:
        while True:
            with suppress(TransferCancelled):
                return await self._receive_one(array, progress)
            # The peer has given it up.

    async def _receive_one(self, array: Any, progress: Progress) -> Any:
        async with self._turn:
            incoming = await self._notices.until(self._native._try_next)
        try:
            incoming.accept(array)
            if not incoming.done():
                with _Reports(self._notices.loop, progress, "Receiving", lambda: incoming.progress):
                    await self._notices.until(lambda: incoming.done() or None)
            obj, self._last = incoming.take()
        finally:
            incoming.put_back()
        return obj

    async def _receive_many(self, most: int | None) -> list[Any]:
        async with self._turn:
            received = self._native._take_small(most)
        if not received:
            received = [await self._receive(None, None)]
        return received

    def abort(self) -> None:
        """Begin to close the connection, without waiting. Whoever waits here gets an error at once."""
        self._native._start_close()
        self._notices.close()

    async def close(self) -> None:
        """Close the connection, when what was sent has left, or after five seconds."""
        self._native._start_close()
        await self._notices.until(lambda: self._native._is_closed() or None)
        self._notices.close()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._native).replace("transfer.", "transfer.aio.", 1)


class _Reports:
    """Tells somebody how far a transfer is, while the block runs."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        progress: Progress,
        text: str,
        look: Callable[[], tuple[int, int]],
    ) -> None:
        self._loop = loop
        self._look = look
        self._timer: asyncio.TimerHandle | None = None
        self._report: Callable[[int, int], None] | None = None
        if progress is True:
            from treadle.transfer._progress import bar

            self._report = bar(text)
        elif progress:
            self._report = progress

    def __enter__(self) -> None:
        self._tick()

    def _tick(self) -> None:
        if self._report is not None:
            self._report(*self._look())
            self._timer = self._loop.call_later(_REPORT, self._tick)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._report is not None and exc is None:
            _, total = self._look()
            self._report(total, total)
