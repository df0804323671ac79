"""Recording which task ran where and when."""

from __future__ import annotations

import json
import os
import threading
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

from dask.utils import key_split

from treadle import _core

__all__ = ["Trace", "trace"]


class Trace:
    """What :func:`trace` records. Times are read when the ``with`` block has ended.

    Attributes
    ----------
    events : list of dict
        Events of the Chrome trace format: one ``"X"`` event a task, with times in microseconds
        from the start of the recording, and the names of processes and threads.
    tasks : int
        How many tasks ran.
    task_seconds : float
        The sum of their durations.
    engine_seconds : float
        How long the engine itself was busy: loading graphs, ordering, dispatching tasks. Waiting
        is not counted.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.events: list[dict[str, Any]] = []
        self.tasks = 0
        self.task_seconds = 0.0
        self.engine_seconds = 0.0
        self._recorder = _core.Recorder()
        self._start = 0

    def __enter__(self) -> Trace:
        if self.path is not None:
            # A wrong path is an error now, not after hours of work.
            self.path.touch()
        self._start = self._recorder.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._recorder.stop()
        self._collect()
        if self.path is not None:
            with self.path.open("w", encoding="utf-8") as file:
                json.dump({"traceEvents": self.events, "displayTimeUnit": "ms"}, file)

    def _collect(self) -> None:
        name = lru_cache(maxsize=10_000)(key_split)
        lanes: dict[tuple[int, int], None] = {}
        events: list[dict[str, Any]] = []
        nanoseconds = 0
        for key, process, thread, start, end in self._recorder.events():
            lanes[process, thread] = None
            nanoseconds += end - start
            events.append(
                {
                    "name": name(key),
                    "cat": "task",
                    "ph": "X",
                    "ts": (start - self._start) / 1e3,
                    "dur": (end - start) / 1e3,
                    "pid": process,
                    "tid": thread,
                    "args": {"key": str(key)},
                }
            )
        self.tasks = len(events)
        self.task_seconds = nanoseconds / 1e9
        self.engine_seconds = self._recorder.engine_ns / 1e9
        self.events = [*_thread_names(lanes), *events]


def trace(path: str | os.PathLike[str] | None = None) -> Trace:
    """Record the tasks that run inside a ``with`` block.

    The file can be opened with https://ui.perfetto.dev or ``chrome://tracing``. Graphs that are
    started inside the block are recorded, from all threads; switched off, recording costs nothing.

    Parameters
    ----------
    path
        Where to write the trace when the block ends, also after an error; ``None`` keeps it in
        memory only.

    Examples
    --------
    >>> with treadle.trace("trace.json") as t:  # doctest: +SKIP
    ...     x.sum().compute()
    >>> t.tasks  # doctest: +SKIP
    668
    """
    return Trace(path)


def _thread_names(lanes: dict[tuple[int, int], None]) -> list[dict[str, Any]]:
    alive = {thread.ident: thread.name for thread in threading.enumerate()}
    here = os.getpid()
    return [
        {
            "name": "thread_name",
            "ph": "M",
            "pid": process,
            "tid": thread,
            "args": {"name": alive.get(thread, f"thread {thread}") if process == here else "worker"},
        }
        for process, thread in lanes
    ]
