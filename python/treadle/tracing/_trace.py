"""Recording which task ran where and when, and which object went where."""

from __future__ import annotations

import json
import os
import threading
import weakref
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from treadle import _core
from treadle.common._groups import prefix_of

__all__ = ["Trace", "trace"]


class Trace:
    """What :func:`trace` records.

    Attributes
    ----------
    planned : int
        How many tasks of graphs that run in this process were planned so far; may be read at any
        time, to show progress. Those of clusters are not counted.
    tasks : int
        How many tasks ran so far; likewise. Those of clusters are added when the block has ended.
    events : list of dict
        When the block has ended: events of the Chrome trace format, one ``"X"`` event a task, with
        times in microseconds from the start of the recording, one for each object that was sent or
        received by :mod:`treadle.transfer` with its stages, the names of threads and connections, and
        what clusters did (docs/tracing.md).
    about : dict
        When the block has ended: what is to be known of the recordings of clusters, by the address of
        their schedulers: by how much clocks may differ, events that were dropped, notes.
    notes : list of str
        Why a cluster is not in the trace, such as one whose client was just closing.
    task_seconds : float
        When the block has ended: the sum of the tasks' durations.
    engine_seconds : float
        How long the engine itself was busy so far: loading graphs, ordering, dispatching tasks.
        Waiting and the release of values are not counted; callbacks are.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        # The block may change the current directory.
        self.path = None if path is None else Path(path).absolute()
        self.events: list[dict[str, Any]] = []
        self.about: dict[str, Any] = {}
        self.notes: list[str] = []
        self.task_seconds = 0.0
        self._clusters: list[tuple[Cluster, Recording]] = []
        self._recordings: list[Any] = []
        self._on_clusters = 0
        self._attaching = threading.Lock()
        self._recorder = _core.Recorder()
        self._start = 0

    @property
    def planned(self) -> int:
        return self._recorder.planned

    @property
    def tasks(self) -> int:
        return self._recorder.tasks + self._on_clusters

    @property
    def engine_seconds(self) -> float:
        return self._recorder.engine_ns / 1e9

    def __enter__(self) -> Trace:
        if self.path is not None:
            # A wrong path is an error now, not after hours of work.
            self.path.touch()
        self._start = self._recorder.start()
        try:
            with _lock:
                _active.append(self)
                clusters = list(_clusters)
            for cluster in clusters:
                self._attach(cluster)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()
        self._collect()
        self._collect_clusters()
        if self.path is not None:
            trace = {
                "traceEvents": self.events,
                "displayTimeUnit": "ms",
                "otherData": {"clusters": self.about, "notes": self.notes},
            }
            with self.path.open("w", encoding="utf-8") as file:
                json.dump(trace, file, allow_nan=False)

    def _stop(self) -> None:
        """Record no more, here and on clusters."""
        self._recorder.stop()
        with _lock:
            if self in _active:
                _active.remove(self)
        # A client that leaves at this moment may be about to add what it recorded.
        with self._attaching:
            clusters = [cluster for cluster, _ in self._clusters]
        for cluster in clusters:
            self._detach(cluster)

    async def __aenter__(self) -> Trace:
        import asyncio  # not before somebody has a loop

        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        import asyncio

        await asyncio.to_thread(self.__exit__, exc_type, exc, traceback)

    def _attach(self, cluster: Cluster) -> None:
        with self._attaching:
            if any(known is cluster for known, _ in self._clusters):
                return
            try:
                recording = cluster.trace_cluster()
            except Exception as error:
                # Its client may be closing at this moment.
                self.notes.append(f"a cluster is not traced: {error}")
                return
            self._clusters.append((cluster, recording))

    def _detach(self, cluster: Cluster) -> None:
        with self._attaching:
            found = [recording for known, recording in self._clusters if known is cluster]
            self._clusters = [pair for pair in self._clusters if pair[0] is not cluster]
            self._recordings += [recording.end() for recording in found]

    def _collect_clusters(self) -> None:
        if not self._recordings:
            return
        from treadle.tracing._timeline import clients, timeline

        by_scheduler: dict[str, list[Any]] = {}
        for recording in self._recordings:
            by_scheduler.setdefault(recording.scheduler, []).append(recording)
        taken = {os.getpid(), *(event["pid"] for event in self.events)}
        for recordings in by_scheduler.values():
            line = timeline(recordings, self._start, taken)
            self.events += line.events
            self.task_seconds += line.task_seconds
            self._on_clusters += line.tasks
            self.about[line.about["scheduler"]] = line.about
        self.events += clients(self._recordings, self._start)

    def _collect(self) -> None:
        name = lru_cache(maxsize=10_000)(prefix_of)
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
        self.task_seconds = nanoseconds / 1e9
        transfers = _transfers(self._recorder.transfers(), self._start)
        self.events = [*_thread_names(lanes, self._recorder.thread_names), *events, *transfers]


def trace(path: str | os.PathLike[str] | None = None) -> Trace:
    """Record the tasks that run inside a ``with`` block.

    The file can be opened with https://ui.perfetto.dev or ``chrome://tracing``. Graphs that are
    started inside the block are recorded, from all threads; switched off, recording costs nothing.

    With a :class:`treadle.Client` the file is about its whole cluster: the client's calls, the
    scheduler, and each worker with a row for each of its executor threads. The end of the block waits
    a few seconds for workers to send what they did last. In a coroutine write ``async with``: a plain
    ``with`` works there, and keeps the event loop waiting. See docs/tracing.md.

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


class Recording(Protocol):
    """A recording of a cluster that is going on."""

    def end(self) -> Any:
        """Stop; return what was recorded, for ``treadle.tracing._timeline``."""


class Cluster(Protocol):
    """A client, as far as it matters here."""

    def trace_cluster(self) -> Recording:
        """Begin to record what the cluster does."""


_lock = threading.Lock()
_active: list[Trace] = []
# The clients of this process that are connected.
_clusters: weakref.WeakSet[Any] = weakref.WeakSet()


def attach(cluster: Cluster) -> None:
    """A client has connected: traces that are being recorded are about its cluster, too."""
    with _lock:
        _clusters.add(cluster)
        active = list(_active)
    for trace in active:
        trace._attach(cluster)


def detach(cluster: Cluster) -> None:
    """A client is about to disconnect."""
    with _lock:
        _clusters.discard(cluster)
        active = list(_active)
    for trace in active:
        trace._detach(cluster)


def _after_fork() -> None:
    """Leave the parent's recordings alone."""
    global _lock
    _lock = threading.Lock()
    _active.clear()
    _clusters.clear()


os.register_at_fork(after_in_child=_after_fork)


def _thread_names(
    lanes: dict[tuple[int, int], None], names: dict[int, str]
) -> list[dict[str, Any]]:
    here = os.getpid()
    return [
        {
            "name": "thread_name",
            "ph": "M",
            "pid": process,
            "tid": thread,
            "args": {"name": names[thread] if process == here else f"process {process}"},
        }
        for process, thread in lanes
    ]


# Tracks of connections have numbers that no thread has: threads are named by addresses.
_FIRST_TRACK = 1

Transfers = list[tuple[bool, str, int, int, int, int, list[tuple[str, int, int]]]]


def _transfers(transfers: Transfers, origin: int) -> list[dict[str, Any]]:
    """Return the events of transfers: a track for each connection and direction.

    Transfers that overlap get tracks of their own, as events of one track must be nested.
    """
    here = os.getpid()
    ends: dict[tuple[int, bool], list[int]] = {}
    tracks: dict[tuple[int, bool, int], int] = {}
    events: list[dict[str, Any]] = []

    def event(name: str, track: int, start: int, end: int, **args: Any) -> None:
        start = max(start, origin)
        events.append(
            {
                "name": name,
                "cat": "transfer",
                "ph": "X",
                "ts": (start - origin) / 1e3,
                "dur": max(end - start, 0) / 1e3,
                "pid": here,
                "tid": track,
                "args": args,
            }
        )

    for sent, peer, connection, size, start, end, stages in sorted(transfers, key=lambda t: t[4]):
        if end < origin:
            continue
        lanes = ends.setdefault((connection, sent), [])
        lane = next((n for n, busy in enumerate(lanes) if busy <= start), len(lanes))
        lanes[lane : lane + 1] = [end]
        track = tracks.get((connection, sent, lane))
        if track is None:
            track = tracks[connection, sent, lane] = _FIRST_TRACK + len(tracks)
            events.append(
                {
                    "name": "thread_name",
                    "ph": "M",
                    "pid": here,
                    "tid": track,
                    "args": {"name": f"{'to' if sent else 'from'} {peer} (#{connection})"},
                }
            )
        rate = size * 1e3 / max(end - start, 1)
        args = {"bytes": size, "MB/s": round(rate, 1), "peer": peer}
        event("send" if sent else "receive", track, start, end, **args)
        for name, began, ended in stages:
            event(name, track, began, ended)
    return events
