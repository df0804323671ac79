"""What an engine is to do: casts of clients, and what tasks on this worker ask of it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from treadle.worker._native import Native

__all__ = ["Cast", "Casts", "Result"]

# Of what is not to be run when it comes, so much is remembered.
_MOST = 10_000
# Seconds after which the thread of the engine looks whether the worker has ended.
_LOOK = 5.0

#: The frames of what came of a cast, and when it began and ended (``time.time()``), if it did.
Result: TypeAlias = "tuple[list[Any], tuple[float, float] | None]"


class Cast(NamedTuple):
    """What an engine is to do."""

    #: A client's number, or the name of a task.
    client: int | str
    #: Of the client, and increasing; negative for a task.
    number: int
    frames: Sequence[Any]


class Casts:
    """What waits for the engine.

    Casts come from the broadcast plane, each client's in its order (``docs/broadcast.md``); tasks of
    load-balanced views go first.

    Parameters
    ----------
    begin
        Called with the first.
    aborted
        Returns the result of what is never run.
    """

    def __init__(
        self, native: Native, begin: Callable[[], None], aborted: Callable[[], Result]
    ) -> None:
        self._native = native
        self._begin = begin
        self._aborted = aborted
        self._lock = threading.Lock()
        # Of tasks: what waits, and who is told of the result.
        self._waiting: deque[Cast] = deque()
        self._finished: dict[tuple[str, int], Callable[[Result], None]] = {}
        # What is not to be run when it comes.
        self._doomed: dict[tuple[int | str, int], None] = {}
        self._taken = self._local = 0
        self._begun = self._closed = False

    # in the engine's thread

    def next(self) -> Cast | None:
        """Wait for the next one; ``None``: there will be none."""
        while not self._closed and self._native.ended is None:
            cast = None
            if self._waiting:
                with self._lock:
                    cast = self._waiting.popleft() if self._waiting else None
            if cast is None and (taken := self._native.next_cast(_LOOK)) is not None:
                cast = Cast(*taken)
            if cast is not None:
                self._taken += 1
                return cast
        return None

    def is_doomed(self, cast: Cast) -> bool:
        """Whether a cast is not to be run."""
        # Nearly always nothing is, and that costs nothing.
        if not self._doomed:
            return False
        with self._lock:
            return self._doomed.pop((cast.client, cast.number), 0) is None

    def output(self, cast: Cast, frame: bytes) -> None:
        """Send what a cast has put out by now. In any thread."""
        if isinstance(cast.client, int):
            self._native.cast_output(cast.client, cast.number, frame)

    def finish(self, cast: Cast, result: Result) -> None:
        """Send the result: the last word about it."""
        # Who wanted it not to run came too late, or was heard.
        self.is_doomed(cast)
        if isinstance(cast.client, int):
            self._native.finish_cast(cast.client, cast.number, *result)
            return
        with self._lock:
            finished = self._finished.pop((cast.client, cast.number), None)
        if finished is not None:
            finished(result)

    # in any thread

    def came(self) -> None:
        """Take note that a cast is there while nobody waits for one."""
        with self._lock:
            begun, self._begun = self._begun, True
            begun = begun or self._closed
        if not begun:
            self._begin()

    def put(self, task: str, frames: Sequence[Any], finished: Callable[[Result], None]) -> None:
        """Have the engine do something for a task.

        Raises
        ------
        OSError
            The engine is closed.
        """
        with self._lock:
            if self._closed:
                raise OSError("the engine is closed")
            self._local -= 1
            cast = Cast(task, self._local, frames)
            doomed = (task, 0) in self._doomed
            if not doomed:
                self._finished[task, cast.number] = finished
                self._waiting.append(cast)
        if doomed:
            finished(self._aborted())
            return
        self._native.nudge_engine()
        self.came()

    def drop_task(self, task: str) -> None:
        """Have a task's not run, if it has not begun."""
        self._doom([(task, 0)])
        self._abort(lambda cast: cast.client == task)

    def doom(self, client: int, numbers: Sequence[int]) -> None:
        """Have casts of a client not run, if they have not begun."""
        self._doom([(client, number) for number in numbers])

    def _doom(self, names: Sequence[tuple[int | str, int]]) -> None:
        with self._lock:
            self._doomed.update(dict.fromkeys(names))
            while len(self._doomed) > _MOST:
                del self._doomed[next(iter(self._doomed))]

    def _abort(self, concerned: Callable[[Cast], bool]) -> None:
        with self._lock:
            gone = [cast for cast in self._waiting if concerned(cast)]
            for cast in gone:
                self._waiting.remove(cast)
        for cast in gone:
            self.finish(cast, self._aborted())

    def close(self) -> None:
        """Have :meth:`next` say that there will be none."""
        with self._lock:
            self._closed = True
        self._native.nudge_engine()
        self._abort(lambda _: True)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting) + self._native.casts_waiting()

    @property
    def taken(self) -> int:
        """How many :meth:`next` has given out."""
        return self._taken
