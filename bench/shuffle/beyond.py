"""Three times as many rows as the workers may have in memory."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import clusters
import work
from figures import Figure, time_of
from peaks import highest_resident, peak
from sides import THEIRS, by, computed
from table import frame, shuffled

LIMIT = 600_000_000  # bytes, of a worker
ROW = 8 * work.COLUMNS
PARTITION = 14_000_000  # bytes, in both cases
TIMES = 3
IN_MEMORY = 640_000_000
MB = 1e6


class Run(NamedTuple):
    """A shuffle of rows that are made as it goes."""

    seconds: float
    memory: float
    """The most memory of a worker, in bytes. A page of several processes counts in parts."""
    resident: int
    """The same, but it counts in each of them as a whole."""


def run(name: str, size: int, **options: Any) -> Run:
    parts = size // PARTITION
    rows = size // ROW // parts * parts
    with (
        tempfile.TemporaryDirectory() as folder,
        by("p2p"),
        clusters.CLIENTS[name](local_directory=folder, **options) as client,
    ):
        # The modules that the work needs are loaded.
        computed(client, shuffled(frame(2, 20)))
        pids = list(client.run(os.getpid).values())
        took = 0.0

        def once() -> None:
            nonlocal took
            start = time.perf_counter()
            found = computed(client, shuffled(frame(parts, rows))).sum()
            took = time.perf_counter() - start
            assert found == rows, f"{found:,} of {rows:,} rows came"

        memory = peak(pids, once, max)
        return Run(took, memory, max(map(highest_resident, pids)))


def theirs(size: int) -> str:
    try:
        took = run("distributed", size, memory_limit=LIMIT).seconds
    except Exception as error:  # informs only: the line says how it ended
        return f"{THEIRS}: {type(error).__name__}: {error}"[:200]
    return f"{THEIRS} {time_of(took)}"


def measure(quick: bool) -> Iterator[Figure]:
    size = TIMES * clusters.WORKERS * LIMIT
    warm = run("treadle", IN_MEMORY).seconds
    took, memory, resident = run("treadle", size, memory_limit=LIMIT)
    each, base = took / size, warm / IN_MEMORY
    what = f"`shuffle` of {size / 1e9:.1f} GB by two workers of {LIMIT / MB:.0f} MB"
    yield Figure(
        f"{what}: time a byte",
        f"{time_of(took)}, {each * 1e9:.2f} ns a byte",
        f"{IN_MEMORY / MB:.0f} MB in memory: {time_of(warm)}, {base * 1e9:.2f} ns a byte",
        f"{each / base:.2f} ×",
        "≤ 2.5 ×",
        each <= 2.5 * base,
        "" if quick else theirs(size),
    )
    yield Figure(
        "the same: the most resident memory of a worker",
        f"{memory / MB:.0f} MB",
        f"its limit: {LIMIT / MB:.0f} MB",
        f"{memory / LIMIT:.2f} ×",
        "< 1 ×",
        memory < LIMIT,
        f"{resident / MB:.0f} MB if shared pages count at each worker that maps them",
    )
