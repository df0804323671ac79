"""The same rows in few large pieces and in many small ones."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from figures import Figure, time_of
from jobs import service, shuffled

BYTES = 400_000_000
LARGE, SMALL = 100, 4_000
MEMORY = 4 << 30
COPIES = SERVERS = 2


def measure(quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    rounds = 1 if quick else 3
    nbytes = BYTES // 10 if quick else BYTES
    times = {LARGE: [], SMALL: []}
    with service(MEMORY) as (running, folder):
        shuffled(running, folder, 20, 20, nbytes // 10)
        for _ in range(rounds):
            for count in times:
                times[count].append(shuffled(running, folder, count, count, nbytes))
    medians = {
        count: statistics.median(took.whole for took in all_) for count, all_ in times.items()
    }
    ratio = statistics.median(
        small.whole / large.whole for small, large in zip(times[SMALL], times[LARGE], strict=True)
    )
    parts = {
        count: " + ".join(
            time_of(statistics.median(getattr(took, phase) for took in all_))
            for phase in ("write", "read")
        )
        for count, all_ in times.items()
    }
    per_piece = nbytes / SMALL / SMALL
    yield Figure(
        f"{nbytes / 1e6:.0f} MB as {SMALL:,} maps × {SMALL:,} partitions, two copies in memory",
        f"{time_of(medians[SMALL])} ({parts[SMALL]})",
        f"{LARGE} × {LARGE}: {time_of(medians[LARGE])} ({parts[LARGE]})",
        f"{ratio:.1f} ×",
        "≤ 3 ×",
        ratio <= 3,
        f"{per_piece:.0f} bytes a piece; the old way would be {SMALL * SMALL:,} reads",
    )
    with service(64 << 20) as (running, folder):
        took = shuffled(running, folder, SMALL, SMALL, nbytes)
    yield Figure(
        "the same with 64 MiB of memory at each server",
        f"{time_of(took.whole)} ({time_of(took.write)} + {time_of(took.read)})",
        f"{took.files:,} files of {took.file_bytes / 1e6:,.0f} MB, {SMALL:,} requests, at most "
        f"{took.files // COPIES * SMALL // SERVERS:,} ranges of files read",
        limit=f"the old way: {SMALL * SMALL:,} reads. A file has the partitions of one group, of which each server "
        "has one; one copy is read",
    )
