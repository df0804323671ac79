"""Memory of processes, from proc(5)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

EVERY = 0.02  # seconds


def _bytes(pid: int, file: str, field: str) -> int:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return 0


def proportional(pid: int) -> int:
    """The proportional set size of a process, in bytes."""
    return _bytes(pid, "smaps_rollup", "Pss")


def highest_resident(pid: int) -> int:
    """The most resident memory that a process has had, in bytes."""
    return _bytes(pid, "status", "VmHWM")


def peak(
    pids: list[int], run: Callable[[], None], of: Callable[[Iterable[int]], float] = sum
) -> float:
    """The most bytes of these processes during `run()`, together or (`of=max`) of one of them."""
    done = threading.Event()
    most = 0.0

    def sample() -> None:
        nonlocal most
        while not done.wait(EVERY):
            most = max(most, of(map(proportional, pids)))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        run()
    finally:
        done.set()
        sampler.join()
    return most
