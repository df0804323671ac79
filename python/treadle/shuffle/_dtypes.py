"""NumPy dtypes as JSON and back.

Most are written as ``.npy`` files have them. These have no titles, no fields that overlap or are out of order,
and are not aligned. Others are written field by field.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.format import descr_to_dtype, dtype_to_descr


def note_of(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the dtype for JSON. Raises ``TypeError`` if it would not come back as the same dtype."""
    for write in (_as_files, _by_fields):
        try:
            said = write(dtype)
            if _whole(dtype_of(said)) == _whole(dtype):
                return said
        except (TypeError, ValueError, RecursionError):
            continue
    raise TypeError(
        f"dtype {dtype}: another process could not be told what it is. Titles of fields must be text, and "
        "only the whole may be a numpy.record; give a dtype without others, or write opaque records"
    )


def _whole(dtype: np.dtype[Any]) -> Any:
    """All that a dtype is. Equal ones may differ in alignment and the class of records."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return (_whole(base), shape)
    if dtype.fields is None:
        return (dtype, dtype.type)
    fields: Any = dtype.fields
    parts = [(name, _whole(fields[name][0]), *fields[name][1:]) for name in dtype.names or ()]
    return (dtype, dtype.type, dtype.isalignedstruct, parts)


def has_metadata(dtype: np.dtype[Any]) -> bool:
    """Whether the dtype has metadata, or a field of it has."""
    if dtype.metadata is not None:
        return True
    if dtype.subdtype is not None:
        return has_metadata(dtype.subdtype[0])
    return dtype.fields is not None and any(has_metadata(of[0]) for of in dtype.fields.values())


def dtype_of(said: dict[str, Any]) -> np.dtype[Any]:
    """Return the dtype that ``note_of`` wrote, perhaps in another release."""
    if "fields" in said:
        dtype = _from_fields(said["fields"])
        # The release before does not say it.
        return np.dtype((np.record, dtype)) if said.get("record") else dtype
    if "sub" in said:
        base, shape = said["sub"]
        return np.dtype((descr_to_dtype(_tuples(base)), tuple(shape)))
    return descr_to_dtype(_tuples(said["dtype"]))


def _as_files(dtype: np.dtype[Any]) -> dict[str, Any]:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"sub": [_lists(dtype_to_descr(base)), list(shape)]}
    return {"dtype": _lists(dtype_to_descr(dtype))}


def _by_fields(dtype: np.dtype[Any]) -> dict[str, Any]:
    return {"fields": _told(dtype), "record": dtype.type is np.record}


def _told(dtype: np.dtype[Any]) -> Any:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"base": _told(base), "shape": list(shape)}
    if dtype.fields is None:
        return dtype.str
    # Of each: its dtype, its offset, and a title if it has one.
    named: Any = dtype.fields
    fields = [(*named[name], None)[:3] for name in dtype.names or ()]
    if any(not isinstance(title, str | None) for _, _, title in fields):
        raise TypeError("a title is not text")
    return {
        "names": list(dtype.names or ()),
        "formats": [_told(kind) for kind, _, _ in fields],
        "offsets": [offset for _, offset, _ in fields],
        "titles": [title for _, _, title in fields],
        "itemsize": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
    }


def _from_fields(said: Any) -> np.dtype[Any]:
    if isinstance(said, str):
        return np.dtype(said)
    if "base" in said:
        return np.dtype((_from_fields(said["base"]), tuple(said["shape"])))
    formats = [_from_fields(one) for one in said["formats"]]
    fields: Any = {**said, "formats": formats}
    made: np.dtype[Any] = np.dtype(fields)
    return made


def _lists(descr: Any) -> Any:
    """A description as JSON gives it back."""
    return [_lists(part) for part in descr] if isinstance(descr, tuple | list) else descr


def _tuples(descr: Any) -> Any:
    """A description of a dtype after JSON, which has no tuples."""
    if isinstance(descr, str):
        return descr
    return [tuple(_field(part) for part in field) for field in descr]


def _field(part: Any) -> Any:
    if isinstance(part, list) and all(isinstance(one, int) for one in part):
        return tuple(part)
    return _tuples(part) if isinstance(part, list) else part


def used_bytes(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return, for each byte of an element, whether it is part of a value: bytes of padding are not."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.tile(used_bytes(base), int(np.prod(shape)))
    if dtype.fields is None:
        return _used_of_scalar(dtype)
    used = np.zeros(dtype.itemsize, bool)
    for part, offset, *_ in dtype.fields.values():
        used[offset : offset + part.itemsize] |= used_bytes(part)
    return used


def _used_of_scalar(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    used = np.ones(dtype.itemsize, bool)
    if dtype.type not in (np.longdouble, np.clongdouble) or np.finfo(np.longdouble).nmant != 63:
        return used
    # x86 keeps a number of 80 bits in 12 or 16 bytes. The others are never written.
    parts = 2 if dtype.kind == "c" else 1
    rest = slice(10, None) if dtype.isnative else slice(None, -10)
    used.reshape(parts, -1)[:, rest] = False
    return used
