"""Memory of processes, from proc(5)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

EVERY = 0.02  # seconds


def proportional(pid: int) -> int:
    """The proportional set size of a process, in bytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Pss":
            return int(value.split()[0]) * 1024
    return 0


def peak(pids: list[int], run: Callable[[], None]) -> float:
    """The most bytes of these processes together during `run()`."""
    done = threading.Event()
    most = 0

    def sample() -> None:
        nonlocal most
        while not done.wait(EVERY):
            most = max(most, sum(map(proportional, pids)))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        run()
    finally:
        done.set()
        sampler.join()
    return most


def highest_resident(pid: int) -> int:
    """The most resident memory that a process has had, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    return 0
