"""Waiting for futures and getting their values."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from concurrent.futures._base import DoneAndNotDoneFutures
from contextlib import suppress
from numbers import Number
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from treadle._compat.distributed import wait_of_distributed
from treadle.client._distributed import (
    CancelledFuturesGroup,
    FutureOfDistributed,
    FuturesCancelledError,
    futures_of,
    wait_for,
)
from treadle.client._future import Future
from treadle.client._state import PENDING, State, until

if TYPE_CHECKING:
    from treadle.client._client import Client

__all__ = ["Gathering", "all_done", "any_done", "waited", "waiting_for", "without_inline"]

_CONTAINERS = (list, tuple, set, frozenset)


def all_done(states: Iterable[State]) -> Callable[[], bool]:
    """Return what says whether all are done: in constant time, but for what has become so."""
    left = [state for state in states if state.status in PENDING]

    def done() -> bool:
        while left and left[-1].status not in PENDING:
            left.pop()
        return not left

    return done


def any_done(states: Iterable[State]) -> Callable[[], bool]:
    """Return what says whether one is done, or there is none at all."""
    states = list(states)

    def done() -> bool:
        return not states or any(state.status not in PENDING for state in states)

    return done


def all_finished(states: Iterable[State]) -> Callable[[], bool]:
    """Return what says whether all have a value, or one will have none."""
    left = [state for state in states if state.status != "finished"]
    seen: object = None

    def done() -> bool:
        nonlocal seen
        while left and left[-1].status == "finished":
            left.pop()
        if not left:
            return True
        # Whether any of many has failed is only worth looking at when something has.
        latest = State.latest_failure
        if latest is seen:
            return False
        seen = latest
        left[:] = [state for state in left if state.status != "finished"]
        return any(state.status not in PENDING for state in left)

    return done


# distributed.wait


def waiting_for(
    fs: Any, timeout: float | None = None, return_when: str = "ALL_COMPLETED"
) -> list[Any]:
    """Return the futures that a ``wait`` is about, or say what is wrong with it."""
    if timeout is not None and not isinstance(timeout, Number):
        raise TypeError(
            "timeout= keyword received a non-numeric value.\n"
            "Beware that wait expects a list of values\n"
            "  Bad:  wait(x, y, z)\n"
            "  Good: wait([x, y, z])"
        )
    if return_when not in ("ALL_COMPLETED", "FIRST_COMPLETED"):
        raise NotImplementedError(
            "Only return_when='ALL_COMPLETED' and 'FIRST_COMPLETED' are supported"
        )
    if type(fs) is list and all(type(f) is Future for f in fs):
        return fs
    return list(futures_of(fs))


def waited(futures: list[Any]) -> Any:
    """Return what ``wait`` returns. Raises FuturesCancelledError if some were cancelled."""
    done = {future for future in futures if future.status != "pending"}
    cancelled: defaultdict[str, list[Any]] = defaultdict(list)
    for future in done:
        if future.status == "cancelled":
            error = future._state.exception
            cancelled[error.reason].append(error)
    if cancelled:
        raise FuturesCancelledError(
            [CancelledFuturesGroup(errors, reason) for reason, errors in cancelled.items()]
        )
    return DoneAndNotDoneFutures(done, {future for future in futures if future not in done})


async def wait_in_loop(
    fs: Any, timeout: float | None = None, return_when: str = "ALL_COMPLETED"
) -> Any:
    """Wait as ``distributed.client._wait`` does, with one wake-up for all futures."""
    futures = waiting_for(fs, timeout, return_when)
    states: list[Any] = []
    theirs: defaultdict[Any, list[Any]] = defaultdict(list)
    for future in futures:
        if isinstance(future, Future):
            states.append(future._state)
        else:
            theirs[future.client].append(future)
    of_all = return_when == "ALL_COMPLETED"
    if theirs:
        waits = [_wait_there(*one, return_when) for one in theirs.items()]
        if states:
            waits.append(until(states, first=None if of_all else lambda _: True))
        await wait_for(_wait_together(waits, of_all), timeout)
    elif of_all:
        await wait_for(until(states), timeout)
    elif not any_done(states)():
        await wait_for(until(states, first=lambda _: True), timeout)
    return waited(futures)


async def _wait_there(client: Any, futures: list[Any], return_when: str) -> None:
    """Wait for futures of a client of Dask, in the loop of that."""
    waiting = wait_of_distributed(futures, None, return_when)
    loop = client.loop.asyncio_loop
    if loop is not asyncio.get_running_loop():
        waiting = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(waiting, loop))
    # Whoever asked is told of those that were cancelled.
    with suppress(FuturesCancelledError):
        await waiting


async def _wait_together(waits: list[Coroutine[Any, Any, None]], of_all: bool) -> None:
    """Wait for all of several waits, or for one of them; the others end."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    when = asyncio.ALL_COMPLETED if of_all else asyncio.FIRST_COMPLETED
    try:
        done, _ = await asyncio.wait(tasks, return_when=when)
    finally:
        for task in tasks:
            task.cancel()
    for task in done:
        task.result()


# gather


def find_futures(value: Any, into: list[Any]) -> None:
    """Add the futures in nested containers to a list."""
    kind = type(value)
    if kind in _CONTAINERS or (isinstance(value, tuple) and hasattr(value, "_fields")):
        for item in value:
            find_futures(item, into)
    elif kind is dict:
        for item in value.values():
            find_futures(item, into)
    elif isinstance(value, FutureOfDistributed):
        into.append(value)


def replace_futures(value: Any, values: dict[Hashable, Any]) -> Any:
    """Return nested containers with values in place of futures."""
    kind = type(value)
    if kind in _CONTAINERS:
        return kind([replace_futures(item, values) for item in value])
    if kind is dict:
        return {key: replace_futures(item, values) for key, item in value.items()}
    if isinstance(value, FutureOfDistributed):
        return values[value.key]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(replace_futures(item, values) for item in value))
    return value


def without_inline(
    client: Client, keys: list[Hashable], values: dict[Hashable, Any]
) -> list[Hashable]:
    """Take the values that are at the client already; return the other keys."""
    others: list[Hashable] = client._usable("gather").inline(keys, values)
    return others


class Gathering:
    """One gather: which futures, what is wrong with them, and the result in the asked-for shape."""

    def __init__(self, client: Client, shape: Any, errors: str) -> None:
        self.client = client
        self.shape = shape
        self.errors = errors
        self.flat = type(shape) is list and all(type(f) is Future for f in shape)
        found: list[Any] = shape
        if not self.flat:
            found = []
            find_futures(shape, found)
        foreign = [future for future in found if future.client is not client]
        if foreign:
            raise ValueError(
                "Cannot gather Futures created by another client. "
                f"These are the {len(foreign)} (out of {len(found)}) mismatched Futures and their "
                f"client IDs (this client is {client.id}): "
                f"{ {f: getattr(f.client, 'id', None) for f in foreign} }"
            )
        self.futures = list({future.key: future for future in found}.values())
        self.bad: set[Hashable] = set()
        connection = client._connection
        self.losses = 0 if connection is None else connection.losses()

    def now(self) -> Any:
        """Wait in this thread, and return the values."""
        client = self.client
        start = perf_counter_ns() if client._recorders else 0
        values: dict[Hashable, Any] = {}
        while True:
            client._block(self.ready())
            keys = without_inline(client, self.keys(values), values)
            if keys:
                found, failed = client._fetch_now(keys)
                values.update(found)
                self.lost(failed)
            elif not self.outdated(values):
                return self._ended(start, values)

    async def in_loop(self) -> Any:
        """Wait in an event loop, and return the values."""
        client = self.client
        start = perf_counter_ns() if client._recorders else 0
        values: dict[Hashable, Any] = {}
        while True:
            await self.wait()
            keys = without_inline(client, self.keys(values), values)
            if keys:
                found, failed = await client._fetch(keys)
                values.update(found)
                self.lost(failed)
            elif not self.outdated(values):
                return self._ended(start, values)

    def _ended(self, start: int, values: dict[Hashable, Any]) -> Any:
        if start:
            self.client._record("gather", start, len(self.futures))
        return self.result(values)

    @property
    def states(self) -> list[State]:
        return [future._state for future in self.futures]

    def ready(self) -> Callable[[], bool]:
        """Return what says whether nothing more is to be waited for."""
        states = self.states
        return all_finished(states) if self.errors == "raise" else all_done(states)

    async def wait(self) -> None:
        """Wait in an event loop as :meth:`ready` says."""
        states = self.states
        if self.errors != "raise":
            await until(states)
        elif all(state.status in ("pending", "lost", "finished") for state in states):
            await until(states, first=lambda state: state.status != "finished")

    def keys(self, values: Mapping[Hashable, Any]) -> list[Hashable]:
        """Return the keys whose values are still to be got; raise what one of the others raised.

        A key that is pending again is one of them: its value is waited for where it is fetched.
        """
        keys = []
        for future in self.futures:
            state = future._state
            if state.status in ("error", "cancelled"):
                self._failed(future.key, state)
            elif future.key not in values and future.key not in self.bad:
                keys.append(future.key)
        return keys

    def outdated(self, values: dict[Hashable, Any]) -> bool:
        """Drop values that are lost by now, and may be others when they are made anew.

        A shuffle whose inputs have other rows is made anew as a whole. Then values that were got before
        do not belong to those that were got after it.
        """
        connection = self.client._usable("gather")
        losses = connection.losses()
        if losses == self.losses:
            return False
        lost = connection.lost_since(values, self.losses)
        self.losses = losses
        for key in lost:
            del values[key]
        return bool(lost)

    def _failed(self, key: Hashable, state: State) -> None:
        if self.errors == "raise":
            state.throw()
        if self.errors != "skip":
            raise ValueError(f"Bad value, `errors={self.errors}`")
        self.bad.add(key)

    def lost(self, errors: dict[Hashable, BaseException]) -> None:
        """Take note of values that could not be got."""
        for key, error in errors.items():
            state = self.client.futures.get(key)
            if state is not None and state.status in ("error", "cancelled"):
                self._failed(key, state)
            elif self.errors == "raise":
                raise error
            else:
                self.bad.add(key)

    def result(self, values: dict[Hashable, Any]) -> Any:
        """Return the values in the shape of what was to be gathered."""
        shape = self.shape
        if self.bad:
            if isinstance(shape, list):
                shape = [item for item in shape if not self._is_bad(item)]
            values = {**values, **dict.fromkeys(self.bad)}
        if self.flat:
            return [values[future.key] for future in shape]
        return replace_futures(shape, values)

    def _is_bad(self, item: Any) -> bool:
        return isinstance(item, FutureOfDistributed) and item.key in self.bad
