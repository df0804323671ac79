"""Whole shuffles of the service, timed. Every row is counted and summed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treadle.shuffle import Service

# Threads of the client: each has one call at a time.
THREADS = 4


class Took(NamedTuple):
    """Seconds of the two phases, what the servers have left in files, and what rows took after compression."""

    write: float
    read: float
    files: int
    file_bytes: int
    compressed: int

    @property
    def whole(self) -> float:
        return self.write + self.read


@contextmanager
def service(memory: int, servers: int = 2) -> Iterator[tuple[Service, Path]]:
    """A service of processes of this machine, each a failure domain, and the directory of its files."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Service(
            servers=servers, memory_limit=memory, local_directory=folder, timeout=600
        ) as service,
    ):
        yield service, Path(folder)


def shuffled(
    service: Service,
    folder: Path,
    maps: int,
    partitions: int,
    nbytes: int,
    copies: int = 2,
    words: int = 1,
    values: Any = None,
    compression: str = "none",
) -> Took:
    """Write ``nbytes`` of rows of so many eight-byte words, with as many for each partition, commit, and read all.

    ``values`` are the rows of the first map, if not consecutive numbers; the others have larger ones.
    """
    rows = nbytes // 8 // words // maps
    numbers = np.arange(rows, dtype=np.int64) % partitions
    if values is None:
        values = np.arange(rows * words, dtype=np.int64).reshape(rows, words)
    before = service.stats()["compressed"]
    kind = np.dtype((np.int64, (words,)))
    with (
        service.shuffle(maps, partitions, kind, copies=copies, compression=compression) as shuffle,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        start = time.perf_counter()
        receipts = list(pool.map(lambda at: shuffle.write(at, values + at, numbers), range(maps)))
        shuffle.commit(receipts)
        written = time.perf_counter()
        reader = shuffle.reader()

        def read(partition: int) -> tuple[int, int]:
            found = reader.read(partition)
            return len(found), int(found.sum())

        found = list(pool.map(read, range(partitions)))
        ended = time.perf_counter()
        paths = list(folder.rglob("*.shuffle"))
        sizes = sum(path.stat().st_size for path in paths)
    total = maps * rows
    assert sum(count for count, _ in found) == total, "rows are missing"
    expected = maps * int(values.sum()) + rows * words * (maps * (maps - 1) // 2)
    # Sums wrap around.
    assert (sum(value for _, value in found) - expected) % 2**64 == 0, "rows are others"
    compressed = service.stats()["compressed"] - before
    return Took(written - start, ended - written, len(paths), sizes, compressed)
