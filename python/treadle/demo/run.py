"""The measured run: the analysis with Dask on Treadle, traced."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from dask import config
from dask.base import compute, get_scheduler

import treadle
from treadle.demo import analysis
from treadle.demo.data import Tables

#: Takes the title of a phase, and shows the progress of its tasks while the context is open.
Watch = Callable[[str, treadle.Trace], AbstractContextManager[object]]


@dataclass(frozen=True)
class Run:
    """What a run computed and what it took; times in seconds."""

    results: dict[str, pd.DataFrame]
    phases: dict[str, float]
    tasks: int
    task_seconds: float
    events: list[dict[str, Any]]

    @property
    def wall(self) -> float:
        return sum(self.phases.values())


@dataclass(frozen=True)
class Outcome(Run):
    """A run on threads."""

    engine_seconds: float

    @property
    def engine_us_per_task(self) -> float:
        return self.engine_seconds / self.tasks * 1e6

    @property
    def busy(self) -> float:
        """How long at least one task was running; the rest is mostly Dask building graphs."""
        busy, end = 0.0, 0.0
        for event in sorted(self.task_events, key=lambda event: float(event["ts"])):
            start, stop = event["ts"], event["ts"] + event["dur"]
            busy += max(0.0, stop - max(start, end))
            end = max(end, stop)
        return busy / 1e6

    @property
    def task_events(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["ph"] == "X"]


def run(
    tables: Tables, *, partitions: int, threads: int | None, trace_file: Path, watch: Watch
) -> Outcome:
    """Compute every result on Treadle, and write the trace to ``trace_file``.

    The dataframes and the array are computed one after the other, because Dask gives up optimising
    dataframes that share one ``compute`` with arrays.
    """
    phases: dict[str, float] = {}

    @contextmanager
    def phase(title: str) -> Iterator[None]:
        start = time.perf_counter()
        with watch(title, trace):
            yield
        phases[title] = time.perf_counter() - start

    # Shuffles as tasks: on a scheduler of one process Dask would otherwise shuffle through files.
    shuffle = config.set({"dataframe.shuffle.method": "tasks"})
    workers = {} if threads is None else {"num_workers": threads}
    get_scheduler()  # here Dask imports distributed, if installed: not part of what is timed
    with shuffle, treadle.installed(), treadle.trace(trace_file) as trace:
        with phase("Reading flights.csv"):
            flights = analysis.read_flights(tables.flights_csv, partitions).persist(**workers)
        with phase("Dataframes"):
            collections = analysis.dataframe_results(flights, tables)
            (results,) = compute(collections, **workers)
        with phase("Arrays"):
            matrix = analysis.hour_correlation(flights).compute(**workers)

    return Outcome(
        results=with_hours(results, matrix),
        phases=phases,
        tasks=trace.tasks,
        task_seconds=trace.task_seconds,
        engine_seconds=trace.engine_seconds,
        events=trace.events,
    )


def with_hours(results: dict[str, pd.DataFrame], matrix: Any) -> dict[str, pd.DataFrame]:
    """Return the results with the correlation of hours as one of them."""
    hours = pd.DataFrame(matrix, columns=pd.Index(analysis.HOURS))
    hours.insert(0, "hour", analysis.HOURS)
    return {**results, "hours": hours}
