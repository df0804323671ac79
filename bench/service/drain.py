"""A server with 1 GB of rows leaves while a job runs: how fast the others have its rows, and whether maps run again."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parent.parent))
sys.path.append(str(Path(__file__).parent.parent / "transfer"))

from figures import Figure, time_of
from jobs import THREADS, Rows, service, small
from network import LOOPBACK
from streams import our_stream
from treadle.shuffle import Service

HELD = 1_000_000_000
# Copies of each row; servers before one leaves.
COPIES, SERVERS = 2, 4
MAPS = PARTITIONS = 60
MEMORY = 4 << 30
# Eight-byte words of a row; seconds between the beginnings of two shuffles of the job, and between two looks.
WORDS, PAUSE, LOOK = 11, 0.1, 0.005
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


class Drained(NamedTuple):
    """Bytes that a server had, seconds until others had them and of the whole command, shuffles that ran meanwhile."""

    had: int
    moved: float
    whole: float
    ran: int


def about(service: Service, name: str) -> dict[str, Any]:
    """What the master says of a server; nothing: it has left."""
    return next((s for s in service.state()["servers"] if s["name"] == name), {})


def drained(nbytes: int) -> Drained:
    """Have a server leave that has so many bytes of rows."""
    kept = Rows(MAPS, PARTITIONS, nbytes * SERVERS // COPIES, WORDS)
    with (
        service(MEMORY, SERVERS) as (running, _),
        ThreadPoolExecutor(THREADS) as pool,
        running.shuffle(MAPS, PARTITIONS, kept.kind, copies=COPIES) as shuffle,
    ):
        kept.write(shuffle, pool)
        # The memory that the others need was used before, as in a service that runs: another shuffle has just ended.
        with running.shuffle(MAPS, PARTITIONS, kept.kind, copies=COPIES) as other:
            kept.write(other, pool)
        job = Job(running)
        name = "server-0"
        time.sleep(1.5)
        # Servers say what they hold from time to time.
        while (had := int(about(running, name)["held_bytes"])) > 3 * nbytes // 2:
            time.sleep(LOOK)
        start = time.perf_counter()
        command = ("shuffle-server", running.address, "--drain", "--name", name)
        asked = subprocess.Popen([sys.executable, "-m", "treadle", *command])
        began = start
        while not about(running, name)["leaving"]:
            time.sleep(LOOK)
            began = time.perf_counter()
        while about(running, name).get("partitions"):
            time.sleep(LOOK)
        moved = time.perf_counter() - began
        assert asked.wait(WAIT) == 0
        whole = time.perf_counter() - start
        ran = job.end()
        kept.check(kept.read(shuffle, pool))
        assert shuffle.lost() == [], "maps have to run again"
    return Drained(had, moved, whole, ran)


def measure(quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    nbytes = HELD // 10 if quick else HELD
    turns = []
    with our_stream(LOOPBACK, "new", MB, BLOCKS) as stream:
        stream.turn()
        for _ in range(1 if quick else 3):
            plane = stream.turn() * 1e6
            left = drained(nbytes)
            turns.append((left.had / left.moved / plane, plane, left))
    ratio, plane, left = sorted(turns)[len(turns) // 2]
    peer = f"arrays of {MB} MB between two processes: {plane / 1e6:,.0f} MB/s"
    yield Figure(
        f"a server with {left.had / 1e6:,.0f} MB of rows leaves while a job runs {left.ran} shuffles: from when it is to "
        "leave until others have them",
        f"{left.had / left.moved / 1e6:,.0f} MB/s",
        peer,
        f"{ratio:.0%}",
        "≥ 50 %",
        ratio >= 0.5,
        "no map ran again",
    )
    yield Figure(
        "the same with the command that asks it, from its start to its end",
        f"{left.had / left.whole / 1e6:,.0f} MB/s",
        peer,
        f"{left.had / left.whole / plane:.0%}",
        limit=f"{time_of(left.whole)}, of which {time_of(left.moved)} until others have the rows",
    )
