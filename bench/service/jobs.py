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

from treadle.shuffle import Receipt, Service, Shuffle

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


class Rows:
    """``nbytes`` of rows of so many eight-byte words in so many maps, with as many for each partition.

    ``values`` are the rows of the first map, if not consecutive numbers; the others have larger ones.
    """

    def __init__(
        self, maps: int, partitions: int, nbytes: int, words: int = 1, values: Any = None
    ) -> None:
        rows = nbytes // 8 // words // maps
        self.maps, self.partitions = maps, partitions
        self.kind = np.dtype((np.int64, (words,)))
        self.numbers = np.arange(rows, dtype=np.int64) % partitions
        if values is None:
            values = np.arange(rows * words, dtype=np.int64).reshape(rows, words)
        self.values = values
        self.count = maps * rows
        self.sum = maps * int(values.sum()) + rows * words * (maps * (maps - 1) // 2)

    def write(self, shuffle: Shuffle, pool: ThreadPoolExecutor, together: int = 1) -> None:
        """Write all maps, so many with a call, and commit."""

        def write(number: int) -> list[Receipt]:
            return [shuffle.write(number, self.values + number, self.numbers)]

        def write_all(first: int) -> list[Receipt]:
            numbers = range(first, min(first + together, self.maps))
            return shuffle.write_all((at, self.values + at, self.numbers) for at in numbers)

        parts = pool.map(write if together == 1 else write_all, range(0, self.maps, together))
        shuffle.commit([receipt for part in parts for receipt in part])

    def read(
        self, shuffle: Shuffle, pool: ThreadPoolExecutor, together: int = 1
    ) -> list[tuple[int, int]]:
        """Read all partitions, so many with a call; how many rows each has, and their sum."""
        reader = shuffle.reader()

        def read(partition: int) -> list[Any]:
            return [reader.read(partition)]

        def read_all(first: int) -> list[Any]:
            return reader.read_all(first, min(first + together, self.partitions))

        def count(first: int) -> list[tuple[int, int]]:
            found = (read if together == 1 else read_all)(first)
            return [(len(rows), int(rows.sum())) for rows in found]

        parts = pool.map(count, range(0, self.partitions, together))
        return [one for part in parts for one in part]

    def check(self, found: list[tuple[int, int]]) -> None:
        """Compare what was read."""
        assert sum(count for count, _ in found) == self.count, "rows are missing"
        # Sums wrap around.
        assert (sum(value for _, value in found) - self.sum) % 2**64 == 0, "rows are others"


def small(service: Service) -> None:
    """A small shuffle, whose rows are compared."""
    maps, partitions = 4, 8
    rows = np.arange(1_000)
    numbers = rows % partitions
    with service.shuffle(maps, partitions, "i8") as shuffle:
        shuffle.commit([shuffle.write(number, rows, numbers) for number in range(maps)])
        reader = shuffle.reader()
        for partition in range(partitions):
            found = reader.read(partition)
            assert np.array_equal(found, np.tile(rows[numbers == partition], maps))


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
    together: tuple[int, int] = (1, 1),
) -> Took:
    """Write ``Rows``, commit, and read all: so many maps, and partitions, with a call."""
    rows = Rows(maps, partitions, nbytes, words, values)
    before = service.stats()["compressed"]
    with (
        service.shuffle(
            maps, partitions, rows.kind, copies=copies, compression=compression
        ) as shuffle,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        start = time.perf_counter()
        rows.write(shuffle, pool, together[0])
        written = time.perf_counter()
        found = rows.read(shuffle, pool, together[1])
        ended = time.perf_counter()
        paths = list(folder.rglob("*.shuffle"))
        sizes = sum(path.stat().st_size for path in paths)
    rows.check(found)
    compressed = service.stats()["compressed"] - before
    return Took(written - start, ended - written, len(paths), sizes, compressed)
