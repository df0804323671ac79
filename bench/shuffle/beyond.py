"""Three times as many rows as the workers may have in memory."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import clusters
import work
from figures import Figure, time_of
from peaks import highest_resident
from sides import THEIRS, by, computed
from table import frame, shuffled

LIMIT = 600_000_000  # bytes, of a worker
ROW = 8 * work.COLUMNS
PARTITION = 14_000_000  # bytes, in both cases
TIMES = 3
IN_MEMORY = 640_000_000
MB = 1e6


def seconds(name: str, size: int, **options: Any) -> tuple[float, int]:
    """Seconds of a shuffle of rows that are made as it goes, and the most memory of a worker."""
    parts = size // PARTITION
    rows = size // ROW // parts * parts
    with (
        tempfile.TemporaryDirectory() as folder,
        by("p2p"),
        clusters.CLIENTS[name](local_directory=folder, **options) as client,
    ):
        # The modules that the work needs are loaded.
        computed(client, shuffled(frame(2, 20)))
        pids = client.run(os.getpid).values()
        start = time.perf_counter()
        found = computed(client, shuffled(frame(parts, rows))).sum()
        took = time.perf_counter() - start
        assert found == rows, f"{found:,} of {rows:,} rows came"
        return took, max(map(highest_resident, pids))


def theirs(size: int) -> str:
    try:
        took, _ = seconds("distributed", size, memory_limit=LIMIT)
    except Exception as error:  # informs only: the line says how it ended
        return f"{THEIRS}: {type(error).__name__}: {error}"[:200]
    return f"{THEIRS} {time_of(took)}"


def measure(quick: bool) -> Iterator[Figure]:
    size = TIMES * clusters.WORKERS * LIMIT
    warm, _ = seconds("treadle", IN_MEMORY)
    took, resident = seconds("treadle", size, memory_limit=LIMIT)
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
        f"{resident / MB:.0f} MB",
        f"its limit: {LIMIT / MB:.0f} MB",
        f"{resident / LIMIT:.2f} ×",
        "< 1 ×",
        resident < LIMIT,
    )
