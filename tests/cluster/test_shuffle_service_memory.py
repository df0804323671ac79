"""A shuffle server stays below its limit, whatever the size of pieces, and gives back what it does not use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from service_support import Servers
from waiting import until

LIMIT = 400 << 20
ROW = np.dtype((np.int64, (1,)))
BYTES = 300_000_000


def memory(pid: int, what: str) -> int:
    """Bytes: VmRSS is what a process takes, and VmHWM the most that it has taken."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(what)]
    return int(line.split()[1]) << 10


def shuffle(servers: Servers, maps: int, partitions: int) -> None:
    """Shuffle so many bytes in pieces of one size, and compare every row."""
    count = BYTES // 8 // maps
    values, numbers = np.arange(count).reshape(count, 1), np.arange(count) % partitions
    with servers.service.shuffle(maps, partitions, ROW, copies=1) as shuffle:
        shuffle.commit([shuffle.write(at, values + at, numbers) for at in range(maps)])
        rows = 0
        for partition, found in enumerate(shuffle.reader()):
            expected = np.add.outer(np.arange(maps), np.arange(partition, count, partitions))
            assert np.array_equal(found.ravel(), expected.ravel()), f"partition {partition}"
            rows += len(found)
        assert rows == maps * count


def test_small_and_large_pieces_by_turns_stay_below_the_limit(
    new_servers: Callable[..., Servers],
) -> None:
    servers = new_servers("")
    server = servers.begin("a", "--memory-limit", str(LIMIT))
    servers.ready()
    # Small batches are in the C allocator's memory, and large ones are mapped.
    for maps, partitions in [(3000, 1000), (60, 50), (3000, 1000)]:
        shuffle(servers, maps, partitions)
        assert memory(server.pid, "VmHWM") < LIMIT
    until(
        lambda: memory(server.pid, "VmRSS") < 120 << 20,
        lambda: f"the server still takes {memory(server.pid, 'VmRSS') >> 20} MiB",
    )
