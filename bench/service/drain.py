"""A server with 1 GB of rows leaves while a job runs: how fast the others have its rows, and whether maps run again."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))
sys.path.append(str(Path(__file__).parent.parent / "transfer"))

from figures import Figure
from jobs import THREADS, Rows, service, small
from network import LOOPBACK
from streams import our_stream
from treadle.shuffle import Service

HELD = 1_000_000_000
# Copies of each row; servers before one leaves.
COPIES, SERVERS = 2, 4
MAPS = PARTITIONS = 60
MEMORY = 4 << 30
# Eight-byte words of a row; seconds between the beginnings of two shuffles of the job.
WORDS, PAUSE = 11, 0.1
# What a transfer is measured with: arrays of 100 MB.
MB, BLOCKS = 100, 8
WAIT = 300


class Job:
    """Ten small shuffles a second, whose rows are compared, until it is told to end."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._ran = self._pool.submit(self._run)

    def _run(self) -> int:
        done = 0
        while not self._is_over.wait(PAUSE):
            # It raises an error if a map must run again.
            small(self._service)
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
    kept = Rows(MAPS, PARTITIONS, nbytes * SERVERS // COPIES, WORDS)
    used = Rows(MAPS, PARTITIONS, nbytes * SERVERS * SERVERS // (SERVERS - 1) // COPIES, WORDS)
    with (
        service(MEMORY, SERVERS) as (running, _),
        ThreadPoolExecutor(THREADS) as pool,
    ):
        # The memory that the others need was used before, as in a service that runs.
        with running.shuffle(MAPS, PARTITIONS, used.kind, copies=COPIES) as shuffle:
            used.write(shuffle, pool)
        with running.shuffle(MAPS, PARTITIONS, kept.kind, copies=COPIES) as shuffle:
            kept.write(shuffle, pool)
            job = Job(running)
            name = "server-0"
            time.sleep(1.5)
            had = held(running, name)
            start = time.perf_counter()
            command = ("shuffle-server", running.address, "--drain", "--name", name)
            subprocess.run([sys.executable, "-m", "treadle", *command], check=True, timeout=WAIT)
            took = time.perf_counter() - start
            ran = job.end()
            kept.check(kept.read(shuffle, pool))
            assert shuffle.lost() == [], "maps have to run again"
    return had / took, had, ran


def measure(quick: bool) -> Iterator[Figure]:
    """Yield the figure."""
    nbytes = HELD // 10 if quick else HELD
    rates, ratios = [], []
    with our_stream(LOOPBACK, "new", MB, BLOCKS) as stream:
        stream.turn()
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
