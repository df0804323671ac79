"""From what was recorded of a cluster to events of the Chrome trace format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from treadle import _core
from treadle.common._groups import group_of, prefix_of
from treadle.shuffle._places import labelled
from treadle.tracing._clocks import Clock, Sample
from treadle.tracing._cluster_trace import Recording

__all__ = ["Timeline", "clients", "timeline"]

# Stages of a task that are shorter than so many microseconds are not shown by themselves.
_STAGE = 10.0
# Rows of a process, beside those of its threads: numbers that no executor thread and no thread's
# identifier has.
_FETCHES, _SERVES, _CALLS, _ROWS = 10_000, 20_000, 30_000, 40_000
_SUBMISSIONS, _WORKERS = 1, 2

Event = dict[str, Any]


@dataclass
class Timeline:
    """The events of one cluster; times in microseconds."""

    events: list[Event] = field(default_factory=list)
    #: Runs of tasks, and the sum of their durations in seconds.
    tasks: int = 0
    task_seconds: float = 0.0
    #: For the file's metadata.
    about: dict[str, Any] = field(default_factory=dict)


def timeline(recordings: list[Recording], origin: int, taken: set[int]) -> Timeline:
    """Put together what several clients recorded of one cluster.

    Parameters
    ----------
    recordings
        All of one scheduler.
    origin
        Where the trace begins, on this process's clock, in nanoseconds.
    taken
        Numbers that other processes of the trace have; those of this cluster's are added.
    """
    return _Builder(recordings, origin, taken).build()


def clients(recordings: Iterable[Recording], origin: int) -> list[Event]:
    """Return what the clients of this process did, of all clusters: they share its rows."""
    drawing = _Drawing(origin)
    row = _Row(os.getpid(), Clock.same())
    calls = (call for recording in recordings for call in recording.calls)
    for name, thread, start, end, count in sorted(calls, key=lambda call: call[3]):
        track = row.track(_CALLS, f"client, {thread}", start, end)
        drawing._add(row, track, name, "client", start, end, count=count)
    drawing._describe(row, f"client (process {os.getpid()})", 0)
    return drawing.line.events


class _Row:
    """A process in the trace."""

    def __init__(self, process: int, clock: Callable[[float], float]) -> None:
        self.process = process
        self.clock = clock
        self.tracks: dict[int, str] = {}
        self._busy: dict[int, list[tuple[str, float]]] = {}

    def track(self, first: int, name: str, start: float, end: float) -> int:
        """Return a track with room: events that overlap need one each, of the same name."""
        tracks = self._busy.setdefault(first, [])
        free = (n for n, (whose, until) in enumerate(tracks) if whose == name and until <= start)
        place = next(free, len(tracks))
        tracks[place : place + 1] = [(name, end)]
        self.tracks[first + place] = name
        return first + place


class _Drawing:
    """Events in the rows of processes."""

    def __init__(self, origin: int) -> None:
        self.origin = origin
        self.line = Timeline()

    def _time(self, row: _Row, time: float) -> float:
        """Return microseconds from the trace's start."""
        return (row.clock(time) - self.origin) / 1e3

    def _add(
        self, row: _Row, track: int, name: str, kind: str, start: float, end: float, **args: Any
    ) -> None:
        begins = self._time(row, start)
        self.line.events.append(
            {
                "name": name,
                "cat": kind,
                "ph": "X",
                "ts": begins,
                "dur": max(self._time(row, end) - begins, 0.0),
                "pid": row.process,
                "tid": track,
                "args": args,
            }
        )

    def _counter(self, row: _Row, name: str, time: float, values: dict[str, Any]) -> None:
        self.line.events.append(
            {
                "name": name,
                "ph": "C",
                "ts": self._time(row, time),
                "pid": row.process,
                "args": values,
            }
        )

    def _describe(self, row: _Row, name: str, place: int) -> None:
        """Name a process and its tracks."""

        def meta(kind: str, track: int, **args: Any) -> Event:
            return {"name": kind, "ph": "M", "pid": row.process, "tid": track, "args": args}

        self.line.events.append(meta("process_name", 0, name=name))
        self.line.events.append(meta("process_sort_index", 0, sort_index=place))
        for track, label in sorted(row.tracks.items()):
            self.line.events.append(meta("thread_name", track, name=label))
            self.line.events.append(meta("thread_sort_index", track, sort_index=track))


class _Builder(_Drawing):
    def __init__(self, recordings: list[Recording], origin: int, taken: set[int]) -> None:
        super().__init__(origin)
        self.recording = recordings[0]
        self.taken = taken
        self.recordings = recordings
        self.name = lru_cache(maxsize=10_000)(prefix_of)
        self.group = lru_cache(maxsize=10_000)(group_of)
        self.workers: dict[int, dict[str, Any]] = {}
        parts: dict[int, tuple[int | None, bytes]] = {}
        samples: list[Sample] = []
        for recording in recordings:
            parts |= recording.parts
            self.workers |= recording.workers
            samples += recording.samples
        self.parts = [(parts[number][0], parts[number][1]) for number in sorted(parts)]
        # From the scheduler's clock to ours.
        self.ours = Clock.same() if self.recording.here else Clock(samples, turned=True)
        self.keys: dict[int, Any] = {}
        self.own: list[tuple[Any, ...]] = []
        self.of_workers: dict[int, list[tuple[Any, ...]]] = {}
        self.lost_at: dict[int, int] = {}
        self.shuffles: dict[int, str] = {}
        self.notes: list[str] = []

    def build(self) -> Timeline:
        self._decode()
        end = self.origin
        errors = {}
        for worker in sorted(self.workers):
            row, clock_error = self._worker(worker)
            errors[self._label(worker)] = clock_error
            end = max(end, row)
        self._scheduler()
        self.line.about = self._about(errors)
        return self.line

    def _decode(self) -> None:
        for worker, content in self.parts:
            try:
                part = _core.decode_value(content)
            except Exception as error:  # a key whose class cannot be imported here
                self.notes.append(f"some events cannot be read here: {error!r}")
                continue
            if worker is None:
                self.own += part
            else:
                self.of_workers.setdefault(worker, []).append(part)
        for event in self.own:
            if event[0] == "lost":
                self.lost_at[event[2]] = event[1]
            elif event[0] == "shuffle":
                self.shuffles[event[2]] = event[3]
        for parts in self.of_workers.values():
            for _, running, _, events in parts:
                self.keys |= {event[2]: event[3] for event in events if event[0] == "task"}
                self.keys |= {object_: key for _, object_, key, _ in running}

    # The cluster's processes

    def _label(self, worker: int) -> str:
        known = self.workers.get(worker)
        return str(known["about"]["name"]) if known else f"#{worker}"

    def _number(self, pid: int | None) -> int:
        """Return a number for a process: its own, unless another one of the trace has that."""
        number = pid or 1
        while number in self.taken:
            number += 1
        self.taken.add(number)
        return number

    # Workers

    def _worker(self, worker: int) -> tuple[int, float]:
        about = self.workers[worker]["about"]
        parts = self.of_workers.get(worker, [])
        samples = [Sample(*sample) for part in parts for sample in part[0]]
        theirs = Clock(samples)
        row = _Row(self._number(about["pid"]), lambda time: self.ours(theirs(time)))
        ran = set()
        latest = 0
        for _, _, health, events in parts:
            if health is not None:
                time, managed, _process, spilled = health
                latest = max(latest, time)
                self._counter(row, "bytes of values", time, {"memory": managed, "disk": spilled})
            for event in events:
                if event[0] == "task":
                    ran.add(event[2])
                if self._is_over(row, event):
                    continue
                if event[0] == "task":
                    self._task(row, worker, event)
                elif event[0] == "fetch":
                    self._fetch(row, event)
                elif event[0] == "rows":
                    self._rows(row, event)
                else:
                    self._serve(row, event)
        self._unfinished(row, worker, parts, ran, latest)
        name = f"worker {about['name']} ({about['host']}, process {about['pid']})"
        self._describe(row, name, 10 + worker)
        return latest, theirs.error

    def _is_over(self, row: _Row, event: tuple[Any, ...]) -> bool:
        """Whether it ended before this trace began: another one was going on."""
        place = {"task": 8, "fetch": 4, "serve": 3, "rows": 3}[event[0]]
        return self._time(row, event[place]) < 0

    def _task(self, row: _Row, worker: int, event: tuple[Any, ...]) -> None:
        _, lane, object_, key, function, began, read, computed, ended, nbytes, good, reads = event
        track = lane + 1
        row.tracks[track] = f"executor {track}"
        self.line.tasks += 1
        self.line.task_seconds += (ended - began) / 1e9
        self._add(
            row,
            track,
            self.name(key),
            "task",
            began,
            ended,
            key=str(key),
            function=function,
            group=self.group(key),
            worker=self._label(worker),
            attempt=object_ & 0xFFFFFFFF,
            bytes=nbytes,
            # What ran before the trace has no key here.
            reads=[str(self.keys[input_]) for input_ in reads if input_ in self.keys],
            state="finished" if good else "raised",
        )
        if max(read - began, ended - computed) / 1e3 >= _STAGE:
            stages = (
                ("inputs", began, read),
                ("compute", read, computed),
                ("keep", computed, ended),
            )
            for name, start, end in stages:
                self._add(row, track, name, "stage", start, end)

    def _fetch(self, row: _Row, event: tuple[Any, ...]) -> None:
        _, object_, source, began, ended, nbytes = event
        label = self._label(source)
        track = row.track(_FETCHES, f"from worker {label}", began, ended)
        if nbytes is None:
            args: dict[str, Any] = {"state": "failed"}
        else:
            args = {"bytes": nbytes, "MB/s": round(nbytes * 1e3 / max(ended - began, 1), 1)}
        key = self._key(object_)
        self._add(row, track, "fetch", "transfer", began, ended, key=key, worker=label, **args)

    def _serve(self, row: _Row, event: tuple[Any, ...]) -> None:
        _, object_, began, ended, nbytes = event
        track = row.track(_SERVES, "serialising for others", began, ended)
        self._add(
            row, track, "serialise", "transfer", began, ended, key=self._key(object_), bytes=nbytes
        )

    def _rows(self, row: _Row, event: tuple[Any, ...]) -> None:
        _, what, began, ended, nbytes, shuffle = event
        track = row.track(_ROWS, "rows of shuffles", began, ended)
        args = {
            "shuffle": self._shuffle(shuffle),
            "bytes": nbytes,
            "MB/s": round(nbytes * 1e3 / max(ended - began, 1), 1),
        }
        self._add(row, track, what, "shuffle", began, ended, **args)

    def _shuffle(self, shuffle: int | str) -> str:
        """Return the name of a shuffle: of its number, or of what servers call it."""
        if isinstance(shuffle, str):
            known = labelled(shuffle)
            return known[0] if known else shuffle
        return self.shuffles.get(shuffle, f"number {shuffle}")

    def _key(self, object_: int) -> str:
        return str(self.keys.get(object_, f"object {object_:x}"))

    def _unfinished(
        self,
        row: _Row,
        worker: int,
        parts: list[tuple[Any, ...]],
        ran: set[int],
        latest: int,
    ) -> None:
        """Show what ran when a worker died, or when the trace ended."""
        running = parts[-1][1] if parts else []
        died = self.lost_at.get(worker)
        for lane, object_, key, began in running:
            if object_ in ran:
                continue
            row.tracks[lane + 1] = f"executor {lane + 1}"
            start = self._time(row, began)
            end = self._time(row, latest)
            if died is not None:
                end = (self.ours(died) - self.origin) / 1e3
            self.line.events.append(
                {
                    "name": self.name(key),
                    "cat": "lost" if died is not None else "unfinished",
                    "ph": "X",
                    "ts": start,
                    "dur": max(end - start, 0.0),
                    "pid": row.process,
                    "tid": lane + 1,
                    "args": {
                        "key": str(key),
                        "group": self.group(key),
                        "worker": self._label(worker),
                        "attempt": object_ & 0xFFFFFFFF,
                        "state": "lost with its worker" if died is not None else "running",
                    },
                }
            )

    # The scheduler

    def _scheduler(self) -> None:
        row = _Row(self._number(self.recording.pid), self.ours)
        before: tuple[float, int, int] | None = None
        for event in self.own:
            kind, time = event[0], event[1]
            if self._time(row, time) < 0:
                continue
            if kind == "submit":
                _, began, ended, client, tasks, last = event
                row.tracks[_SUBMISSIONS] = "submissions"
                self._add(
                    row,
                    _SUBMISSIONS,
                    "take in tasks",
                    "scheduler",
                    began,
                    ended,
                    client=client,
                    tasks=tasks,
                    last=last,
                )
            elif kind == "counts":
                _, _, states, assigned, commands, reports = event
                self._counter(row, "tasks by state", time, states)
                placed = {f"worker {self._label(w)}": count for w, count in assigned.items()}
                self._counter(row, "tasks at workers", time, placed)
                if before is not None and time > before[0]:
                    seconds = (time - before[0]) / 1e9
                    rates = {
                        "commands": round((commands - before[1]) / seconds),
                        "reports": round((reports - before[2]) / seconds),
                    }
                    self._counter(row, "messages a second", time, rates)
                before = (time, commands, reports)
            elif kind != "shuffle":
                self._instant(row, event)
        self._describe(row, f"scheduler ({self.recording.address})", 5)

    def _instant(self, row: _Row, event: tuple[Any, ...]) -> None:
        """A worker joined or was lost: a line through the whole trace."""
        kind, time, worker, *rest = event
        row.tracks[_WORKERS] = "workers"
        label = self._label(worker)
        args: dict[str, Any] = {"worker": label}
        name = f"worker {label} joined"
        if kind == "lost":
            cause, regular = rest
            args |= {"cause": cause, "regular": regular}
            name = f"worker {label} left" if regular else f"worker {label} lost: {cause}"
        self.line.events.append(
            {
                "name": name,
                "cat": kind,
                "ph": "i",
                "s": "g",
                "ts": self._time(row, time),
                "pid": row.process,
                "tid": _WORKERS,
                "args": args,
            }
        )

    # The recording

    def _about(self, errors: dict[str, float]) -> dict[str, Any]:
        """Return what is to be known of the recording itself."""

        def microseconds(error: float) -> float | None:
            return None if error == float("inf") else round(error / 1e3, 3)

        known = sorted(error for error in errors.values() if error != float("inf"))
        # Two workers that are wrong in opposite directions.
        bound = max([self.ours.error + sum(known[-1:]), sum(known[-2:])])
        lost = max((recording.lost for recording in self.recordings), default=0)
        dropped = {
            self._label(number): worker["dropped"] for number, worker in self.workers.items()
        }
        return {
            "scheduler": self.recording.address,
            "clock error, microseconds": {
                "between any two processes, at most": microseconds(bound),
                "client to scheduler": microseconds(self.ours.error),
                **{f"worker {name}": microseconds(error) for name, error in errors.items()},
            },
            "events dropped": {
                "scheduler and client": lost,
                **{f"worker {name}": count for name, count in dropped.items()},
            },
            "notes": [*_flat(recording.notes for recording in self.recordings), *self.notes],
        }


def _flat(lists: Iterable[list[str]]) -> Iterator[str]:
    for items in lists:
        yield from items
