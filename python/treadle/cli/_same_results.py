"""Whether two engines gave the same: values of ``compute``, compared as a user would."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["TOLERANCE", "difference"]

#: Sums of floats in another order differ in their last digits.
TOLERANCE = 1e-9
_NOTHING = 1e-12


def difference(ones: Sequence[tuple[str, Any]], others: Sequence[tuple[str, Any]]) -> str | None:
    """Return what differs between the results of two runs, or None."""
    if len(ones) != len(others):
        return f"{len(ones)} calls of compute, and {len(others)}"
    for number, ((kind, one), (other_kind, other)) in enumerate(zip(ones, others, strict=True), 1):
        if kind != other_kind or kind == "token":
            if one != other:
                return f"call {number} of compute: values that are too large to be kept"
        elif one != other and (why := _differ(pickle.loads(one), pickle.loads(other))):
            return f"call {number} of compute: {why}"
    return None


def _differ(one: Any, other: Any) -> str | None:
    if type(one) is not type(other):
        return f"{type(one).__name__}, and {type(other).__name__}"
    if isinstance(one, Mapping):
        if one.keys() != other.keys():
            return "other keys"
        return _first(_differ(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f"{len(one)} elements, and {len(other)}"
        return _first(_differ(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, float):
        same = math.isclose(one, other, rel_tol=TOLERANCE) or (one != one and other != other)
        return None if same else f"{one!r}, and {other!r}"
    if isinstance(one, (np.ndarray, np.generic)):
        return _differ_as_arrays(np.asarray(one), np.asarray(other))
    if type(one).__module__.partition(".")[0] in ("pandas", "xarray"):
        return _differ_as_tables(one, other)
    try:
        return None if bool(one == other) else f"{one!r:.80}, and {other!r:.80}"
    except Exception as error:
        return f"values of {type(one).__name__} cannot be compared: {error}"


def _first(differences: Any) -> str | None:
    return next((why for why in differences if why), None)


def _differ_as_arrays(one: Any, other: Any) -> str | None:
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{one.dtype} {one.shape}, and {other.dtype} {other.shape}"
    if one.dtype.kind in "fc":
        finite = np.abs(one[np.isfinite(one)])
        # What cancels out to nearly nothing is compared with what is beside it.
        least = TOLERANCE * float(finite.max()) if finite.size else 0.0
        same = np.allclose(one, other, rtol=TOLERANCE, atol=least, equal_nan=True)
    elif one.dtype.kind == "O":
        return _first(_differ(a, b) for a, b in zip(one.flat, other.flat, strict=True))
    else:
        same = np.array_equal(one, other, equal_nan=one.dtype.kind in "mM")
    return None if same else "arrays with other elements"


def _differ_as_tables(one: Any, other: Any) -> str | None:
    import pandas as pd

    try:
        if isinstance(one, (pd.DataFrame, pd.Series)):
            frames = [pd.DataFrame(one), pd.DataFrame(other)]
            if not frames[0].equals(frames[1]):
                frames = [_in_order(frame) for frame in frames]
            pd.testing.assert_frame_equal(frames[0], frames[1], rtol=TOLERANCE, atol=_NOTHING)
        elif isinstance(one, pd.Index):
            pd.testing.assert_index_equal(one, other, rtol=TOLERANCE, atol=_NOTHING)
        elif hasattr(one, "identical"):
            from xarray.testing import assert_allclose

            assert_allclose(one, other, rtol=TOLERANCE, atol=_NOTHING)
        elif one is not other and not (one == other or pd.isna(one)):
            return f"{one!r:.80}, and {other!r:.80}"
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return None


def _in_order(frame: Any) -> Any:
    """Sort the rows, with the index as one of the columns: Dask promises no order after a shuffle.

    An index without a name is counted up in each partition, and goes with the order.
    """
    is_counted = frame.index.name is None and frame.index.dtype.kind == "i"
    table = frame.set_axis([f"{name}" for name in frame.columns], axis=1)
    table = table.reset_index(drop=is_counted)
    # Floats last: their last digits may differ, and with them the order.
    columns = sorted(table.columns, key=lambda name: table[name].dtype.kind == "f")
    try:
        return table.sort_values(columns, kind="stable").reset_index(drop=True)
    except (TypeError, ValueError, KeyError):
        # Such values have no order.
        return frame
