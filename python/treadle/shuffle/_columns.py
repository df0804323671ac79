"""Converts a column to fields of rows, and back.

A column has one of a few *kinds*. Its fields have a fixed width, or hold bytes (width 0). A field of bytes
is a tuple ``(offsets, data, nulls)``: offsets as in Arrow's large binary arrays, and a byte for each row
that is not 0 if the value is null.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from treadle.shuffle._dtypes import used_bytes
from treadle.shuffle._pickles import dumps
from treadle.shuffle._zero_nulls import emptied, zeroed

Bytes = tuple[Any, Any, Any]
Field = Any  # an array, or `Bytes`

# What the values of an array of Arrow with offsets of 32 bits may have together.
_MOST_BYTES = 2**31 - 1


@dataclass(frozen=True)
class Kind:
    """How columns of one kind are converted."""

    widths: Callable[[Any], tuple[int, ...]]
    """Takes the dtype; returns the widths of the fields."""
    fields: Callable[[Any, Any], list[Field]]
    """Takes the dtype and an array of pandas or NumPy; returns the fields."""
    values: Callable[[Any, list[Field]], Any]
    """Takes the dtype and the fields; returns the array. Fields of a fixed width have ``types``."""
    types: Callable[[Any], tuple[Any, ...]]
    """Takes the dtype; returns the dtypes of the fields. It is not called for fields of bytes."""


def _readable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same values, without negative strides, of a type that the buffer protocol supports."""
    if array.dtype.kind in "mM":
        array = array.view("i8")
    if array.ndim and array.strides[0] < 0:
        array = np.ascontiguousarray(array)
    return array


def _plain(dtype: Any, array: Any) -> list[Field]:
    array = np.asarray(array, dtype)
    used = used_bytes(array.dtype)
    if not used.all():
        # Bytes of padding may be anything, and rows are compared by their bytes.
        mask = np.where(used, 255, 0).astype(np.uint8)
        content = np.ascontiguousarray(array).view(np.uint8).reshape(-1, array.dtype.itemsize)
        array = (content & mask).reshape(-1).view(array.dtype)
    return [_readable(array)]


def _integers(_: Any, array: Any) -> list[Field]:
    return [_readable(np.asarray(array.view("i8")))]


def _zoned(dtype: Any, fields: list[Field]) -> Any:
    instants = pd.DatetimeIndex(fields[0].view(f"M8[{dtype.unit}]"))
    return instants.tz_localize("UTC").tz_convert(dtype.tz).array


def _periods(_: Any, array: Any) -> list[Field]:
    return [_readable(array.asi8)]


def _from_ordinals(ordinals: Any, freq: Any) -> Any:
    # It is missing in the stubs of pandas.
    return pd.PeriodIndex.from_ordinals(ordinals, freq=freq).array  # type: ignore[attr-defined]


def _masked(dtype: Any, array: Any) -> list[Field]:
    zero = dtype.numpy_dtype.type(0)
    values = array.to_numpy(dtype=dtype.numpy_dtype, na_value=zero)
    return [_readable(values), np.asarray(array.isna())]


def _categorical_types(dtype: Any) -> tuple[Any, ...]:
    count = len(dtype.categories)
    return (
        next((np.dtype(t) for t in ("i1", "i2", "i4") if count <= np.iinfo(t).max), np.dtype("i8")),
    )


def _codes(dtype: Any, array: Any) -> list[Field]:
    (codes,) = _categorical_types(dtype)
    return [_readable(np.asarray(array.codes, codes))]


def _arrow_array(array: Any, to: pa.DataType | None = None) -> pa.Array:
    values = pa.array(array, from_pandas=True)
    if to is not None and values.type != to:
        # Before chunks are put together: with offsets of 32 bits, that may be too much.
        values = values.cast(to)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    return values


def _nulls(array: pa.Array) -> np.ndarray[Any, Any] | None:
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def _validity(nulls: np.ndarray[Any, Any]) -> pa.Buffer | None:
    if not nulls.any():
        return None
    return pa.py_buffer(np.packbits(nulls == 0, bitorder="little"))


def _large(kind: pa.DataType) -> pa.DataType:
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return pa.large_string() if is_text else pa.large_binary()


def _arrow_bytes(array: pa.Array) -> Bytes:
    """The field of Arrow's large strings or large binary values, whose offsets have 8 bytes."""
    array = emptied(array)
    _, offsets, data = array.buffers()
    nothing = np.empty(0, np.uint8)
    ends = np.zeros(1, np.int64)
    if offsets is not None and offsets.size:
        ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return ends, nothing if data is None else data, _nulls(array)


def _from_bytes(kind: pa.DataType, field: Bytes) -> pa.Array:
    offsets, data, nulls = field
    buffers = [_validity(nulls), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(nulls), buffers)


def _text(_: Any, array: Any) -> list[Field]:
    return [_arrow_bytes(_arrow_array(array, pa.large_string()))]


def _from_text(dtype: Any, fields: list[Field]) -> Any:
    return dtype.__from_arrow__(_from_bytes(pa.large_string(), fields[0]))


def _arrow_text(dtype: Any, array: Any) -> list[Field]:
    return [_arrow_bytes(_arrow_array(array, _large(dtype.pyarrow_dtype)))]


def _from_arrow_text(dtype: Any, fields: list[Field]) -> Any:
    kind = dtype.pyarrow_dtype
    large = _large(kind)
    if kind == large:
        return dtype.__from_arrow__(_from_bytes(large, fields[0]))
    # An array with offsets of 32 bits has so many bytes at most.
    offsets, data, nulls = fields[0]
    chunks = []
    start, count = 0, len(nulls)
    while start < count:
        first = offsets[start]
        # No value is longer: it is part of a row.
        end = int(np.searchsorted(offsets, first + _MOST_BYTES, "right")) - 1
        ends, values = offsets[start : end + 1] - first, data[first : offsets[end]]
        chunks.append(_from_bytes(large, (ends, values, nulls[start:end])).cast(kind))
        start = end
    return dtype.__from_arrow__(pa.chunked_array(chunks, kind))


def _arrow_width(dtype: Any) -> int:
    kind = dtype.pyarrow_dtype
    return 1 if pa.types.is_boolean(kind) else int(kind.bit_width) // 8


def _arrow_fixed(dtype: Any, array: Any) -> list[Field]:
    values = _arrow_array(array)
    nulls = _nulls(values)
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    width = _arrow_width(dtype)
    start, length = values.offset * width, len(values) * width
    data = values.buffers()[1]
    memory = np.zeros(length, np.uint8)
    if data is not None and length:
        memory = np.frombuffer(data, np.uint8)[start : start + length]
    if nulls is None:
        is_null = np.zeros(len(values), bool)
    else:
        memory, is_null = zeroed(memory, width, nulls), nulls
    return [memory.view(f"V{width}"), is_null]


def _from_arrow_fixed(dtype: Any, fields: list[Field]) -> Any:
    kind = dtype.pyarrow_dtype
    values, nulls = fields
    stored = pa.uint8() if pa.types.is_boolean(kind) else kind
    array = pa.Array.from_buffers(stored, len(nulls), [_validity(nulls), pa.py_buffer(values)])
    return dtype.__from_arrow__(array.cast(kind) if stored != kind else array)


def _pickled(_: Any, array: Any) -> list[Field]:
    values = [dumps(value) for value in array]
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    return [(offsets, b"".join(values), None)]


def _unpickled(field: Bytes) -> np.ndarray[Any, Any]:
    offsets, data, _ = field
    memory = memoryview(data)
    ends = offsets.tolist()
    values = np.empty(len(ends) - 1, object)
    for row in range(len(values)):
        values[row] = pickle.loads(memory[ends[row] : ends[row + 1]])
    return values


def _objects(_: Any, fields: list[Field]) -> Any:
    return _unpickled(fields[0])


def _items(dtype: Any, fields: list[Field]) -> Any:
    values = list(_unpickled(fields[0]))
    return dtype.construct_array_type()._from_sequence(values, dtype=dtype)


_BYTES: Callable[[Any], tuple[int, ...]] = lambda _: (0,)  # noqa: E731
_INT64 = np.dtype("i8")

KINDS = {
    "plain": Kind(lambda d: (d.itemsize,), _plain, lambda _, f: f[0], lambda d: (d,)),
    "zoned": Kind(lambda _: (8,), _integers, _zoned, lambda _: (_INT64,)),
    "period": Kind(
        lambda _: (8,),
        _periods,
        lambda d, f: _from_ordinals(f[0], d.freq),
        lambda _: (_INT64,),
    ),
    "masked": Kind(
        lambda d: (d.numpy_dtype.itemsize, 1),
        _masked,
        lambda d, f: d.construct_array_type()(f[0], f[1]),
        lambda d: (d.numpy_dtype, np.dtype(bool)),
    ),
    "category": Kind(
        lambda d: (_categorical_types(d)[0].itemsize,),
        _codes,
        lambda d, f: pd.Categorical.from_codes(f[0], dtype=d),
        _categorical_types,
    ),
    "text": Kind(_BYTES, _text, _from_text, lambda _: (None,)),
    "arrow text": Kind(_BYTES, _arrow_text, _from_arrow_text, lambda _: (None,)),
    "arrow": Kind(
        lambda d: (_arrow_width(d), 1),
        _arrow_fixed,
        _from_arrow_fixed,
        lambda d: (np.dtype(f"V{_arrow_width(d)}"), np.dtype(bool)),
    ),
    "object": Kind(_BYTES, _pickled, _objects, lambda _: (None,)),
    "items": Kind(_BYTES, _pickled, _items, lambda _: (None,)),
}


def _arrow_kind(kind: pa.DataType) -> str:
    of_bytes = (
        pa.types.is_string,
        pa.types.is_binary,
        pa.types.is_large_string,
        pa.types.is_large_binary,
    )
    if any(is_of(kind) for is_of in of_bytes):
        return "arrow text"
    fixed = (
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_temporal,
        pa.types.is_decimal,
    )
    return "arrow" if any(is_of(kind) for is_of in fixed) else "items"


def kind_of(dtype: Any) -> str:
    """The kind of a column of this dtype."""
    if isinstance(dtype, np.dtype):
        return "plain" if dtype.itemsize and not dtype.hasobject else "object"
    if isinstance(dtype, pd.CategoricalDtype):
        return "category" if dtype.categories is not None else "items"
    if isinstance(dtype, pd.ArrowDtype):
        return _arrow_kind(dtype.pyarrow_dtype)
    if isinstance(dtype, pd.DatetimeTZDtype):
        return "zoned"
    if isinstance(dtype, pd.PeriodDtype):
        return "period"
    if isinstance(dtype, pd.StringDtype):
        return "text"
    masked = (pd.arrays.IntegerArray, pd.arrays.FloatingArray, pd.arrays.BooleanArray)
    return "masked" if dtype.construct_array_type() in masked else "items"


def _is_same(one: Any, other: Any) -> bool:
    if one != other or type(one) is not type(other):
        return False
    if not isinstance(one, pd.CategoricalDtype):
        return True
    if one.categories is None or other.categories is None:
        return one.categories is other.categories
    same_type = one.categories.dtype == other.categories.dtype
    # Dtypes that compare equal may order their categories, and so their codes, differently.
    return one.ordered == other.ordered and same_type and one.categories.equals(other.categories)


@dataclass(frozen=True)
class Column:
    """A column: its dtype, and how it becomes fields."""

    dtype: Any

    @property
    def kind(self) -> str:
        return kind_of(self.dtype)

    @property
    def widths(self) -> tuple[int, ...]:
        return KINDS[self.kind].widths(self.dtype)

    @property
    def types(self) -> tuple[Any, ...]:
        return KINDS[self.kind].types(self.dtype)

    def fields(self, array: Any) -> list[Field]:
        return KINDS[self.kind].fields(self.dtype, array)

    def values(self, fields: Sequence[Field]) -> Any:
        return KINDS[self.kind].values(self.dtype, list(fields))

    def is_same(self, other: Column) -> bool:
        """Whether rows of both have the same bytes for the same values."""
        return _is_same(self.dtype, other.dtype)
