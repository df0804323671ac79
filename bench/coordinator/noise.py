"""Count how often the test of a change keeps one without an effect, and finds one with an effect.

``python bench/coordinator/noise.py [HISTORIES]``: simulated histories of recurring jobs, with noise of 5 % to 20 %.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator

from treadle.coordinator._statistics import FEWEST_BEFORE
from treadle.coordinator._tuning import Proposal, Tuning

MEAN = 600.0
PROPOSAL = Proposal("bench", "spark.sql.shuffle.partitions", 200.0, 400.0, "")


# What a job's durations do without any change: logarithms, of one run after the other.
Course = Callable[[random.Random, float], Iterator[float]]


def steady(rng: random.Random, noise: float) -> Iterator[float]:
    while True:
        yield rng.gauss(0, noise)


def daily_cycle(rng: random.Random, noise: float) -> Iterator[float]:
    """An hourly job, with half as much to do again at noon as at night."""
    hour = rng.randrange(24)
    while True:
        hour += 1
        yield 0.2 * math.sin(2 * math.pi * hour / 24) + rng.gauss(0, noise)


def correlated(rng: random.Random, noise: float) -> Iterator[float]:
    """Each run is like the one before it: autocorrelation 0.8."""
    value = rng.gauss(0, noise)
    while True:
        yield value
        value = 0.8 * value + rng.gauss(0, noise * math.sqrt(1 - 0.8**2))


def shrinking(rng: random.Random, noise: float) -> Iterator[float]:
    """Each run has 1.5 % less to do than the one before it."""
    level = 0.0
    while True:
        level -= 0.015
        yield level + rng.gauss(0, noise)


def shifting(rng: random.Random, noise: float) -> Iterator[float]:
    """Now and then, the level is another one from then on."""
    level = 0.0
    while True:
        if rng.random() < 0.05:
            level = rng.gauss(0, 0.25)
        yield level + rng.gauss(0, noise)


COURSES: dict[str, Course] = {
    "steady": steady, "daily cycle": daily_cycle, "correlated": correlated,
    "shrinking input": shrinking, "level shifts": shifting,
}  # fmt: skip


def decided(
    rng: random.Random, noise: float, ratio: float, before: int, course: Course = steady
) -> tuple[str, int]:
    """Have a change tried after so many runs; return what became of it, and after how many runs."""
    tuning = Tuning("apply")
    logs = course(rng, noise)
    for _ in range(before):
        tuning.ended(MEAN * math.exp(next(logs)), 0, 0.0)
    change = tuning.proposed([PROPOSAL], 0.0)
    assert change is not None
    runs = 0
    while change.state == "trying":
        _, number = tuning.settings(0.0)
        tuning.ended(MEAN * (ratio if number else 1.0) * math.exp(next(logs)), number, 0.0)
        runs += 1
    return change.state, runs


def line(
    name: str, count: int, wanted: str, ratio: Callable[[float], float], seed: int, course: Course = steady
) -> None:  # fmt: skip
    rng = random.Random(seed)
    for before in (FEWEST_BEFORE, 20):
        found = []
        for _ in range(count):
            noise = rng.uniform(0.05, 0.2)
            found.append(decided(rng, noise, ratio(noise), before, course))
        share = sum(verdict == wanted for verdict, _ in found) / count
        runs = sum(number for _, number in found) / count
        soon = sum(number <= 2 for _, number in found) / count
        print(
            f"{name:34}{before:8}{wanted:>12}{100 * share:8.1f} %{runs:8.1f}{100 * soon:10.1f} %",
            flush=True,
        )


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print(f"{'effect':34}{'before':>8}{'verdict':>12}{'share':>10}{'runs':>8}{'in 2 runs':>12}")
    for name, course in COURSES.items():
        line(f"none: {name}", count, "kept", lambda _: 1.0, 1, course)
        line(f"half: {name}", count, "kept", lambda _: 0.5, 5, course)
    for times in (1.0, 1.5, 2.0, 3.0):
        line(
            f"faster by {times:g} x the noise",
            count,
            "kept",
            lambda noise, t=times: math.exp(-t * noise),
            2,
        )
    for share in (0.1, 0.2, 0.3, 0.5):
        line(f"faster by {100 * share:.0f} %", count, "kept", lambda _, s=share: 1 - s, 3)
    for share in (0.1, 0.5, 1.0):
        line(f"slower by {100 * share:.0f} %", count, "rolled back", lambda _, s=share: 1 + s, 4)


if __name__ == "__main__":
    main()
