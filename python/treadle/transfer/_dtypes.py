"""How the types of arrays travel."""

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import Any

import numpy as np

from treadle._spawned import SCRIPT

__all__ = ["dtype_of", "name_of"]


def name_of(dtype: np.dtype[Any]) -> bytes | None:
    """Return a name for the dtype, or ``None`` where elements are more than the bytes in the array.

    The name is NumPy's own, or, where that does not tell all (structured types, those of other
    packages, those with metadata), the pickled dtype.
    """
    # Metadata does not count when dtypes are compared, as the cache does.
    return _pickled(dtype) if _has_metadata(dtype) else _name_of(dtype)


@lru_cache(maxsize=1024)
def _name_of(dtype: np.dtype[Any]) -> bytes | None:
    if dtype.hasobject:
        return None
    name = dtype.str
    if dtype.kind in "biufcmMSU" and np.dtype(name) == dtype:
        return name.encode()
    return pickle.dumps(dtype, protocol=5)


def _has_metadata(dtype: np.dtype[Any]) -> bool:
    """Whether the dtype has metadata, or a field of it has."""
    if dtype.metadata is not None:
        return True
    if dtype.subdtype is not None:
        return _has_metadata(dtype.subdtype[0])
    return dtype.fields is not None and any(_has_metadata(of[0]) for of in dtype.fields.values())


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
