"""What programs give the shuffle service comes back as it was, or is refused by name before anything is written."""

from __future__ import annotations

import array
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from service_support import Servers
from treadle.shuffle import Service, Shuffle
from treadle.shuffle._compression import of_note
from treadle.shuffle._dtypes import dtype_of, note_of
from treadle.shuffle.service._row_kinds import Fixed, Opaque, kind_of_note

pytestmark = pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")


@pytest.fixture(scope="module")
def service() -> Any:
    with Service() as service:
        yield service


class Quantity(np.ndarray[Any, Any]):
    """An array with an attribute, as those of astropy."""

    unit = "m"


def came_back(shuffle: Shuffle, rows: Any) -> Any:
    shuffle.commit([shuffle.write(0, rows, 0)])
    elsewhere = shuffle.service.attach(shuffle.number).reader(shuffle.generation).read(0)
    here = shuffle.reader().read(0)
    if isinstance(here, pa.RecordBatch):
        assert here.equals(elsewhere, check_metadata=True)
    else:
        assert here.dtype == elsewhere.dtype
        assert here.tobytes() == elsewhere.tobytes()
    return elsewhere


def refused(shuffle: Shuffle, rows: Any, said: str, **numbers: Any) -> None:
    """Rows are refused by name, and those that the writer has stay."""
    writer = shuffle.writer(0)
    with pytest.raises((TypeError, ValueError), match=f"map 0: .*{said}"):
        writer.write(rows, **(numbers or {"partitions": 0}))
    assert writer.finish().rows == 0


MASKED = np.ma.array([1, 2, 3], mask=[False, True, False])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (MASKED, "rows are masked"),
        ([MASKED[0], np.ma.masked], "rows are masked"),
        (np.zeros(3, "i8").view(Quantity), "rows are of class .*Quantity.*numpy.asarray"),
        (pd.Series([1, 2], index=["a", "b"]), "rows are of class pandas.Series"),
        (pa.array([1, 2]), "rows are of class pyarrow.Int64Array"),
        (np.zeros(2, np.dtype("i8", metadata={"unit": "m"})), "have metadata"),
        (np.array(5), "rows of shape"),
        (np.zeros(2, ">i8"), "dtype >i8"),
        (np.zeros(2, "M8[s]"), "dtype datetime64"),
        (np.array([1, None]), "dtype object"),
    ],
)
def test_arrays_that_are_more_than_their_elements(service: Service, rows: Any, said: str) -> None:
    with service.shuffle(1, 2, "i8") as shuffle:
        refused(shuffle, rows, said)


@pytest.mark.parametrize("what", ["partitions", "hashes"])
@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (np.ma.array([0, 1], mask=[False, True]), "are masked"),
        ([0, np.ma.masked], "are masked"),
        (np.zeros(2, "i8").view(Quantity), "are of class .*Quantity"),
        ([0.0, 1.0], "are no integers, but float64"),
        ([True, False], "are no integers, but bool"),
        (pd.Series([1, None], dtype="Int64"), "are no integers"),
        (pa.array([1, None]), "are no integers"),
        ([[0], [1]], "have 2 dimensions"),
        ([0, 2**64], "are no integers"),
    ],
)
def test_numbers_of_rows_that_are_none(
    service: Service, what: str, numbers: Any, said: str
) -> None:
    with service.shuffle(1, 2, "i8") as shuffle:
        refused(shuffle, np.arange(2), f"{what} {said}", **{what: numbers})


@pytest.mark.parametrize("given", [-1, 2, 2**32, 2**63, 2**64 - 1])
def test_partitions_that_there_are_not(service: Service, given: int) -> None:
    with service.shuffle(1, 2, "i8") as shuffle:
        refused(
            shuffle, np.arange(1), f"row 0 has partition {given}: there are 2", partitions=[given]
        )


def test_numbers_of_rows_of_other_libraries(service: Service) -> None:
    with service.shuffle(1, 3, "i8") as shuffle:
        writer = shuffle.writer(0)
        for row, numbers in enumerate(
            [
                pd.Series([1], index=["label"]),
                pd.Series([1], dtype="Int64"),
                pd.Index([1]),
                pa.array([1]),
                np.array([1, 0])[::-1][1:],
            ]
        ):
            writer.write(np.array([row]), numbers)
        shuffle.commit([writer.finish()])
        found = [rows.tolist() for rows in shuffle.reader()]
        assert found == [[], [0, 1, 2, 3, 4], []]


def arrays() -> dict[str, Any]:
    aligned = np.dtype([("a", "i1"), (("what it is", "b"), "f8")], align=True)
    return {
        "big": np.arange(5, dtype=">i8"),
        "backwards": np.arange(10)[::-2],
        "times": np.array(["2020-01-01", "NaT"], "M8[3h]"),
        "text": np.array(["a", "", "ä"]),
        "floats": np.array([np.nan, -0.0, np.inf]),
        "read-only": np.broadcast_to(np.float32(1), 4),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "matrix": np.matrix([[1, 2], [3, 4]]),
        "aligned": np.ones(3, aligned),
        "records": np.rec.array([(1, 2.0), (3, 4.0)], dtype=aligned),
        "one": np.arange(1),
        "none": np.empty((0, 2)),
    }


@pytest.mark.parametrize(
    "name",
    [
        "big",
        "backwards",
        "times",
        "text",
        "floats",
        "read-only",
        "columns",
        "matrix",
        "aligned",
        "records",
        "one",
        "none",
    ],
)
def test_arrays_come_back_whole(service: Service, name: str) -> None:
    rows = arrays()[name]
    rows.flags.writeable = False
    with service.shuffle(1, 1, np.dtype((rows.dtype, rows.shape[1:]))) as shuffle:
        found = came_back(shuffle, rows)
    assert found.dtype == rows.dtype
    assert found.dtype.type is rows.dtype.type
    assert found.dtype.isalignedstruct == rows.dtype.isalignedstruct
    assert found.shape == rows.shape
    np.testing.assert_array_equal(found, np.asarray(rows))


@pytest.mark.parametrize("kind", ["aligned", "records"])
def test_notes_tell_all_of_a_dtype(kind: str) -> None:
    dtype = arrays()[kind].dtype
    said = dtype_of(note_of(dtype))
    assert (said, said.type, said.isalignedstruct) == (dtype, dtype.type, True)
    assert said.fields == dtype.fields


def test_dtypes_that_others_are_not_told(service: Service) -> None:
    unit = np.dtype("f8", metadata={"unit": "m"})
    for kind in (unit, np.dtype([("a", unit)]), np.dtype((unit, (2,)))):
        with pytest.raises(TypeError, match="has metadata"):
            service.shuffle(1, 1, kind)
    for kind in (object, "S0", np.dtypes.StringDType()):
        with pytest.raises(TypeError, match="rows have no objects"):
            service.shuffle(1, 1, kind)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((np.array([0.0, 1.9]), b"ab"), "offsets are no integers, but float64"),
        ((np.array([], "i8"), b"ab"), r"offsets of shape \(0,\): give one"),
        ((np.array(0), b"ab"), r"offsets of shape \(\)"),
        ((np.array([0, 2, 1]), b"ab"), "offsets descend from 2 to 1 in record 1"),
        ((np.array([2, 1], "u8"), b"ab"), "offsets descend"),
        ((np.array([0, 3]), b"ab"), "from 0 to 3, and there are 2 bytes"),
        ((np.array([-1, 1]), b"ab"), "from -1 to 1"),
        ((np.array([0, 2**63], "u8"), b"ab"), "there are 2 bytes"),
        ((np.ma.array([0, 1], mask=True), b"ab"), "offsets are masked"),
        ((np.array([0, 1]), np.ma.array([1], mask=True)), "the data of offsets are masked"),
        ((np.array([0, 1]), "text"), "the data of offsets must be bytes .* not builtins.str"),
        (["text"], "record 0 must be bytes .* not builtins.str"),
        ([b"a", None], "record 1 must be bytes .* not builtins.NoneType"),
        ([b"a", MASKED], "record 1 are masked"),
        ([1], "record 0 must be bytes .* not builtins.int"),
        (np.arange(3), "record 0 must be bytes .* not numpy.int64"),
        (pd.Series([b"a"]), "rows are of class pandas.Series"),
        (b"bytes", "rows of type bytes: give a list"),
        ({b"a": 1}, "rows of type dict"),
        (iter([b"a"]), "rows of type list_iterator"),
    ],
)
def test_records_that_are_none(service: Service, rows: Any, said: str) -> None:
    with service.shuffle(1, 2) as shuffle:
        refused(shuffle, rows, said)


def test_records_of_all_kinds_come_back(service: Service) -> None:
    items = np.arange(4, dtype="i4")
    records: list[Any] = [b"", bytearray(b"ab"), memoryview(b"abcd")[::2], np.bytes_(b"x")]
    records += [items, items[::-1], array.array("d", [1.5]), np.zeros((0, 3)), memoryview(items)]
    written = [memoryview(one).tobytes() for one in records]
    pairs = [
        (np.array([1, 1, 3], ">u2"), b"abcd"),
        (np.array([0, 2, 4])[::2], bytearray(b"abcd")),
        ([0, 4], items),
        (np.array([0]), b""),
    ]
    with service.shuffle(1, 1) as shuffle:
        writer = shuffle.writer(0)
        for rows in (records, tuple(records), np.array([b"a", b"bc"], object), *pairs):
            writer.write(rows, 0)
        shuffle.commit([writer.finish()])
        found = shuffle.reader().read(0)
    assert found[: 2 * len(written)] == 2 * written
    assert found[2 * len(written) :] == [b"a", b"bc", b"", b"bc", b"abcd", bytes(4)]


def test_numbers_of_arrow_of_any_type_come_back(service: Service) -> None:
    types: dict[str, tuple[Any, list[Any]]] = {
        "fixed": (pa.binary(3), [b"abc", None, b"xyz"]),
        "view": (pa.string_view(), ["a", None, "b" * 40]),
        "binary view": (pa.binary_view(), [b"a", None, b"b" * 40]),
        "half": (pa.float16(), [np.float16(1), None, np.float16(2)]),
        "decimal": (pa.decimal256(50, 3), [None, 1, 2]),
        "interval": (pa.month_day_nano_interval(), [(1, 2, 3), None, (4, 5, 6)]),
        "time": (pa.timestamp("us", "Europe/Vienna"), [1, None, 3]),
        "yes": (pa.bool_(), [True, None, False]),
    }
    fields = [pa.field(name, kind, metadata={"of": name}) for name, (kind, _) in types.items()]
    # Two columns of one name are two.
    schema = pa.schema([*fields, pa.field("yes", pa.int8(), nullable=False)], {"k": "v"})
    columns = [pa.array(values, kind) for kind, values in types.values()]
    batch = pa.RecordBatch.from_arrays([*columns, pa.array([1, 2, 3], pa.int8())], schema=schema)
    with service.shuffle(1, 1, schema) as shuffle:
        assert came_back(shuffle, batch.slice(1)).equals(batch.slice(1), check_metadata=True)
    with service.shuffle(1, 1, schema) as shuffle:
        writer = shuffle.writer(0)
        for at in (0, 1, 3):
            writer.write(batch.slice(at, 2 if at else 1), 0)
        shuffle.commit([writer.finish()])
        assert shuffle.reader().read(0).equals(batch, check_metadata=True)


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.list_(pa.int8(), 2),
        pa.list_view(pa.int8()),
        pa.struct([("a", pa.int8())]),
        pa.map_(pa.int8(), pa.int8()),
        pa.binary(0),
        pa.uuid(),
        pa.bool8(),
        pa.dense_union([pa.field("a", pa.int8())]),
    ],
    ids=str,
)
def test_columns_that_are_not_taken_are_named(service: Service, kind: pa.DataType) -> None:
    with pytest.raises(TypeError, match=r"column 'c' of type .*: the service takes numbers"):
        service.shuffle(1, 1, pa.schema([("c", kind)]))


def test_rows_without_columns_are_refused(service: Service) -> None:
    with pytest.raises(TypeError, match="the schema has no columns"):
        service.shuffle(1, 1, pa.schema([]))
    with pytest.raises(TypeError, match=r"give a pyarrow\.Schema"):
        service.shuffle(1, 1, pa.int8())


def test_metadata_that_are_not_those_of_the_shuffle(service: Service) -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2]})
    other = batch.replace_schema_metadata({"k": "other"})
    field = pa.field("a", pa.int64(), metadata={"k": "other"})
    with service.shuffle(1, 1, batch.schema.with_metadata({"k": "v"})) as shuffle:
        refused(shuffle, other, "metadata of a batch's schema")
        refused(shuffle, batch.cast(pa.schema([field])), "metadata of a batch's schema")
        # What has none has nothing to lose.
        assert came_back(shuffle, batch).schema.metadata == {b"k": b"v"}
        assert came_back(shuffle, other.cast(shuffle.kind.schema)).num_rows == 2  # type: ignore[attr-defined]
        refused(shuffle, pa.table({"a": [1]}), "type Table: give a pyarrow.RecordBatch")


NUMBERS = [
    ("maps", 2**20, lambda s, n: s.service.shuffle(n, 1)),
    ("partitions", 2**20, lambda s, n: s.service.shuffle(1, n)),
    ("copies", 2, lambda s, n: s.service.shuffle(1, 1, copies=n)),
    ("map", 2, lambda s, n: s.writer(n)),
    ("partition", 1, lambda s, n: s.reader(1).read(n)),
    ("maps", 3, lambda s, n: s.reader(1).read(0, (n, n))),
    ("number", 2**64 - 1, lambda s, n: s.service.attach(n)),
    ("priority", 2**32 - 1, lambda _, n: Service(priority=n)),
    ("servers", 1024, lambda _, n: Service(servers=n)),
]


@pytest.mark.parametrize(("name", "most", "call"), NUMBERS)
@pytest.mark.parametrize("given", [-1, "beyond", 2**64, 1.5, math.nan, "1"])
def test_numbers_that_are_out_of_range_are_named(
    service: Service, name: str, most: int, call: Callable[[Shuffle, Any], Any], given: Any
) -> None:
    given = most + 1 if given == "beyond" else given
    with (
        service.shuffle(3, 2) as shuffle,
        pytest.raises((TypeError, ValueError), match=f"{name}=.*: (give an integer|there are)"),
    ):
        call(shuffle, given)


def test_integers_of_numpy_are_integers(servers_of_one: Servers) -> None:
    with servers_of_one.service.shuffle(np.int8(2), np.uint64(2), "i8", copies=True) as shuffle:
        rows = [shuffle.write(np.int64(number), np.arange(2), np.uint8(1)) for number in range(2)]
        shuffle.commit(rows)
        assert shuffle.reader().read(np.int32(1), (np.int8(0), np.int8(1))).tolist() == [0, 1]


def test_what_the_rust_client_says_of_its_rows_is_understood() -> None:
    """Its own tests have what Python says (``crates/shuffle/client/src/kind.rs``)."""
    records = b'{"compression":"lz4","kind":"opaque"}\nwhat a host has added'
    assert isinstance(kind_of_note(records), Opaque)
    assert of_note(records) == "lz4"
    fixed = kind_of_note(b'{"dtype":"|V8","kind":"fixed"}')
    assert isinstance(fixed, Fixed)
    assert fixed.dtype == np.dtype("V8")


@pytest.fixture
def servers_of_one(new_servers: Callable[..., Servers]) -> Servers:
    return new_servers("a")
