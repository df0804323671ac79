"""How the types of arrays travel."""

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import Any

import numpy as np

from treadle.pickling._mp_main import SCRIPT

__all__ = ["dtype_of", "name_of"]


def name_of(dtype: np.dtype[Any]) -> bytes | None:
    """Return a name for the dtype, or ``None`` where elements are more than the bytes in the array.

    The name is NumPy's own, or, where that does not tell all (structured types, those of other
    packages, those with metadata), the pickled dtype.
    """
    # The cache compares dtypes. Equal ones may differ in metadata, alignment and the class of records.
    is_told = dtype.kind != "V" and dtype.metadata is None
    return _name_of(dtype) if is_told else _pickled(dtype)


@lru_cache(maxsize=1024)
def _name_of(dtype: np.dtype[Any]) -> bytes | None:
    if dtype.hasobject:
        return None
    name = dtype.str
    if dtype.kind in "biufcmMSU" and np.dtype(name) == dtype:
        return name.encode()
    return pickle.dumps(dtype, protocol=5)


def _pickled(dtype: np.dtype[Any]) -> bytes | None:
    if dtype.hasobject:
        return None
    try:
        name = pickle.dumps(dtype, protocol=5)
    except (AttributeError, pickle.PicklingError, TypeError):
        return None
    # What is defined in this process's script does not exist in the other's: the array is pickled
    # by value.
    return None if SCRIPT in name else name


@lru_cache(maxsize=1024)
def dtype_of(name: bytes) -> np.dtype[Any]:
    """Return the dtype of that name."""
    if name[:1] == b"\x80":
        dtype: np.dtype[Any] = pickle.loads(name)
        return dtype
    return np.dtype(name.decode())
