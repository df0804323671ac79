"""Four kinds of servers: their links do 1, 1/2, 1/4 and 1/10 of a rate. How much of the sum a shuffle uses."""

from __future__ import annotations

import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

from figures import Figure

# What the fastest link does in a second, and parts of it; two servers have each.
RATE = 24_000_000
KINDS = (1, 2, 4, 10)
EACH = 2
BYTES = 300_000_000
MAPS, PARTITIONS, WORDS = 60, 96, 11
# Maps that are written at once; shuffles until the servers are known, and those that count.
THREADS, LEARN, ROUNDS = 8, 4, 3
MEMORY = 1 << 30


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def rates(rate: int, nbytes: int) -> list[float]:
    """Bytes a second, with both copies, of one shuffle after another."""
    from jobs import Rows
    from processes import begun
    from slow_link import SlowLink
    from treadle.shuffle import Service

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        start = partial(begun, stack)
        master = start("shuffle-master", "127.0.0.1:0", "--shuffle-journal", "none")
        for number, part in enumerate(KINDS * EACH):
            port = free_port()
            link = SlowLink(port, rate // part)
            stack.callback(link.end)
            name = f"server-{number}"
            start(
                *("shuffle-server", master, "--name", name, "--domain", name, "--http", "none"),
                *("--listen", f"127.0.0.1:{port}", "--contact-address", link.address),
                *("--memory-limit", str(MEMORY), "--local-directory", folder),
            )
        service = stack.enter_context(Service(master, insecure=True, timeout=280))
        pool = stack.enter_context(ThreadPoolExecutor(THREADS))
        rows = Rows(MAPS, PARTITIONS, nbytes, WORDS)
        found = []
        for _ in range(LEARN + ROUNDS):
            with service.shuffle(MAPS, PARTITIONS, rows.kind, copies=2) as shuffle:
                start_at = time.perf_counter()
                rows.write(shuffle, pool)
                found.append(rows.count * WORDS * 8 * 2 / (time.perf_counter() - start_at))
                rows.check(rows.read(shuffle, pool))
            # Servers say what they have taken.
            time.sleep(1.5)
    return found


def measure(quick: bool) -> Iterator[Figure]:
    """Yield the figure."""
    nbytes = BYTES // 3 if quick else BYTES
    found = rates(RATE, nbytes)
    bound = EACH * sum(RATE / part for part in KINDS)
    ratio = statistics.median(found[LEARN:]) / bound
    rounds = ", ".join(f"{one / bound:.0%}" for one in found)
    yield Figure(
        f"{EACH * len(KINDS)} servers with links of 1, 1/2, 1/4 and 1/10 of {RATE / 1e6:.0f} MB/s",
        f"{ratio * bound / 1e6:.1f} MB/s pushed",
        f"the sum of the links: {bound / 1e6:.1f} MB/s",
        f"{ratio:.0%}",
        "≥ 85 %",
        ratio >= 0.85,
        f"{nbytes / 1e6:.0f} MB in two copies, one shuffle after another: {rounds}; "
        f"the last {ROUNDS} count",
    )
