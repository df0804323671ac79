"""Rows of the shuffle service that are compressed: all kinds and sizes, in memory and in files, with losses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dask
import numpy as np
import pytest

from service_support import ROWS, Servers, Table
from treadle.shuffle import Service, Shuffle
from waiting import SOON, until

CODECS = ("lz4", "zstd")
pytestmark = pytest.mark.usefixtures("few_rows_in_memory")


class Alike(Table):
    """A table most of whose maps have values that are alike. Those of map 1 are random, and map 2 has few rows."""

    def __init__(self, maps: int, partitions: int, rows: int, seed: int = 0) -> None:
        super().__init__(maps, partitions, rows, seed)
        for number in range(maps):
            if number != 1:
                self.rows[number]["value"] = np.arange(rows) % 100
        random = np.random.default_rng(seed)
        self.rows[1] = random.bytes(rows * ROWS.itemsize)
        self.rows[1] = np.frombuffer(self.rows[1], ROWS)
        self.rows[2], self.numbers[2] = self.rows[2][:40], self.numbers[2][:40]

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self.rows)


@pytest.fixture
def servers(new_servers: Callable[..., Servers]) -> Servers:
    return new_servers("ab")


def files(servers: Servers, name: str) -> list[Path]:
    return sorted(servers.directory(name).rglob("*.shuffle"))


def counted(service: Service) -> tuple[int, int]:
    stats = service.stats()
    return stats["uncompressed"], stats["compressed"]


@pytest.mark.parametrize("codec", CODECS)
def test_rows_come_back_and_those_that_are_alike_take_fewer_bytes(
    servers: Servers, codec: str
) -> None:
    service = servers.service
    table = Alike(maps=5, partitions=7, rows=20_000)
    with service.shuffle(5, 7, ROWS, compression=codec) as shuffle:
        receipts = table.write_all(shuffle)
        assert [receipt.nbytes for receipt in receipts] == [rows.nbytes for rows in table.rows]
        before, after = counted(service)
        assert before == table.nbytes
        random = table.rows[1].nbytes
        assert random < after < random + (before - random) * 2 // 3
        # Two copies, with headers and tables.
        assert 2 * after < service.stats()["pushed"] < 2.2 * after
        shuffle.commit(receipts)
        table.compare(shuffle)
        reader = shuffle.reader()
        parts = [reader.read(3, maps=maps) for maps in ((0, 2), (2, 3), (3, 5))]
        assert np.array_equal(np.concatenate(parts), table.expected(3))
        assert np.array_equal(parts[1], table.expected(3, [2]))


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_all_sizes_come_back(servers: Servers, codec: str) -> None:
    random = np.random.default_rng(0)
    # Nothing, less than is compressed, a piece, more than a batch and than a block, and random bytes.
    lengths = (0, 1, 511, 512, 70_000, 9_000_000)
    records = [[(b"%07d" % at) * (length // 7) for length in lengths] for at in range(3)]
    records[1] += [random.bytes(100_000), b"\0" * 5_000_000]
    with servers.service.shuffle(3, 2, compression=codec) as shuffle:
        receipts = [
            shuffle.write(at, rows, np.arange(len(rows)) % 2) for at, rows in enumerate(records)
        ]
        shuffle.commit(receipts)
        for partition, found in enumerate(shuffle.reader()):
            assert found == [row for rows in records for row in rows[partition::2]]
    before, after = counted(servers.service)
    assert after < before // 10


@pytest.mark.parametrize("codec", CODECS)
def test_arrays_with_a_shape_and_record_batches_come_back(servers: Servers, codec: str) -> None:
    values = np.arange(60_000, dtype="f4").reshape(-1, 3, 2) // 1000
    numbers = np.arange(len(values)) % 4
    with servers.service.shuffle(1, 4, np.dtype(("f4", (3, 2))), compression=codec) as shuffle:
        shuffle.commit([shuffle.write(0, values, numbers)])
        for partition, found in enumerate(shuffle.reader()):
            assert np.array_equal(found, values[partition::4])
    pa = pytest.importorskip("pyarrow")
    rows = [{"at": at if at % 5 else None, "text": "x" * (at % 50)} for at in range(5000)]
    schema = pa.schema([("at", pa.int32()), ("text", pa.string())])
    batch = pa.RecordBatch.from_pylist(rows, schema)
    with servers.service.shuffle(1, 3, schema, compression=codec) as shuffle:
        shuffle.commit([shuffle.write(0, batch, np.arange(5000) % 3)])
        for partition, found in enumerate(shuffle.reader()):
            assert found.to_pylist() == rows[partition::3]
    before, after = counted(servers.service)
    assert after < before * 2 // 3


def test_how_rows_are_compressed_is_chosen_by_whoever_registers(servers: Servers) -> None:
    address, table = servers.master.address, Alike(maps=3, partitions=2, rows=5000)

    def shrinks(shuffle: Shuffle, number: int) -> bool:
        earlier, smaller = counted(shuffle.service)
        table.write(shuffle, number)
        before, after = counted(shuffle.service)
        assert before - earlier == table.rows[number].nbytes
        return after - smaller < before - earlier

    with Service(address, compression="lz4", timeout=SOON) as service:
        assert service.compression == "lz4"
        assert shrinks(service.shuffle(3, 2, ROWS), 0)
        assert not shrinks(service.shuffle(3, 2, ROWS, compression="none"), 0)
        shuffle = service.shuffle(3, 2, ROWS, compression="zstd")
        with Service(address, application=service.application, timeout=SOON) as other:
            assert other.compression == "none"
            assert not shrinks(other.shuffle(3, 2, ROWS), 0)
            assert other.attach(shuffle.number).compression == "zstd"
            assert shrinks(other.attach(shuffle.number), 0)
        for name in ("snappy", "", "LZ4"):
            with pytest.raises(
                ValueError, match=f"compression='{name}' is not known.*'lz4', 'zstd'"
            ):
                service.shuffle(3, 2, ROWS, compression=name)
    with pytest.raises(ValueError, match="compression='gzip' is not known"):
        Service(address, compression="gzip")
    with (
        dask.config.set({"treadle.shuffle.compression": "zstd"}),
        Service(address, timeout=SOON) as service,
    ):
        assert shrinks(service.shuffle(3, 2, ROWS), 0)
    with (
        dask.config.set({"treadle.shuffle.compression": "zip"}),
        pytest.raises(ValueError, match=r"treadle\.shuffle\.compression='zip' is not known"),
    ):
        Service(address)


@pytest.mark.parametrize("codec", CODECS)
def test_rows_in_files_are_smaller_and_a_killed_server_loses_none(
    new_servers: Callable[..., Servers], codec: str
) -> None:
    servers, table = new_servers("ab"), Alike(maps=8, partitions=16, rows=60_000)
    with servers.service.shuffle(8, 16, ROWS, compression=codec) as shuffle:
        shuffle.commit(table.write_all(shuffle))
        stored = counted(servers.service)[1]
        assert stored < table.nbytes * 2 // 3

        def size(name: str) -> int:
            return sum(path.stat().st_size for path in files(servers, name))

        until(lambda: all(size(name) > stored // 2 for name in "ab"), "rows are in files")
        assert all(size(name) < stored * 1.1 for name in "ab")
        table.compare(shuffle)
        found = shuffle.reader().read(5, maps=(1, 4))
        assert np.array_equal(found, table.expected(5, range(1, 4)))
        # The rows of the one that is lost are copied from files to another one, and read there.
        servers.begin("c")
        servers.ready()
        for name in ("a", "b"):
            servers.kill(name)
            if name == "a":
                until(
                    lambda: servers.copied(shuffle)["groups_with_fewer_copies"] == 0,
                    lambda: str(servers.copied(shuffle)),
                )
            table.compare(shuffle)
        assert shuffle.lost() == []


@pytest.mark.parametrize("codec", CODECS)
def test_a_server_that_is_killed_while_rows_are_written_loses_none(
    servers: Servers, codec: str
) -> None:
    table = Alike(maps=12, partitions=8, rows=20_000)
    servers.begin("c")
    servers.ready()
    with servers.service.shuffle(12, 8, ROWS, compression=codec) as shuffle:
        receipts = table.write_all(shuffle, after=5, event=servers.processes.pop("a").end)
        shuffle.commit(receipts)
        table.compare(shuffle)
        assert shuffle.lost() == []


@pytest.mark.parametrize("codec", CODECS)
def test_bits_that_flipped_in_files_are_noticed_and_the_other_copy_is_read(
    new_servers: Callable[..., Servers], codec: str
) -> None:
    servers, table = new_servers("ab"), Alike(maps=8, partitions=16, rows=60_000)
    with servers.service.shuffle(8, 16, ROWS, compression=codec) as shuffle:
        shuffle.commit(table.write_all(shuffle))
        until(lambda: files(servers, "a") and files(servers, "b"), "rows are in files")
        count = 0
        for path in files(servers, "a"):
            with path.open("r+b") as file:
                content = bytearray(file.read())
                for at in range(2_000, len(content), 4_000):
                    content[at] ^= 1
                    count += 1
                file.seek(0)
                file.write(content)
        assert count > 16
        table.compare(shuffle)
        # It was noticed: what is damaged counts as no copy.
        until(
            lambda: servers.copied(shuffle)["groups_with_fewer_copies"] > 0,
            lambda: str(servers.service.state()),
        )
        table.compare(shuffle)
        assert shuffle.lost() == []
