"""What users give as rows and numbers of them, checked: what would be left out is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["integers", "memory", "offsets_and_data", "plain_array", "records"]

# Their elements are all that they are.
_PLAIN = (np.ndarray, np.memmap, np.recarray, np.matrix)


def plain_array(values: Any, what: str, *, has_labels: bool = True) -> np.ndarray[Any, Any]:
    """Return an array of NumPy's own class with all that the values are.

    Without ``has_labels``, those of pandas and the like do not count: elements go by their positions.

    Raises
    ------
    TypeError
        There is more to them: a mask, labels, nulls, or what a class adds.
    """
    kinds = set(map(type, values)) if isinstance(values, list | tuple) else {type(values)}
    for kind in kinds:
        _refuse_more(kind, what, has_labels)
    return np.asarray(values)


def _refuse_more(kind: type, what: str, has_labels: bool) -> None:
    name = f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"
    if issubclass(kind, np.ma.MaskedArray):
        raise TypeError(
            f"{what} are masked, and masks are not carried: give a plain array, such as "
            "array.filled(...) or array.compressed() makes it"
        )
    if issubclass(kind, np.ndarray):
        if kind not in _PLAIN:
            raise TypeError(
                f"{what} are of class {name}, and only elements are carried, not what a class adds to "
                "them: give numpy.asarray(...) of them"
            )
    elif hasattr(kind, "__array__") and not issubclass(kind, np.generic) and has_labels:
        raise TypeError(
            f"{what} are of class {name}, and only arrays of NumPy are carried, not labels, nulls or "
            "what else a class adds: give numpy.asarray(...) of them"
        )


def integers(values: Any, what: str) -> np.ndarray[Any, Any]:
    """Return one integer for each row, in this machine's order of bytes.

    Raises
    ------
    TypeError, ValueError
        They are no integers, or not in one dimension.
    """
    numbers = plain_array(values, what, has_labels=False)
    if numbers.ndim != 1:
        raise ValueError(f"{what} have {numbers.ndim} dimensions: give one number for each row")
    if not len(numbers):
        return numbers.astype(np.int64)
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"{what} are no integers, but {numbers.dtype}")
    return numbers.astype(numbers.dtype.newbyteorder("="), copy=False)


def memory(data: Any, what: str) -> memoryview:
    """Return the bytes of an object, in their order.

    Raises
    ------
    TypeError
        It has none, or is more than them.
    """
    if isinstance(data, np.ndarray):
        data = plain_array(data, what)
    try:
        view = memoryview(data)
    except (BufferError, TypeError, ValueError):
        view = None
    if view is None or (isinstance(data, np.generic) and not isinstance(data, np.bytes_)):
        name = f"{type(data).__module__.partition('.')[0]}.{type(data).__qualname__}"
        raise TypeError(f"{what} must be bytes or another object with memory, not {name}")
    if not view.nbytes or not view.c_contiguous:
        return memoryview(view.tobytes())
    return view.cast("B")


def offsets_and_data(pair: tuple[Any, Any]) -> tuple[np.ndarray[Any, Any], Any]:
    """Return offsets, which are right, and the memory that they cut into records.

    Raises
    ------
    TypeError, ValueError
        They cut nothing, or not this memory.
    """
    offsets = plain_array(pair[0], "offsets", has_labels=False)
    data = memory(pair[1], "the data of offsets")
    if offsets.ndim != 1 or not len(offsets):
        raise ValueError(
            f"offsets of shape {offsets.shape}: give one for the begin of each record, and one for the "
            "end of the last, so at least one"
        )
    if offsets.dtype.kind not in "iu":
        raise TypeError(f"offsets are no integers, but {offsets.dtype}")
    wrong = offsets[1:] < offsets[:-1]
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ValueError(f"offsets descend from {offsets[at]} to {offsets[at + 1]} in record {at}")
    if int(offsets[0]) < 0 or int(offsets[-1]) > data.nbytes:
        raise ValueError(
            f"offsets reach from {offsets[0]} to {offsets[-1]}, and there are {data.nbytes} bytes of data"
        )
    return np.ascontiguousarray(offsets, np.int64), data


def records(given: Any) -> tuple[np.ndarray[Any, Any], Any]:
    """Return offsets and memory of a sequence of records.

    Raises
    ------
    TypeError
        These are no records.
    """
    if isinstance(given, str | bytes | bytearray | memoryview | Mapping) or not hasattr(
        given, "__len__"
    ):
        raise TypeError(f"rows of type {type(given).__name__}: give a list of bytes")
    if not isinstance(given, list | tuple):
        if isinstance(given, np.ndarray) or hasattr(type(given), "__array__"):
            given = plain_array(given, "rows")
        given = list(given)
    if set(map(type, given)) - {bytes, bytearray}:
        # The items of a view or an array may be wider than a byte.
        given = [
            one if type(one) is bytes else memory(one, f"record {at}")
            for at, one in enumerate(given)
        ]
    offsets = np.zeros(len(given) + 1, np.int64)
    np.cumsum(list(map(len, given)), out=offsets[1:])
    return offsets, b"".join(given)
