"""Casts that change no value."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd


def cast(array: Any, dtype: Any) -> Any:
    """Return the array as this type, or ``None`` if a value would become another. May raise anything."""
    if array.dtype == dtype:
        return array
    values = pd.Series(array, dtype=array.dtype, copy=False)
    result = values.astype(dtype)
    if (result.isna() != values.isna()).any() or not _is_exact(values, dtype):
        return None
    return result.to_numpy() if isinstance(result.dtype, np.dtype) else result.array


def _is_exact(values: pd.Series[Any], dtype: Any) -> bool:
    """Whether numbers are what they were: floats do not hold all integers of 64 bits."""
    kind: Any = getattr(dtype, "numpy_dtype", dtype)
    of_values: Any = getattr(values.dtype, "numpy_dtype", values.dtype)
    if getattr(of_values, "kind", "") not in "iu" or getattr(kind, "kind", "") not in "fc":
        return True
    bits = np.finfo(kind).nmant + 1
    if of_values.itemsize * 8 <= bits:
        return True
    # A null becomes zero, which is exact.
    integers = values.to_numpy(of_values, na_value=0)
    large = integers[(integers > 2**bits) | (integers < -(2**bits))]
    return all(int(float(one)) == one for one in large.tolist())


def keeps(found: Any, objects: Any) -> bool:
    """Whether an array has the values of an array of objects. All nulls count as the same."""
    pairs = zip(
        pd.Series(found, dtype=found.dtype, copy=False).astype(object), objects, strict=True
    )
    return all(_is_same(one, other) for one, other in pairs)


def _is_same(one: Any, other: Any) -> bool:
    try:
        if pd.api.types.is_scalar(other) and pd.isna(other):
            return bool(pd.isna(one))
        return bool(one == other) and _sort(one) == _sort(other)
    except Exception:  # whatever a class of the user raises, or NumPy for arrays
        return False


def _sort(value: Any) -> Any:
    """What values that compare equal may differ in."""
    is_truth = isinstance(value, bool | np.bool_)
    return is_truth, isinstance(value, Decimal), str(getattr(value, "tzinfo", None))
