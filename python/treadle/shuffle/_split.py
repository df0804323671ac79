"""The rows of a map, ready to be gathered for groups of partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from treadle import _core
from treadle.shuffle._agreed import Agreed
from treadle.shuffle._columns import Field
from treadle.shuffle._schema import Schema, levels, plain


def _numbers(array: Any, name: Any) -> np.ndarray[Any, Any]:
    """The column that says where rows go, as NumPy's integers."""
    if pd.api.types.is_integer_dtype(array.dtype) and not isinstance(array.dtype, np.dtype):
        if array.isna().any():
            row = int(np.argmax(array.isna()))
            raise ValueError(
                f"column {name!r} has no number in row {row}: it says where the row goes"
            )
        # The number is the same in any of them; unsigned ones of 64 bits stay what they are.
        is_unsigned = pd.api.types.is_unsigned_integer_dtype(array.dtype)
        array = array.to_numpy(dtype="u8" if is_unsigned else "i8")
    numbers = np.asarray(array)
    if numbers.dtype.kind not in "iu":
        raise TypeError(
            f"column {name!r} has dtype {array.dtype}: it says where rows go, by integers"
        )
    if not numbers.dtype.isnative or numbers.strides[0] < 0:
        numbers = np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("="))
    return numbers


def split(agreed: Agreed, frame: pd.DataFrame) -> _core.Rows:
    """The rows of ``frame``, each with its partition.

    The frame must not change before its rows are gathered. Raises ``TypeError`` if it is no data frame,
    ``ValueError`` if its columns are others than agreed, or if a row is for no partition.
    """
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"A DataFrame is shuffled here, not {type(frame).__name__}.")
    places = agreed.places(frame.columns)
    numbers = _numbers(frame.iloc[:, places[agreed.place]].array, agreed.column)
    columns = [plain(frame.iloc[:, places[at]].array) for at in agreed.kept]
    index = [plain(array) for array in levels(frame.index)]
    if len(index) != len(agreed.schema.levels):
        raise ValueError(
            f"The index of a frame has {len(index)} levels, that of the shuffle "
            f"{len(agreed.schema.levels)}."
        )
    schema = Schema.of(columns, index)
    fields: list[Field] = []
    for column, array in zip(schema.all, [*columns, *index], strict=True):
        fields += column.fields(array)
    name = repr(agreed.column)
    if schema.is_same(agreed.schema):
        return _core.Rows(numbers, agreed.partitions, name, fields)
    return _core.Rows(numbers, agreed.partitions, name, fields, schema.note(), agreed.least)
