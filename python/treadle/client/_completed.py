"""``as_completed`` that needs no event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from queue import Queue
from typing import TYPE_CHECKING, Any

from dask.utils import parse_timedelta
from distributed.actor import BaseActorFuture
from distributed.utils import Deadline

from treadle.client import _distributed
from treadle.client._connected import Connected
from treadle.client._distributed import (
    AsCompletedOfDistributed,
    FutureOfDistributed,
    clean_exception,
    default_client,
    get_global_client,
    wait_for,
)
from treadle.client._future import Future
from treadle.client._state import State, call_in

if TYPE_CHECKING:
    from treadle.client._client import Client

__all__ = ["as_completed"]


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
        With ``with_results``: raise what a task raised, instead of yielding it.
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
        self.futures: defaultdict[Any, int] = defaultdict(int)
        self.queue: Queue[Any] = Queue()
        # Nobody waits in the queue itself.
        self._come = self.queue.queue
        # Reentrant: a future that is done already is queued while it is added.
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
    def loop(self) -> Any:
        """The event loop for futures that are not Treadle's."""
        return self._loop or default_client().loop

    def update(self, futures: Iterable[Any]) -> None:
        """Add several futures."""
        with self.lock:
            for future in futures:
                if type(future) is Future:
                    client, state = future._bound()
                    if self._client is None:
                        self._client = client
                    elif client is not self._client:
                        self._foreign = True
                    self.futures[future] += 1
                    state.add_waker(partial(self._is_done, future))
                elif isinstance(future, (FutureOfDistributed, BaseActorFuture)):
                    self._foreign = True
                    self.futures[future] += 1
                    self.loop.add_callback(self._track_future, future)
                else:
                    raise TypeError(f"Input must be a future, got {future}")

    def _is_done(self, future: Future, state: State) -> None:
        if not self.with_results:
            self._arrived(future, future)
        elif state.status == "finished":
            client = future._client
            assert client is not None
            client._fetch_then([future.key], partial(self._has_value, future))
        else:
            self._arrived(future, (future, _result_of(state)))

    def _has_value(self, future: Future, values: dict[Any, Any], _errors: dict[Any, Any]) -> None:
        if future.key in values:
            self._arrived(future, (future, values[future.key]))
            return
        state = future._bound()[1]
        if state.done() and state.status != "finished":
            self._arrived(future, (future, _result_of(state)))
        else:
            state.add_waker(partial(self._is_done, future))

    def _arrived(self, future: Future, item: Any) -> None:
        with self.lock:
            if future not in self.futures:
                return  # cleared meanwhile
            self.futures[future] -= 1
            if not self.futures[future]:
                del self.futures[future]
            self._come.append(item)
            waiters, self._waiters = self._waiters, []
        for loop, waiter in waiters:
            call_in(loop, partial(_end, waiter))
        if self._foreign:
            with self.thread_condition:
                self.thread_condition.notify_all()

    async def _track_future(self, future: Any) -> None:
        """Do what :meth:`_is_done` does for a future that is not Treadle's, in its loop."""
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
        self._arrived(future, (future, result) if self.with_results else future)

    def count(self) -> int:
        """Return how many futures are still to come."""
        with self.lock:
            return len(self.futures) + len(self._come)

    def __repr__(self) -> str:
        return f"<as_completed: waiting={len(self.futures)} done={len(self._come)}>"

    def _take(self) -> Any:
        item = self._come.popleft()
        if self.with_results and self.raise_errors:
            future, result = item
            if isinstance(future, FutureOfDistributed) and future.status == "error":
                _, exception, traceback = result
                raise exception.with_traceback(traceback)
        return item

    def _ready(self) -> bool:
        return bool(self._come) or not self.futures

    def __next__(self) -> Any:
        while not self._come:
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
        return self._take()

    next = __next__

    async def __anext__(self) -> Any:
        if not self._deadline.expires:
            return await self._anext()
        return await wait_for(self._anext(), self._deadline.remaining)

    async def _anext(self) -> Any:
        while not self._come:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            with self.lock:
                if self._come:
                    break
                if not self.futures:
                    raise StopAsyncIteration
                self._waiters.append((loop, waiter))
            await waiter
        return self._take()

    def next_batch(self, block: bool = True) -> list[Any]:
        """Return all futures that are done; at least one, unless ``block`` is False."""
        batch = [next(self)] if block else []
        while self._come:
            batch.append(self._come.popleft())
        return batch

    def clear(self) -> None:
        """Forget all futures."""
        with self.lock:
            self.futures.clear()
            self._come.clear()
            waiters, self._waiters = self._waiters, []
        for loop, waiter in waiters:
            call_in(loop, partial(_end, waiter))


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
