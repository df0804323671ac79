"""Columns of shuffled frames where maps have other types than the meta: no value changes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pandas.testing import assert_frame_equal

from shuffle_support import ours, theirs
from treadle.shuffle._columns import KINDS

# More than the 53 bits of a float.
LARGE = 2**60 + 1


def arrow(kind: pa.DataType, values: list[Any]) -> Any:
    return pd.array(values, dtype=pd.ArrowDtype(kind))


def objects(*values: Any) -> Any:
    return pd.Series(values, dtype=object)


TEXT = ["a", None]
STR = pd.array(TEXT, dtype="str")
STRING = pd.array(TEXT, dtype="string[pyarrow]")
INT64 = pd.array([7, None], dtype="Int64")

# Each: values of the type of the meta, values of the maps, and what they become.
Case = tuple[Any, Any, Any]
AS_DISTRIBUTED: dict[str, Case] = {
    "Arrow text for str": (STR, arrow(pa.string(), TEXT), STR),
    "Arrow text for string": (STRING, arrow(pa.string(), TEXT), STRING),
    "Arrow text for categories": (pd.Categorical(TEXT), arrow(pa.string(), TEXT), STRING),
}
CASES: dict[str, Case] = {
    **AS_DISTRIBUTED,
    "large Arrow text for str": (STR, arrow(pa.large_string(), TEXT), STR),
    "text for Arrow text": (arrow(pa.string(), []), STRING, arrow(pa.string(), TEXT)),
    "Arrow integers": (INT64, arrow(pa.int64(), [7, None]), INT64),
    "integers for Arrow": (arrow(pa.int64(), []), INT64, arrow(pa.int64(), [7, None])),
    "wider Arrow integers": (pd.array([], dtype="Int32"), arrow(pa.int64(), [7, None]), INT64),
    "Arrow floats for integers": (
        INT64,
        arrow(pa.float64(), [1.5, None]),
        pd.array([1.5, None], dtype="Float64"),
    ),
    "Arrow truths": (
        pd.array([], dtype="boolean"),
        arrow(pa.bool_(), [True, None]),
        pd.array([True, None], dtype="boolean"),
    ),
    "large objects": (INT64, objects(LARGE, None), pd.array([LARGE, None], dtype="Int64")),
    "truths that are objects": (
        pd.array([], dtype="boolean"),
        objects(True, None),
        pd.array([True, None], dtype="boolean"),
    ),
    "large integers for floats": (np.array([0.5]), np.array([LARGE, 1]), np.array([LARGE, 1])),
    "large objects for floats": (np.array([0.5]), objects(LARGE, None), objects(LARGE, None)),
    "large Arrow integers for floats": (
        np.array([0.5]),
        arrow(pa.int64(), [LARGE, None]),
        arrow(pa.int64(), [LARGE, None]),
    ),
    "another zone": (
        pd.to_datetime(["2020"], utc=True),
        pd.to_datetime(["2020", None]).tz_localize("Asia/Tokyo"),
        pd.to_datetime(["2020", None]).tz_localize("Asia/Tokyo"),
    ),
    "nanoseconds that are objects": (
        np.array([], "M8[ns]"),
        objects(pd.Timestamp(1), None),
        np.array([1, "NaT"], "M8[ns]"),
    ),
    "decimals for floats": (
        pd.array([], dtype="Float64"),
        objects(Decimal("1.5"), None),
        objects(Decimal("1.5"), None),
    ),
    "numbers for text": (STR, objects(3, None), objects(3, None)),
    "lists for text": (STR, objects([1], None), objects([1], None)),
    "nulls for intervals": (
        pd.arrays.IntervalArray.from_breaks([0, 1]),
        objects(None, None),
        objects(None, None),
    ),
    "nulls for truths": (np.array([True]), objects(None, None), objects(None, None)),
}


def frame_of(values: Any) -> pd.DataFrame:
    return pd.DataFrame({"x": values, "_partitions": 0})


@pytest.mark.parametrize("name", CASES)
def test_no_value_changes_and_the_type_is_that_of_the_meta_if_it_can_be(name: str) -> None:
    meta, maps, expected = CASES[name]
    (mine,) = ours(frame_of(meta).iloc[:0], [frame_of(maps)] * 2, 1)
    whole = pd.concat([frame_of(expected)] * 2)[["x"]]
    assert_frame_equal(mine, whole)
    kinds = [list(map(type, frame["x"].astype(object))) for frame in (mine, whole)]
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize("name", AS_DISTRIBUTED)
def test_the_type_is_as_dasks_own_shuffle_gives_it(name: str) -> None:
    meta, maps, _ = CASES[name]
    both = [run(frame_of(meta).iloc[:0], [frame_of(maps)] * 2, 1) for run in (ours, theirs)]
    assert_frame_equal(both[0][0], both[1][0])


def test_maps_of_several_types_have_the_type_of_the_meta() -> None:
    meta = frame_of(STR).iloc[:0]
    maps = [arrow(pa.string(), TEXT), STRING, arrow(pa.large_string(), TEXT), STR, objects(*TEXT)]
    (mine,) = ours(meta, [frame_of(values) for values in maps], 1)
    assert mine["x"].dtype == STR.dtype
    assert mine["x"].isna().tolist() == [False, True] * 5


def test_objects_of_a_column_of_objects_stay_what_they_are() -> None:
    # Text and None, of which pandas would make a column of text with nan.
    frame = frame_of(objects("a", None)).assign(other=np.array([1, 2]))
    meta = frame.assign(other=0.5).iloc[:0]
    for maps in ([frame], [frame, frame.assign(other=0.5)]):
        (mine,) = ours(meta, maps, 1)
        assert mine["x"].tolist() == ["a", None] * len(maps)
    (mine,) = ours(meta, [frame, frame.assign(x=STR)], 1)
    assert mine["x"].tolist()[:3] == ["a", None, "a"]


def test_bytes_under_nulls_are_zeros() -> None:
    from treadle.shuffle._columns import Column

    def fields(under: int) -> list[Any]:
        values = pa.py_buffer(np.array([1, under, 3], "i8"))
        array = pa.Array.from_buffers(pa.int64(), 3, [pa.py_buffer(b"\x05"), values])
        dtype = pd.ArrowDtype(pa.int64())
        return Column(dtype).fields(pd.array(pd.arrays.ArrowExtensionArray(array), dtype))

    one, other = fields(0), fields(77)
    assert [part.tobytes() for part in one] == [part.tobytes() for part in other]


def test_integers_and_floats_that_do_not_hold_them_are_objects() -> None:
    frames = [frame_of(values) for values in (np.array([LARGE, 5]), np.array([0.5, np.nan]))]
    (mine,) = ours(frames[1].iloc[:0], frames, 1)
    assert mine["x"].tolist()[:3] == [LARGE, 5, 0.5]
    assert mine["x"].isna().tolist() == [False, False, False, True]
    # 2 ** 60 is a float.
    frames[0]["x"] = np.array([LARGE - 1, 5])
    (mine,) = ours(frames[1].iloc[:0], frames, 1)
    assert mine["x"].dtype == np.dtype(float)


def test_categories_of_several_types_are_not_rounded() -> None:
    frames = [frame_of(pd.Categorical([value, None])) for value in (LARGE, 0.5, "a", 2.0**60)]
    (mine,) = ours(frames[0].iloc[:0], frames[:2], 1)
    assert mine["x"].dropna().tolist() == [LARGE, 0.5]
    (mine,) = ours(frames[0].iloc[:0], frames, 1)
    assert mine["x"].dropna().tolist() == [LARGE, 0.5, "a", 2.0**60]
    assert mine["x"].cat.categories.tolist() == [LARGE, 0.5, "a", 2.0**60]


def test_times_beyond_the_range_of_the_meta_are_kept() -> None:
    far = np.array(["3000-01-01"], "M8[s]")
    for meta in (np.array([], "M8[ns]"), arrow(pa.timestamp("ns"), [])):
        (mine,) = ours(frame_of(meta).iloc[:0], [frame_of(far)], 1)
        assert mine["x"].tolist() == [pd.Timestamp("3000-01-01")]


class Frame(pd.DataFrame):
    """As other packages derive theirs."""

    _metadata = ["unit"]  # noqa: RUF012

    @property
    def _constructor(self) -> Any:
        return Frame


def test_outputs_have_the_class_of_the_meta() -> None:
    meta = Frame(frame_of(np.array([0.5])).iloc[:0])
    meta.unit = "m"
    maps = [frame_of(np.array([0.5, 1.5])), frame_of(INT64), Frame(frame_of(np.array([2.5])))]
    with_rows, without = ours(meta, maps, 2)
    assert type(with_rows) is type(without) is Frame
    assert with_rows.unit == without.unit == "m"
    assert_frame_equal(pd.DataFrame(with_rows), pd.concat(maps)[["x"]], check_frame_type=False)
    # The class of the meta counts, and not that of the data.
    plain = pd.DataFrame(meta)
    assert [type(output) for output in ours(plain, maps, 2)] == [pd.DataFrame] * 2


def test_bytes_beside_a_long_double_of_a_frame_are_no_part_of_it() -> None:
    dtype = np.dtype("longdouble")
    noise = np.random.default_rng(5).integers(1, 255, 9 * dtype.itemsize, np.uint8).view(dtype)
    columns = [np.zeros(9, dtype), noise]
    for column in columns:
        column[:] = np.arange(9)
    fields = [KINDS["plain"].fields(dtype, column)[0] for column in columns]
    assert fields[0].tobytes() == fields[1].tobytes()
    assert np.array_equal(fields[1], np.arange(9))
