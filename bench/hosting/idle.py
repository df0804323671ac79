"""What a cluster without work costs, before and after many tasks: its heartbeats do not grow with them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psutil

import clusters
from figures import Figure

BAR = 1.5


def measure(quick: bool) -> Iterator[Any]:
    tasks, seconds = (100_000, 10.0) if quick else (1_000_000, 60.0)
    with clusters.apart() as (client, *pids):
        scheduler, workers = pids
        processes = [psutil.Process(pid) for pid in (scheduler, *workers)]
        client.gather(client.map(abs, range(1000)))
        before = _idle(processes, seconds)
        for first in range(0, tasks, 50_000):
            futures = client.map(abs, range(first, first + 50_000), pure=False)
            client.gather(futures)
            del futures
        after = _idle(processes, seconds)
    yield Figure(
        f"processor time of an idle cluster after {tasks:,} tasks",
        f"{after / seconds:.2%} of a core",
        f"before them {before / seconds:.2%}",
        f"{after / before:.2f}",
        f"≤ {BAR:g}",
        after / before <= BAR,
    )


def _idle(processes: list[psutil.Process], seconds: float) -> float:
    """Return the processor time of so many seconds, once the end of the work is settled."""
    time.sleep(2)
    before = _spent(processes)
    time.sleep(seconds)
    return _spent(processes) - before


def _spent(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)
