"""Calls between a worker process and its supervisor, in both directions."""

from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

# Not the modules of calls and loops: they import distributed, and most supervisors are never called.
if TYPE_CHECKING:
    from treadle.common._loop import LoopThread

__all__ = ["Channel"]

logger = logging.getLogger(__name__)

# Before each message: its length.
_HEADER = struct.Struct("<Q")


class Channel:
    """One side of a socket pair.

    Parameters
    ----------
    end
        This side's socket.
    serve
        Answers a call, in the loop: gets this object, the operation and the keyword arguments. What
        it raises is raised in the caller.
    loop
        Returns the loop of this side, when something is to be done in it for the first time.
    name
        Of the thread that reads.
    """

    def __init__(
        self,
        end: socket.socket,
        serve: Callable[[Channel, str, dict[str, Any]], Awaitable[Any]],
        loop: Callable[[], LoopThread],
        name: str,
    ) -> None:
        self._end = end
        self._serve = serve
        self._loop = loop
        self._sending = threading.Lock()
        self._numbers = itertools.count()
        # Used in the loop.
        self._waiting: dict[int, asyncio.Future[tuple[Any, Any]]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        threading.Thread(target=self._read, name=name, daemon=True).start()

    async def ask(self, operation: str, kwargs: Mapping[str, Any]) -> Any:
        """Call the other side, from the loop, and return its answer.

        Raises
        ------
        OSError
            The other side is gone.
        Exception
            What it raised.
        """
        from treadle.common._calls import error_of, pack, unpack_answer
        from treadle.common._loop import off_loop

        number = next(self._numbers)
        answered: asyncio.Future[tuple[Any, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        try:
            # It waits where the other side does not read.
            await off_loop(self._send, number, operation, pack(kwargs), None)
            answer, error = await answered
        finally:
            del self._waiting[number]
        if error is not None:
            raise error_of(error)
        return unpack_answer(answer)

    def close(self) -> None:
        """End it: calls that wait are over."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def _send(self, number: int, operation: str | None, content: Any, error: Any) -> None:
        message = pickle.dumps((number, operation, content, error), protocol=5)
        with self._sending:
            self._end.sendall(_HEADER.pack(len(message)))
            self._end.sendall(message)

    def _read(self) -> None:
        used = False
        with self._end, suppress(OSError), self._end.makefile("rb") as stream:
            while len(header := stream.read(_HEADER.size)) == _HEADER.size:
                message = stream.read(_HEADER.unpack(header)[0])
                used = True
                self._loop().soon(self._came, *pickle.loads(message))
        if used or self._waiting:
            self._loop().soon(self._ended)

    def _ended(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError("the other process is gone"))

    def _came(self, number: int, operation: str | None, content: Any, error: Any) -> None:
        if operation is not None:
            task = asyncio.ensure_future(self._answer(number, operation, content))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
            return
        waiting = self._waiting.get(number)
        # Whoever asked may have been cancelled.
        if waiting is not None and not waiting.done():
            waiting.set_result((content, error))

    async def _answer(self, number: int, operation: str, content: Any) -> None:
        from treadle.common._calls import pack_answer, unpack
        from treadle.common._loop import off_loop
        from treadle.errors import _pickled as errors

        answer, failure = None, None
        try:
            answer = pack_answer(await self._serve(self, operation, unpack(content, opening=True)))
        except BaseException as error:
            failure = errors.dump_of_call(error, operation)
        # The other side may be gone meanwhile.
        with suppress(OSError):
            await off_loop(self._send, number, None, answer, failure)
