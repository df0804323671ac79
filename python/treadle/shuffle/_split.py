"""Prepares the rows of a map. They are gathered later, for groups of partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from treadle import _core
from treadle.shuffle._columns import Field
from treadle.shuffle._common_plan import Agreed
from treadle.shuffle._schema import Schema, levels, plain


def _numbers(array: Any, name: Any) -> np.ndarray[Any, Any]:
    """The partition number of each row, as NumPy integers."""
    if pd.api.types.is_integer_dtype(array.dtype) and not isinstance(array.dtype, np.dtype):
        if array.isna().any():
            row = int(np.argmax(array.isna()))
            raise ValueError(
                f"column {name!r} has no number in row {row}: each row needs its partition"
            )
        # 64 bits hold every value. Unsigned integers stay unsigned, since large ones do not fit i8.
        is_unsigned = pd.api.types.is_unsigned_integer_dtype(array.dtype)
        array = array.to_numpy(dtype="u8" if is_unsigned else "i8")
    numbers = np.asarray(array)
    if numbers.dtype.kind not in "iu":
        raise TypeError(
            f"column {name!r} has dtype {array.dtype}: the partitions of rows must be integers"
        )
    if not numbers.dtype.isnative or numbers.strides[0] < 0:
        numbers = np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("="))
    return numbers


def split(agreed: Agreed, frame: pd.DataFrame) -> _core.Rows:
    """The rows of ``frame``, each with its partition.

    The frame must not change before its rows are gathered. Raises ``TypeError`` if it is not a data frame,
    and ``ValueError`` if its columns are not the agreed ones, or if the partition of a row does not exist.
    """
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"the input of the shuffle must be a DataFrame, not {type(frame).__name__}")
    places = agreed.places(frame.columns)
    numbers = _numbers(frame.iloc[:, places[agreed.place]].array, agreed.column)
    columns = [plain(frame.iloc[:, places[at]].array) for at in agreed.kept]
    index = [plain(array) for array in levels(frame.index)]
    schema = Schema.of(columns, index, frame.index.names)
    fields: list[Field] = []
    for column, array in zip(schema.all, [*columns, *index], strict=True):
        fields += column.fields(array)
    name = repr(agreed.column)
    if schema.is_same(agreed.schema):
        return _core.Rows(numbers, agreed.partitions, name, fields)
    return _core.Rows(
        numbers, agreed.partitions, name, fields, schema.note(agreed.schema), agreed.least
    )
