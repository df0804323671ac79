"""How the types of arrays travel, of NumPy and of other libraries."""

from __future__ import annotations

import pickle
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np

from treadle.pickling._mp_main import SCRIPT

__all__ = ["dtype_of", "name_of", "of_library", "parts_of"]

# Between the name of another library and that of its type.
_SEPARATOR = b"\0"


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
    # Types of other packages have kinds and names like NumPy's, which it may or may not understand.
    with suppress(TypeError):
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


def of_library(library: str, name: bytes) -> bytes:
    """Return the name of a library's type: in torch ``"NAME SIZE"``, in others what NumPy calls it."""
    return library.encode() + _SEPARATOR + name


def parts_of(name: bytes) -> tuple[str, bytes]:
    """Return the library of a type, ``""`` for NumPy's own, and its name there."""
    library, separator, of_library = name.partition(_SEPARATOR)
    # Pickles have zeros, too.
    return (library.decode(), of_library) if separator and name[:1] != b"\x80" else ("", name)


@lru_cache(maxsize=1024)
def dtype_of(name: bytes) -> np.dtype[Any]:
    """Return the dtype of that name; a structured one of bytes for what torch alone has."""
    library, name = parts_of(name)
    if library == "torch":
        called, _, size = name.decode().partition(" ")
        has_numpy = called in _OF_BOTH
        return np.dtype(called if has_numpy else [(called, f"V{size}")])
    if name[:1] == b"\x80":
        dtype: np.dtype[Any] = pickle.loads(name)
        return dtype
    return np.dtype(name.decode())


# Types that have the same name in torch and in NumPy.
_OF_BOTH = frozenset(
    [
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    ]
)
