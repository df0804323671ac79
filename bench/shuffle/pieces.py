"""A million pieces of 400 bytes: what they cost the engine, and what they weigh."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

from distributed import wait

import clusters
import skeleton
from figures import Figure, time_of
from peaks import peak, proportional
from sides import by, computed
from table import frame, shuffled

SIZE = 400_000_000  # bytes
COLUMNS = 4  # and the index
SIDES = (500, 1000)
MB = 1e6


class Run:
    """One shuffle, and its seconds."""

    def __init__(self, client: Any, frame: Any) -> None:
        self.client, self.frame = client, frame
        self.seconds = 0.0

    def __call__(self) -> None:
        start = time.perf_counter()
        computed(self.client, shuffled(self.frame))
        self.seconds = time.perf_counter() - start


def on(side: int, rounds: int) -> tuple[float, float, float]:
    """Seconds, those without the exchange, and the most memory in bytes beyond the held rows."""
    with by("p2p"), clusters.apart() as (client, scheduler, workers):
        computed(client, shuffled(frame(8, 80, COLUMNS)))
        held = client.persist(frame(side, SIZE // (8 * (COLUMNS + 1)), COLUMNS))
        wait(held)
        settle = clusters.settled(client, clusters.held(client))
        pids = [scheduler, *workers]
        run = Run(client, held)
        seconds, bare, most = [], [], []
        for _ in range(rounds):
            settle()
            bare.append(skeleton.seconds(client, shuffled(held)))
            settle()
            before = sum(map(proportional, pids))
            most.append(peak(pids, run) - before)
            seconds.append(run.seconds)
    return statistics.median(seconds), statistics.median(bare), max(most)


def measure(quick: bool) -> Iterator[Figure]:
    fewer, more = (on(side, 1 if quick else 3) for side in SIDES)
    whole, bare, most = more
    yield Figure(
        "`shuffle` of 1,000 × 1,000 pieces of 400 bytes: the engine's part",
        time_of(whole - bare),
        f"all {time_of(whole)}, the graph without exchange {time_of(bare)}",
        bar="≤ 5 s",
        passed=whole - bare <= 5,
    )
    yield Figure(
        "the same: memory of workers and scheduler beyond the input",
        f"{most / MB:.0f} MB",
        f"the same rows in 500 × 500 pieces: {fewer[2] / MB:.0f} MB",
        f"{most / fewer[2]:.2f} ×",
        "≤ 1.1 × (not by pieces)",
        most <= 1.1 * fewer[2],
        f"rows: {SIZE / MB:.0f} MB",
    )
