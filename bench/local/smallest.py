"""The smallest ``get``: one task, one key, with the machine's own handoff between two threads beside it."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import dask.threaded
from dask._task_spec import Task

import treadle
from figures import Figure
from graphs import inc
from timing import us


class PingPong:
    """One Python thread that answers: what a handoff there and back costs with Python's own locks."""

    def __init__(self) -> None:
        self.asked, self.answered = threading.Lock(), threading.Lock()
        self.asked.acquire()
        self.answered.acquire()
        self.open = True
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            self.asked.acquire()
            if not self.open:
                return
            self.answered.release()

    def __call__(self) -> None:
        self.asked.release()
        self.answered.acquire()

    def close(self) -> None:
        self.open = False
        self.asked.release()
        self.thread.join()


def sample(call: Callable[[], Any], samples: int, pause: float) -> list[float]:
    """Seconds of each of ``samples`` calls, with ``pause`` seconds of sleep before each."""
    seconds = []
    for _ in range(samples):
        if pause:
            time.sleep(pause)
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def measure(quick: bool) -> list[Figure]:
    dsk = {"x": Task("x", inc, 1)}
    handoff = PingPong()
    calls: dict[str, Callable[[], Any]] = {
        "threads": lambda: treadle.threaded.get(dsk, "x"),
        "sync": lambda: treadle.sync.get(dsk, "x"),
        "dask threads": lambda: dask.threaded.get(dsk, "x"),
        "handoff": handoff,
    }
    figures = []
    try:
        for label, pause, samples in (("hot", 0.0, 400), ("after a pause of 1 ms", 0.001, 50)):
            seconds: dict[str, list[float]] = {name: [] for name in calls}
            for _ in range(3 if quick else 12):
                for name, call in calls.items():
                    seconds[name] += sample(call, samples, pause)
            median = {name: statistics.median(s) for name, s in seconds.items()}
            worst = statistics.quantiles(seconds["threads"], n=10)[-1]
            figures.append(
                Figure(
                    f"smallest get, threads, {label}",
                    f"{us(median['threads'])} (nine of ten below {us(worst)}; sync {us(median['sync'])}; "
                    f"dask threads {us(median['dask threads'])}; two Python threads, there and back, {us(median['handoff'])})",
                    bar="≤ 20 µs",
                    passed=median["threads"] <= 20e-6,
                )
            )
    finally:
        handoff.close()
    return figures
