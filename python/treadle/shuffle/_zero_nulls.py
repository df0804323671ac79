"""What Arrow keeps under nulls may be anything: rows are compared by their bytes, so they have zeros there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["emptied", "zeroed"]


def zeroed(
    values: np.ndarray[Any, Any], width: int, nulls: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return bytes of values, all of one width, with zeros under nulls. The given ones stay as they are."""
    at = np.flatnonzero(nulls)
    if not values.reshape(-1, width)[at].any():
        return values
    values = values.copy()
    values.reshape(-1, width)[at] = 0
    return values


def emptied(array: pa.Array) -> pa.Array:
    """Return text or binary values, with offsets of 8 bytes, that have no bytes under nulls."""
    offsets = array.buffers()[1]
    if not array.null_count or offsets is None:
        return array
    ends = np.frombuffer(offsets, np.int64)[array.offset :][: len(array) + 1]
    is_null = array.is_null().to_numpy(zero_copy_only=False)
    if not np.diff(ends)[is_null].any():
        return array
    import pyarrow.compute as pc

    # Taking makes values anew, and nulls without bytes.
    return pc.take(array, np.arange(len(array)))
