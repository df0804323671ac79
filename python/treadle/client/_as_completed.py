"""``as_completed`` that needs no event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import partial, wraps
from queue import Queue
from typing import TYPE_CHECKING, Any

from dask.utils import parse_timedelta
from distributed.actor import BaseActorFuture
from distributed.utils import Deadline

from treadle import _core
from treadle._compat.distributed import clean_exception, get_global_client
from treadle.client import _distributed
from treadle.client._connected import Connected
from treadle.client._distributed import (
    AsCompletedOfDistributed,
    FutureCancelledError,
    FutureOfDistributed,
    default_client,
    wait_for,
)
from treadle.client._future import Future
from treadle.client._state import PENDING, State
from treadle.common._loop import call_in

if TYPE_CHECKING:
    from treadle.client._client import Client

__all__ = ["as_completed"]


class _Turn:
    """One that was added: the same future may be added more than once."""

    __slots__ = ("future",)

    def __init__(self, future: Any) -> None:
        self.future = future


class _NotGot(tuple[Any, ...]):
    """Why the value of a finished future could not be got, as errors are among results.

    A type of its own: the value of a task may be such a tuple, too.
    """

    __slots__ = ()


class as_completed(AsCompletedOfDistributed):  # type: ignore[misc]
    """Futures in the order in which they complete.

    The same as ``distributed.as_completed``, which works with Treadle's futures too; this one has no
    event loop between a result and the loop that waits for it.

    Parameters
    ----------
    futures
        Futures to be iterated over; more can be added with ``add`` and ``update``.
    loop
        Ignored, but for futures that are not Treadle's.
    with_results
        Whether to get the values too: then each item is a pair of a future and its value.
    raise_errors
        With ``with_results``: raise what a task raised, or why its value cannot be got, instead of
        yielding it.
    timeout
        Seconds after which the next item raises a ``TimeoutError``, counted from now.
    """

    def __init__(
        self,
        futures: Iterable[Any] | None = None,
        loop: Any = None,
        with_results: bool = False,
        raise_errors: bool = True,
        *,
        timeout: Any = None,
    ) -> None:
        # Both by turn. A turn that comes is for a moment in both, and never in none: a signal handler
        # may raise in between.
        self._waiting: dict[_Turn, Any] = {}
        self._come: dict[_Turn, Any] = {}
        # For who looks at it. Nobody waits in the queue itself.
        self.queue: Any = Queue()
        self.queue.queue = self._come
        # That of both. Nothing is called with it.
        self.lock = threading.RLock()
        self.with_results = with_results
        self.raise_errors = raise_errors
        self._loop = loop
        self._deadline = Deadline.after(parse_timedelta(timeout))
        self._client: Client | None = None
        self._foreign = False
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.thread_condition = threading.Condition()
        if futures:
            self.update(futures)

    @property
    def futures(self) -> list[Any]:
        """The futures that are still to come."""
        return list(self._waiting.values())

    @property
    def loop(self) -> Any:
        """The event loop for futures that are not Treadle's."""
        return self._loop or default_client().loop

    def update(self, futures: Iterable[Any]) -> None:
        """Add several futures."""
        for future in futures:
            if type(future) is Future:
                client, state = future._bound()
                if self._client is None:
                    self._client = client
                elif client is not self._client:
                    self._foreign = True
                begin = partial(self._begin, state)
            elif isinstance(future, (FutureOfDistributed, BaseActorFuture)):
                self._foreign = True
                # What is told of it is told in its own client's loop.
                whose: Any = getattr(future, "client", None) or self
                loop = self._loop or whose.loop
                begin = partial(loop.add_callback, self._track_future)
            else:
                raise TypeError(f"Input must be a future, got {future}")
            turn = _Turn(future)
            try:
                self._waiting[turn] = future
                begin(turn)
            except BaseException:
                # Nobody may be going to say that it has come.
                self._waiting.pop(turn, None)
                raise

    def _begin(self, state: State, turn: _Turn) -> None:
        state.add_waker(partial(self._is_done, turn))

    def _is_done(self, turn: _Turn, state: State) -> None:
        future = turn.future
        if not self.with_results:
            self._arrived(turn, future)
        elif state.status == "finished":
            client = future._client
            assert client is not None
            try:
                client._fetch_then([future.key], partial(self._has_value, turn))
            except FutureCancelledError as error:
                self._arrived(turn, (future, error))
        else:
            self._arrived(turn, (future, _result_of(state)))

    def _has_value(self, turn: _Turn, values: dict[Any, Any], errors: dict[Any, Any]) -> None:
        future = turn.future
        if future.key in values:
            self._arrived(turn, (future, values[future.key]))
            return
        state = future._bound()[1]
        status = state.status
        if status == "finished":
            # To get it again would fail again: this may be what it raises when it is unpickled.
            error = errors[future.key]
            self._arrived(turn, (future, _NotGot(clean_exception(error, error.__traceback__))))
        elif status not in PENDING:
            self._arrived(turn, (future, _result_of(state)))
        else:
            state.add_waker(partial(self._is_done, turn))

    def _arrived(self, turn: _Turn, item: Any) -> None:
        with self.lock:
            # If not, it has come already, or was cleared meanwhile.
            if turn in self._waiting:
                self._come[turn] = item
                self._waiting.pop(turn, None)
        self._wake()

    def _wake(self) -> None:
        """Tell who waits in event loops, and in other threads than the connection's."""
        # Who waits no more takes itself out, in any thread.
        waiters = self._waiters
        with suppress(IndexError):
            while True:
                loop, waiter = waiters[0]
                call_in(loop, partial(_end, waiter))
                with suppress(ValueError):
                    waiters.remove((loop, waiter))
        if self._foreign:
            with self.thread_condition:
                self.thread_condition.notify_all()

    async def _track_future(self, turn: _Turn) -> None:
        """Do what :meth:`_is_done` does for a future that is not Treadle's, in its loop."""
        future = turn.future
        result: Any = None
        try:
            if isinstance(future, FutureOfDistributed):
                await future._state.wait()
            else:
                await future
        except Exception:
            pass  # it is done all the same
        if self.with_results:
            result = await future._result(**_quiet(future))
        self._arrived(turn, (future, result) if self.with_results else future)

    def count(self) -> int:
        """Return how many futures are still to come."""
        with self.lock:
            return len(self._waiting.keys() | self._come.keys())

    def is_empty(self) -> bool:
        """Return whether nothing is to come."""
        return not self._waiting and not self._come

    def __repr__(self) -> str:
        return f"<as_completed: waiting={len(self._waiting)} done={len(self._come)}>"

    def _take(self) -> list[Any]:
        """Take the next item, if there is one."""
        with self.lock:
            turn = next(iter(self._come), None)
            if turn is None:
                return []
            self._waiting.pop(turn, None)
            return [self._come.pop(turn)]

    def _checked(self, item: Any) -> Any:
        item = self._decoded(item)
        if self.with_results and self.raise_errors:
            future, result = item
            failed = isinstance(future, FutureOfDistributed) and future.status == "error"
            if failed or type(result) is _NotGot:
                _, exception, traceback = result
                raise exception.with_traceback(traceback)
        return item

    def _decoded(self, item: Any) -> Any:
        """Decode the value of an item: what that runs waits in the thread that takes it."""
        if not self.with_results or type(item[1]) is not _core.Undecoded:
            return item
        future, value = item
        values: dict[Any, Any] = {future.key: value}
        errors: dict[Any, BaseException] = {}
        assert self._client is not None
        self._client._decoded(values, errors, self._deadline.remaining)
        if not errors:
            return future, values[future.key]
        error = errors[future.key]
        return future, _NotGot(clean_exception(error, error.__traceback__))

    def _ready(self) -> bool:
        return bool(self._come) or not self._waiting

    def __next__(self) -> Any:
        while True:
            if taken := self._take():
                return self._checked(taken[0])
            if self._deadline.expired:
                raise _distributed.TimeoutError
            if self.is_empty():
                raise StopIteration
            if self._foreign or self._client is None:
                # What arrives does so in another thread, which says so.
                with self.thread_condition:
                    if not self._come:
                        self.thread_condition.wait(timeout=0.1)
            else:
                self._client._block(self._ready, self._deadline.remaining)

    next = __next__

    async def __anext__(self) -> Any:
        if not self._deadline.expires:
            return await self._anext()
        return await wait_for(self._anext(), self._deadline.remaining)

    async def _anext(self) -> Any:
        while not (taken := self._take()):
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            with self.lock:
                if self._come:
                    continue
                if not self._waiting:
                    raise StopAsyncIteration
                self._waiters.append((loop, waiter))
            try:
                await waiter
            finally:
                # It may have been cancelled: nobody else would take it out before the next one comes.
                with suppress(ValueError):
                    self._waiters.remove((loop, waiter))
        return self._checked(taken[0])

    def next_batch(self, block: bool = True) -> list[Any]:
        """Return all futures that are done; at least one, unless ``block`` is False."""
        batch = [next(self)] if block else []
        with self.lock:
            turns = list(self._come)
            for turn in turns:
                self._waiting.pop(turn, None)
            rest = list(map(self._come.pop, turns))
        return batch + [self._decoded(item) for item in rest]

    def clear(self) -> None:
        """Forget all futures."""
        with self.lock:
            self._waiting.clear()
            self._come.clear()
        self._wake()


@wraps(AsCompletedOfDistributed.__init__)
def _choose(cls: Any, *_args: Any, **_kwargs: Any) -> Any:
    """Make a ``distributed.as_completed``: this module's, where the current client is Treadle's.

    Distributed's starts a coroutine for each future, in the client's event loop, which competes with
    the loop over the results for the interpreter. Programs import it from there all the same.
    """
    mine = cls is AsCompletedOfDistributed and isinstance(get_global_client(), Connected)
    return object.__new__(as_completed if mine else cls)


AsCompletedOfDistributed.__new__ = _choose


def _result_of(state: State) -> Any:
    if state.status == "error":
        return clean_exception(*state.raised())
    return state.exception


def _quiet(future: Any) -> dict[str, Any]:
    return {"raiseit": False} if isinstance(future, FutureOfDistributed) else {}


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
