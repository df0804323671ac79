"""Four applications with priorities 1, 3, 1 and 3 that want more than the servers can do, and a modest one."""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

from figures import Figure, time_of

PRIORITIES = (1, 3, 1, 3)
# Each application has so many reads at once: more than servers begin at once (64) for all together.
READS = 96
PARTITIONS = 256
BYTES = 64_000_000
# So little that rows are read from files.
MEMORY = 160 << 20
# Bytes a second that both servers read from their disk together. Otherwise clients would be the slower ones.
RATE = 40_000_000
# Seconds: the modest application alone, all of them, and what is left out at both ends of that.
ALONE, TOGETHER, EDGE = 3.0, 12.0, 2.0
# How long latency may take to become normal, and what normal is, as a factor of the median before.
CALM, NORMAL = 10.0, 1.5
# The modest application: seconds between its reads.
PAUSE = 0.1


def measure(quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    from application import Application
    from jobs import service
    from slow_disk import slow_reads

    alone, together = (ALONE / 2, TOGETHER / 2) if quick else (ALONE, TOGETHER)
    with service(MEMORY) as (running, folder), ExitStack() as stack:

        def start(priority: int, *times: float) -> Application:
            application = Application(__file__, running.address, priority, *times)
            stack.callback(application.end)
            return application

        greedy = [start(priority, together) for priority in PRIORITIES]
        modest = start(1, alone, together, CALM)
        for application in (*greedy, modest):
            assert application.said() == "ready"
        pids = [server._process.pid for server in running._servers]
        is_slow = stack.enter_context(slow_reads(pids, folder, RATE))
        modest.begin()
        time.sleep(alone)
        for application in greedy:
            application.begin()
        got = [application.said() for application in greedy]
        latencies = modest.said()
    by_priority = {
        priority: sum(
            one["bytes"] for one, its in zip(got, PRIORITIES, strict=True) if its == priority
        )
        for priority in set(PRIORITIES)
    }
    ratio = by_priority[3] / max(by_priority[1], 1)
    rates = ", ".join(f"{one['bytes'] / (together - 2 * EDGE) / 1e6:.0f}" for one in got)
    yield Figure(
        "four applications with priorities 1, 3, 1, 3 read all they can from two servers",
        f"{rates} MB/s",
        f"told to pause {', '.join(str(one['slept']) for one in got)} times",
        f"3 : {3 / ratio:.2f}",
        "3 : 1 ± 20 %",
        2.4 <= ratio <= 3.6,
        f"their disk reads {RATE / 1e6:.0f} MB/s, by a cgroup"
        if is_slow
        else "no cgroup to slow down their disk: clients are slower than servers",
    )
    yield Figure(
        f"one beside them that reads a partition each {time_of(PAUSE)}",
        f"told to pause {latencies['slept']} times",
        f"{latencies['reads']} reads",
        bar="0 times",
        passed=latencies["slept"] == 0,
    )
    yield Figure(
        "its latency after the load",
        f"normal after {latencies['calm']:.1f} s",
        f"median {time_of(latencies['before'])} before, {time_of(latencies['during'])} during",
        bar=f"≤ {CALM:g} s",
        passed=latencies["calm"] <= CALM,
        limit=f"normal: five reads whose median is within {NORMAL} × that before",
    )


def main(address: str, priority: int, times: list[float]) -> None:
    """Write a shuffle, wait for a line, and read: all that can be, or, with three times, now and then."""
    import numpy as np

    from treadle.shuffle import Service

    rows = np.arange(BYTES // 8)
    with Service(address, priority=priority, timeout=120) as service:
        shuffle = service.shuffle(4, PARTITIONS, "i8")
        shuffle.commit(
            [shuffle.write(at, rows[at::4], rows[at::4] % PARTITIONS) for at in range(4)]
        )
        reader = shuffle.reader()
        print(json.dumps("ready"), flush=True)
        sys.stdin.readline()
        found = modest(reader, *times) if len(times) == 3 else greedy(reader, times[0])
        print(json.dumps({**found, "slept": service.stats()["slept"]}), flush=True)


def greedy(reader: Any, seconds: float) -> dict[str, Any]:
    """Read with many threads; the bytes of the middle of the time."""
    begin = time.monotonic()
    counts = [0] * READS

    def read(number: int) -> None:
        at = number
        while (now := time.monotonic() - begin) < seconds:
            nbytes = reader.read(at % PARTITIONS).nbytes
            if EDGE <= now < seconds - EDGE:
                counts[number] += nbytes
            at += 7

    threads = [threading.Thread(target=read, args=(number,)) for number in range(READS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"bytes": sum(counts)}


def modest(reader: Any, alone: float, together: float, calm: float) -> dict[str, Any]:
    """Read now and then, before, during and after the load; when latency is normal again."""
    begin = time.monotonic()
    took: list[tuple[float, float]] = []

    def read_until(end: float) -> list[float]:
        first = len(took)
        while time.monotonic() - begin < end:
            start = time.monotonic()
            reader.read(len(took) % PARTITIONS)
            took.append((start - begin, time.monotonic() - start))
            time.sleep(PAUSE)
        return [seconds for _, seconds in took[first:]]

    before = statistics.median(read_until(alone))
    during = statistics.median(read_until(alone + together))
    over = alone + together
    calmed = float("inf")
    while time.monotonic() - begin < over + 2 * calm:
        read_until(time.monotonic() - begin + 5 * PAUSE)
        last = took[-5:]
        if statistics.median(seconds for _, seconds in last) <= NORMAL * before:
            calmed = max(0.0, last[0][0] - over)
            break
    return {"before": before, "during": during, "calm": calmed, "reads": len(took)}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [float(text) for text in sys.argv[3:]])
