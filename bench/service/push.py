"""Bytes a second that one client pushes to two servers, beside a C program that does the same copies."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from figures import Figure
from jobs import service, shuffled
from program import compiled

BYTES = 1_000_000_000
MAPS = PARTITIONS = 100
MEMORY = {"in memory": 8 << 30, "in files": 160 << 20}
HERE = Path(__file__).parent


def floor(nbytes: int, files: bool) -> float:
    """Bytes a second of rows of the C program."""
    program = compiled(HERE / "copies.c", "-O2", "-msse4.2")
    with tempfile.TemporaryDirectory() as folder:
        names = [str(Path(folder, name)) for name in "ab"] if files else []
        command = [program, str(nbytes), *names]
        run = subprocess.run(command, check=True, timeout=300, capture_output=True, text=True)
    return nbytes / float(run.stdout)


def measure(quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    rounds = 1 if quick else 3
    nbytes = BYTES // 5 if quick else BYTES
    for place, memory in MEMORY.items():
        ours, theirs = [], []
        with service(memory) as (running, folder):
            shuffled(running, folder, 20, 20, nbytes // 20)
            for _ in range(rounds):
                theirs.append(floor(nbytes, place == "in files"))
                took = shuffled(running, folder, MAPS, PARTITIONS, nbytes)
                ours.append(nbytes / took.write)
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        bar = place == "in files"
        yield Figure(
            f"rows pushed by one client, two copies {place}, {nbytes / 1e6:,.0f} MB",
            f"{statistics.median(ours) / 1e6:,.0f} MB/s",
            f"C, the same copies, checksums and writes: {statistics.median(theirs) / 1e6:,.0f} MB/s",
            f"{ratio:.0%}",
            "≥ 70 %" if bar else "",
            ratio >= 0.7 if bar else None,
            "without fsync on both sides",
        )
