"""Which futures a client has: how many of each key, and what becomes of keys that have none."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from treadle import _core
from treadle.client._before_connected import Early
from treadle.client._distributed import ClientOfDistributed
from treadle.client._future import Future
from treadle.client._state import NO_REASON, Cancellation, State

__all__ = ["Counting"]

# Seconds that released futures are collected for. A program that makes a future and drops it, over
# and over, would otherwise wake the event loop's thread each time, which costs more than the call.
_COLLECT = 0.005


class References(Mapping[Hashable, int]):
    """How many futures there are of each key: what distributed keeps in a dictionary."""

    def __init__(self, futures: dict[Hashable, State], released: deque[State]) -> None:
        self._futures = futures
        self._released = released

    def __getitem__(self, key: Hashable) -> int:
        # What was released a moment ago is not counted off yet.
        released = list(self._released)
        state = self._futures.get(key)
        return 0 if state is None else max(state.refs - released.count(state), 0)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(list(self._futures))

    def __len__(self) -> int:
        return len(self._futures)

    def __contains__(self, key: object) -> bool:
        return key in self._futures

    def __repr__(self) -> str:
        return repr(dict(self))


class Counting(ClientOfDistributed):  # type: ignore[misc]
    """A client that counts its futures without a lock where a future ends.

    What a signal handler raises on the main thread may end any of these methods at any point. What is
    left then is either as before, or known to be unfinished: a future that does not count, a key that
    the connection was not told of, a state in ``_ended``.
    """

    futures: dict[Hashable, State]
    _asyncio_loop: asyncio.AbstractEventLoop | None
    # Whether `_collect_later` is to be called; if not, whoever releases something sees to it.
    _collecting: bool
    # Whether something was collected since it was called last.
    _collected: bool
    _connection: _core.Connection | None
    # States of futures that are no more.
    _released: deque[State]
    # States that have no futures any more, or were cancelled: to be told.
    _ended: deque[tuple[State, Cancellation]]

    # Distributed's is a dictionary of its own.
    @property
    def refcount(self) -> References:
        """How many futures of this client there are, by key."""
        return References(self.futures, self._released)

    @refcount.setter
    def refcount(self, _: Any) -> None:
        pass

    def _claim(self, key: Hashable, make: type[State] = State) -> Future:
        """Return one more future of a key. The caller submits the key if that is not ``sent``.

        Several threads may do so at the same time: with the same state, so that it does not matter
        who is first. Called under the lock.
        """
        state = self.futures.get(key)
        if state is not None:
            future = Future(key, self, state)
            _core.count(future)
            return future
        state = make(key)
        future = Future(key, self, state)
        _core.count(future)
        # Last: from now on it is given up with the future.
        self.futures[key] = state
        return future

    def _adopt(self, future: Future) -> None:
        """Count a future of a key, which may be known to the scheduler only."""
        key = future.key
        with self._refcount_lock:
            state = self.futures.get(key)
            future._state = known = State(key) if state is None else state
            _core.count(future)
            self.futures[key] = known
            self._watch(known)

    def _watch(self, state: State) -> None:
        if state.sent is None and self._connection is not None:
            self._connection.watch(state.key, state)
            # The scheduler may not know the key, and whoever submits it later shall do so.
            state.sent = False

    # What `distributed.Future` calls, where distributed's code makes one.
    def _inc_ref(self, key: Hashable) -> None:
        with self._refcount_lock:
            state = self.futures.get(key)
            if state is None:
                state = self.futures[key] = State(key)
            state.refs += 1
            self._watch(state)

    def _dec_ref(self, key: Hashable) -> None:
        state = self.futures.get(key)
        if state is not None:
            self._released.append(state)
            self._collect_soon()

    def _inform_scheduler_of_futures(self) -> None:
        """Do nothing: each future is made known when it is made."""

    def _collect_soon(self) -> None:
        """Have the event loop collect what was released."""
        if self._collecting:
            return
        self._collecting = True
        loop = self._asyncio_loop
        try:
            if loop is not None:
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(loop.call_later, _COLLECT, self._collect_later)
        except BaseException:
            self._collecting = False
            raise

    def _collect_later(self) -> None:
        loop, connection = self._asyncio_loop, self._connection
        if loop is None or connection is None:
            return
        if not self._released and not self._collected and not self._ended:
            self._collecting = False
            if not self._released:
                return
            # Released by somebody who saw that this was still to be called.
            self._collecting = True
        self._collect()
        self._collected = False
        # What was collected in between, too, if no other message has taken it along.
        connection.flush()
        # More will follow: to come back unasked costs one wake-up, to be called costs two.
        loop.call_later(_COLLECT, self._collect_later)

    def _collect(self) -> None:
        """Tell the scheduler, with the next message, of keys that there are no futures of any more."""
        with self._refcount_lock:
            connection = self._connection
            if connection is None:
                self._released.clear()
            else:
                # Under the lock: the same key must not be submitted again in between.
                connection.collect(self._released, self.futures, self._ended, NO_REASON)
        # Last: whoever finds it unset afterwards sends what is to be sent.
        self._collected = True
        if self._ended:
            self._tell_ended()

    def _forget(self, keys: list[Hashable], why: Cancellation) -> None:
        """Let go of keys, whoever has futures of them. :meth:`_tell_ended` is to follow."""
        connection = self._connection
        if connection is None:
            # It releases nothing.
            connection = Early()
        connection.forget(keys, self.futures, self._ended, why)

    def _tell_ended(self) -> None:
        """Tell states that nothing more will come. Without the lock: whoever waits is called."""
        ended = self._ended
        try:
            while ended:
                try:
                    item = ended[0]
                except IndexError:
                    break
                state, why = item
                state.end(why)
                # Now that it was told; another thread may have done the same.
                with suppress(ValueError):
                    ended.remove(item)
        except BaseException:
            self._collect_soon()
            raise
