"""What a client knows of a key that it has futures of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, NoReturn

from treadle._compat.distributed import clean_exception
from treadle.client._distributed import FutureCancelledError, FutureStateOfDistributed, wait_for
from treadle.common._loop import call_in
from treadle.errors._lost_keys import Failure, Raised

__all__ = ["NO_REASON", "PENDING", "Cancellation", "Expected", "State", "until"]


logger = logging.getLogger("treadle.client")


class Cancellation(NamedTuple):
    """Why somebody cancelled a key."""

    reason: str | None = None
    message: str | None = None


NO_REASON = Cancellation()

#: The statuses of keys that are still waited for.
PENDING = ("pending", "lost")

Waker = Callable[["State"], None]


class State(FutureStateOfDistributed):
    """Shared by all futures of one key: a ``distributed.client.FutureState`` without event loop.

    The connection changes it from whatever thread processes messages. Nobody who waits for it needs
    an event loop; who wants to be told leaves a *waker*, which is called in that thread.
    """

    __slots__ = ("_failure", "_wakers", "over", "refs", "sent")

    #: Another object whenever a key of any client has failed or was cancelled.
    latest_failure: ClassVar[object] = None

    # How many futures there are: only changed under the client's lock.
    refs: int
    # Whether the key was submitted, or its value sent. Until then whoever submits it does so: another
    # thread that was about to may have failed. `None`: the scheduler was not asked about it either.
    sent: bool | None
    # Why nothing more will be heard of the key, from the moment on at which the client lets go of it:
    # another thread may be telling this state something else then.
    over: Cancellation | None

    def __init__(self, key: Hashable) -> None:
        # Not the base class's: there are millions of these.
        self.key = key
        self.status = "pending"
        self.type = None
        self.refs = 0
        self.sent = None
        self.over = None
        self._failure: Any = None
        self._wakers: list[Waker] | None = None

    # What the connection calls. Each sets the status last but for waking, so that a thread which
    # sees the status sees everything else. Where a signal handler raises in between, it is called
    # again.

    def finish(self, type: Any = None) -> None:  # noqa: A002 (the name is distributed's)
        """The key has a value."""
        if type is not None:
            self.type = type
        self.status = "finished"
        if self._wakers is not None:
            self._wake()

    def native_failed(self, kind: str, key: Hashable, payload: Any) -> None:
        """The key has no value and will not get one; decoded when somebody asks why."""
        self._failure = failure = Failure(kind, key, payload)
        self.status = "cancelled" if failure.cancels else "error"
        State.latest_failure = object()
        if self._wakers is not None:
            self._wake()

    def native_cancelled(self, reason: str | None, message: str | None) -> None:
        """Another client or the scheduler cancelled the key."""
        self.cancel(reason, message)

    def lose(self) -> None:
        """Nobody has a value, nor makes one: it is gone, or the key was never submitted."""
        if self.status == "finished":
            self.status = "lost"

    def retry(self) -> None:
        """The key waits for a value again."""
        self._failure = None
        self.status = "pending"

    # What distributed and users call.

    reset = retry

    def cancel(self, reason: str | None = None, msg: str | None = None) -> None:
        """Nobody will get the key's value."""
        self.end(Cancellation(reason, msg))

    def forget(self) -> None:
        """Nobody has a future of the key any more."""
        self.end(NO_REASON)

    def end(self, why: Cancellation) -> None:
        """Nothing more will be heard of the key."""
        self._failure = why
        self.status = "cancelled"
        State.latest_failure = object()
        if self._wakers is not None:
            self._wake()

    def set_error(self, exception: Any, traceback: Any) -> None:
        """The key has no value: with this exception and traceback, pickled or not."""
        _, exception, traceback = clean_exception(exception, traceback)
        self._failure = (exception, traceback)
        self.status = "error"
        State.latest_failure = object()
        if self._wakers is not None:
            self._wake()

    def raised(self) -> Raised:
        """Return why there is no value: an exception, another one each time, and its traceback."""
        failure = self._failure
        if type(failure) is Failure:
            return failure.decoded()
        if type(failure) is Cancellation:
            reason, message = failure.reason, failure.message
            return FutureCancelledError(key=self.key, reason=reason, msg=message), None
        exception, traceback = failure
        return exception, traceback

    def throw(self) -> NoReturn:
        """Raise why there is no value, with the traceback of the task."""
        exception, traceback = self.raised()
        raise exception.with_traceback(traceback)

    @property
    def blamed(self) -> Hashable | None:
        """The key of the task that failed: this one, or one that it is computed from."""
        failure = self._failure
        return failure.key if type(failure) is Failure else None

    @property
    def exception(self) -> BaseException | None:
        """Why there is no value."""
        return None if self._failure is None else self.raised()[0]

    @property
    def traceback(self) -> TracebackType | None:
        """Where the exception was raised."""
        return None if self._failure is None else self.raised()[1]

    def done(self) -> bool:
        """Return whether nothing more is to be waited for."""
        status = self.status
        return status != "pending" and status != "lost"

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until :meth:`done`, in any event loop.

        Raises
        ------
        TimeoutError
            Not within so many seconds.
        """
        if not self.done():
            await wait_for(until([self]), timeout)

    def add_waker(self, waker: Waker) -> None:
        """Have ``waker`` called with this state when it is done: now if it is.

        It may be called more than once, where a signal handler has interrupted it.
        """
        if not self.done():
            wakers = self._wakers
            if wakers is None:
                wakers = self._wakers = []
            try:
                wakers.append(waker)
                if not self.done():
                    return
            except BaseException:
                # One step: a second signal must not come in between.
                if waker in wakers:
                    wakers.remove(waker)
                raise
            # It became so before the waker was there to be seen, or after. Others are not called: this
            # thread may have locks that they wait for.
            if waker in wakers:
                wakers.remove(waker)
        waker(self)

    def remove_waker(self, waker: Waker) -> None:
        """Do not call ``waker`` any more."""
        wakers = self._wakers
        if wakers is not None:
            with suppress(ValueError):
                wakers.remove(waker)

    def _wake(self) -> None:
        if self._wakers is not None:
            call_all(self._wakers, self)


class Expected(State):
    """Of a key whose value a graph takes to be there: that it is unknown is the end."""

    __slots__ = ()

    def lose(self) -> None:
        """Nobody has the value, nor a task to make it."""
        self.cancel("lost dependencies")


def call_all(wakers: list[Waker], state: State) -> None:
    """Call each waker, the oldest first, whoever else is doing the same with this list.

    One is taken off when it was called, so that none is lost where a signal handler raises in
    between. It may be called more than once.
    """
    while wakers:
        try:
            waker = wakers[0]
        except IndexError:
            break
        try:
            waker(state)
        except Exception:
            logger.exception("telling who waits for %r", state.key)
        with suppress(ValueError):
            wakers.remove(waker)


async def until(states: Iterable[State], first: Callable[[State], bool] | None = None) -> None:
    """Wait in an event loop until all states are done, or one is of which ``first`` is true."""
    left = {state for state in states if state.status in PENDING}
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def wake(state: State) -> None:
        left.discard(state)
        if not left or (first is not None and first(state)):
            call_in(loop, end)

    waited_for = list(left)
    for state in waited_for:
        state.add_waker(wake)
    try:
        if left:
            await waiter
    finally:
        for state in waited_for:
            state.remove_waker(wake)
