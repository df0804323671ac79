"""Which futures a client has: how many of each key, and what becomes of keys that have none."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from treadle.client._distributed import ClientOfDistributed
from treadle.client._state import State

__all__ = ["Counting"]

# Seconds that released futures are collected for. A program that makes a future and drops it, over
# and over, would otherwise wake the event loop's thread each time, which costs more than the call.
_COLLECT = 0.005


class References(Mapping[Hashable, int]):
    """How many futures there are of each key: what distributed keeps in a dictionary."""

    def __init__(self, futures: dict[Hashable, State]) -> None:
        self._futures = futures

    def __getitem__(self, key: Hashable) -> int:
        state = self._futures.get(key)
        return 0 if state is None else state.refs

    def __iter__(self) -> Iterator[Hashable]:
        return iter(list(self._futures))

    def __len__(self) -> int:
        return len(self._futures)

    def __contains__(self, key: object) -> bool:
        return key in self._futures

    def __repr__(self) -> str:
        return repr(dict(self))


class Counting(ClientOfDistributed):  # type: ignore[misc]
    """A client that counts its futures without a lock where a future ends."""

    futures: dict[Hashable, State]
    _asyncio_loop: asyncio.AbstractEventLoop | None
    # Whether `_collect_later` is to be called; if not, whoever releases something sees to it.
    _collecting: bool
    # Whether something was collected since it was called last.
    _collected: bool
    _connection: Any
    _released: deque[State]

    # Distributed's is a dictionary of its own.
    @property
    def refcount(self) -> References:
        """How many futures of this client there are, by key."""
        return References(self.futures)

    @refcount.setter
    def refcount(self, _: Any) -> None:
        pass

    def _adopt(self, key: Hashable) -> State:
        """Count one more future of a key, which may be known to the scheduler only."""
        with self._refcount_lock:
            state = self.futures.get(key)
            if state is None:
                state = self.futures[key] = State(key)
                if self._connection is not None:
                    self._connection.watch(key, state)
            state.refs += 1
            return state

    # What `distributed.Future` calls, where distributed's code makes one.
    _inc_ref = _adopt

    def _dec_ref(self, key: Hashable) -> None:
        state = self.futures.get(key)
        if state is not None:
            self._give_up(state)

    def _inform_scheduler_of_futures(self) -> None:
        """Do nothing: each future is made known when it is made."""

    def _give_up(self, state: State) -> None:
        """Count one future less: called where a future ends, so without a lock."""
        self._released.append(state)
        if not self._collecting:
            self._collecting = True
            loop = self._asyncio_loop
            if loop is not None:
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(loop.call_later, _COLLECT, self._collect_later)

    def _collect_later(self) -> None:
        loop, connection = self._asyncio_loop, self._connection
        if loop is None or connection is None:
            return
        if not self._released and not self._collected:
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
        released = self._released
        forgotten = []
        with self._refcount_lock:
            while released:
                try:
                    state = released.popleft()
                except IndexError:
                    break
                state.refs -= 1
                if state.refs <= 0 and self.futures.get(state.key) is state:
                    del self.futures[state.key]
                    forgotten.append(state)
            if forgotten and self._connection is not None:
                # Under the lock: the same key must not be submitted again in between.
                self._connection.release([state.key for state in forgotten])
        # Last: whoever finds it unset afterwards sends what is to be sent.
        self._collected = True
        for state in forgotten:
            state.forget()
