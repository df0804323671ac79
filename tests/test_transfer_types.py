"""What can be sent, and what arrives: between two processes."""

from __future__ import annotations

import collections
import datetime
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from transfer_support import ECHO, LIMIT, Peer, echoing, exchanged, pair

from treadle import transfer

Exchange = Callable[[Any], Any]


@pytest.fixture(scope="module")
def conn() -> Iterator[transfer.Connection]:
    with echoing() as conn:
        yield conn


@pytest.fixture
def exchange(conn: transfer.Connection) -> Exchange:
    """Send an object to a process that sends it back."""
    return partial(exchanged, conn)


def numbers(dtype: str, shape: tuple[int, ...] = (3, 5)) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape)).astype(dtype).reshape(shape)


class Quantity(np.ndarray[Any, Any]):
    """An array with an attribute, which NumPy does not pickle."""

    unit: str | None

    def __array_finalize__(self, of: Any) -> None:
        self.unit = getattr(of, "unit", None)


DTYPES = "?bBhHiIlLqQefdgFDG"


class TestArrays:
    @pytest.mark.parametrize("code", DTYPES)
    def test_every_plain_type(self, exchange: Exchange, code: str) -> None:
        sent = numbers(code)
        received = exchange(sent)
        assert type(received) is np.ndarray
        assert received.dtype == sent.dtype
        np.testing.assert_array_equal(received, sent)

    @pytest.mark.parametrize(
        "array",
        [
            numbers(">f8"),
            numbers(">u2"),
            numbers("S7"),
            numbers("U9"),
            numbers("V5"),
            numbers("M8[ns]"),
            numbers("M8[D]"),
            numbers("m8[3h]"),
            np.array("NaT", "M8[s]"),
            np.zeros(4, "S0"),
        ],
        ids=lambda array: array.dtype.str,
    )
    def test_other_types(self, exchange: Exchange, array: np.ndarray[Any, Any]) -> None:
        received = exchange(array)
        assert received.dtype == array.dtype
        assert received.shape == array.shape
        assert received.tobytes() == array.tobytes()

    @pytest.mark.parametrize("count", [0, 3, 100_000])
    def test_structured_types(self, exchange: Exchange, count: int) -> None:
        dtype = np.dtype([("a", "<i4"), ("b", [("c", ">f8"), ("d", "S3", (2,))])], align=True)
        sent = np.zeros(count, dtype)
        sent["a"] = np.arange(count)
        sent["b"]["d"] = b"xy"
        received = exchange(sent)
        assert received.dtype == dtype
        assert (received == sent).all()
        received["a"] = 1

    def test_metadata_of_types(self, exchange: Exchange) -> None:
        """Types that differ in nothing else are equal."""
        units = [{"unit": "metre"}, {"unit": "second"}, None]
        for unit in units:
            given = {} if unit is None else {"metadata": unit}
            number = np.dtype("f8", **given)
            for dtype in (number, np.dtype([("a", "f8")], **given)):
                assert exchange(np.zeros(1000, dtype)).dtype.metadata == unit
            nested = np.dtype([("a", [("b", number, (2,))])])
            found = exchange(np.zeros(1000, nested)).dtype["a"]["b"].subdtype[0]
            assert found.metadata == unit

    @pytest.mark.parametrize("order", [1, -1])
    def test_equal_types_are_not_the_same(self, exchange: Exchange, order: int) -> None:
        """One after the other: what was sent before does not count."""
        kinds = [
            np.dtype([("a", "i4")]),
            np.dtype([("a", "i4")], align=True),
            np.dtype((np.record, [("a", "i4")])),
            np.dtype("V4"),
            np.dtype((np.record, "V4")),
            np.dtype([(("title", "a"), "i4")]),
        ]
        for kind in kinds[::order]:
            found = exchange(np.zeros(1000, kind)).dtype
            assert found == kind
            assert found.type is kind.type
            assert found.isalignedstruct == kind.isalignedstruct

    def test_metadata_that_pickle_does_not_take(self, exchange: Exchange) -> None:
        received = exchange(np.zeros(1000, np.dtype("f8", metadata={"scale": lambda x: 2 * x})))
        assert received.dtype.metadata["scale"](2) == 4

    def test_records(self, exchange: Exchange) -> None:
        received = exchange(np.rec.array([(1, 2.0), (3, 4.0)], dtype="i4,f8"))
        assert type(received) is np.recarray
        assert received.f1.tolist() == [2.0, 4.0]

    def test_objects(self, exchange: Exchange) -> None:
        sent = np.array([{"a": 1}, None, "x"] * 1000, dtype=object)
        assert exchange(sent).tolist() == sent.tolist()

    def test_structures_with_objects(self, exchange: Exchange) -> None:
        sent = np.zeros(2, [("a", "i4"), ("b", object)])
        sent["b"] = [[1], "x"]
        assert exchange(sent).tolist() == sent.tolist()

    def test_variable_length_strings(self, exchange: Exchange) -> None:
        sent = np.array(["a", "b" * 1000, "ä"] * 100, dtype=np.dtypes.StringDType())
        received = exchange(sent)
        assert received.dtype == sent.dtype
        assert received.tolist() == sent.tolist()

    # Around 64 KiB the way through the wire changes.
    @pytest.mark.parametrize(
        "size", [0, 1, 7, 65_400, 65_522, 65_523, 65_535, 65_536, 65_537, 262_144, 3_000_001]
    )
    def test_sizes(self, exchange: Exchange, size: int) -> None:
        sent = (np.arange(size) % 251).astype(np.uint8)
        received = exchange(sent)
        assert received.shape == (size,)
        assert (received == sent).all()

    @pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1), (1,) * 32, (2,) * 17])
    def test_shapes(self, exchange: Exchange, shape: tuple[int, ...]) -> None:
        sent = numbers("f8", shape)
        received = exchange(sent)
        assert received.shape == shape
        assert (received == sent).all()

    @pytest.mark.parametrize("size", [10, 300])
    def test_layouts(self, exchange: Exchange, size: int) -> None:
        base = numbers("f8", (size, size + 1))
        cube = numbers("i2", (size, 3, size))
        for sent in [base, base.T, base[::2], base[:, 1:], base[::-1], np.asfortranarray(base),
                     cube.transpose(1, 0, 2), cube.T, np.broadcast_to(np.float32(1), (size, 2))]:  # fmt: skip
            received = exchange(sent)
            assert received.shape == sent.shape
            assert (received == sent).all()
            assert received.flags.c_contiguous or sent.flags.f_contiguous
            assert received.flags.f_contiguous >= sent.flags.f_contiguous

    @pytest.mark.parametrize("size", [1, 1000, 65_536, 5_000_000])
    def test_received_arrays_are_writable_and_aligned(self, exchange: Exchange, size: int) -> None:
        sent = np.zeros(size, np.uint8)
        sent.flags.writeable = False
        received = exchange(sent)
        assert received.ctypes.data % 64 == 0
        received[:] = 7
        again = exchange(sent)
        assert (again == 0).all()
        assert (received == 7).all()

    def test_masked_arrays(self, exchange: Exchange) -> None:
        sent = np.ma.masked_greater(numbers("f8", (300, 300)), 1000)
        received = exchange(sent)
        assert type(received) is np.ma.MaskedArray
        assert (received.mask == sent.mask).all()
        assert (received == sent).all()

    @pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
    def test_subclasses_keep_their_type(self, exchange: Exchange) -> None:
        received = exchange(np.asmatrix(numbers("f8", (200, 200))))
        assert type(received) is np.matrix
        assert received[1, 1] == 201

    def test_subclasses_keep_their_attributes(self, exchange: Exchange) -> None:
        sent = numbers("f8").view(Quantity)
        sent.unit = "m"
        for received in (exchange(sent), exchange({"a": [sent]})["a"][0]):
            assert type(received).__name__ == "Quantity"
            assert received.unit == "m"
            assert (received == sent).all()

    def test_masked_arrays_keep_all(self, exchange: Exchange) -> None:
        sent: Any = np.ma.array([1.0, 2.0], mask=[0, 1], fill_value=7, hard_mask=True)
        sent.unit = "m"
        [received] = exchange([sent])
        assert (received.hardmask, received.fill_value, received.unit) == (True, 7, "m")
        assert received.mask.tolist() == [False, True]

    def test_scalars(self, exchange: Exchange) -> None:
        received = exchange(np.float32(1.5))
        assert type(received) is np.float32
        assert received == 1.5

    def test_the_array_may_be_written_to_once_it_was_sent(self, conn: transfer.Connection) -> None:
        array = np.zeros(500_000)
        conn.send(array)
        array[:] = 1
        assert (conn.recv(timeout=LIMIT) == 0).all()

    def test_the_array_is_let_go(
        self, conn: transfer.Connection, eventually: Callable[[Callable[[], bool]], None]
    ) -> None:
        array = np.zeros(500_000)
        before = sys.getrefcount(array)
        conn.start_send(array)
        # By the interpreter, without another call.
        eventually(lambda: sys.getrefcount(array) == before)
        conn.recv(timeout=LIMIT)


class TestBuffers:
    @pytest.mark.parametrize("size", [0, 1, 5000, 65_536, 3_000_000])
    @pytest.mark.parametrize("kind", [bytes, bytearray])
    def test_bytes(self, exchange: Exchange, kind: type, size: int) -> None:
        sent = kind(bytes(range(256)) * (size // 256 + 1))[:size]
        received = exchange(sent)
        assert type(received) is kind
        assert received == sent

    def test_memoryviews(self, exchange: Exchange) -> None:
        data = bytes(range(240))
        views = [
            memoryview(data),
            memoryview(bytearray(data))[::2],
            memoryview(data).cast("d"),
            memoryview(data).cast("i", [3, 20]),
            memoryview(b""),
            memoryview(np.arange(100_000)),
            memoryview(np.asfortranarray(numbers("i4", (3, 5)))),
        ]
        for sent in views:
            received = exchange(sent)
            assert type(received) is memoryview
            assert received.tolist() == sent.tolist()
            assert not received.readonly

    def test_memoryviews_keep_their_format(self, exchange: Exchange) -> None:
        records = np.zeros(3, [("a", "i4"), ("b", ">f8", (2,))])
        records["a"] = [1, 2, 3]
        for array in (records, *(np.arange(4).astype(kind) for kind in ("e", ">i4", "F", "g"))):
            sent = memoryview(array)
            for received in (exchange(sent), exchange([sent])[0]):
                assert type(received) is memoryview
                assert (received.format, received.shape) == (sent.format, sent.shape)
                assert received.tobytes() == sent.tobytes()

    def test_memoryviews_without_elements(self, exchange: Exchange) -> None:
        for array in (np.zeros(0, "i4"), np.zeros((0, 3), "f8"), np.zeros((2, 0), "u1")):
            received = exchange(memoryview(array))
            assert (received.format, received.shape) == (array.dtype.char, array.shape)

    def test_memoryviews_of_objects_are_refused(self, exchange: Exchange) -> None:
        with pytest.raises(TypeError, match="memoryview of Python objects"):
            exchange(memoryview(np.array([None])))

    def test_memoryviews_within(self, exchange: Exchange) -> None:
        [received] = exchange([memoryview(bytes(range(12))).cast("i", [3])[::2]])
        assert type(received) is memoryview
        assert (received.format, received.shape) == ("i", (2,))

    def test_subclasses_of_bytes(self, exchange: Exchange) -> None:
        assert type(exchange(np.bytes_(b"abc"))) is np.bytes_


class Uuid(pa.ExtensionType):  # type: ignore[misc]
    """A type that only its pickle tells of."""

    def __init__(self) -> None:
        super().__init__(pa.binary(16), "test.uuid")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, _storage: Any, _serialized: bytes) -> Uuid:
        return cls()

    def __reduce__(self) -> tuple[Any, ...]:
        return Uuid, ()


class TestArrow:
    def table(self, rows: int) -> pa.Table:
        return pa.table(
            {
                "n": pa.array(range(rows)),
                "s": pa.array([None if i % 7 == 0 else f"row {i}" for i in range(rows)]),
                "l": pa.array([[i, i + 1] for i in range(rows)]),
                "d": pa.array(["x", "y"] * (rows // 2)).dictionary_encode(),
            }
        )

    @pytest.mark.parametrize("rows", [0, 10, 100_000])
    def test_tables(self, exchange: Exchange, rows: int) -> None:
        sent = self.table(rows)
        received = exchange(sent)
        received.validate(full=True)
        assert received.equals(sent)

    def test_rows_without_columns(self, exchange: Exchange) -> None:
        rows = pa.array([{}, {}, {}], pa.struct([]))
        batch = pa.RecordBatch.from_struct_array(rows).replace_schema_metadata({"k": "v"})
        for sent in (batch, pa.Table.from_batches([batch, batch])):
            for received in (exchange(sent), exchange([sent])[0]):
                assert type(received) is type(sent)
                assert received.num_rows == sent.num_rows
                assert received.schema.equals(sent.schema, check_metadata=True)

    def test_record_batches(self, exchange: Exchange) -> None:
        [sent] = self.table(1000).to_batches()
        assert exchange(sent).equals(sent)

    def test_slices_leave_the_rest_behind(
        self, exchange: Exchange, conn: transfer.Connection
    ) -> None:
        table = pa.concat_tables([self.table(50_000), self.table(50_000)])
        column = table.column("s")
        slices = [
            table.slice(49_000, 2_000),
            table.slice(49_000, 0),
            table.to_batches()[0].slice(10, 100),
            column.slice(49_000, 2_000),
            column.chunk(0).slice(3, 100),
            column.chunk(0).slice(3, 0),
        ]
        before = conn.stats()["bytes_sent"]
        for sent in slices:
            received = exchange(sent)
            assert type(received) is type(sent)
            received.validate(full=True)
            assert received.equals(sent)
        assert conn.stats()["bytes_sent"] - before < 1_000_000

    def test_slices_keep_extension_types_that_are_not_registered(self, exchange: Exchange) -> None:
        storage = pa.array([bytes(16)] * 20_000, pa.binary(16))
        column = pa.ExtensionArray.from_storage(Uuid(), storage)
        table = pa.table({"u": column})
        for sent in (column[:10], table.slice(0, 10), table.to_batches()[0].slice(3, 4)):
            received = exchange(sent)
            assert received.equals(sent)
            assert type(received) is type(sent)
        assert exchange(table.slice(0, 10)).schema.field("u").type == Uuid()

    def test_arrays_are_read_only(self, exchange: Exchange) -> None:
        received = exchange(pa.array(np.arange(100_000)))
        view = received.to_numpy()
        assert view.ctypes.data == received.buffers()[1].address
        assert not view.flags.writeable
        assert (view == np.arange(100_000)).all()

    def test_arrays_stay_arrow(self, exchange: Exchange) -> None:
        # Although they know DLPack.
        assert isinstance(exchange(pa.array([1.0, 2.0])), pa.DoubleArray)


class TestPandas:
    def frame(self, rows: int) -> pd.DataFrame:
        return pd.DataFrame(
            {
                "i": np.arange(rows),
                "f": np.linspace(0, 1, rows),
                "s": [f"name {i}" for i in range(rows)],
                "t": pd.date_range("2020-01-01", periods=rows, freq="h", tz="UTC"),
                "c": pd.Categorical(["a", "b"] * (rows // 2)),
            }
        )

    @pytest.mark.parametrize("rows", [0, 10, 50_000])
    def test_frames(self, exchange: Exchange, rows: int) -> None:
        sent = self.frame(rows)
        pd.testing.assert_frame_equal(exchange(sent), sent)

    def test_series_and_indexes(self, exchange: Exchange) -> None:
        frame = self.frame(1000).set_index(["s", "i"])
        pd.testing.assert_series_equal(exchange(frame["f"]), frame["f"])
        pd.testing.assert_index_equal(exchange(frame.index), frame.index)

    def test_received_frames_can_be_changed(self, exchange: Exchange) -> None:
        received = exchange(pd.DataFrame(np.zeros((1000, 20))))
        received.iloc[3, 4] = 5.0
        assert received.to_numpy().sum() == 5.0


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value


class Tensor:
    """What another library's tensor looks like."""

    def __init__(self, array: np.ndarray[Any, Any], device: int = 1) -> None:
        self._array = array
        self._device = device

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0


class TestObjects:
    @pytest.mark.parametrize(
        "obj",
        [
            None,
            True,
            1,
            10**100,
            1.5,
            "text" * 100_000,
            (1, "a", [2, {3: {4}}]),
            datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc),
            collections.OrderedDict(a=1),
            ValueError("x"),
        ],
        ids=lambda obj: type(obj).__name__,
    )
    def test_plain_ones(self, exchange: Exchange, obj: Any) -> None:
        received = exchange(obj)
        assert type(received) is type(obj)
        assert repr(received) == repr(obj)

    def test_nested_arrays_go_out_of_band(
        self, exchange: Exchange, conn: transfer.Connection
    ) -> None:
        sent = {"a": np.arange(100_000), "b": [np.ones((300, 300)), np.zeros(3)]}
        before = conn.stats()["bytes_sent"]
        received = exchange(sent)
        assert conn.stats()["bytes_sent"] - before >= 800_000 + 720_000
        assert (received["a"] == sent["a"]).all()
        assert (received["b"][0] == 1).all()
        received["a"][:] = 0
        received["b"][1][:] = 0

    def test_nested_read_only_arrays_stay_so(self, exchange: Exchange) -> None:
        array = np.arange(100_000)
        array.flags.writeable = False
        [received] = exchange([array])
        assert not received.flags.writeable

    def test_an_array_twice_is_one(self, exchange: Exchange) -> None:
        array = np.zeros(100_000)
        one, other = exchange((array, array))
        one[0] = 1
        assert other[0] == 1

    def test_ten_thousand_buffers(self, exchange: Exchange) -> None:
        sent = [np.full(100 + i % 50, i) for i in range(10_000)]
        received = exchange(sent)
        assert all((a == b).all() for a, b in zip(received, sent, strict=True))

    def test_more_buffers_than_an_object_may_have(self, exchange: Exchange) -> None:
        sent = [np.full(64, i) for i in range(70_000)]
        received = exchange(sent)
        assert len(received) == 70_000
        assert all((received[i] == i).all() for i in range(0, 70_000, 999))

    def test_functions_without_a_name(self, exchange: Exchange) -> None:
        received = exchange(lambda x: x + 1)
        assert received(1) == 2
        assert exchange(partial(divmod, 7))(2) == (3, 1)

    def test_what_only_this_module_has(self, exchange: Exchange) -> None:
        class Local:
            def __init__(self) -> None:
                self.array = np.arange(50_000)

        received = exchange(Local())
        assert (received.array == np.arange(50_000)).all()

    def test_what_cannot_be_pickled(self, exchange: Exchange, conn: transfer.Connection) -> None:
        with pytest.raises(TypeError, match="pickle"):
            conn.send([np.zeros(100_000), (i for i in ())])
        assert exchange(1) == 1

    def test_pickling_that_fails(self, exchange: Exchange, conn: transfer.Connection) -> None:
        class Broken:
            def __reduce__(self) -> Any:
                raise ZeroDivisionError("on purpose")

        with pytest.raises(ZeroDivisionError):
            conn.send(Broken())
        assert exchange(1) == 1

    def test_what_a_script_defines(self) -> None:
        """Classes of ``__main__`` do not exist in the peer's ``__main__``."""
        with Peer("thing = conn.recv()\nprint(type(thing).__name__, thing.value)") as peer:
            code = """if True:
                import sys
                from treadle import transfer
                class Thing:
                    value = 42
                conn = transfer.listen()
                print(conn.address, flush=True)
                conn.accept(20).send(Thing())
            """
            script = subprocess.Popen(
                [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
            )
            assert script.stdout is not None
            with script, transfer.connect(script.stdout.readline().strip()) as other:
                thing = other.recv(timeout=LIMIT)
                assert thing.value == 42
                peer.conn.send(thing)
                assert peer.finish() == "Thing 42\n"

    def test_unpickling_that_fails_is_an_error_of_that_object_alone(self) -> None:
        class Bomb:
            def __reduce__(self) -> Any:
                return int, ("no number",)

        with pair() as (one, other):
            one.send(Bomb())
            one.send("next")
            with pytest.raises(ValueError, match="no number"):
                other.recv(timeout=LIMIT)
            assert other.recv(timeout=LIMIT) == "next"


class TestDlpack:
    def test_arrays_without_a_namespace_arrive_as_those_of_numpy(self, exchange: Exchange) -> None:
        for array in numbers("f4", (300, 400)), numbers("i8", (2, 2)), numbers("f8", (50, 60)).T:
            received = exchange(Tensor(array))
            assert type(received) is np.ndarray
            assert received.dtype == array.dtype
            assert (received == array).all()

    def test_arrays_elsewhere_are_pickled(self, exchange: Exchange) -> None:
        received = exchange(Tensor(numbers("f4"), device=2))
        assert type(received).__name__ == "Tensor"

    @pytest.mark.parametrize("shape", [(), (0,), (3, 5), (300, 400)])
    def test_arrays_with_a_namespace_keep_their_type(
        self, exchange: Exchange, shape: tuple[int, ...]
    ) -> None:
        strict = pytest.importorskip("array_api_strict")
        for dtype in "bool", "uint16", "float32", "complex128":
            sent = strict.asarray(numbers(dtype, shape))
            received = exchange(sent)
            assert type(received) is type(sent)
            assert (received.dtype, received.shape) == (sent.dtype, sent.shape)
            assert strict.all(received == sent)
            if sent.ndim == 2:
                assert strict.all(exchange(sent.T) == sent.T)

    @pytest.mark.parametrize("size", [10, 300_000])
    def test_they_are_received_into_arrays(self, size: int) -> None:
        strict = pytest.importorskip("array_api_strict")
        with pair(prefetch=0) as (one, other):
            for sent, target in [
                (strict.arange(size), np.zeros(size, np.int64)),
                (np.arange(size), strict.zeros(size, dtype=strict.int64)),
            ]:
                started = one.start_send(sent)
                assert other.recv_into(target, timeout=LIMIT) is target
                assert (np.from_dlpack(target) == np.arange(size)).all()
                started.result(LIMIT)

    def test_a_library_that_is_not_there_is_named(self) -> None:
        strict = pytest.importorskip("array_api_strict")
        with Peer("import sys; sys.modules['array_api_strict'] = None\n" + ECHO) as peer:
            peer.conn.send(strict.arange(10))
            error = peer.conn.recv(timeout=LIMIT)
            assert isinstance(error, ImportError)
            assert "array of array_api_strict arrived" in str(error)

    @pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"])
    @pytest.mark.parametrize("size", [10, 300_000])
    def test_short_floats_of_numpy(self, exchange: Exchange, name: str, size: int) -> None:
        dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))
        sent = np.arange(size).astype(np.uint8).view(dtype)
        for received in exchange(sent), exchange([sent])[0]:
            assert received.dtype == dtype
            assert received.tobytes() == sent.tobytes()


def test_the_order_is_kept() -> None:
    with Peer(ECHO) as peer:
        sent = [np.full(10 ** (i % 7), i) if i % 3 else (i, "x" * (i % 5)) for i in range(60)]
        transfers = [peer.conn.start_send(obj) for obj in sent]
        for obj in sent:
            received = peer.conn.recv(timeout=LIMIT)
            assert pickle.dumps(received) == pickle.dumps(obj)
        for started in transfers:
            started.result(LIMIT)
