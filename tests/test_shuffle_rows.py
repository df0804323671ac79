"""Data frames as rows of a shuffle and back, beside pandas and distributed's own functions."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pandas.testing import assert_frame_equal

from shuffle_support import gathered, ours, pieces_of, theirs
from treadle import _core, shuffle
from treadle.shuffle import _columns

pytestmark = pytest.mark.filterwarnings("ignore:.*sparse.*:FutureWarning")

Random = np.random.Generator
Maker = Callable[[Random, int], Any]

# How pandas names the type of text.
TEXT = "str" if pd.__version__ >= "3" else "object"
WORDS = np.array(["", "a", "grün", "漢字", "x" * 300, "zz\x00z"], object)


def _with_nulls(random: Random, values: Any, null: Any) -> Any:
    values = np.asarray(values, object)
    values[random.random(len(values)) < 0.3] = null
    return values


def _words(random: Random, n: int) -> Any:
    return WORDS[random.integers(0, len(WORDS), n)]


def _floats(random: Random, n: int) -> Any:
    values = random.normal(size=n)
    values[random.random(n) < 0.2] = np.nan
    return values


def _times(unit: str) -> Maker:
    def make(random: Random, n: int) -> Any:
        values = random.integers(0, 10**6, n).astype(f"M8[{unit}]")
        values[random.random(n) < 0.2] = "NaT"
        return values

    return make


def _arrow(kind: pa.DataType, value: Callable[[int], Any]) -> Maker:
    def make(random: Random, n: int) -> Any:
        values = [value(int(k)) if k % 4 else None for k in random.integers(0, 50, n)]
        chunks = [pa.array(values[: n // 3], kind), pa.array(values[n // 3 :], kind)]
        return pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array(chunks, kind)))

    return make


# What Dask's own shuffle knows too.
KNOWN: dict[str, Maker] = {
    "int64": lambda r, n: r.integers(-9, 9, n),
    "uint8": lambda r, n: r.integers(0, 9, n).astype("u1"),
    "int16": lambda r, n: r.integers(-9, 9, n).astype("i2"),
    "float64": _floats,
    "float32": lambda r, n: r.normal(size=n).astype("f4"),
    "bool": lambda r, n: r.random(n) < 0.5,
    "times": _times("ns"),
    "seconds": _times("s"),
    "durations": lambda r, n: r.integers(0, 999, n).astype("m8[ns]"),
    "zone": lambda r, n: (
        pd.Series(_times("ns")(r, n)).dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")
    ),
    "str": lambda r, n: pd.array(_with_nulls(r, _words(r, n), np.nan), dtype="str"),
    "string": lambda r, n: pd.array(_with_nulls(r, _words(r, n), pd.NA), dtype="string[pyarrow]"),
    "string[python]": lambda r, n: pd.array(
        _with_nulls(r, _words(r, n), pd.NA), dtype="string[python]"
    ),
    "Int32": lambda r, n: pd.array(_with_nulls(r, r.integers(0, 9, n), pd.NA), dtype="Int32"),
    "boolean": lambda r, n: pd.array(_with_nulls(r, r.random(n) < 0.5, pd.NA), dtype="boolean"),
    "category": lambda r, n: pd.Categorical(
        _with_nulls(r, r.choice(["b", "a", "c"], n), None), categories=["c", "b", "unused", "a"]
    ),
    "ordered": lambda r, n: pd.Categorical(r.choice([3, 1], n), categories=[3, 2, 1], ordered=True),
    "period": lambda r, n: pd.PeriodIndex.from_ordinals(r.integers(0, 99, n), freq="M"),
    "int64[pyarrow]": _arrow(pa.int64(), lambda k: k),
    "timestamp[pyarrow]": _arrow(pa.timestamp("us", "UTC"), lambda k: k),
    "date[pyarrow]": _arrow(pa.date32(), lambda k: datetime.date(2000, 1, 1 + k % 28)),
    "bool[pyarrow]": _arrow(pa.bool_(), lambda k: k % 3 == 0),
    "binary[pyarrow]": _arrow(pa.binary(), lambda k: b"x" * k),
}

# What it refuses, or gives back as objects.
OURS: dict[str, Maker] = {
    "complex128": lambda r, n: r.normal(size=n) + 1j,
    "objects": lambda r, n: pd.Series(
        [[None, 7, "x", (1, 2), {"a": [k]}, float, lambda: 1][k] for k in r.integers(0, 6, n)],
        dtype=object,
    ),
    "interval": lambda r, n: pd.arrays.IntervalArray.from_breaks(np.arange(n + 1)),
    "sparse": lambda r, n: pd.arrays.SparseArray(r.integers(0, 2, n)),
    "decimal[pyarrow]": _arrow(pa.decimal128(9, 2), decimal.Decimal),
    "string[pyarrow]": _arrow(pa.string(), lambda k: WORDS[k % 5]),
    "text[pyarrow]": _arrow(pa.large_string(), lambda k: WORDS[k % 5]),
    "list[pyarrow]": _arrow(pa.list_(pa.int64()), lambda k: [k] * (k % 3)),
    "struct[pyarrow]": _arrow(pa.struct([("a", pa.int64())]), lambda k: {"a": k}),
}


def frame_of(random: Random, makers: dict[str, Maker], n: int, partitions: int) -> pd.DataFrame:
    columns = {name: make(random, n) for name, make in makers.items()}
    # Series would be aligned with the index.
    arrays = {k: v.array if isinstance(v, pd.Series) else v for k, v in columns.items()}
    frame = pd.DataFrame(arrays, index=random.permutation(n) * 3)
    frame["_partitions"] = random.integers(0, partitions, n)
    return frame


def by_pandas(frames: list[pd.DataFrame], partition: int) -> pd.DataFrame:
    """The rows of a partition, if all maps have the same types."""
    whole = pd.concat(frames)
    return whole[whole["_partitions"] == partition].drop(columns="_partitions")


@pytest.mark.parametrize("name", KNOWN)
def test_each_type_is_as_dasks_own_shuffle_gives_it(name: str) -> None:
    random = np.random.default_rng(len(name))
    for rows in (0, 1, 40):
        frames = [frame_of(random, {name: KNOWN[name]}, rows, 5) for _ in range(3)]
        meta = frames[0].iloc[:0]
        results = ours(meta, frames, 5)
        for partition, (mine, other) in enumerate(
            zip(results, theirs(meta, frames, 5), strict=True)
        ):
            assert_frame_equal(mine, other)
            if rows:
                assert_frame_equal(mine, by_pandas(frames, partition))


@pytest.mark.parametrize("name", OURS)
def test_each_type_that_dasks_own_shuffle_does_not_keep_is_as_it_was(name: str) -> None:
    random = np.random.default_rng(len(name))
    frames = [frame_of(random, {name: OURS[name]}, rows, 4) for rows in (30, 0, 7)]
    for partition, mine in enumerate(ours(frames[0].iloc[:0], frames, 4)):
        assert_frame_equal(mine, by_pandas(frames, partition))


@pytest.mark.parametrize("seed", range(40))
def test_random_frames(seed: int) -> None:
    random = np.random.default_rng(seed)
    makers = KNOWN if seed % 2 else {**KNOWN, **OURS}
    chosen = random.choice(list(makers), random.integers(0, 8), replace=False)
    partitions = int(random.choice([1, 2, 7, 50]))
    used = int(random.integers(1, partitions + 1))
    frames = [
        frame_of(random, {k: makers[k] for k in chosen}, int(random.choice([0, 1, 9, 200])), used)
        for _ in range(random.integers(1, 5))
    ]
    meta = frames[0].iloc[:0]
    results = ours(meta, frames, partitions)
    if seed % 2:
        for mine, other in zip(results, theirs(meta, frames, partitions), strict=True):
            assert_frame_equal(mine, other)
    for partition, mine in enumerate(results):
        assert_frame_equal(mine, by_pandas(frames, partition))


INDEXES: dict[str, Callable[[int], pd.Index[Any]]] = {
    "range": lambda n: pd.RangeIndex(5, 5 + n),
    "named": lambda n: pd.Index(np.arange(n)[::-1], name="k"),
    "float": lambda n: pd.Index([np.nan if k % 3 else 1.5 * k for k in range(n)]),
    "str": lambda n: pd.Index([f"r{k % 4}" for k in range(n)], name="s"),
    "times": lambda n: pd.date_range("2020", periods=n, freq="h", tz="Europe/Berlin", name="t"),
    "multi": lambda n: pd.MultiIndex.from_arrays(
        [np.arange(n) % 3, list("ab" * n)[:n]], names=["a", None]
    ),
    "category": lambda n: pd.CategoricalIndex(list("ab" * n)[:n], categories=["b", "a"], name="c"),
}


@pytest.mark.parametrize("name", INDEXES)
def test_the_index_travels(name: str) -> None:
    frames = []
    for _ in range(2):
        numbers = {"x": np.arange(20), "_partitions": np.arange(20) % 3}
        frames.append(pd.DataFrame(numbers, index=INDEXES[name](20)))
    meta = frames[0].iloc[:0]
    for mine, other in zip(ours(meta, frames, 4), theirs(meta, frames, 4), strict=True):
        assert_frame_equal(mine, other)


@pytest.mark.parametrize(
    "kind", ["i1", "i2", "i4", "i8", "u1", "u4", "u8", "Int64", "int32[pyarrow]"]
)
def test_partitions_may_be_any_integers(kind: str) -> None:
    frame = pd.DataFrame({"x": range(9), "_partitions": pd.Series(np.arange(9) % 3).astype(kind)})
    frame = frame.iloc[::-1]
    for partition, mine in enumerate(ours(frame.iloc[:0], [frame], 3)):
        assert_frame_equal(mine, by_pandas([frame], partition))


@pytest.mark.parametrize(
    ("numbers", "error", "text"),
    [
        ([0, 1, 3, 9], ValueError, "column '_partitions' has 3 in row 2: there are 3 partitions"),
        ([0, -1], ValueError, "column '_partitions' has -1 in row 1"),
        (np.array([2**64 - 1], "u8"), ValueError, "has 18446744073709551615 in row 0"),
        ([0.0, 1.0], TypeError, "column '_partitions' has dtype float64"),
        (["a"], TypeError, f"column '_partitions' has dtype {TEXT}"),
        (pd.array([1, None], "Int64"), ValueError, "has no number in row 1"),
    ],
)
def test_a_number_that_is_no_partition_is_named(numbers: Any, error: Any, text: str) -> None:
    frame = pd.DataFrame({"x": 1, "_partitions": numbers})
    agreed = shuffle.Agreed(frame.iloc[:0], "_partitions", 3)
    with pytest.raises(error, match=text):
        shuffle.split(agreed, frame)


def test_other_columns_are_refused_and_another_order_is_not() -> None:
    frame = pd.DataFrame({"x": range(4), "y": 0.5, "_partitions": 0})
    agreed = shuffle.Agreed(frame.iloc[:0], "_partitions", 1)
    with pytest.raises(ValueError, match="they differ in 'y', 'z'"):
        shuffle.split(agreed, frame.rename(columns={"y": "z"}))
    with pytest.raises(TypeError, match="not Series"):
        shuffle.split(agreed, frame["x"])  # type: ignore[arg-type]
    turned = frame[["y", "_partitions", "x"]]
    (mine,) = ours(frame.iloc[:0], [frame, turned], 1)
    assert_frame_equal(mine, by_pandas([frame, frame], 0))


def test_names_of_columns_may_be_anything() -> None:
    values = np.arange(40).reshape(8, 5)
    numbers = np.arange(8) % 2
    for names in (
        pd.Index([3, "a", None, (1, 2), 2.5], dtype=object),
        pd.MultiIndex.from_product([["p"], range(5)], names=["u", "v"]),
        pd.Index(["same"] * 5, name="n"),
        pd.RangeIndex(5),
    ):
        frame = pd.DataFrame(values, columns=names)
        key = ("_partitions", 0) if names.nlevels == 2 else "_partitions"
        frame[key] = numbers
        for partition, mine in enumerate(ours(frame.iloc[:0], [frame], 2, key)):
            assert_frame_equal(mine, frame[numbers == partition].iloc[:, :5])


def test_the_column_of_partitions_can_be_kept() -> None:
    frame = pd.DataFrame({"_partitions": [1, 0, 1], "s": ["a", None, "b"]})
    meta = frame.iloc[:0]
    both = ours(meta, [frame], 3, drop_column=False), theirs(meta, [frame], 3, drop_column=False)
    for mine, other in zip(*both, strict=True):
        assert_frame_equal(mine, other)


def test_a_frame_without_columns_keeps_its_index() -> None:
    frame = pd.DataFrame({"_partitions": [1, 0, 1]}, index=["a", "b", "c"])
    for partition, mine in enumerate(ours(frame.iloc[:0], [frame], 2)):
        assert_frame_equal(mine, by_pandas([frame], partition))


def _cases() -> dict[str, tuple[Any, list[Any]]]:
    text = pd.array(["a", None], dtype="str")
    return {
        "int became float": (np.array([1]), [np.array([1, 2]), np.array([0.5, np.nan])]),
        "meta is wider": (np.array([0.5]), [np.array([1, 2]), np.array([3, 4])]),
        "meta is narrower": (np.array([1], "i4"), [np.array([1, 2]), np.array([3, 4])]),
        "objects are text": (text, [np.array(["x", None], object), text]),
        "text of another kind": (text, [pd.array(["x", None], dtype="string[pyarrow]")]),
        "nothing but nulls": (
            np.array([0.5]),
            [np.array([None, None], object), np.array([1.5, 2])],
        ),
        "categories differ": (
            pd.Categorical(["a"]),
            [pd.Categorical(["a", "b"]), pd.Categorical(["c", "b"], categories=["c", "b", "d"])],
        ),
        "categories are turned": (
            pd.Categorical(["a", "b"], categories=["a", "b"]),
            [pd.Categorical(["a", "b"], categories=["b", "a"])] * 2,
        ),
        "a category was none": (pd.Categorical(["a"]), [pd.array(["a", "b"], dtype="str")]),
        "times of another unit": (
            np.array([1], "M8[ns]"),
            [np.array([1, 2], "M8[s]"), np.array([3, 4], "M8[ns]")],
        ),
    }


@pytest.mark.parametrize("name", _cases())
def test_maps_whose_types_are_not_those_of_the_meta(name: str) -> None:
    example, maps = _cases()[name]
    meta = pd.DataFrame({"x": example, "_partitions": 0}).iloc[:0]
    frames = [pd.DataFrame({"x": values, "_partitions": 0}) for values in maps]
    both = ours(meta, frames, 2), theirs(meta, frames, 2)
    for mine, other in zip(*both, strict=True):
        assert_frame_equal(mine, other)


def test_categories_that_the_meta_does_not_know() -> None:
    from dask.dataframe.utils import UNKNOWN_CATEGORIES

    meta = pd.DataFrame({"x": pd.Categorical([], [UNKNOWN_CATEGORIES]), "_partitions": 0})
    meta["_partitions"] = meta["_partitions"].astype("i8")
    random = np.random.default_rng(3)
    frames = [
        pd.DataFrame(
            {
                "x": pd.Categorical(random.choice(list(letters), 30)),
                "_partitions": random.integers(0, 4, 30),
            }
        )
        for letters in ("abc", "abc", "cde", "a")
    ]
    both = ours(meta, frames, 5), theirs(meta, frames, 5)
    for mine, other in zip(*both, strict=True):
        assert_frame_equal(mine, other, check_categorical=False)
        assert set(mine["x"].cat.categories) == set(other["x"].cat.categories)


def test_strange_memory() -> None:
    values = np.arange(600, dtype="f8").reshape(60, 10)
    values.flags.writeable = False
    numbers = np.broadcast_to(np.int64(1), 60)
    for block in (
        values,
        values[::2],
        values[::-1],
        np.asfortranarray(values),
        values[:, ::-2],
        values[5:6],
    ):
        frame = pd.DataFrame(block, copy=False)
        frame["_partitions"] = numbers[: len(block)]
        results = ours(frame.iloc[:0], [frame], 2)
        assert_frame_equal(results[1], frame.drop(columns="_partitions"))
        assert results[0].empty


def test_text_of_more_bytes_than_an_array_with_offsets_of_32_bits_can_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chunk = pa.array(["x" * (1 << 20)] * 64)
    whole = pd.arrays.ArrowExtensionArray(pa.chunked_array([chunk] * 33))
    offsets, _, nulls = _columns.Column(whole.dtype).fields(whole)[0]
    assert offsets[-1] == 33 << 26
    assert nulls is None
    # Back, with a smaller limit, so that not as much memory is needed again.
    monkeypatch.setattr(_columns, "_MOST_BYTES", 700)
    frame = frame_of(np.random.default_rng(1), {"x": OURS["string[pyarrow]"]}, 100, 2)
    for partition, mine in enumerate(ours(frame.iloc[:0], [frame], 2)):
        assert_frame_equal(mine, by_pandas([frame], partition))
        assert mine["x"].array._pa_array.num_chunks > 1


@pytest.mark.skipif(pd.__version__ < "3", reason="pandas 2 cannot take rows of such a column")
def test_another_order_of_bytes_is_kept() -> None:
    frame = pd.DataFrame({"x": np.arange(5).astype(">i4"), "_partitions": 0})
    (mine,) = ours(frame.iloc[:0], [frame], 1)
    assert mine["x"].dtype == np.dtype(">i4")
    assert mine["x"].tolist() == [0, 1, 2, 3, 4]


def test_what_was_assembled_is_the_callers_to_change() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "s": ["a", "b"], "_partitions": 0})
    (mine,) = ours(frame.iloc[:0], [frame], 1)
    mine.loc[0, "x"] = 9.0
    mine["y"] = mine["x"] * 2
    assert mine["y"].tolist() == [18.0, 4.0]
    assert frame["x"].tolist() == [1.0, 2.0]


def test_columns_of_a_type_are_one_block() -> None:
    frame = pd.DataFrame(np.ones((5, 6)))
    frame["_partitions"] = 0
    (mine,) = ours(frame.iloc[:0], [frame], 1)
    bases = {id(mine.iloc[:, at].to_numpy().base) for at in range(6)}
    assert len(bases) == 1


def test_a_partition_of_many_batches_keeps_its_order() -> None:
    rows = 200_000
    random = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"x": np.arange(rows), "s": "text " * 5, "_partitions": random.integers(0, 2, rows)}
    )
    agreed = shuffle.Agreed(frame.iloc[:0], "_partitions", 2)
    arenas = shuffle.split(agreed, frame).gather(1, 0, 5, [(1, [(0, 2)])])
    batches = arenas[0].batches
    assert len(batches) > 2
    assert all(bytes_of_rows <= 4 << 20 for _, _, _, bytes_of_rows, _ in batches)
    assert sum(count for _, _, count, _, _ in batches) == rows
    for partition in range(2):
        mine = shuffle.assemble(agreed, pieces_of(arenas, 0, partition))
        assert_frame_equal(mine, by_pandas([frame], partition))


def test_only_wanted_partitions_are_gathered() -> None:
    frame = pd.DataFrame({"x": range(12), "_partitions": np.arange(12) % 4})
    agreed = shuffle.Agreed(frame.iloc[:0], "_partitions", 4)
    rows = shuffle.split(agreed, frame)
    (arena,) = rows.gather(1, 0, 5, [(3, [(1, 2), (3, 4)])])
    assert [len(arena.find(partition)) for partition in range(4)] == [0, 1, 0, 1]
    again = rows.gather(1, 0, 5, [(4, [(3, 4)])])[0]
    (piece,), (other,) = arena.find(3), again.find(3)
    assert piece[1:] == other[1:]
    with pytest.raises(ValueError, match="ascend"):
        rows.gather(1, 0, 5, [(3, [(2, 3), (0, 1)])])


def test_damaged_pieces_are_refused() -> None:
    frame = pd.DataFrame({"s": ["a", "bb"], "_partitions": 0})
    agreed = shuffle.Agreed(frame.iloc[:0], "_partitions", 1)
    (piece,) = pieces_of(gathered(shuffle.split(agreed, frame), 0, 1), 0, 0)
    damaged = bytearray(piece.data)
    damaged[0] ^= 1
    with pytest.raises(ValueError, match="damaged"):
        shuffle.assemble(agreed, [piece._replace(data=damaged)])
    assert _core.digest_rows(0, 0, 0, piece.data) != _core.digest_rows(0, 1, 0, piece.data)
