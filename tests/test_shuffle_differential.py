"""Random data frames through a shuffle, beside what pandas makes of them. A failure names its seed."""

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

from shuffle_support import ours

Random = np.random.Generator
# Takes the number of rows; returns an array of pandas or NumPy.
Maker = Callable[[Random, int], Any]


def _some(random: Random, values: list[Any], n: int, null: Any = None) -> list[Any]:
    """Values by chance, a fifth of them null."""
    chosen = random.integers(0, len(values), n)
    return [null if random.random() < 0.2 else values[at] for at in chosen]


def _of(dtype: Any, values: list[Any]) -> Maker:
    return lambda random, n: pd.array(_some(random, values, n), dtype=dtype)


def _arrow(kind: pa.DataType, values: list[Any]) -> Maker:
    return _of(pd.ArrowDtype(kind), values)


WORDS = ["", "a", "grün", "漢字", "x" * 50, "z\x00z"]
WHOLE = [0, 1, -7, 2**53 + 1, -(2**63), 2**63 - 1]
HALVES = [0.0, 0.5, -1e300, float("inf"), 3.0]
DAYS = pd.to_datetime(["1969-12-31", "2020-02-29", "2262-04-11"])


def _categories(ordered: bool) -> Maker:
    """Each map has categories of its own."""

    def make(random: Random, n: int) -> Any:
        letters = list("abcdef") if ordered else list(random.permutation(list("abcdef"))[:4])
        values = _some(random, letters, n)
        return pd.Categorical(values, categories=letters, ordered=ordered)

    return make


def _objects(random: Random, n: int) -> Any:
    values = np.empty(n, object)
    some = [None, 7, "x", (1, 2), [1, [2]], {"a": 1}, float("nan"), decimal.Decimal("1.10")]
    for row in range(n):
        values[row] = some[random.integers(0, len(some))]
    return pd.array(values, dtype=object)


def _intervals(random: Random, n: int) -> Any:
    left = random.integers(-9, 9, n).astype(float)
    left[random.random(n) < 0.2] = np.nan
    return pd.arrays.IntervalArray.from_arrays(left, left + 2, closed="both")


COLUMNS: dict[str, Maker] = {
    "int64": lambda r, n: r.choice(np.array(WHOLE), n),
    "uint64": lambda r, n: r.choice(np.array([0, 2**64 - 1], "u8"), n),
    "int8": lambda r, n: r.integers(-128, 128, n).astype("i1"),
    "float64": lambda r, n: np.array(_some(r, HALVES, n, np.nan), "f8"),
    "float16": lambda r, n: r.normal(size=n).astype("f2"),
    "complex128": lambda r, n: r.normal(size=n) + 1j,
    "bool": lambda r, n: r.random(n) < 0.5,
    "times": _of("M8[ns]", list(DAYS)),
    "seconds": _of("M8[s]", list(DAYS)),
    "zone": _of("datetime64[us, Europe/Berlin]", list(DAYS.tz_localize("UTC"))),
    "offset": _of("datetime64[ms, UTC+05:30]", list(DAYS.tz_localize("UTC"))),
    "durations": _of("m8[us]", list(pd.to_timedelta([0, -1, 10**9], unit="ms"))),
    "period": _of("period[Q-DEC]", list(pd.period_range("1969Q1", periods=9, freq="Q"))),
    "interval": _intervals,
    "str": _of("str", WORDS),
    "string": _of("string[pyarrow]", WORDS),
    "string[python]": _of("string[python]", WORDS),
    "Int64": _of("Int64", WHOLE),
    "UInt8": _of("UInt8", [0, 255]),
    "Float32": _of("Float32", [0.5, -2.0]),
    "boolean": _of("boolean", [True, False]),
    "categories": _categories(False),
    "ordered": _categories(True),
    "objects": _objects,
    "text objects": lambda r, n: np.array(_some(r, WORDS, n), object),
    "sparse": lambda r, n: pd.arrays.SparseArray(r.integers(0, 2, n)),
    "int64[pyarrow]": _arrow(pa.int64(), WHOLE),
    "bool[pyarrow]": _arrow(pa.bool_(), [True, False]),
    "text[pyarrow]": _arrow(pa.string(), WORDS),
    "large text[pyarrow]": _arrow(pa.large_string(), WORDS),
    "binary[pyarrow]": _arrow(pa.binary(), [b"", b"\x00", b"abc"]),
    "date[pyarrow]": _arrow(pa.date32(), [datetime.date(1969, 1, 1), datetime.date(2020, 2, 29)]),
    "time[pyarrow]": _arrow(pa.time64("us"), [datetime.time(1, 2, 3, 4)]),
    "timestamp[pyarrow]": _arrow(pa.timestamp("ns", "Asia/Tokyo"), list(DAYS.tz_localize("UTC"))),
    "decimal[pyarrow]": _arrow(pa.decimal128(9, 2), [decimal.Decimal("1.10")]),
    "list[pyarrow]": _arrow(pa.list_(pa.int64()), [[], [1, 2]]),
    "struct[pyarrow]": _arrow(pa.struct([("a", pa.int64())]), [{"a": 1}]),
}
# Types that an index has, too.
NO_LEVELS = ("objects", "sparse", "float16", "list[pyarrow]", "struct[pyarrow]")
LEVELS = [name for name in COLUMNS if name not in NO_LEVELS]


def _level(random: Random, name: str, n: int) -> pd.Index[Any]:
    values = COLUMNS[name](random, n)
    return pd.Index(values, dtype=values.dtype)


def _index(random: Random, levels: list[str], names: list[Any], n: int) -> Any:
    if not levels:
        return pd.RangeIndex(n, name=names[0])
    made = [_level(random, level, n) for level in levels]
    if len(made) > 1:
        return pd.MultiIndex.from_arrays(made, names=names)
    return made[0].rename(names[0])


def _frames(random: Random) -> list[pd.DataFrame]:
    columns = random.choice(list(COLUMNS), random.integers(0, 7), replace=False)
    levels = list(map(str, random.choice(LEVELS, random.integers(0, 4), replace=False)))
    names = [[None, "n", 3, ("a", 1)][random.integers(0, 4)] for _ in range(max(1, len(levels)))]
    frames = []
    for _ in range(random.integers(1, 6)):
        n = int(random.choice([0, 1, 7, 60]))
        index = _index(random, levels, names, n)
        arrays = {name: COLUMNS[name](random, n) for name in columns}
        made = {name: pd.Series(one, index, one.dtype) for name, one in arrays.items()}
        frame = pd.DataFrame(made, index=index, columns=list(columns))
        frame["_partitions"] = random.integers(0, 4, n)
        frames.append(frame)
    return frames


def _values(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with categories, of which pandas makes another type where they differ, as values."""
    found = frame.copy()
    for name, dtype in frame.dtypes.items():
        if isinstance(dtype, pd.CategoricalDtype):
            found[name] = frame[name].astype(object)
    levels = [frame.index.get_level_values(level) for level in range(frame.index.nlevels)]
    values = [
        level.astype(object) if isinstance(level, pd.CategoricalIndex) else level
        for level in levels
    ]
    if len(values) > 1:
        found.index = pd.MultiIndex.from_arrays(values, names=frame.index.names)
    else:
        found.index = values[0]
    return found


@pytest.mark.filterwarnings("ignore:.*sparse.*:FutureWarning")
@pytest.mark.parametrize("seed", range(40))
def test_outputs_are_what_pandas_concatenates(seed: int) -> None:
    random = np.random.default_rng(seed)
    frames = _frames(random)
    meta = frames[0].iloc[:0]
    results = ours(meta, frames, 5)
    assert_frame_equal(results[4], meta.drop(columns="_partitions"))
    for partition, mine in enumerate(results[:4]):
        assert list(map(type, mine.dtypes)) == list(map(type, meta.dtypes[:-1]))
        parts = [_values(frame[frame["_partitions"] == partition]) for frame in frames]
        parts = [part for part in parts if len(part)]
        if parts:
            whole = pd.concat(parts).drop(columns="_partitions")
            if parts[0].index.dtype == object and parts[0].index.nlevels == 1:
                # pandas has made text of them, with nan for None, if there is nothing else.
                values = np.concatenate([part.index.to_numpy(object) for part in parts])
                whole.index = pd.Index(values, dtype=object, name=whole.index.name)
            assert_frame_equal(_values(mine), whole)


# Types that have the same values: each map has one of them.
KIN: dict[str, list[Maker]] = {
    "text": [
        COLUMNS[name]
        for name in ("str", "string", "string[python]", "text[pyarrow]", "large text[pyarrow]")
    ]
    + [lambda r, n: np.array(_some(r, WORDS, n), object)],
    "integers": [COLUMNS["Int64"], COLUMNS["UInt8"], COLUMNS["int64[pyarrow]"]],
    "truths": [COLUMNS["boolean"], COLUMNS["bool[pyarrow]"]],
    "floats": [COLUMNS["Float32"], _of("Float64", HALVES), _arrow(pa.float64(), HALVES)],
    "numbers": [COLUMNS["int64"], COLUMNS["float64"], COLUMNS["uint64"], COLUMNS["Int64"]],
    "times": [
        COLUMNS["times"],
        COLUMNS["seconds"],
        COLUMNS["zone"],
        _arrow(pa.timestamp("us"), list(DAYS)),
        lambda r, n: np.array(_some(r, [pd.Timestamp(1), pd.Timestamp(0, tz="UTC")], n), object),
    ],
    # pandas makes times of dates beside times.
    "anything": [maker for name, maker in COLUMNS.items() if name != "date[pyarrow]"],
}
# These have one type in common.
ONE_TYPE = ("text", "integers", "truths", "floats")


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same. All nulls are."""
    if pd.api.types.is_scalar(one) and pd.isna(one):
        return bool(pd.api.types.is_scalar(other) and pd.isna(other))
    same_zone = str(getattr(one, "tzinfo", None)) == str(getattr(other, "tzinfo", None))
    return same_zone and bool(np.all(one == other))


@pytest.mark.filterwarnings("ignore:.*sparse.*:FutureWarning")
@pytest.mark.parametrize("seed", range(40))
def test_no_value_changes_where_maps_have_other_types(seed: int) -> None:
    random = np.random.default_rng(seed)
    kin = list(KIN)[seed % len(KIN)]
    frames = []
    for _ in range(random.integers(2, 6)):
        n = int(random.choice([1, 7, 30]))
        makers = [KIN[kin][random.integers(0, len(KIN[kin]))] for _ in range(2)]
        values, level = (pd.array(make(random, n)) for make in makers)
        if kin == "anything":  # not all of them can be an index
            level = np.arange(n)
        frame = pd.DataFrame({"x": pd.Series(values, dtype=values.dtype)})
        frame.index = pd.Index(level, dtype=level.dtype)
        frame["_partitions"] = random.integers(0, 3, n)
        frames.append(frame)
    meta = frames[0].iloc[:0]
    # An output of rows of the meta's map alone would not say anything.
    for partition, mine in enumerate(ours(meta, frames[1:], 3)):
        parts = [frame[frame["_partitions"] == partition] for frame in frames[1:]]
        for found, wanted in (
            (mine["x"], [value for part in parts for value in part["x"].astype(object)]),
            (mine.index, [value for part in parts for value in part.index.astype(object)]),
        ):
            pairs = zip(found.astype(object), wanted, strict=True)
            assert [pair for pair in pairs if not _is_same(*pair)] == []
        if kin in ONE_TYPE and meta["x"].dtype != object:
            assert mine["x"].dtype != object
