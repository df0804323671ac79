"""A slow disk, from which one application reads many small pieces, and another one long runs."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

from figures import Figure

# What the disk reads in a second: bytes and operations.
RATE, OPERATIONS = 20_000_000, 100
# So little that rows are read from files.
MEMORY = 160 << 20
BYTES = 256_000_000
# Partitions, and reads at once: small pieces and many, long runs and few.
SMALL, LONG = (16_000, 48), (64, 4)
# Seconds of each phase, and what is left out at its beginning.
PHASE, EDGE = 15.0, 3.0


def measure(quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    from application import Application
    from jobs import service
    from slow_disk import slow_reads

    phase = PHASE / 2 if quick else PHASE
    rates = {}
    with service(MEMORY, servers=1) as (running, folder), ExitStack() as stack:

        def start(shape: tuple[int, int], application: int) -> Application:
            started = Application(__file__, running.address, *shape, application)
            stack.callback(started.end)
            assert started.said() == "ready"
            return started

        def together(*applications: Application) -> float:
            for application in applications:
                application.begin(phase)
            first, *_ = [application.said() for application in applications]
            return float(first)

        long, small = start(LONG, 1), start(SMALL, 2)
        # The same, of the same application: nobody tells their reads apart.
        same = start(SMALL, 1)
        pids = [server._process.pid for server in running._servers]
        is_slow = stack.enter_context(slow_reads(pids, folder, RATE, OPERATIONS))
        rates["alone"] = together(long)
        rates["with another"] = together(long, small)
        rates["without isolation"] = together(long, same)
    share = rates["alone"] / 2
    kept, without = (rates[name] / share for name in ("with another", "without isolation"))
    yield Figure(
        "long runs from a disk from which another application reads small pieces",
        f"{rates['with another'] / 1e6:.1f} MB/s, {kept:.0%} of its share",
        f"in one application {rates['without isolation'] / 1e6:.1f} MB/s, {without:.0%}",
        f"{kept / max(without, 1e-9):.1f} ×",
        "≥ 80 % of its share",
        kept >= 0.8 if is_slow else None,
        f"the disk reads {RATE / 1e6:.0f} MB/s and {OPERATIONS} times a second, by a cgroup; alone "
        f"{rates['alone'] / 1e6:.1f} MB/s"
        if is_slow
        else "no cgroup to slow down the disk",
    )


def main(address: str, partitions: int, threads: int, application: int) -> None:
    """Write a shuffle; then read for so many seconds as each line says, and answer with the rate."""
    import numpy as np

    from treadle.shuffle import Service

    rows = np.arange(BYTES // 8)
    with Service(address, application=application, timeout=120) as service:
        shuffle = service.shuffle(4, partitions, "i8", copies=1)
        shuffle.commit(
            [shuffle.write(at, rows[at::4], rows[at::4] // 4 % partitions) for at in range(4)]
        )
        reader = shuffle.reader()
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            print(json.dumps(rate(reader, partitions, threads, float(line))), flush=True)


def rate(reader: Any, partitions: int, threads: int, seconds: float) -> float:
    """Read all that can be; the bytes a second, without the beginning."""
    begin = time.monotonic()
    counts = [0] * threads

    def read(number: int) -> None:
        at = number
        while (time.monotonic() - begin) < seconds:
            nbytes = reader.read(at * 7 % partitions).nbytes
            if EDGE <= time.monotonic() - begin < seconds:
                counts[number] += nbytes
            at += threads

    started = [threading.Thread(target=read, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return sum(counts) / (seconds - EDGE)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
