"""What an engine is to do: casts of clients, and what tasks on this worker ask of it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from treadle.worker._native import Native

__all__ = ["Cast", "Casts", "Result"]

# Of what is not to be run when it comes, so much is remembered.
_MOST = 10_000

#: The frames of what came of a cast, and when it began and ended (``time.time()``), if it did.
Result: TypeAlias = "tuple[list[Any], tuple[float, float] | None]"


#: What an engine is to do: a client's number, or the name of a task; a number, of the client, and
#: increasing, and negative for a task; and frames.
Cast: TypeAlias = "tuple[int | str, int, Sequence[Any]]"


class Casts:
    """What waits for the engine.

    Casts come from the broadcast plane, each client's in its order (``docs/internals/broadcast.md``); tasks of
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
        #: What tasks want that has not begun.
        self.of_tasks: deque[Cast] = deque()
        self._finished: dict[tuple[str, int], Callable[[Result], None]] = {}
        #: What is not to be run when it comes.
        self.doomed: dict[tuple[int | str, int], None] = {}
        self._local = 0
        self._begun = self._closed = False

    # in the engine's thread

    def next_of_task(self) -> Cast | None:
        """Return what a task wants next, if one does; the thread that waits is nudged for it."""
        with self._lock:
            return self.of_tasks.popleft() if self.of_tasks else None

    @property
    def over(self) -> bool:
        """Whether nothing more comes."""
        return self._closed or self._native.ended is not None

    def is_doomed(self, cast: Cast) -> bool:
        """Whether a cast is not to be run."""
        with self._lock:
            return self.doomed.pop(cast[:2], 0) is None

    def output(self, cast: Cast, frame: bytes) -> None:
        """Send what a cast has put out by now. In any thread."""
        client, number, _ = cast
        if isinstance(client, int):
            self._native.cast_output(client, number, frame)

    def finish(self, cast: Cast, result: Result) -> None:
        """Send the result: the last word about it."""
        if self.doomed:
            # Who wanted it not to run came too late, or was heard.
            self.is_doomed(cast)
        client, number, _ = cast
        if isinstance(client, int):
            frames, times = result
            self._native.finish_cast(client, number, frames, times)
            return
        with self._lock:
            finished = self._finished.pop((client, number), None)
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
            cast = (task, self._local, frames)
            doomed = (task, 0) in self.doomed
            if not doomed:
                self._finished[task, self._local] = finished
                self.of_tasks.append(cast)
        if doomed:
            finished(self._aborted())
            return
        self._native.nudge_engine()
        self.came()

    def drop_task(self, task: str) -> None:
        """Have a task's not run, if it has not begun."""
        self._doom([(task, 0)])
        self._abort(lambda cast: cast[0] == task)

    def doom(self, client: int, numbers: Sequence[int]) -> None:
        """Have casts of a client not run, if they have not begun."""
        self._doom([(client, number) for number in numbers])

    def _doom(self, names: Sequence[tuple[int | str, int]]) -> None:
        with self._lock:
            self.doomed.update(dict.fromkeys(names))
            while len(self.doomed) > _MOST:
                del self.doomed[next(iter(self.doomed))]

    def _abort(self, concerned: Callable[[Cast], bool]) -> None:
        with self._lock:
            gone = [cast for cast in self.of_tasks if concerned(cast)]
            for cast in gone:
                self.of_tasks.remove(cast)
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
        return len(self.of_tasks) + self._native.casts_waiting()
