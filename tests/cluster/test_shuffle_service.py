"""The stand-alone shuffle service: what it returns, and what it says when it cannot."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from process_support import Process
from service_support import ROWS, Servers, Table
from treadle.shuffle import Receipt, Service, ShuffleError
from waiting import SOON, until


@pytest.fixture
def servers(new_servers: Callable[..., Servers]) -> Servers:
    return new_servers("ab")


def test_rows_of_all_kinds_come_back_in_the_order_of_their_maps(servers: Servers) -> None:
    table = Table(maps=5, partitions=7, rows=3000)
    with servers.service.shuffle(5, 7, ROWS, name="table") as shuffle:
        with pytest.raises(ShuffleError, match="table is not committed"):
            shuffle.reader()
        receipts = table.write_all(shuffle)
        assert [receipt.rows for receipt in receipts] == 5 * [3000]
        shuffle.commit(receipts)
        table.compare(shuffle)
        # Readers that share a partition by maps.
        reader = shuffle.reader()
        parts = [reader.read(3, maps=(start, end)) for start, end in ((0, 2), (2, 5))]
        assert np.array_equal(np.concatenate(parts), table.expected(3))
        # Another process gets it by its number; receipts can be sent.
        with Service(servers.master.address, application=servers.service.application) as other:
            elsewhere = other.attach(shuffle.number)
            found = elsewhere.reader(shuffle.generation).read(0)
            assert np.array_equal(found, table.expected(0))
        assert pickle.loads(pickle.dumps(receipts[0])) == receipts[0]

    records = [[b"%d-%d" % (number, at) * at for at in range(50)] for number in range(3)]
    with servers.service.shuffle(3, 4) as shuffle:
        written = []
        for number, rows in enumerate(records):
            writer = shuffle.writer(number)
            writer.write(rows[:20], hashes=np.arange(20))
            writer.write(rows[20:], np.arange(20, 50) % 4)
            written.append(writer.finish())
        shuffle.commit(written)
        for partition, found in enumerate(shuffle.reader()):
            assert found == [row for rows in records for row in rows[partition::4]]


def test_record_batches_keep_their_nulls(servers: Servers) -> None:
    pa = pytest.importorskip("pyarrow")
    columns = {"a": pa.int32(), "text": pa.string(), "yes": pa.bool_(), "at": pa.timestamp("ns")}
    schema = pa.schema(list(columns.items()))
    rows = [
        {
            "a": at if at % 5 else None,
            "text": "x" * at if at % 3 else None,
            "yes": bool(at % 2),
            "at": at if at % 4 else None,
        }
        for at in range(60)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema)
    with servers.service.shuffle(2, 3, schema) as shuffle:
        # A slice has offsets.
        parts = [batch.slice(0, 25), batch.slice(25)]
        receipts = [shuffle.write(0, parts[0], np.arange(25) % 3)]
        receipts.append(shuffle.write(1, parts[1], np.arange(25, 60) % 3))
        shuffle.commit(receipts)
        attached = servers.service.attach(shuffle.number).reader(shuffle.generation)
        for partition, found in enumerate(attached):
            assert found.equals(batch.take(list(range(partition, 60, 3))))
    with pytest.raises(TypeError, match="'l' of type list"):
        servers.service.shuffle(1, 1, pa.schema([("l", pa.list_(pa.int8()))]))


def test_errors_name_what_is_wrong(servers: Servers) -> None:
    service = servers.service
    with service.shuffle(2, 3, "i8", name="small") as shuffle:
        with pytest.raises(ValueError, match=r"small, map 0: .*has 3 in row 1"):
            shuffle.write(0, np.arange(2), [0, 3])
        with pytest.raises(TypeError, match="dtype float64"):
            shuffle.write(0, np.zeros(2), 0)
        with pytest.raises(ValueError, match="2 rows have 3 partitions"):
            shuffle.write(0, np.arange(2), [0, 1, 2])
        with pytest.raises(ValueError, match="small has maps 0 to 1"):
            shuffle.writer(2)
        only = shuffle.write(0, np.arange(2), 0)
        with pytest.raises(ValueError, match="small, commit"):
            shuffle.commit([only])
        with pytest.raises(ValueError, match="small, commit"):
            shuffle.commit([only, Receipt(1, 0, 0, b"no receipt")])
    with pytest.raises(ShuffleError, match=r"small, map 1: .*ended"):
        shuffle.write(1, np.arange(2), 0)
    with pytest.raises(ShuffleError, match="there is no shuffle 99"):
        service.attach(99)
    with pytest.raises(ShuffleError, match="copies=3"):
        service.shuffle(1, 1, copies=3)


def test_what_does_not_fit_into_memory_goes_to_files_and_is_gone_in_the_end(
    servers: Servers,
) -> None:
    for name in ("a", "b"):
        servers.kill(name)
        servers.begin(name, "--memory-limit", "2MB")
    servers.ready()
    table = Table(maps=8, partitions=16, rows=60_000)

    def files() -> list[Path]:
        return [path for name in "ab" for path in servers.directory(name).rglob("*.shuffle")]

    with servers.service.shuffle(8, 16, ROWS) as shuffle:
        shuffle.commit(table.write_all(shuffle))
        assert sum(path.stat().st_size for path in files()) > 2 * 4 * 60_000 * ROWS.itemsize
        table.compare(shuffle)
    until(lambda: not files(), lambda: f"no files, there are {files()}")


def test_a_server_that_is_asked_to_end_leaves_its_rows_with_others(servers: Servers) -> None:
    table = Table(maps=4, partitions=8, rows=2000)
    servers.begin("c")
    servers.ready()
    with servers.service.shuffle(4, 8, ROWS) as shuffle:
        shuffle.commit(table.write_all(shuffle))
        leaving = servers.processes.pop("a")
        leaving.send(signal.SIGTERM)
        assert leaving.wait() == 0, leaving.output
        servers.ready()
        # The copy is whole, so that it does not matter who is killed.
        servers.kill("b")
        table.compare(shuffle)
        assert shuffle.lost() == []


def test_a_master_that_is_gone_is_named(servers: Servers) -> None:
    with servers.service.shuffle(1, 1, "i8", name="orphan") as shuffle:
        servers.master.end()
        with pytest.raises(ConnectionError, match=r"the shuffle master at .* is gone"):
            shuffle.write(0, np.arange(3), 0)
    server = servers.processes["a"]
    until(lambda: "the rows here are dropped" in server.output, lambda: server.output)
    server.send(signal.SIGTERM)
    assert server.wait() == 0


def test_shuffles_of_an_application_without_a_process_end(
    start: Callable[..., Process], secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_SECRET_FILE", str(secret))
    master = start("shuffle-master", "127.0.0.1:0", "--lease", "0.5")
    with Service(master.address, timeout=SOON) as watcher:
        with Service(master.address, priority=3, timeout=SOON) as service:
            service.shuffle(1, 1, copies=1)
            (shuffle,) = watcher.state()["shuffles"]
            assert shuffle["priority"] == 3
        until(lambda: not watcher.state()["shuffles"], "the shuffle ends")
