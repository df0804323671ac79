"""Maps that are written together, and partitions that are read together."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from service_support import ROWS, Servers, Table
from treadle.shuffle import LateAttempt, MapsFailed, Receipt, Shuffle

MAPS, PARTITIONS = 48, 24


@pytest.fixture
def servers(new_servers: Callable[..., Servers]) -> Servers:
    return new_servers("ab")


def written(shuffle: Shuffle, table: Table, together: int) -> list[Receipt]:
    """Write so many maps with a call, from several threads."""

    def write(first: int) -> list[Receipt]:
        numbers = range(first, min(first + together, table.maps))
        return shuffle.write_all((at, table.rows[at], table.numbers[at]) for at in numbers)

    with ThreadPoolExecutor(3) as pool:
        parts = pool.map(write, range(0, table.maps, together))
        return [receipt for part in parts for receipt in part]


def compare(shuffle: Shuffle, table: Table, together: int) -> None:
    """Read so many partitions with a call, and compare every row."""
    reader = shuffle.reader()
    for first in range(0, table.partitions, together):
        end = min(first + together, table.partitions)
        found = reader.read_all(first, end)
        assert len(found) == end - first
        for partition, rows in zip(range(first, end), found, strict=True):
            assert np.array_equal(rows, table.expected(partition)), partition
    some = reader.read_all(1, 4, maps=(3, 7))
    for partition, rows in zip(range(1, 4), some, strict=True):
        assert np.array_equal(rows, table.expected(partition, range(3, 7)))
    assert reader.read_all(2, 2) == []


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_they_are_as_one_by_one(servers: Servers, compression: str) -> None:
    table = Table(MAPS, PARTITIONS, rows=2_000)
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS, compression=compression) as shuffle:
        receipts = written(shuffle, table, together=16)
        assert [receipt.map for receipt in receipts] == list(range(MAPS))
        assert {receipt.rows for receipt in receipts} == {2_000}
        shuffle.commit(receipts)
        compare(shuffle, table, together=7)
        table.compare(shuffle)
        # Rows that are there are not pushed again, and receipts are the same.
        numbers = range(0, MAPS, 5)
        again = [(at, table.rows[at], table.numbers[at]) for at in numbers]
        same = shuffle.write_all(again, again=True)
        for at, receipt in zip(numbers, same, strict=True):
            receipts[at] = receipt
        assert shuffle.commit(receipts) == shuffle.generation


@pytest.mark.usefixtures("few_rows_in_memory")
def test_where_not_all_have_room(new_servers: Callable[..., Servers]) -> None:
    servers = new_servers("ab")
    table = Table(MAPS, PARTITIONS, rows=4_000)
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
        shuffle.commit(written(shuffle, table, together=12))
        compare(shuffle, table, together=8)


def test_one_that_fails_leaves_the_others_alone(servers: Servers) -> None:
    table = Table(6, PARTITIONS, rows=500)
    with servers.service.shuffle(6, PARTITIONS, ROWS, name="some") as shuffle:
        shuffle.commit(written(shuffle, table, together=6))
        maps = [(at, table.rows[at], table.numbers[at]) for at in range(6)]
        others = table.rows[2].copy()
        others["value"] += 1
        maps[2] = (2, others, table.numbers[2])
        with pytest.raises(
            MapsFailed, match=r"some: 1 of 6 maps .* such as map 2: .*late"
        ) as failed:
            shuffle.write_all(maps)
        for error in (failed.value, pickle.loads(pickle.dumps(failed.value))):
            assert list(error.receipts) == [0, 1, 3, 4, 5]
            assert {at: receipt.rows for at, receipt in error.receipts.items()}[5] == 500
            (at, reason), *_ = error.errors.items()
            assert at == 2
            assert isinstance(reason, LateAttempt)
        table.compare(shuffle)


def test_arguments_that_cannot_be_are_named_and_nothing_is_written(servers: Servers) -> None:
    rows = np.arange(4)
    with servers.service.shuffle(3, 2, "i8", name="few") as shuffle:
        with pytest.raises(ValueError, match="few: map 1 is there twice"):
            shuffle.write_all([(1, rows, 0), (1, rows, 0)])
        with pytest.raises(ValueError, match="map=3: give an integer from 0 to 2"):
            shuffle.write_all([(0, rows, 0), (3, rows, 0)])
        with pytest.raises(ValueError, match="row 0 has partition 2: there are 2"):
            shuffle.write_all([(0, rows, 0), (1, rows, 2)])
        assert shuffle.write_all([]) == []
        shuffle.commit(shuffle.write_all((at, rows, rows % 2) for at in range(3)))
        reader = shuffle.reader()
        for first, end, said in ((0, 3, "end=3"), (2, 1, "end=1"), (-1, 1, "first=-1")):
            with pytest.raises(ValueError, match=said):
                reader.read_all(first, end)
        assert [found.tolist() for found in reader.read_all(0, 2)] == [[0, 2] * 3, [1, 3] * 3]
