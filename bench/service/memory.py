"""Memory of a writer, which does not depend on the number of partitions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from figures import Figure
from jobs import service

FEW, MANY = 100, 100_000
ROWS_BYTES = 100_000_000


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
