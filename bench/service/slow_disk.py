"""A slow disk: reads of processes limited by a cgroup (``blkio`` or ``io``), with nothing of their files cached."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
# Seconds between two looks at files whose pages are to be dropped.
EVERY = 0.02


@contextmanager
def slow_reads(
    pids: list[int], directory: Path, rate: int, operations: int | None = None
) -> Iterator[bool]:
    """Limit what these processes read from files below a directory, together, to so many bytes and reads a second.

    Yields False where this user may not, or the kernel has no such cgroup: nothing is slow then.
    """
    device = os.stat(directory).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    is_v2 = (CGROUPS / "cgroup.controllers").exists()
    parent = CGROUPS if is_v2 else CGROUPS / "blkio"
    group = parent / f"treadle-bench-{os.getpid()}"
    over = threading.Event()
    forgetful = threading.Thread(target=_forget, args=(directory, over))
    try:
        group.mkdir()
        if is_v2:
            most = "max" if operations is None else operations
            (group / "io.max").write_text(f"{name} rbps={rate} riops={most}")
        else:
            (group / "blkio.throttle.read_bps_device").write_text(f"{name} {rate}")
            if operations is not None:
                (group / "blkio.throttle.read_iops_device").write_text(f"{name} {operations}")
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        with suppress(OSError):
            group.rmdir()
        yield False
        return
    forgetful.start()
    try:
        yield True
    finally:
        over.set()
        forgetful.join()
        for pid in pids:
            with suppress(OSError):
                (parent / "cgroup.procs").write_text(str(pid))
        with suppress(OSError):
            group.rmdir()


def _forget(directory: Path, over: threading.Event) -> None:
    synced: set[Path] = set()
    while not over.wait(EVERY):
        for path in directory.rglob("*.shuffle"):
            with suppress(OSError):
                file = os.open(path, os.O_RDONLY)
                try:
                    if path not in synced:
                        # Only pages that are written can be dropped.
                        os.fsync(file)
                        synced.add(path)
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(file)
