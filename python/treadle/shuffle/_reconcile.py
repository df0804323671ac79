"""Concatenates columns whose types may differ, by the rules of Dask's own shuffle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

# Private to pandas; Dask's shuffle uses it, too.
from pandas.core.dtypes.cast import find_common_type  # type: ignore[attr-defined]

from treadle.shuffle._schema import plain


def _united(parts: Sequence[pd.Categorical]) -> pd.Categorical:
    """The concatenation, with all categories in the order of the parts; ordered if the first is."""
    categories = parts[0].categories
    for part in parts[1:]:
        if not part.categories.equals(categories):
            categories = categories.append(part.categories.difference(categories, sort=False))
    codes = np.concatenate(
        [
            part.set_categories(categories).codes
            if part.categories is not categories
            else part.codes
            for part in parts
        ]
    )
    dtype = pd.CategoricalDtype(categories, parts[0].ordered)
    return pd.Categorical.from_codes(codes, dtype=dtype)


def _inferred(array: Any, dtype: Any) -> Any:
    """Objects as the type that Arrow infers, or unchanged if it infers none."""
    try:
        values = pa.array(array, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return array
    if values.type != pa.null():
        return plain(pd.Series(values.to_pandas()).array)
    # An array of nulls only takes the type of the meta, or float for numbers.
    is_number = isinstance(dtype, np.dtype) and dtype.kind not in "mM"
    nulls = pd.Series([None] * len(array), dtype=np.dtype(float) if is_number else dtype)
    return plain(nulls.array)


def _cast(array: Any, dtype: Any) -> Any:
    if array.dtype == dtype:
        return array
    values = pd.Series(array, copy=False).astype(dtype)
    return values.to_numpy() if isinstance(values.dtype, np.dtype) else values.array


def reconcile(parts: Sequence[Any], dtype: Any | None) -> Any:
    """Return one array of all parts. ``dtype`` is that of the meta; ``None``: it is not considered."""
    if all(isinstance(part.dtype, pd.CategoricalDtype) for part in parts):
        united = _united([pd.Categorical(part) for part in parts])
        if dtype is None or isinstance(dtype, pd.CategoricalDtype):
            return united
        parts = [united]
    if dtype is not None and dtype != np.dtype(object):
        parts = [
            _inferred(part, dtype) if part.dtype == np.dtype(object) else part for part in parts
        ]
    dtypes = [part.dtype for part in parts] + ([] if dtype is None else [dtype])
    if all(isinstance(each, pd.StringDtype) for each in dtypes):
        common = dtypes[-1]
    else:
        common = find_common_type(dtypes)
    cast = [_cast(part, common) for part in parts]
    if len(cast) == 1:
        return cast[0]
    if isinstance(common, np.dtype):
        return np.concatenate(cast)
    return pd.concat([pd.Series(part, copy=False) for part in cast], ignore_index=True).array
