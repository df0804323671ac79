"""Tokens of values: equal ones only for values that are the same in all that they carry."""

from __future__ import annotations

import pickle
import sys
from typing import Any

from dask.tokenize import tokenize as tokenize_as_dask

from treadle.pickling._lossless import PLAIN

__all__ = ["tokenize"]

_DEEPEST = 32


def tokenize(*values: Any) -> str:
    """Return Dask's token of values, each with what Dask leaves out of it."""
    return tokenize_as_dask(*map(_told, values))


def _told(value: Any, within: tuple[int, ...] = ()) -> Any:
    """Return what Dask shall tokenize in place of a value: with what it leaves out, or the value itself.

    Dask leaves out the order of an array's axes in memory, what a dtype or a class of arrays adds to elements,
    and attributes and flags of pandas. It refuses masked arrays where ``dask.array`` was not imported.
    """
    kind = type(value)
    if kind in PLAIN or hasattr(kind, "__dask_tokenize__"):
        return value
    if kind in (list, tuple, dict):
        # Containers deep within others, and those within themselves, are left to Dask.
        if len(within) == _DEEPEST or id(value) in within:
            return value
        within = (*within, id(value))
        if kind is dict:
            return {key: _told(one, within) for key, one in value.items()}
        return kind(_told(one, within) for one in value)
    numpy, pandas = sys.modules.get("numpy"), sys.modules.get("pandas")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _of_numpy(numpy, value)
    more = None
    if pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series | pandas.Index):
        more = _beside_pandas(value)
    elif kind.__module__ == "pyarrow.lib" and getattr(value, "num_columns", 1) == 0:
        more = value.num_rows
    return value if more is None else (value, more)


def _of_numpy(numpy: Any, value: Any) -> Any:
    more: list[Any] = []
    if type(value) is not numpy.ndarray:
        more += [type(value), sorted(item for item in vars(value).items() if item[0][:1] != "_")]
        if isinstance(value, numpy.ma.MaskedArray):
            more += [numpy.ma.getmaskarray(value), value.fill_value, value.hardmask]
        value = numpy.asarray(value)
    if value.ndim > 1 and not value.flags.c_contiguous:
        more.append(value.strides)
    if value.dtype.kind == "V" or value.dtype.metadata is not None:
        more.append(_dtype(value.dtype))
    return (value, more) if more else value


def _dtype(dtype: Any) -> Any:
    try:
        return pickle.dumps(dtype)
    except Exception:  # whatever its metadata raise
        return (repr(dtype), repr(dtype.metadata))


def _beside_pandas(value: Any) -> Any:
    more: dict[str, Any] = {}
    if attrs := getattr(value, "attrs", None):
        more["attrs"] = attrs
    if not getattr(getattr(value, "flags", None), "allows_duplicate_labels", True):
        more["flags"] = "unique labels"
    for name in getattr(value, "_metadata", ()):
        if name not in ("_name", "name"):
            more[name] = getattr(value, name, None)
    freq = getattr(getattr(value, "index", value), "freq", None)
    if freq is not None:
        more["freq"] = str(freq)
    return more or None
