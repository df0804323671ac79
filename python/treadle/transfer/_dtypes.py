"""How the types of arrays travel."""

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["dtype_of", "name_of"]


@lru_cache(maxsize=1024)
def name_of(dtype: np.dtype[Any]) -> bytes | None:
    """Return a name for the dtype, or ``None`` where elements are more than the bytes in the array.

    The name is NumPy's own, or, where that does not tell all (structured types, those of other
    packages), the pickled dtype.
    """
    if dtype.hasobject:
        return None
    name = dtype.str
    if dtype.kind in "biufcmMSU" and np.dtype(name) == dtype:
        return name.encode()
    return pickle.dumps(dtype, protocol=5)


@lru_cache(maxsize=1024)
def dtype_of(name: bytes) -> np.dtype[Any]:
    """Return the dtype of that name."""
    if name[:1] == b"\x80":
        dtype: np.dtype[Any] = pickle.loads(name)
        return dtype
    return np.dtype(name.decode())
