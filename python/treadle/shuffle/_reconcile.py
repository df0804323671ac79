"""Concatenates columns whose types may differ, by the rules of Dask's own shuffle.

No value changes: a type that could not hold all of them is not taken, even where pandas would round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

# Private to pandas; Dask's shuffle uses it, too.
from pandas.core.dtypes.cast import find_common_type  # type: ignore[attr-defined]

from treadle.shuffle._families import translated
from treadle.shuffle._lossless import cast, keeps
from treadle.shuffle._schema import plain

_OBJECT = np.dtype(object)


def _united(parts: Sequence[pd.Categorical]) -> pd.Categorical:
    """The concatenation, with all categories in the order of the parts; ordered if the first is."""
    categories = parts[0].categories
    for part in parts[1:]:
        if not part.categories.equals(categories):
            categories = _appended(categories, part.categories)
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


def _appended(categories: Any, others: Any) -> Any:
    """The categories, and then those of the others that are not among them."""
    if categories.dtype == others.dtype or keeps(categories.append(others), [*categories, *others]):
        return categories.append(others.difference(categories, sort=False))
    # pandas would round integers, to floats.
    values = dict.fromkeys([*categories, *others])
    return pd.Index(list(values), dtype=object, tupleize_cols=False)


def _inferred(array: Any, dtype: Any) -> Any:
    """Objects as the type of the meta, or as the type that Arrow infers; unchanged if neither keeps them."""
    try:
        values = pa.array(array, from_pandas=True)
    except Exception:  # Arrow calls methods of the values
        return array
    if values.type == pa.null():
        return _nulls(array, dtype)
    if pa.types.is_string(values.type):
        return plain(pd.Series(values.to_pandas()).array)
    makers: list[Callable[[], Any]] = [
        lambda: pd.Series(array, dtype=dtype),
        lambda: pd.Series(values.to_pandas()),
    ]
    # Arrow takes times as microseconds, and integers beside nulls become floats.
    holds = hasattr(dtype, "__from_arrow__") or getattr(dtype, "kind", "") in ("m", "M")
    for make in makers if holds else makers[1:]:
        with suppress(Exception):  # whatever an extension type raises
            found = plain(make().array)
            if keeps(found, array):
                return found
    return array


def _nulls(array: Any, dtype: Any) -> Any:
    """Nulls as the type of the meta, or float for numbers; unchanged if the type has none."""
    is_number = isinstance(dtype, np.dtype) and dtype.kind in "iufc"
    try:
        nulls = pd.Series([None] * len(array), dtype=np.dtype(float) if is_number else dtype)
    except (TypeError, ValueError):  # an interval of integers
        return array
    return plain(nulls.array) if nulls.isna().all() else array


def _common(dtypes: Sequence[Any], dtype: Any | None) -> Any:
    """The common type. ``dtype`` is that of the meta, or ``None``."""
    if dtype is not None and all(isinstance(each, pd.StringDtype) for each in [*dtypes, dtype]):
        return dtype
    every = dtypes if dtype is None else [*dtypes, dtype]
    common = find_common_type(list(every))
    if common != _OBJECT or _OBJECT in every:
        return common
    # pandas has none for types of Arrow beside its own of the same values.
    return find_common_type(translated(every, every[0] if dtype is None else dtype))


def _chosen(parts: Sequence[Any], dtype: Any | None) -> list[Any] | None:
    """The parts as their common type, if they have one that keeps all values."""
    common = _common([part.dtype for part in parts], dtype)
    if common == _OBJECT:
        return None
    found = []
    for part in parts:
        try:
            found.append(cast(part, common))
        except Exception:  # a value out of range, or whatever an extension type raises
            return None
        if found[-1] is None:
            return None
    return found


def _joined(parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0].dtype, np.dtype):
        return np.concatenate(parts)
    return pd.concat([pd.Series(part, copy=False) for part in parts], ignore_index=True).array


def reconcile(parts: Sequence[Any], dtype: Any | None) -> Any:
    """Return one array of all parts. ``dtype`` is that of the meta; ``None``: it is not considered."""
    if all(isinstance(part.dtype, pd.CategoricalDtype) for part in parts):
        united = _united([pd.Categorical(part) for part in parts])
        if dtype is None or isinstance(dtype, pd.CategoricalDtype):
            return united
        parts = [united]
    if dtype is None:
        found = _chosen(parts, None)
    elif dtype == _OBJECT:
        found = None
    else:
        inferred = [_inferred(part, dtype) if part.dtype == _OBJECT else part for part in parts]
        # If the type of the meta is of no use, the parts may have one in common.
        found = _chosen(inferred, dtype) or _chosen(parts, None)
    return _joined(found or [_as_objects(part) for part in parts])


def _as_objects(part: Any) -> np.ndarray[Any, Any]:
    if part.dtype == _OBJECT:
        return np.asarray(part)
    return np.asarray(pd.Series(part, dtype=part.dtype, copy=False).astype(object))
