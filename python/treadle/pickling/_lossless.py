"""Objects whose own pickles leave out a part of them."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from typing import Any

from treadle.pickling._tensors import Parts

__all__ = ["PLAIN", "Pickler", "dumps", "dumps_by", "layout_of", "reduce", "view_of"]

_Keep = Callable[[pickle.PickleBuffer], Any]

# Objects of these are nothing but their values.
PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})

# Formats that `memoryview.cast` knows.
_KNOWN = frozenset("cbBhHiIlLqQnNfdP?")

# Of masked arrays: their pickles have these, or they follow from them.
_OF_MASKED = {"_mask", "_fill_value", "_baseclass", "_sharedmask", "_isfield"}


def dumps(
    obj: Any,
    protocol: int = 5,
    buffer_callback: _Keep | None = None,
    parts: Parts | None = None,
) -> bytes:
    """Return a pickle, as :func:`pickle.dumps`, of all of an object."""
    return dumps_by(Pickler, obj, protocol, buffer_callback, parts)


def dumps_by(
    kind: Any,
    obj: Any,
    protocol: int = 5,
    buffer_callback: _Keep | None = None,
    parts: Parts | None = None,
) -> bytes:
    """Return what a pickler of this class makes of an object, whose tensors have ``parts`` of memory."""
    parts = parts or Parts()
    while True:
        file = io.BytesIO()
        pickler = kind(file, protocol=protocol, buffer_callback=buffer_callback)
        if parts.begin():
            pickler.parts = parts
        pickler.dump(obj)
        if not parts.is_to_repeat():
            return file.getvalue()


class Pickler(pickle.Pickler):
    """Pickles all of objects."""

    parts: Parts | None = None

    def reducer_override(self, obj: Any) -> Any:
        return reduce(obj, self.parts)


def reduce(obj: Any, parts: Parts | None = None) -> Any:
    """Return how to pickle all of an object, or ``NotImplemented`` if its own way does.

    NumPy leaves out attributes of subclasses, pyarrow how many rows there are without columns. Of views of
    memory, cloudpickle makes bytes. Tensors are copied by their own way; it is taken without ``parts``.
    """
    kind = type(obj)
    if kind is memoryview:
        data = obj if obj.c_contiguous else obj.tobytes()
        return view_of, (pickle.PickleBuffer(data), *layout_of(obj))
    if parts is not None and (of_torch := parts.reduce(obj)) is not NotImplemented:
        return of_torch
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, numpy.ndarray):
        return NotImplemented if kind is numpy.ndarray else _of_array(numpy, kind, obj)
    if kind.__module__ == "pyarrow.lib" and kind.__name__ in ("RecordBatch", "Table"):
        return _of_rows(obj)
    return NotImplemented


def layout_of(view: memoryview) -> tuple[Any, list[int]]:
    """Return the format of a view and its shape, for :func:`view_of`.

    Raises
    ------
    TypeError
        It cannot be told.
    """
    shape = list(view.shape or ())
    if view.format in _KNOWN and (0 not in shape or shape == [0]):
        return view.format, shape
    # `cast` knows neither elements of other formats nor shapes without any.
    try:
        import numpy as np

        dtype = np.asarray(view).dtype
    except (ImportError, TypeError, ValueError) as error:
        raise TypeError(
            f"a memoryview of format {view.format!r} cannot be sent: send its bytes, view.tobytes()"
        ) from error
    if dtype.hasobject:
        raise TypeError("a memoryview of Python objects cannot be sent: send a list of them")
    return dtype, shape


def view_of(data: Any, layout: Any, shape: list[int]) -> memoryview:
    """Return the view of this layout of memory."""
    if not isinstance(layout, str):
        import numpy as np

        array: Any = np.ndarray(shape, layout, data)
        return memoryview(array)
    view: Any = memoryview(data).cast("B")
    made: memoryview = view.cast(layout, shape) if view.nbytes else view.cast(layout)
    return made


def _of_array(numpy: Any, kind: type, obj: Any) -> Any:
    is_masked = issubclass(kind, numpy.ma.MaskedArray)
    base = numpy.ma.MaskedArray if is_masked else numpy.ndarray
    has_own_way = kind.__reduce__ is not base.__reduce__ or (
        kind.__reduce_ex__ is not base.__reduce_ex__
    )
    # What a map of a file adds is where it is.
    if has_own_way or issubclass(kind, numpy.memmap) or not hasattr(obj, "__dict__"):
        return NotImplemented
    more = vars(obj)
    if is_masked:
        more = {name: value for name, value in more.items() if name not in _OF_MASKED}
        is_usual = more.get("_hardmask") is False and not (
            more.get("_optinfo") or more.get("_basedict")
        )
        if is_usual and more.keys() <= {"_hardmask", "_optinfo", "_basedict"}:
            return NotImplemented
    if not more:
        return NotImplemented
    make, arguments, state = obj.__reduce_ex__(5)[:3]
    return make, arguments, (state, more), None, None, _set


def _set(made: Any, both: tuple[Any, dict[str, Any]]) -> None:
    state, more = both
    made.__setstate__(state)
    made.__dict__.update(more)


def _of_rows(obj: Any) -> Any:
    if obj.num_columns or not obj.num_rows:
        return NotImplemented
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

    if isinstance(obj, pa.Table):
        return pa.Table.from_batches, (obj.to_batches(), obj.schema)
    return pa.ipc.read_record_batch, (obj.serialize(), obj.schema)
