"""How a client waits for futures and fetches their values, in threads and in its event loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NoReturn

from distributed.utils import Deadline

from treadle import _core
from treadle._compat.distributed import parse_timedelta, wait_of_distributed
from treadle.client import _distributed
from treadle.client._distributed import ClosedClientError, FutureCancelledError
from treadle.client._gather import (
    all_done,
    any_done,
    wait_in_loop,
    waited,
    waiting_for,
)
from treadle.client._nested_timeouts import ending, shorter
from treadle.client._refcounts import Counting
from treadle.common._ask import called_back
from treadle.common._loop import call_in
from treadle.worker import blocking

__all__ = ["USABLE", "Waiting"]

#: The states of a client in which it may be asked for something new.
USABLE = ("running", "connecting", "newly-created")

# Those of the client's coroutine functions that wait for other tasks.
_WAITS_FOR_TASKS = frozenset(["_gather", "_rebalance", "_replicate", "_scatter"])

# Of fetches.
_tickets = itertools.count()


class Waiting(Counting):
    """What blocks a thread, or suspends a coroutine, until something has come."""

    #: Whether it is of a process from which this one was forked.
    _forked = False

    def _in_loop(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function in the client's loop, soon."""
        if self._asyncio_loop is not None:
            call_in(self._asyncio_loop, partial(function, *args))

    def _block(self, done: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait in this thread, without an event loop, until ``done()``.

        Raises
        ------
        TimeoutError
            Not within so many seconds.
        """
        if done():
            return
        connection = self._connection
        if connection is None:
            self._refuse("wait for it")
        if self._released or self._ended:
            self._collect()
        limit = shorter(timeout)
        with blocking():
            if limit is None:
                in_time = connection.wait(done)
            else:
                with ending(limit):
                    in_time = connection.wait(done, limit)
        if not in_time:
            after = limit if timeout is None else timeout
            raise _distributed.TimeoutError(f"timed out after {after} s.")

    def sync(
        self,
        func: Callable[..., Any],
        *args: Any,
        asynchronous: bool | None = None,
        callback_timeout: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Call a coroutine function: its result in a thread, a coroutine in an event loop."""
        if self._forked:
            self._refuse(f"call {getattr(func, '__name__', func)}")
        if asynchronous is None:
            asynchronous = self.asynchronous
        if func is wait_of_distributed:
            if not asynchronous:
                return self._wait_now(*args, **kwargs)
            func = wait_in_loop
        if asynchronous:
            return super().sync(
                func, *args, asynchronous=True, callback_timeout=callback_timeout, **kwargs
            )
        call = partial(super().sync, func, *args, asynchronous=False, **kwargs)
        callback_timeout = shorter(parse_timedelta(callback_timeout, "s"))
        if self._connection is not None:
            # What the loop waits for, this thread may be keeping from it.
            self._connection.step_aside()
        if getattr(func, "__name__", None) not in _WAITS_FOR_TASKS:
            # A task that waits for a lock, a queue or an event keeps its thread.
            return call(callback_timeout=callback_timeout)
        with blocking():
            return call(callback_timeout=callback_timeout)

    def _wait_now(
        self, fs: Any, timeout: float | None = None, return_when: str = "ALL_COMPLETED"
    ) -> Any:
        """``distributed.wait``, in a thread."""
        futures = waiting_for(fs, timeout, return_when)
        clients = {future.client for future in futures}
        if len(clients) == 1:
            (client,) = clients
            if not isinstance(client, Waiting):
                # One of Dask, whose loop knows when they are done.
                options = {"timeout": timeout, "return_when": return_when}
                return client.sync(wait_of_distributed, futures, **options)
            if client is not self:
                return client._wait_now(futures, timeout, return_when)
        elif clients:
            return self.sync(wait_in_loop, futures, timeout, return_when, asynchronous=False)
        states = [future._state for future in futures]
        if return_when == "ALL_COMPLETED":
            self._block(all_done(states), timeout)
        else:
            self._block(any_done(states), timeout)
        return waited(futures)

    def _fetch_then(
        self,
        keys: list[Hashable],
        done: Callable[[dict[Hashable, Any], dict[Hashable, BaseException]], None],
        ticket: int | None = None,
    ) -> None:
        """Get the values of finished keys; ``done`` is called in any thread, for :meth:`_decoded`.

        Raises
        ------
        FutureCancelledError
            Another thread has released or cancelled one of them.
        """
        connection = self._connection
        if connection is None:
            self._refuse("get values")
        try:
            connection.fetch(next(_tickets) if ticket is None else ticket, keys, done)
        except KeyError as error:
            raise FutureCancelledError(key=error.args[0], reason="released") from None

    @contextmanager
    def _fetching(self) -> Iterator[int]:
        """Yield the ticket of a fetch that is to end with the block, whatever ends that."""
        ticket = next(_tickets)
        try:
            yield ticket
        except BaseException:
            # What has not come would hold up what is asked for next.
            connection = self._connection
            if connection is not None:
                connection.cancel_fetch(ticket)
            raise

    async def _fetch(
        self, keys: list[Hashable]
    ) -> tuple[dict[Hashable, Any], dict[Hashable, BaseException]]:
        """Get the values of finished keys, in an event loop."""
        with self._fetching() as ticket:
            values, errors = await called_back(partial(self._fetch_then, keys, ticket=ticket))
        self._decoded(values, errors)
        return values, errors

    def _fetch_now(
        self, keys: list[Hashable], timeout: float | None = None
    ) -> tuple[dict[Hashable, Any], dict[Hashable, BaseException]]:
        """Get the values of finished keys, in a thread."""
        answers: list[Any] = []

        def done(values: dict[Hashable, Any], errors: dict[Hashable, BaseException]) -> None:
            answers.append((values, errors))

        deadline = Deadline.after(timeout)
        with self._fetching() as ticket:
            self._fetch_then(keys, done, ticket)
            self._block(lambda: bool(answers), timeout)
        values, errors = answers[0]
        self._decoded(values, errors, deadline.remaining)
        return values, errors

    def _decoded(
        self,
        values: dict[Hashable, Any],
        errors: dict[Hashable, BaseException],
        timeout: float | None = None,
    ) -> None:
        """Decode values that have come: what that runs waits in this thread, within so many seconds."""
        came = [key for key, value in values.items() if type(value) is _core.Undecoded]
        connection = self._connection
        if came and connection is None:
            self._refuse("get values")
        limit = shorter(timeout) if came else None
        with nullcontext() if limit is None else ending(limit):
            for key in came:
                try:
                    values[key] = connection.decode(key, values[key])  # type: ignore[union-attr]
                except Exception as error:
                    del values[key]
                    errors[key] = error

    def _refuse(self, what: str) -> NoReturn:
        if self._forked:
            raise ClosedClientError(
                f"Can't {what}: this client belongs to the parent process, from which this one was "
                'forked. Start processes that use a client with multiprocessing\'s "spawn" or '
                '"forkserver", or with subprocess, and make a client there.'
            )
        raise ClosedClientError(f"Client is {self.status}. Can't {what}.")

    def _usable(self, what: str) -> _core.Connection:
        """Return the connection for something new."""
        connection = self._connection
        if connection is None or self.status not in USABLE:
            self._refuse(what)
        if self._released or self._ended:
            self._collect()
        return connection
