"""The second run: the same analysis on worker processes, one of which is killed in the middle."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dask.base import persist
from distributed import futures_of

import treadle
from treadle.client._progress import Counts
from treadle.demo import analysis
from treadle.demo.data import Tables
from treadle.demo.errors import DemoError
from treadle.demo.run import Run, with_hours

WORKERS = 2
#: The share of a graph after which the worker is killed.
_MIDDLE = 0.4
#: Seconds between two looks at the futures.
_LOOK = 0.05


@dataclass(frozen=True)
class Progress:
    """How far a graph is: its tasks, and the futures that were asked for."""

    tasks: int
    all_tasks: int
    futures: int
    all_futures: int


@dataclass(frozen=True)
class Loss:
    """What the death of a worker cost, as the trace has it."""

    worker: str
    process: int
    #: As the scheduler says.
    cause: str
    #: Microseconds from the trace's start.
    time: float
    #: Keys of tasks that ran there at that moment.
    interrupted: list[str]
    #: Keys of tasks that had finished, and were run once more as their values were gone.
    repeated: list[str]


@dataclass(frozen=True)
class ClusterOutcome(Run):
    """A run on worker processes."""

    loss: Loss
    #: By how many microseconds times of two processes in the trace may be wrong.
    clock_error: float


#: Takes the title of a phase and how far it is, again and again until it is done.
Show = Callable[[str, Iterator[Progress]], None]
#: Takes a line of text.
Say = Callable[[str], None]


def run(
    tables: Tables, *, partitions: int, trace_file: Path, show: Show, say: Say
) -> ClusterOutcome:
    """Compute every result on worker processes, kill one of them, write the trace.

    Raises DemoError if the worker could not be killed, or the trace does not have its end.
    """
    phases: dict[str, float] = {}

    @contextmanager
    def phase(title: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        phases[title] = time.perf_counter() - start

    with treadle.Client(workers=WORKERS, threads_per_worker=1) as client:
        victim = Victim(client, say)
        with treadle.trace(trace_file) as trace:
            with phase("Reading flights.csv"):
                (flights,) = persist(analysis.read_flights(tables.flights_csv, partitions))
                show("Reading flights.csv", progress(client, futures_of(flights)))
            with phase("Dataframes"):
                collections = analysis.dataframe_results(flights, tables)
                futures = client.compute(list(collections.values()))
                show("Dataframes", victim.killed_by(progress(client, futures)))
                frames = client.gather(futures)
            # Had the graph been done before anybody looked, the next one would need what is lost.
            victim.kill()
            with phase("Arrays"):
                future = client.compute(analysis.hour_correlation(flights))
                show("Arrays", progress(client, [future]))
                matrix = future.result()
    (about,) = trace.about.values()
    return ClusterOutcome(
        results=with_hours(dict(zip(collections, frames, strict=True)), matrix),
        phases=phases,
        tasks=trace.tasks,
        task_seconds=trace.task_seconds,
        events=trace.events,
        loss=loss_of(trace.events, victim.process),
        clock_error=about["clock error, microseconds"]["between any two processes, at most"],
    )


class Victim:
    """The worker that is to die."""

    def __init__(self, client: treadle.Client, say: Say) -> None:
        workers = client.scheduler_info(n_workers=-1)["workers"]
        worker = min(workers.values(), key=lambda worker: str(worker["name"]))
        self.name = str(worker["name"])
        self.process: int = worker["pid"]
        self._say = say
        self._is_alive = True

    def kill(self) -> None:
        """``kill -9``, once."""
        if self._is_alive:
            self._is_alive = False
            os.kill(self.process, signal.SIGKILL)
            self._say(f"kill -9 {self.process}: that was worker {self.name}")

    def killed_by(self, looks: Iterator[Progress]) -> Iterator[Progress]:
        """Kill it in the middle of a graph."""
        for look in looks:
            yield look
            if look.tasks >= _MIDDLE * look.all_tasks:
                self.kill()


def progress(client: treadle.Client, futures: list[Any]) -> Iterator[Progress]:
    """Look at futures, and at the tasks that they are computed from, until they are done."""
    states = [future._state for future in futures]
    counts = Counts(client, states)
    while True:
        look = counts.look()
        done, total = sum(row.done for row in look.rows), sum(row.total for row in look.rows)
        yield Progress(done, total, len(states) - look.waiting, len(states))
        if not look.waiting:
            return
        time.sleep(_LOOK)


def loss_of(events: list[dict[str, Any]], process: int) -> Loss:
    """Find out what the death of a process cost. Raises DemoError if the trace does not have it."""
    deaths = [e for e in events if e.get("cat") == "lost" and e["ph"] == "i"]
    if not deaths:
        raise DemoError("the worker was killed, and the trace says nothing of it")
    death = deaths[0]
    ran = [event for event in events if event.get("cat") == "task"]
    times = Counter(event["args"]["key"] for event in ran)
    there = {event["args"]["key"] for event in ran if event["pid"] == process}
    interrupted = [
        event["args"]["key"]
        for event in events
        if event.get("cat") == "lost" and event["ph"] == "X"
    ]
    return Loss(
        worker=death["args"]["worker"],
        process=process,
        cause=death["args"]["cause"],
        time=death["ts"],
        interrupted=interrupted,
        repeated=sorted(key for key, count in times.items() if count > 1 and key in there),
    )
