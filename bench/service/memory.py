"""Memory of a writer, which does not depend on the number of partitions, and of servers that get too much."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from figures import Figure, time_of
from jobs import Took, service, shuffled
from peaks import peak, proportional

FEW, MANY = 100, 100_000
ROWS_BYTES = 100_000_000
LIMIT = 256 << 20
TIMES = 3


def highest(address: str, partitions: int, nbytes: int) -> int:
    """Bytes by which a process grows that writes a map with so many partitions."""
    command = [sys.executable, __file__, address, str(partitions), str(nbytes)]
    run = subprocess.run(
        command,
        check=True,
        timeout=300,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    grown: int = json.loads(run.stdout)
    return grown


def measure(quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    nbytes = ROWS_BYTES // 4 if quick else ROWS_BYTES
    with service(4 << 30) as (running, _):
        few, many = (highest(running.address, count, nbytes) for count in (FEW, MANY))
    yield Figure(
        f"a writer of {nbytes / 1e6:.0f} MB grows, {MANY:,} partitions",
        f"{many / 1e6:,.0f} MB",
        f"{FEW} partitions: {few / 1e6:,.0f} MB",
        f"{many / few:.2f} ×",
        "≤ 1.3 ×",
        many <= 1.3 * few,
        "one arena for all partitions; the rows themselves are not counted",
    )
    with service(LIMIT) as (running, folder):
        pids = [server._process.pid for server in running._servers]
        took: list[Took] = []
        size = TIMES * LIMIT // (4 if quick else 1)
        before = max(map(proportional, pids))

        def once() -> None:
            took.append(shuffled(running, folder, 100, 100, size))

        memory = peak(pids, once, max) - before
    yield Figure(
        f"{size / 1e6:,.0f} MB at each of two servers with {LIMIT / 1e6:,.0f} MB of memory for rows",
        f"a server grows {memory / 1e6:,.0f} MB",
        f"{time_of(took[0].whole)}, {took[0].files} files of {took[0].file_bytes / 1e6:,.0f} MB",
        f"{memory / LIMIT:.2f} ×",
        "≤ 1 ×",
        memory <= LIMIT,
    )


def main(address: str, partitions: int, nbytes: int) -> None:
    """Write one map, and print by how much the process has grown beyond its rows."""
    import numpy as np

    from treadle.shuffle import Service

    def resident(what: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        (line,) = [line for line in lines if line.startswith(what)]
        return int(line.split()[1]) * 1024

    rows = np.arange(nbytes // 8)
    numbers = rows % partitions
    with Service(address, timeout=300) as running:
        with running.shuffle(1, 100, "i8", copies=2) as warm:
            warm.write(0, rows[:1000], 0)
        with running.shuffle(1, partitions, "i8") as shuffle:
            before = resident("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")
            shuffle.write(0, rows, numbers)
            print(resident("VmHWM") - before)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
