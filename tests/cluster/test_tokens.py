"""Values that differ in what Dask's tokens leave out have keys of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import treadle
from client_support import SOON, identity

SECONDS = np.dtype("f8", metadata={"unit": "s"})


class Quantity(np.ndarray[Any, Any]):
    """An array with an attribute."""

    unit: str | None

    def __array_finalize__(self, of: Any) -> None:
        self.unit = getattr(of, "unit", None)


def quantity(unit: str) -> Any:
    made = np.zeros(3).view(Quantity)
    made.unit = unit
    return made


def frame(**attrs: Any) -> pd.DataFrame:
    made = pd.DataFrame({"a": [1, 2]})
    made.attrs.update(attrs)
    return made


def as_memmap(dtype: str, tmp_path: Any) -> Any:
    (tmp_path / "bytes").write_bytes(bytes(range(16)))
    return np.memmap(tmp_path / "bytes", dtype, mode="r")


PAIRS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "axes": lambda: (np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2).T),
    "masks": lambda: (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 0])),
    "hard masks": lambda: (np.ma.array([1, 2]), np.ma.array([1, 2], hard_mask=True)),
    "units": lambda: (quantity("m"), quantity("s")),
    "metadata": lambda: (np.zeros(2), np.zeros(2, SECONDS)),
    "records": lambda: (
        np.zeros(2, [("a", "i4")]),
        np.zeros(2, np.dtype((np.record, [("a", "i4")]))),
    ),
    "attributes": lambda: (frame(), frame(unit="m")),
    "flags": lambda: (frame(), frame().set_flags(allows_duplicate_labels=False)),
    "frequencies": lambda: (
        pd.date_range("2020", periods=3, freq="D"),
        pd.DatetimeIndex(pd.date_range("2020", periods=3, freq="D").to_numpy()),
    ),
    "series": lambda: (frame()["a"], frame(unit="m")["a"]),
}


@pytest.fixture(scope="module")
def client() -> Iterator[treadle.Client]:
    with treadle.Client(workers=1, processes=False, dashboard_address=None) as client:
        yield client


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("nested", [False, True])
def test_values_that_differ_have_different_keys(
    client: treadle.Client, name: str, nested: bool
) -> None:
    one, other = PAIRS[name]()
    same = PAIRS[name]()[1]
    if nested:
        one, other, same = ([value] for value in (one, other, same))
    keys = [client.submit(identity, value).key for value in (one, other, same)]
    assert keys[0] != keys[1] == keys[2]
    if not nested:
        keys = [client.scatter(value).key for value in (one, other, same)]
        assert keys[0] != keys[1] == keys[2]


def test_memory_of_another_type_is_another_value(client: treadle.Client, tmp_path: Any) -> None:
    one, other = (as_memmap(dtype, tmp_path) for dtype in ("i4", "i8"))
    first, second = client.scatter(one), client.scatter(other)
    assert (second.result(SOON) == other).all()
    assert first.result(SOON).dtype == "i4"


def test_what_is_scattered_comes_back(client: treadle.Client) -> None:
    for make in PAIRS.values():
        one, other = make()
        for future, value in [(client.scatter(one), one), (client.scatter(other), other)]:
            found = future.result(SOON)
            assert type(found) is type(value)
            if isinstance(value, pd.DataFrame | pd.Series):
                assert found.equals(value)
                assert (found.attrs, found.flags) == (value.attrs, value.flags)
            elif isinstance(value, np.ndarray):
                np.testing.assert_array_equal(np.asarray(found), np.asarray(value))
                np.testing.assert_array_equal(np.ma.getmask(found), np.ma.getmask(value))
                assert found.dtype.type is value.dtype.type
                assert found.dtype.metadata == value.dtype.metadata
            else:
                assert found.equals(value)
                assert found.freq == value.freq


def test_equal_values_have_dasks_keys_where_it_leaves_nothing_out(client: treadle.Client) -> None:
    from dask.tokenize import tokenize

    for value in (1, "a", np.arange(3), np.arange(4).reshape(2, 2), frame(), pa.table({"a": [1]})):
        assert client.scatter(value).key == f"{type(value).__name__}-{tokenize(value)}"


def carried(value: Any) -> Any:
    """What pickles of NumPy, pyarrow and cloudpickle leave out."""
    masked, rows, view, one = value
    return (
        masked.hardmask,
        masked.unit,
        rows.num_rows,
        type(view),
        view.format,
        view.shape,
        one.unit,
    )


@pytest.mark.parametrize("count", [2, 100_000])
def test_values_of_any_size_are_carried_whole(client: treadle.Client, count: int) -> None:
    masked: Any = np.ma.array(np.zeros(count), mask=True, hard_mask=True)
    masked.unit = "m"
    rows = pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
    view = memoryview(np.zeros((count, 2), ">i4"))
    value = (masked, rows, view, quantity("s"))
    expected = carried(value)
    assert carried(client.scatter([value])[0].result(SOON)) == expected
    assert client.submit(carried, value, pure=False).result(SOON) == expected
    assert client.submit(carried, client.scatter([value])[0], pure=False).result(SOON) == expected
    assert carried(client.submit(identity, value, pure=False).result(SOON)) == expected
    for one in (masked, rows, view):
        found = client.submit(identity, one, pure=False).result(SOON)
        assert type(found) is type(one)
    assert client.submit(identity, rows, pure=False).result(SOON).num_rows == count
