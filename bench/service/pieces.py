"""The same rows in few large pieces and in many small ones."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path

from figures import Figure, time_of
from jobs import service, shuffled
from program import compiled

BYTES = 400_000_000
LARGE, SMALL = 100, 4_000
# Maps that are written with a call, and partitions that are read with one.
TOGETHER = (16, 4)
MEMORY = 4 << 30
COPIES = SERVERS = 2


def floor(nbytes: int, count: int) -> list[float]:
    """Seconds that writing and reading take a program in C that does what cannot be left out."""
    program = compiled(Path(__file__).with_name("gathered.c"), "-O2", "-msse4.2", "-pthread")
    command = [program, str(nbytes), str(count), str(count)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return list(map(float, ran.stdout.split()))


def measure(quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    rounds = 1 if quick else 3
    nbytes = BYTES // 10 if quick else BYTES
    times = {LARGE: [], SMALL: []}
    apart = []
    floors = {LARGE: [], SMALL: []}
    with service(MEMORY) as (running, folder):
        shuffled(running, folder, 20, 20, nbytes // 10)
        for _ in range(rounds):
            for count in times:
                # Twice: the first run leaves memory in pieces of the sizes that the second one takes.
                together = TOGETHER if count == SMALL else (1, 1)
                for found in ([], times[count]):
                    found.append(shuffled(running, folder, count, count, nbytes, together=together))
                floors[count].append(floor(nbytes, count))
            apart.append(shuffled(running, folder, SMALL, SMALL, nbytes))
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
        f"{per_piece:.0f} bytes a piece; the old way would be {SMALL * SMALL:,} reads. {TOGETHER[0]} maps written, "
        f"and {TOGETHER[1]} partitions read, with a call",
    )
    whole, write, read = (
        statistics.median(getattr(took, phase) for took in apart)
        for phase in ("whole", "write", "read")
    )
    yield Figure(
        "the same, a call for each map and partition",
        f"{time_of(whole)} ({time_of(write)} + {time_of(read)})",
    )
    least = {count: statistics.median(map(sum, all_)) for count, all_ in floors.items()}
    write, read = map(statistics.median, zip(*floors[SMALL], strict=True))
    yield Figure(
        "the same by a C program: batches sorted by partition, sent twice, looked up, copied and digested",
        f"{time_of(least[SMALL])} ({time_of(write)} + {time_of(read)})",
        f"{LARGE} × {LARGE}: {time_of(least[LARGE])}",
        f"{least[SMALL] / least[LARGE]:.1f} ×",
        limit=f"ours is {whole / least[SMALL]:.1f} × that with a call for each, and "
        f"{medians[LARGE] / least[LARGE]:.1f} × for {LARGE} × {LARGE}",
    )
    beside = statistics.median(
        small.whole / sum(both) for small, both in zip(times[SMALL], floors[SMALL], strict=True)
    )
    yield Figure(
        f"ours beside the C program, {SMALL:,} × {SMALL:,}",
        time_of(medians[SMALL]),
        time_of(least[SMALL]),
        f"{beside:.1f} ×",
        "≤ 2 ×",
        beside <= 2,
    )
    with service(128 << 20) as (running, folder):
        took = shuffled(running, folder, SMALL, SMALL, nbytes)
    yield Figure(
        "the same with 128 MiB of memory at each server",
        f"{time_of(took.whole)} ({time_of(took.write)} + {time_of(took.read)})",
        f"{took.files:,} files of {took.file_bytes / 1e6:,.0f} MB, {SMALL:,} requests, at most "
        f"{took.files // COPIES * SMALL // SERVERS:,} ranges of files read",
        limit=f"the old way: {SMALL * SMALL:,} reads. A file has the partitions of one group, of which each server "
        "has one; one copy is read",
    )
