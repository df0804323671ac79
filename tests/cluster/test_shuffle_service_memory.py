"""A shuffle server stays below its limit, whatever comes in whatever order, and gives back what it does not use.

TREADLE_ROUNDS is how many random rounds there are, with limits up to 2 GiB; without it there are two with less. The
number of a round is its seed, and TREADLE_ROUND the first one. Eight busy loops run beside every second one. A round
says what limit and what peak it had (``pytest -s``).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from process_support import Process
from service_support import Servers
from waiting import until

ROUNDS = int(os.environ.get("TREADLE_ROUNDS", "2"))
FIRST = int(os.environ.get("TREADLE_ROUND", "0"))
# The largest limit, compared with the least.
TIMES = 8 if "TREADLE_ROUNDS" in os.environ else 1.5

MIB = 1 << 20
LIMIT = 400 * MIB
ROW = np.dtype((np.int64, (1,)))
BYTES = 300_000_000
WRITERS = 16
# Maps and partitions. Small batches are in the C allocator's memory, and large ones are mapped.
SHAPES = [(2700, 900), (64, 50), (600, 300), (200, 4)]
BUSY = "import time; end = time.monotonic() + 300\nwhile time.monotonic() < end: pass"


def memory(pid: int, what: str) -> int:
    """Bytes: VmRSS is what a process takes, and VmHWM the most that it has taken."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(what)]
    return int(line.split()[1]) << 10


def below(server: Process, limit: int) -> None:
    peak = memory(server.pid, "VmHWM")
    assert peak < limit, f"{peak >> 20} MiB, and the limit is {limit >> 20}"


class Writing:
    """A shuffle of so many bytes in pieces of one size, whose writers are ready and wait for a word."""

    def __init__(
        self, servers: Servers, pool: ThreadPoolExecutor, shape: tuple[int, int], nbytes: int
    ) -> None:
        self.maps, self.partitions = shape
        self.count = nbytes // 8 // self.maps
        self.values = np.arange(self.count).reshape(self.count, 1)
        self.numbers = np.arange(self.count) % self.partitions
        self.shuffle = servers.service.shuffle(self.maps, self.partitions, ROW, copies=1)
        self.begin = Event()
        self.receipts = [pool.submit(self._write, at) for at in range(self.maps)]

    def _write(self, at: int) -> object:
        rows = self.values + at
        self.begin.wait()
        return self.shuffle.write(at, rows, self.numbers)

    def commit(self) -> None:
        self.begin.set()
        self.shuffle.commit([receipt.result() for receipt in self.receipts])

    def read(self, partitions: list[int]) -> None:
        """Read partitions, four at once, and compare every row."""
        reader = self.shuffle.reader()

        def compare(partition: int) -> None:
            expected = np.arange(partition, self.count, self.partitions)
            expected = np.add.outer(np.arange(self.maps), expected).ravel()
            assert np.array_equal(reader.read(partition).ravel(), expected), partition

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(compare, partitions))


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Have so many processes take all the time that they get."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def test_small_and_large_pieces_by_turns_stay_below_the_limit(
    new_servers: Callable[..., Servers],
) -> None:
    servers = new_servers("")
    server = servers.begin("a", "--memory-limit", str(LIMIT))
    servers.ready()
    with ThreadPoolExecutor(1) as pool:
        for shape in [(3000, 1000), (60, 50), (3000, 1000)]:
            writing = Writing(servers, pool, shape, BYTES)
            with writing.shuffle:
                writing.commit()
                writing.read([*range(writing.partitions)])
            below(server, LIMIT)
    until(
        lambda: memory(server.pid, "VmRSS") < 120 * MIB,
        lambda: f"the server still takes {memory(server.pid, 'VmRSS') >> 20} MiB",
    )


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + ROUNDS))
def test_what_has_just_freed_much_and_is_offered_much_stays_below_the_limit(
    new_servers: Callable[..., Servers], seed: int
) -> None:
    chosen = random.Random(seed)
    limit = int(MIB * 256 * TIMES ** chosen.random())
    shapes = chosen.sample(SHAPES, 3)
    servers = new_servers("")
    servers.service.timeout = 300
    server = servers.begin("a", "--memory-limit", str(limit))
    servers.ready()
    with busy(8 * (seed % 2)), ThreadPoolExecutor(WRITERS) as pool:
        before = None
        for shape in shapes:
            writing = Writing(servers, pool, shape, int(limit * chosen.uniform(0.6, 1.4)))
            if before is not None:
                # What it held goes while the others are ready.
                before.close()
            writing.commit()
            before = writing.shuffle
            below(server, limit)
            some = chosen.sample(range(writing.partitions), min(8, writing.partitions))
            writing.read(some)
            below(server, limit)
    print(f"round {seed}: {memory(server.pid, 'VmHWM') >> 20} of {limit >> 20} MiB")


def test_a_limit_that_cannot_be_kept_is_refused_with_the_least_that_can(
    new_servers: Callable[..., Servers],
) -> None:
    servers = new_servers("")
    server = servers.begin("a", "--memory-limit", "64MiB")
    refused = server.told("Error: a server cannot keep a memory limit of 64 MiB: ")
    assert server.process.wait() == 1
    servers.processes.pop("a")
    least = int(refused.rpartition("Give ")[2].split()[0])
    # Processes that begin differ by a few pages.
    limit = (least + 1) * MIB
    server = servers.begin("b", "--memory-limit", str(limit))
    servers.ready()
    with ThreadPoolExecutor(WRITERS) as pool:
        for shape in [(600, 300), (64, 50)]:
            writing = Writing(servers, pool, shape, BYTES)
            with writing.shuffle:
                writing.commit()
                writing.read([*range(0, writing.partitions, 10)])
            below(server, limit)
