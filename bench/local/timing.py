"""Interleaved timing: every figure is a ratio of two things measured side by side in the same run."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Run = Callable[[], Any]


@dataclass(frozen=True)
class Times:
    """Seconds of one execution of each run, one entry a round; entries of one index were taken side by side."""

    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, base: str) -> float:
        """Median over the rounds of ``name`` over ``base``: a slow spell of the machine hits both."""
        return statistics.median(
            a / b for a, b in zip(self.seconds[name], self.seconds[base], strict=True)
        )


def interleave(runs: Mapping[str, Run], rounds: int, least_seconds: float = 0.0) -> Times:
    """Time each run once a round, in turns, after one untimed execution of each.

    A run that is shorter than ``least_seconds`` is repeated within its turn until it fills that time.
    Python's collector stays on, as in a user's program; it is emptied before each turn.
    """
    repeats = {}
    for name, run in runs.items():
        took = 0.0
        for _ in range(2):  # the first execution also sets things up, so a short one is asked again
            if took <= least_seconds:
                start = time.perf_counter()
                run()
                took = time.perf_counter() - start
        repeats[name] = max(1, math.ceil(least_seconds / took))
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            gc.collect()
            turns = range(repeats[name])
            start = time.perf_counter()
            for _ in turns:
                run()
            seconds[name].append((time.perf_counter() - start) / len(turns))
    return Times(seconds)


def us(seconds: float) -> str:
    """Seconds as microseconds, three digits."""
    value = seconds * 1e6
    return f"{value:.3g} µs" if value < 1000 else f"{value:.0f} µs"


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
