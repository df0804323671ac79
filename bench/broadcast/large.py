"""One gigabyte to all engines of a host: the time of one copy, and the memory of one."""

from __future__ import annotations

import mmap
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import engines
from figures import Figure, time_of

ENGINES = 32
SIZE = 1_000_000_000
SLOWER = 1.5
# How much more than one copy there may be.
COPIES = 1.1
# Seconds after which a client gives memory back that it has no use for.
GONE = 2
# Elements from one page to the next.
PAGE = mmap.PAGESIZE // 8


def write_fresh(array: np.ndarray[Any, Any]) -> float:
    """Seconds of writing an array into new shared memory, page faults included."""
    descriptor = os.memfd_create("fresh")
    try:
        os.ftruncate(descriptor, array.nbytes)
        start = time.perf_counter()
        with mmap.mmap(descriptor, array.nbytes) as memory:
            copy = np.frombuffer(memory, array.dtype)
            np.copyto(copy, array)
            taken = time.perf_counter() - start
            del copy
        return taken
    finally:
        os.close(descriptor)


def push(view: Any, array: np.ndarray[Any, Any]) -> float:
    """Seconds until all engines have it. What they had before is gone, and its memory with it."""
    view.execute("chunk = None", block=True)
    time.sleep(GONE)
    start = time.perf_counter()
    view.push({"chunk": array}, block=True)
    return time.perf_counter() - start


def shared_memory() -> int:
    """Bytes of shared memory of the whole machine."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) << 10
    raise OSError("/proc/meminfo does not tell about shared memory")


def share(pid: int) -> int:
    """A process's share of memory that it shares: each page counts once among all who have it."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Shmem:"):
            return int(line.split()[1]) << 10
    raise OSError("the kernel does not tell about shares of memory")


def measure(quick: bool) -> Iterator[Figure]:
    array = np.random.default_rng(0).random(SIZE // 8)
    expected = float(array[::PAGE].sum())
    before = shared_memory()
    fresh, pushes = [], []
    # A payload that is larger than an engine's limit would be refused.
    with engines.treadle(ENGINES, memory_limit=0) as client:
        view = client[:]
        pids = [os.getpid(), *view.apply_sync(os.getpid)]
        for _ in range(2 if quick else 5):
            fresh.append(write_fresh(array))
            pushes.append(push(view, array))
        # All pages are read by all.
        view.execute(f"total = float(chunk[::{PAGE}].sum())", block=True)
        assert view["total"] == [expected] * ENGINES, "an engine has read something else"
        grown = shared_memory() - before
        shares = sum(share(pid) for pid in pids)
    ratio = statistics.median(ours / floor for ours, floor in zip(pushes, fresh, strict=True))
    floor = statistics.median(fresh)
    yield Figure(
        f"1 GB to {ENGINES} engines of this host",
        time_of(statistics.median(pushes)),
        f"writing it into fresh shared memory: {time_of(floor)}",
        f"{ratio:.2f} ×",
        f"≤ {SLOWER} ×",
        ratio <= SLOWER,
        f"{SIZE / floor / 1e9:.2f} GB/s is what fresh pages allow; all engines have read it",
    )
    copies = max(grown, shares) / SIZE
    yield Figure(
        "its memory, at client and engines together",
        f"{shares / 1e9:.2f} GB of their shared memory (Pss)",
        f"growth of the machine's: {grown / 1e9:.2f} GB",
        f"{copies:.2f} ×",
        "one copy",
        copies <= COPIES,
    )
