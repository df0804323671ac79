"""The stand-alone shuffle service: what it returns, and what it says when it cannot."""

from __future__ import annotations

import pickle
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from process_support import Process
from service_support import ROWS, Servers, Table
from treadle.shuffle import LateAttempt, NoRoom, Receipt, Service, ShuffleError, ShuffleRecord
from treadle.shuffle._dtypes import used_bytes
from treadle.shuffle.service._row_kinds import kind_of
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


@pytest.mark.parametrize("kind", ["i8", "(2,3)f4", [("a", "i4"), ("b", "S3")], "bytes", "arrow"])
def test_maps_without_rows_are_maps(servers: Servers, kind: Any) -> None:
    if kind == "arrow":
        pa = pytest.importorskip("pyarrow")
        kind = pa.schema([("a", pa.int64()), ("text", pa.string())])
        rows: Any = pa.RecordBatch.from_pydict({"a": [1, 2], "text": ["x", None]}, kind)
    elif kind == "bytes":
        kind, rows = bytes, [b"one", b""]
    else:
        rows = np.zeros(2, kind)
    with servers.service.shuffle(3, 2, kind) as shuffle:
        never_written = shuffle.writer(0)
        receipts = [never_written.finish()]
        receipts += [shuffle.write(number, rows[:count], 1) for number, count in ((1, 0), (2, 2))]
        assert [receipt.rows for receipt in receipts] == [0, 0, 2]
        shuffle.commit(receipts)
        assert [len(found) for found in shuffle.reader()] == [0, 2]


@pytest.mark.parametrize(
    "kind",
    [
        [(("what it is", "a"), "i4"), ("b", "f8")],
        {"names": ["a", "b"], "formats": ["i4", "f8"], "offsets": [8, 0]},
        {"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 2], "itemsize": 9},
        [("n", [(("what it is", "a"), "i4"), ("b", "M8[ns]", (2, 3))], 2)],
        ([(("what it is", "a"), ">i4")], (2,)),
    ],
    ids=["titles", "out of order", "overlapping", "nested", "with a shape"],
)
def test_structured_rows_of_all_kinds_can_be_attached_to(servers: Servers, kind: Any) -> None:
    dtype = np.dtype(kind)
    base, shape = dtype.subdtype or (dtype, ())
    content = np.arange(3 * dtype.itemsize, dtype="u1").reshape(-1, base.itemsize)
    content[:, ~used_bytes(base)] = 0  # padding is not kept
    rows = content.reshape(-1).view(base).reshape(3, *shape)
    with servers.service.shuffle(1, 1, kind) as shuffle:
        shuffle.commit([shuffle.write(0, rows, 0)])
        attached = servers.service.attach(shuffle.number)
        assert attached.kind.dtype == dtype  # type: ignore[attr-defined]
        found = attached.reader(shuffle.generation).read(0)
        assert found.dtype == base
        assert found.tobytes() == rows.tobytes()


@pytest.mark.parametrize(
    "kind", ["longdouble", "clongdouble", [("at", "u1"), ("x", "longdouble", 2)]]
)
@pytest.mark.parametrize("order", ["<", ">"])
def test_bytes_beside_a_long_double_are_no_part_of_it(kind: Any, order: str) -> None:
    dtype = np.dtype(kind).newbyteorder(order)  # type: ignore[call-overload]
    noise = np.random.default_rng(5).integers(1, 255, (9, dtype.itemsize), np.uint8)
    rows = [np.zeros(9, dtype), noise.copy().reshape(-1).view(dtype)]
    names = dtype.names or (...,)
    for array in rows:
        for at, name in enumerate(names):
            array[name] = (np.arange(9) + at).reshape(9, *(1,) * (array[name].ndim - 1))
    kept = [kind_of(dtype).fields(array)[0].tobytes() for array in rows]
    assert kept[0] == kept[1]
    assert np.array_equal(np.frombuffer(kept[1], dtype), rows[1])


def test_a_writer_that_is_finished_keeps_its_receipt(servers: Servers) -> None:
    with servers.service.shuffle(1, 1, "i8", name="once") as shuffle:
        writer = shuffle.writer(0)
        writer.write(np.arange(5), 0)
        receipt = writer.finish()
        with pytest.raises(RuntimeError, match="map 0 of shuffle once is finished"):
            writer.write(np.arange(5), 0)
        assert writer.finish() == receipt
        shuffle.commit([writer.finish()])
        assert shuffle.reader().read(0).tolist() == list(range(5))


def test_rows_are_refused_while_another_thread_finishes(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with servers.service.shuffle(1, 1, "i8", name="late") as shuffle:
        pushes, may_end = threading.Event(), threading.Event()
        push = shuffle._push

        def held(*arguments: Any) -> Receipt:
            pushes.set()
            assert may_end.wait(SOON)
            return push(*arguments)

        monkeypatch.setattr(shuffle, "_push", held)
        writer = shuffle.writer(0)
        writer.write(np.arange(5), 0)
        thread = threading.Thread(target=writer.finish)
        thread.start()
        try:
            assert pushes.wait(SOON)
            with pytest.raises(RuntimeError, match="map 0 of shuffle late is finished, or finish"):
                writer.write(np.arange(5), 0)
            with pytest.raises(TimeoutError, match=r"late, map 0: another thread still pushes"):
                writer.finish(timeout=0)
        finally:
            may_end.set()
            thread.join()
        assert writer.finish().rows == 5


def test_a_writer_that_could_not_finish_tries_again_with_the_same_rows(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: Any) -> Receipt:
        raise TimeoutError("late")

    with servers.service.shuffle(1, 2, "i8") as shuffle:
        writer = shuffle.writer(0)
        for at in range(3):
            writer.write(np.arange(4) + at, np.arange(4) % 2)
        with monkeypatch.context() as patch:
            patch.setattr(shuffle, "_push", late)
            with pytest.raises(TimeoutError, match="late"):
                writer.finish(timeout=0.0)
        with pytest.raises(RuntimeError, match="make a new writer"):
            writer.write(np.arange(4), 0)
        shuffle.commit([writer.finish()])
        found = [rows.tolist() for rows in shuffle.reader()]
        assert found == [[0, 2, 1, 3, 2, 4], [1, 3, 2, 4, 3, 5]]


def test_a_writer_keeps_the_partitions_that_it_was_given(servers: Servers) -> None:
    for kind in ("u4", "i8"):
        with servers.service.shuffle(1, 3, "i8") as shuffle:
            writer = shuffle.writer(0)
            numbers = np.array([0, 1, 2], kind)
            writer.write(np.arange(3), numbers)
            # Its caller uses the memory again.
            numbers[:] = 0
            writer.write(np.arange(3), numbers)
            shuffle.commit([writer.finish()])
            found = [rows.tolist() for rows in shuffle.reader()]
            assert found == [[0, 0, 1, 2], [1], [2]]


def test_errors_name_what_is_wrong(servers: Servers) -> None:
    service = servers.service
    with service.shuffle(2, 3, "i8", name="small") as shuffle:
        with pytest.raises(ValueError, match="small, map 0: row 1 has partition 3: there are 3"):
            shuffle.write(0, np.arange(2), [0, 3])
        with pytest.raises(TypeError, match="dtype float64"):
            shuffle.write(0, np.zeros(2), 0)
        with pytest.raises(ValueError, match="2 rows have 3 partitions"):
            shuffle.write(0, np.arange(2), [0, 1, 2])
        with pytest.raises(ValueError, match="small, writer: map=2: give an integer from 0 to 1"):
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
    for copies in (-1, 0, 3, 1 << 32):
        with pytest.raises(ValueError, match=f"copies={copies}"):
            service.shuffle(1, 1, copies=copies)
    for application in (-1, 1 << 64):
        with pytest.raises(ValueError, match=f"application={application}: give an integer from 0"):
            Service(service.address, application=application)


@pytest.mark.usefixtures("few_rows_in_memory")
def test_what_does_not_fit_into_memory_goes_to_files_and_is_gone_in_the_end(
    servers: Servers,
) -> None:
    for name in ("a", "b"):
        servers.kill(name)
        servers.begin(name)
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
    with (
        Service(servers.master.address, own_master=False, timeout=SOON) as service,
        service.shuffle(1, 1, "i8", name="orphan") as shuffle,
    ):
        servers.master.end()
        with pytest.raises(ConnectionError, match=r"the shuffle master at .* is gone"):
            shuffle.write(0, np.arange(3), 0)
    server = servers.processes["a"]
    until(lambda: "Its own shuffles end here" in server.output, lambda: server.output)
    server.send(signal.SIGTERM)
    assert server.wait() == 0


def test_shuffles_of_an_application_without_a_process_end(
    start: Callable[..., Process], secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_SECRET_FILE", str(secret))
    master = start("shuffle-master", "127.0.0.1:0", "--lease", "0.5")
    with Service(master.address, own_master=False, timeout=SOON) as watcher:
        with Service(master.address, own_master=False, priority=3, timeout=SOON) as service:
            start("shuffle-server", master.address, "--http", "none")
            until(lambda: watcher.state()["servers"], "there is a server")
            shuffle = service.shuffle(1, 1, "i8", copies=1)
            shuffle.commit([shuffle.write(0, np.arange(3), 0)])
            (told,) = watcher.state()["shuffles"]
            assert told["priority"] == 3
        until(lambda: not watcher.state()["shuffles"], "the shuffle ends")

        # It runs until its processes and servers have told what they did.
        def ended() -> list[ShuffleRecord]:
            return [record for record in watcher.records() if record.state != "running"]

        [record] = until(ended, "it leaves a record")
        assert record.state == "failed"
        assert "no process of its application" in (record.failure or "")


def test_an_application_that_says_nothing_for_longer_than_a_lease_keeps_its_rows(
    start: Callable[..., Process], secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_SECRET_FILE", str(secret))
    # A ping comes each third of the timeout: a busy machine may stop for seconds.
    master = start("shuffle-master", "127.0.0.1:0", "--timeout", "10", "--lease", "10")
    server = start("shuffle-server", master.address, "--name", "a", "--http", "none")
    with ExitStack() as stack:
        shuffles = []
        for own_master in (True, False):
            service = Service(master.address, own_master=own_master, timeout=SOON)
            stack.enter_context(service)
            until(lambda service=service: service.state()["servers"], "there is a server")
            shuffle = stack.enter_context(service.shuffle(1, 1, "i8", copies=1))
            shuffle.commit([shuffle.write(0, np.arange(3), 0)])
            shuffles.append(shuffle)
        # What a server tells all masters each second, because its room changes, is no answer of theirs.
        with service.shuffle(28, 1, "i8", copies=1) as other:
            for map_ in range(28):
                other.write(map_, np.arange(1000), 0)
                time.sleep(0.5)
        for shuffle in shuffles:
            assert list(shuffle.reader().read(0)) == [0, 1, 2]
            assert shuffle.lost() == []
    assert "is gone" not in server.output


def test_what_is_read_must_have_been_committed(servers: Servers) -> None:
    with servers.service.shuffle(1, 2, "i8", name="early") as shuffle:
        receipt = shuffle.write(0, np.arange(4), [0, 0, 1, 1])
        with pytest.raises(ShuffleError, match="early is not committed: commit the receipts first"):
            shuffle.reader()
        with pytest.raises(ShuffleError, match="early is not committed: commit the receipts first"):
            shuffle.reader(1).read(0)
        for generation in (-1, 0, 1 << 32, 1 << 64):
            with pytest.raises(
                ValueError, match=f"generation={generation}: give an integer from 1"
            ):
                shuffle.reader(generation)
        generation = shuffle.commit([receipt])
        for other in (shuffle, servers.service.attach(shuffle.number)):
            said = rf"was not committed in generation {generation + 1}: .* returned {generation}"
            with pytest.raises(ShuffleError, match=said):
                other.reader(generation + 1).read(0)
            assert other.reader(generation).read(1).tolist() == [2, 3]


def test_a_late_attempt_with_other_rows_changes_nothing(servers: Servers) -> None:
    with servers.service.shuffle(2, 3, "i8", name="late") as shuffle:
        receipts = [shuffle.write(number, np.arange(6), np.arange(6) % 3) for number in (0, 1)]
        shuffle.commit(receipts)
        reader = shuffle.reader()
        for again in (False, True):
            with pytest.raises(LateAttempt, match=r"late, map 1: .*was committed, with other rows"):
                shuffle.write(1, np.arange(7) + 9, np.arange(7) % 3, again=again)
        assert shuffle.lost() == []
        assert [rows.tolist() for rows in reader] == [[at, at + 3] * 2 for at in range(3)]
        # The same rows are there already.
        again = shuffle.write(1, np.arange(6), np.arange(6) % 3)
        assert shuffle.commit([receipts[0], again]) == reader.generation


def written(service: Service, rows: Any, writes: list[tuple[Any, dict[str, Any]]]) -> list[Any]:
    """Partitions of a shuffle with one map, of which these are the writes."""
    with service.shuffle(1, 3, rows) as shuffle:
        writer = shuffle.writer(0)
        for data, options in writes:
            writer.write(data, **options)
        shuffle.commit([writer.finish()])
        return [list(found) for found in shuffle.reader()]


def test_partitions_of_all_kinds_of_integers(servers: Servers) -> None:
    """In any order of bytes, of several types in one map, and where there are no rows."""
    numbers = [0, 1, 2, 1]
    rows = np.arange(4)
    expected = [[0], [1, 3], [2]]
    for kind in (">i4", ">u2", "<u8", "i1"):
        given = np.array(numbers, kind)
        assert written(servers.service, "i8", [(rows, {"partitions": given})]) == expected
    assert (
        written(servers.service, "i8", [(rows, {"hashes": np.array(numbers, ">u4")})]) == expected
    )
    mixed = [
        (rows[:0], {"partitions": []}),
        (rows[:2], {"partitions": np.array(numbers[:2], "u8")}),
        (rows[2:3], {"partitions": 2}),
        (rows[3:], {"partitions": np.array(numbers[3:], "i8")}),
    ]
    assert written(servers.service, "i8", mixed) == expected


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"partitions": 1.5}, TypeError, "partitions are no integers, but float64"),
        ({"partitions": [0.0, 1.0]}, TypeError, "partitions are no integers"),
        ({"hashes": [0.5, 1.0]}, TypeError, "hashes are no integers"),
        ({"hashes": [-1, 1]}, ValueError, "one of these is below 0"),
        ({"hashes": 5}, ValueError, "hashes have 0 dimensions"),
        (
            {"partitions": np.array([1, 2**64 - 1], "u8")},
            ValueError,
            "row 1 has partition 18446744",
        ),
    ],
)
def test_what_are_no_partitions_is_said(
    servers: Servers, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        written(servers.service, "i8", [(np.arange(2), options)])


def test_records_are_whole_and_pairs_are_told_from_them(servers: Servers) -> None:
    wide = memoryview(np.arange(3, dtype="i4"))
    for records in ([wide, b"b"], (bytes(wide), b"b")):
        found = written(servers.service, bytes, [(records, {"partitions": [0, 1]})])
        assert found == [[bytes(wide)], [b"b"], []]


def test_pairs_of_wide_memory_are_joined_by_bytes(servers: Servers) -> None:
    wide = np.frombuffer(b"aabbXXXX", ">u2")
    nothing = np.empty(0, "i4")
    pairs = [(np.array([0, 2, 4]), wide), (np.array([0, 2]), b"cc"), (np.array([0]), nothing)]
    writes: list[tuple[Any, dict[str, Any]]] = [(pair, {"partitions": 0}) for pair in pairs]
    assert written(servers.service, bytes, writes) == [[b"aa", b"bb", b"cc"], [], []]


def padded(fill: int) -> tuple[Any, Any]:
    inner = np.dtype([("x", "i1"), ("y", "i4")], align=True)
    kind = np.dtype([("a", "i1"), ("b", "i8"), ("c", inner, (2,))], align=True)
    rows = np.full(50 * kind.itemsize, fill, np.uint8).view(kind)
    rows["a"], rows["b"] = 1, np.arange(50)
    rows["c"]["x"], rows["c"]["y"] = 2, 3
    return kind, rows


def nullable(under: int) -> tuple[Any, Any]:
    pa = pytest.importorskip("pyarrow")
    values = pa.py_buffer(np.array([1, under, 3], "i8"))
    numbers = pa.Array.from_buffers(pa.int64(), 3, [pa.py_buffer(b"\x05"), values])
    ends, text = np.array([0, 1, 1 + under, 2 + under], "i8"), b"a" + under * b"?" + b"b"
    buffers = [pa.py_buffer(b"\x05"), pa.py_buffer(ends), pa.py_buffer(text)]
    texts = pa.Array.from_buffers(pa.large_string(), 3, buffers)
    batch = pa.RecordBatch.from_arrays([numbers, texts], ["numbers", "texts"])
    return batch.schema, batch


def parts(field: Any) -> tuple[Any, ...]:
    return field if isinstance(field, tuple) else (field,)


@pytest.mark.parametrize("make", [padded, nullable])
def test_equal_rows_are_the_same_rows_whatever_is_in_padding_or_under_nulls(
    servers: Servers, make: Callable[[int], tuple[Any, Any]]
) -> None:
    (kind, one), (_, other) = make(0), make(77)
    fields = [
        [bytes(part) for field in kind_of(kind).fields(rows) for part in parts(field)]
        for rows in (one, other)
    ]
    assert fields[0] == fields[1]
    with servers.service.shuffle(1, 1, kind) as shuffle:
        receipt = shuffle.write(0, one, 0)
        shuffle.commit([receipt])
        shuffle.reader().read(0)
        again = shuffle.write(0, other, 0)
        assert again.nbytes == receipt.nbytes
        shuffle.commit([again])
        found = shuffle.reader().read(0)
        assert found.equals(one) if make is nullable else np.array_equal(found, one)


def test_what_a_shuffle_cannot_have_is_said_at_once(servers: Servers) -> None:
    pa = pytest.importorskip("pyarrow")
    untold = np.dtype({"names": ["a"], "formats": ["i4"], "titles": [7]})
    with pytest.raises(TypeError, match="Titles of fields must be text"):
        servers.service.shuffle(2, 2, untold)
    schema = pa.schema({"a": pa.int32()})
    with servers.service.shuffle(2, 2, schema) as shuffle:
        table = pa.table({"a": pa.array([1, 2], pa.int32())})
        with pytest.raises(TypeError, match=r"type Table: give a pyarrow\.RecordBatch"):
            shuffle.write(0, table, [0, 1])
        [batch] = table.to_batches()
        shuffle.commit([shuffle.write(number, batch, [0, 1]) for number in range(2)])
        for maps in ((0, 3), (2, 1), (-1, 1)):
            with pytest.raises(ValueError, match="there are 2; give the first one"):
                shuffle.reader().read(0, maps=maps)


def test_a_limit_that_no_server_can_keep_is_told_in_the_error() -> None:
    with pytest.raises(ShuffleError, match=r"cannot be started: .*Give \d+ MiB or more"):
        Service(servers=1, memory_limit="40MiB")


def test_a_late_attempt_without_rows_changes_nothing(servers: Servers) -> None:
    with servers.service.shuffle(2, 2, "i8", name="empty") as shuffle:
        receipts = [shuffle.write(number, np.arange(8), np.arange(8) % 2) for number in (0, 1)]
        shuffle.commit(receipts)
        empty = shuffle.write(0, np.array([], "i8"), [])
        with pytest.raises(LateAttempt, match="committed with other rows"):
            shuffle.commit([empty, receipts[1]])
        shuffle.commit(receipts)
        assert shuffle.reader().read(1).tolist() == [1, 3, 5, 7] * 2


def test_a_row_that_no_server_can_take_holds_up_nobody() -> None:
    with (
        Service(servers=1, memory_limit="256MiB", timeout=SOON) as one,
        Service(one.address, timeout=SOON) as other,
        one.shuffle(1, 1, bytes, copies=1) as large,
        other.shuffle(1, 2, "i8", copies=1) as small,
    ):
        with pytest.raises(NoRoom, match="write smaller rows"):
            large.write(0, [bytes(300 << 20)], 0)
        small.commit([small.write(0, np.arange(4), [0, 0, 1, 1])])
        assert small.reader().read(1).tolist() == [2, 3]
