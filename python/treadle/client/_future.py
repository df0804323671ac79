"""Futures."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from treadle import _core
from treadle._compat.distributed import clean_exception, client_logger, parse_timedelta
from treadle.client._distributed import FutureOfDistributed
from treadle.client._nested_timeouts import ending
from treadle.client._state import State
from treadle.common import _callbacks
from treadle.errors._shortened import shortened

if TYPE_CHECKING:
    from treadle.client._client import Client

__all__ = ["Future"]


class Future(FutureOfDistributed):
    """A value that a cluster has, or will have.

    A ``distributed.Future`` that needs no event loop: a synchronous client's thread waits for it on
    the connection itself. One that was unpickled belongs to no client until
    :meth:`~distributed.Future.bind_client`.
    """

    __slots__ = ("_cleared", "_client", "_number", "_state")

    _client: Client | None
    _number: tuple[str, int]
    _state: State | None

    def __init__(
        self,
        key: Hashable,
        client: Client | None = None,
        state: State | str | None = None,
        _id: tuple[str, int] | None = None,
    ) -> None:
        self.key = key
        self._client = client
        # It does not count before the client says so (`_core.count`).
        self._cleared = True
        if isinstance(state, State):
            self._state = state
        else:
            self._state = None
            if _id is not None:
                self._number = _id
            if client is not None:
                self._bind(client, state)

    def _bind(self, client: Client, status: Any = None) -> None:
        client._adopt(self)
        handler = client._state_handlers.get(status)
        if handler is not None:
            handler(key=self.key)

    def _bind_late(self) -> None:
        if self._client is not None and self._state is None:
            self._bind(self._client)

    @property
    def client(self) -> Client | None:
        """The client that it belongs to."""
        return self._client

    @property
    def _id(self) -> tuple[str, int]:
        # Few futures are ever asked.
        try:
            return self._number
        except AttributeError:
            number = (FutureOfDistributed._uid, next(FutureOfDistributed._counter))
            self._number = number
            return number

    def _bound(self) -> tuple[Client, State]:
        client, state = self._client, self._state
        if client is None or state is None:
            self._verify_initialized()
        assert client is not None
        assert state is not None
        return client, state

    @property
    def status(self) -> str | None:
        """``"pending"``, ``"finished"``, ``"error"``, ``"cancelled"`` or ``"lost"``."""
        state = self._state
        return None if state is None else state.status

    @property
    def type(self) -> Any:
        """The type of the value, if that is known."""
        state, client = self._state, self._client
        if state is None or client is None:
            return None
        if state.type is None and state.status == "finished":
            state.type = client._type_of(self.key)
        return state.type

    def done(self) -> bool:
        """Return whether the future is not waiting for a value any more."""
        return self._bound()[1].done()

    def cancelled(self) -> bool:
        """Return whether the future was cancelled."""
        return bool(self._bound()[1].status == "cancelled")

    def result(self, timeout: Any = None) -> Any:
        """Wait for the value and return it; or a coroutine, in an event loop.

        Raises
        ------
        TimeoutError
            Not within so many seconds (or whatever else is a time to Dask).
        FutureCancelledError
            The future was cancelled.
        Exception
            What the task raised, with its own traceback.
        """
        client, state = self._bound()
        if client.asynchronous:
            return client.sync(self._result, callback_timeout=timeout)
        try:
            if timeout is not None:
                timeout = parse_timedelta(timeout, "s")
                end = monotonic() + timeout
            if state.status != "finished":
                client._block(state.done, timeout)
                if timeout is not None:
                    timeout = max(end - monotonic(), 0.0)
            if state.status == "finished":
                if timeout is None:
                    return client._value(self, None)
                with ending(timeout):
                    return client._value(self, timeout)
            state.throw()
        except BaseException:
            with shortened():
                raise

    async def _result(self, raiseit: bool = True) -> Any:
        client, state = self._bound()
        await state.wait()
        if state.status == "error":
            if raiseit:
                # Here: the frame of a helper would be seen.
                exception, traceback = state.raised()
                raise exception.with_traceback(traceback)
            return clean_exception(*state.raised())
        if state.status == "cancelled":
            if raiseit:
                state.throw()
            return state.exception
        return (await client._gather([self]))[0]

    def exception(self, timeout: Any = None, **kwargs: Any) -> Any:
        """Wait, and return what the task raised, or None; or a coroutine, in an event loop."""
        client, state = self._bound()
        if client.asynchronous:
            return client.sync(self._exception, callback_timeout=timeout, **kwargs)
        self._wait(timeout)
        return state.exception if state.status == "error" else None

    def traceback(self, timeout: Any = None, **kwargs: Any) -> Any:
        """Wait, and return where the task raised, or None; or a coroutine, in an event loop."""
        client, state = self._bound()
        if client.asynchronous:
            return client.sync(self._traceback, callback_timeout=timeout, **kwargs)
        self._wait(timeout)
        return state.traceback if state.status == "error" else None

    def _wait(self, timeout: Any) -> None:
        client, state = self._bound()
        client._block(state.done, None if timeout is None else parse_timedelta(timeout, "s"))

    def add_done_callback(self, fn: Any) -> None:
        """Call ``fn`` with this future, in a thread for such calls, once it is done."""
        state = self._bound()[1]

        def call() -> None:
            try:
                fn(self)
            except BaseException:
                client_logger.exception("Error in callback %s of %s:", fn, self)
                raise

        put = _callbacks.current().put
        calls = [call]

        def call_once() -> None:
            with suppress(IndexError):
                calls.pop()()

        def wake(_: State) -> None:
            put(call_once)

        state.add_waker(wake)

    def release(self) -> None:
        """Give the future up: the cluster may forget the value when nobody else needs it."""
        self._verify_initialized()
        self.__del__()

    # Native: it must not be interrupted by signals.
    __del__ = _core.give_up

    def __reduce__(self) -> tuple[Any, ...]:
        return Future, (self.key,)

    __hash__ = object.__hash__
    __eq__ = object.__eq__
