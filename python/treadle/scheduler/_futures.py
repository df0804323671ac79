"""Keys that variables, queues and published data hold: the sidecar's own futures.

To the scheduler the sidecar is one more client. While anybody here holds a key, the sidecar wants it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Hashable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from treadle.common._ask import ask
from treadle.errors import _lost_keys
from treadle.errors import _pickled as errors
from treadle.scheduler._connection import Connection

__all__ = ["Tasks", "Watched", "failure_of"]

# Seconds that the scheduler has to say how a key stands.
_PATIENCE = 10.0


class Watched:
    """How one key stands, as the connection says; read as distributed's ``TaskState``.

    ``state`` is "waiting", "memory", "erred", or "lost" if the scheduler does not know the key.
    """

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.state = "waiting"
        self.type: Any = None
        self.exception: Any = None
        self.traceback: Any = None
        self.told = asyncio.Event()

    def __repr__(self) -> str:
        return f"<TaskState {self.key!r} {self.state}>"

    @property
    def exception_blame(self) -> Watched:
        """The task at fault, which here knows the exception itself."""
        return self

    def finish(self, type: Any = None) -> None:  # noqa: A002
        """The key has a value."""
        self.type = type
        self._is("memory")

    def native_failed(self, kind: str, key: Hashable, payload: Any) -> None:
        """The key has none, and will not get one."""
        if kind == "raised":
            # Neither is opened here: the user's classes need not be there.
            self.exception, self.traceback, _ = errors.split(payload)
        else:
            self.exception, self.traceback = failure_of(kind, key, payload), None
        self._is("erred")

    def native_cancelled(self, reason: str | None, message: str | None) -> None:
        """Somebody cancelled it."""
        del reason, message
        self._is("lost")

    def lose(self) -> None:
        """The scheduler does not know the key."""
        self._is("lost")

    def retry(self) -> None:
        """It is being made, again perhaps."""
        self._is("waiting")

    def _is(self, state: str) -> None:
        self.state = state
        self.told.set()


def failure_of(kind: str, key: Hashable, payload: Any) -> BaseException:
    """Return the exception of a task that did not raise."""
    return _lost_keys.exception(kind, key, payload)


class Tasks(Mapping[Hashable, Watched]):
    """The keys that are held here and that the scheduler knows. Used in the sidecar's loop."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._watched: dict[Hashable, Watched] = {}
        self._holders: defaultdict[Hashable, set[str]] = defaultdict(set)
        # The event loop alone would not keep them.
        self._learning: set[asyncio.Future[None]] = set()

    def __getitem__(self, key: Hashable) -> Watched:
        watched = self._watched[key]
        if not _is_known(watched):
            raise KeyError(key)
        return watched

    def __contains__(self, key: object) -> bool:
        watched = self._watched.get(key)
        if watched is not None and watched.state == "lost" and watched.told.is_set():
            # distributed's extensions look again and again until the key is there.
            again = asyncio.ensure_future(self._learn(self._watch(watched.key)))
            self._learning.add(again)
            again.add_done_callback(self._learning.discard)
            return False
        return watched is not None and _is_known(watched)

    def __iter__(self) -> Iterator[Hashable]:
        return iter([key for key, watched in self._watched.items() if _is_known(watched)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def hold(self, keys: Iterable[Hashable], holder: str) -> None:
        """Want keys on behalf of a holder."""
        for key in keys:
            if key not in self._watched:
                self._watch(key)
            self._holders[key].add(holder)

    def drop(self, keys: Iterable[Hashable], holder: str) -> None:
        """Want keys no more, unless another holder does."""
        gone = []
        for key in keys:
            holders = self._holders.get(key)
            if holders is None:
                continue
            holders.discard(holder)
            if not holders:
                del self._holders[key], self._watched[key]
                gone.append(key)
        if gone:
            self._connection.release(gone)
            self._connection.flush()

    def drop_holder(self, holder: str) -> None:
        """Drop all keys of a holder."""
        self.drop([key for key, holders in self._holders.items() if holder in holders], holder)

    def by_holder(self) -> dict[str, set[Hashable]]:
        """Return the keys of each holder."""
        keys: defaultdict[str, set[Hashable]] = defaultdict(set)
        for key, holders in list(self._holders.items()):
            for holder in list(holders):
                keys[holder].add(key)
        return dict(keys)

    @asynccontextmanager
    async def held(self, key: Hashable, holder: str) -> AsyncIterator[None]:
        """Hold a key for the time of a block, which begins when the scheduler has said what it is."""
        self.hold([key], holder)
        try:
            await self._learn(self._watched[key])
            yield
        finally:
            self.drop([key], holder)

    async def _learn(self, watched: Watched) -> None:
        """Wait until the scheduler has said how a key stands."""
        with suppress(asyncio.TimeoutError, OSError):
            await asyncio.wait_for(self._is_told(watched), _PATIENCE)
        watched.told.set()

    async def _is_told(self, watched: Watched) -> None:
        # The scheduler says nothing by itself of a task that has not ended.
        if not watched.told.is_set():
            about = {"keys": [watched.key], "names": True}
            if not await ask(self._connection, "", "tasks", about):
                # There is no task: that is what it says next.
                await watched.told.wait()

    def _watch(self, key: Hashable) -> Watched:
        if key in self._watched:
            self._connection.release([key])
        watched = self._watched[key] = Watched(key)
        self._connection.watch(key, watched)
        return watched


def _is_known(watched: Watched) -> bool:
    return watched.told.is_set() and watched.state != "lost"
