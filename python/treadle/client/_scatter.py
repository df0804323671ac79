"""Values from the client to the workers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from treadle import _core
from treadle.client import _distributed, _options
from treadle.client._distributed import wait_for
from treadle.client._future import Future
from treadle.client._state import until
from treadle.client._submission import withdraw
from treadle.common._ask import ask
from treadle.common._numbers import integer
from treadle.pickling._tokens import tokenize

if TYPE_CHECKING:
    from treadle.client._client import Client

__all__ = ["Scattering"]

# As many copies as there are workers.
_ALL = 2**32 - 1


class Scattering:
    """One scatter: which values under which keys, and the shape of the result.

    Exactly lists, tuples (with names or not), sets and dicts are containers of values. Anything
    else is one value: a subclass of dict may mean more than its items.

    Futures of what hosts Treadle, of which ``of_host`` is true, stand for their values, under their
    own keys, which come from the host's workers.
    """

    def __init__(
        self, data: Any, hashed: bool, of_host: Callable[[Any], bool] | None = None
    ) -> None:
        self._of_host = of_host or _nothing
        if isinstance(data, (range, Iterator)):
            data = list(data)
        kind = type(data)
        named = isinstance(data, tuple) and hasattr(data, "_fields")
        self.shape: Any
        if kind is dict:
            self.values = dict(data)
            self.shape = lambda futures: futures
            return
        single = kind not in (list, tuple, set, frozenset) and not named
        values = [data] if single else list(data)
        keys = [value.key if self._of_host(value) else _key(value, hashed) for value in values]
        self.values = dict(zip(keys, values, strict=True))
        if single:
            self.shape = lambda futures: futures[keys[0]]
        elif named:
            self.shape = lambda futures: kind(*(futures[key] for key in keys))
        else:
            self.shape = lambda futures: kind(futures[key] for key in keys)

    async def run(self, client: Client, workers: Any, broadcast: bool | int, timeout: float) -> Any:
        """Send the values, wait until they are there, and return futures in the shape of the data.

        Raises
        ------
        TimeoutError
            There is no worker within so many seconds.
        """
        if not self.values:
            return self.shape({})
        connection = client._usable("scatter")
        names = [] if workers is None else _options.names(workers)
        await self._workers(connection, names, timeout)
        copies = _ALL if broadcast is True else max(1, integer("broadcast", broadcast, 0, _ALL))
        futures = await self._take_from_host(client)
        states = []
        again = list(futures.values())
        with client._refcount_lock:
            for key, value in self.values.items():
                if key in futures:
                    continue
                futures[key] = future = client._claim(key)
                state = future._bound()[1]
                state.type = type(value)
                if state.sent:
                    again.append(future)
                else:
                    states.append(state)
        if states:
            try:
                connection.put(
                    [state.key for state in states],
                    states,
                    [self.values[state.key] for state in states],
                    workers=names,
                    copies=copies,
                )
            except BaseException:
                withdraw(client, list(futures.values()))
                raise
            for state in states:
                state.sent = True
        await until(future._bound()[1] for future in futures.values())
        for future in futures.values():
            if future.status in ("error", "cancelled"):
                future._bound()[1].throw()
        if again and (broadcast or names):
            # They are somewhere, but not where they are wanted.
            n = None if broadcast is True else copies
            await client._replicate(again, n=n, workers=names or None)
        return self.shape(futures)

    async def _take_from_host(self, client: Client) -> dict[Any, Any]:
        """Return futures of the values that the host has.

        Raises
        ------
        TypeError
            There is a future of a cluster that this client is not attached to.
        """
        theirs = {key: value for key, value in self.values.items() if self._of_host(value)}
        for key, value in self.values.items():
            is_future = isinstance(value, _distributed.FutureOfDistributed)
            if is_future and not isinstance(value, Future) and key not in theirs:
                raise TypeError(
                    f"{value.key!r} is a future of {value.client!r}: only a client that treadle.attach"
                    " returned takes futures of Dask, and only of the cluster that it is attached to"
                )
        if not theirs:
            return {}
        found = await client.host().adopt(client, theirs.values())
        return {key: found[future.key] for key, future in theirs.items()}

    @staticmethod
    async def _workers(connection: _core.Connection, names: list[str], timeout: float) -> None:
        """Wait until there is a worker that may be used."""

        async def some() -> None:
            pause = 0.002
            while not await ask(connection, "", "running", {"workers": names or None}):
                await asyncio.sleep(pause)
                pause = min(2 * pause, 0.1)

        try:
            await wait_for(some(), timeout)
        except _distributed.TimeoutError:
            raise _distributed.TimeoutError("No valid workers found") from None


def _nothing(_value: Any) -> bool:
    return False


def _key(value: Any, hashed: bool) -> str:
    token = tokenize(value) if hashed else uuid.uuid4().hex
    return f"{type(value).__name__}-{token}"
