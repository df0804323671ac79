"""A server with 1 GB of rows leaves while a job runs: how fast the others have its rows, and whether maps run again."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parent.parent))
sys.path.append(str(Path(__file__).parent.parent / "transfer"))

from figures import Figure
from network import LOOPBACK
from streams import our_stream
from treadle.common._command_process import Child
from treadle.shuffle import Service

HELD = 1_000_000_000
# Copies of each row; servers before one leaves.
COPIES, SERVERS = 2, 3
MAPS = PARTITIONS = 60
MEMORY = 4 << 30
# What a transfer is measured with: arrays of 100 MB.
MB, BLOCKS = 100, 8
WAIT = 300


class Job:
    """Small shuffles in turn, whose rows are counted, until it is told to end."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._ran = self._pool.submit(self._run)

    def _run(self) -> int:
        rows, numbers = np.arange(20_000), np.arange(20_000) % 8
        done = 0
        while not self._is_over.is_set():
            with self._service.shuffle(4, 8, "i8") as shuffle:
                # It raises an error if a map must run again.
                shuffle.commit([shuffle.write(number, rows, numbers) for number in range(4)])
                reader = shuffle.reader()
                assert sum(len(reader.read(number)) for number in range(8)) == 4 * len(rows)
            done += 1
        return done

    def end(self) -> int:
        """Shuffles that it ran. Raises what went wrong."""
        self._is_over.set()
        return self._ran.result(WAIT)


def held(service: Service, name: str) -> int:
    return int(next(s["held_bytes"] for s in service.state()["servers"] if s["name"] == name))


def drained(nbytes: int) -> tuple[float, int, int]:
    """Bytes a second that left a server, what it had, and how many shuffles ran meanwhile."""
    with ExitStack() as stack:
        service = stack.enter_context(Service(servers=SERVERS, memory_limit=MEMORY, timeout=WAIT))
        rows = nbytes * SERVERS // COPIES // 8 // MAPS
        values, numbers = np.arange(rows), np.arange(rows) % PARTITIONS
        shuffle = stack.enter_context(service.shuffle(MAPS, PARTITIONS, "i8", copies=COPIES))

        def write(number: int) -> Any:
            return shuffle.write(number, values + number, numbers)

        with ThreadPoolExecutor(4) as pool:
            shuffle.commit(list(pool.map(write, range(MAPS))))
        # The others' room for what it has was used before.
        spare = Child(
            *("shuffle-server", service.address, "--name", "spare", "--domain", "spare"),
            *("--memory-limit", f"{MEMORY}B", "--http", "none", "--supervised"),
        )
        stack.enter_context(spare)
        job = Job(service)
        time.sleep(1)
        name = "server-0"
        had = held(service, name)
        start = time.perf_counter()
        command = ("shuffle-server", service.address, "--drain", "--name", name)
        subprocess.run([sys.executable, "-m", "treadle", *command], check=True, timeout=WAIT)
        took = time.perf_counter() - start
        ran = job.end()
        reader = shuffle.reader()
        total = sum(int(reader.read(partition).sum()) for partition in range(PARTITIONS))
        assert total == MAPS * int(values.sum()) + rows * (MAPS * (MAPS - 1) // 2), "other rows"
        assert shuffle.lost() == [], "maps have to run again"
    return had / took, had, ran


def measure(quick: bool) -> Iterator[Figure]:
    """Yield the figure."""
    nbytes = HELD // 10 if quick else HELD
    rates, ratios = [], []
    with our_stream(LOOPBACK, "new", MB, BLOCKS) as stream:
        for _ in range(1 if quick else 3):
            plane = stream.turn() * 1e6
            rate, had, ran = drained(nbytes)
            rates.append((rate, plane, had, ran))
            ratios.append(rate / plane)
    ratio = sorted(ratios)[len(ratios) // 2]
    rate, plane, had, ran = rates[ratios.index(ratio)]
    yield Figure(
        f"a server with {had / 1e6:,.0f} MB of rows leaves while a job runs {ran} shuffles",
        f"{rate / 1e6:,.0f} MB/s",
        f"arrays of {MB} MB between two processes: {plane / 1e6:,.0f} MB/s",
        f"{ratio:.0%}",
        "≥ 50 %",
        ratio >= 0.5,
        "no map ran again; the start of the command that asks it counts",
    )
