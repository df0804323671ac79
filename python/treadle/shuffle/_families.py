"""Types of pandas and of Arrow that hold the same values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

_MASKS: tuple[Any, ...] = (
    pd.BooleanDtype(),
    pd.Int8Dtype(),
    pd.Int16Dtype(),
    pd.Int32Dtype(),
    pd.Int64Dtype(),
    pd.UInt8Dtype(),
    pd.UInt16Dtype(),
    pd.UInt32Dtype(),
    pd.UInt64Dtype(),
    pd.Float32Dtype(),
    pd.Float64Dtype(),
)
# The types of pandas with a mask, by the NumPy type of their values.
_MASKED = {dtype.numpy_dtype: dtype for dtype in _MASKS}


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _of_arrow(dtype: Any) -> Any:
    """The type of Arrow with the values of one of pandas, or the type itself."""
    if dtype in _MASKS:
        return pd.ArrowDtype(pa.from_numpy_dtype(dtype.numpy_dtype))
    return pd.ArrowDtype(pa.large_string()) if isinstance(dtype, pd.StringDtype) else dtype


def _of_pandas(dtype: Any, text: pd.StringDtype) -> Any:
    """The type of pandas with the values of one of Arrow, or the type itself."""
    if not isinstance(dtype, pd.ArrowDtype):
        return dtype
    kind = dtype.pyarrow_dtype
    if _is_text(kind):
        return text
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if not is_number and not pa.types.is_boolean(kind):
        return dtype
    return _MASKED.get(np.dtype(kind.to_pandas_dtype()), dtype)


def translated(dtypes: Sequence[Any], like: Any) -> list[Any]:
    """Return the types as those of Arrow if ``like`` is one, and otherwise as those of pandas."""
    if isinstance(like, pd.ArrowDtype):
        found = [_of_arrow(dtype) for dtype in dtypes]
        # Text with long and with short offsets has the same values.
        texts = [isinstance(one, pd.ArrowDtype) and _is_text(one.pyarrow_dtype) for one in found]
        return [like] if all(texts) else found
    text = like if isinstance(like, pd.StringDtype) else pd.StringDtype(na_value=pd.NA)
    found = [_of_pandas(dtype, text) for dtype in dtypes]
    return [text] if all(isinstance(one, pd.StringDtype) for one in found) else found
