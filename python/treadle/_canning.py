"""How functions and values travel between clients and the namespaces of engines.

It is ipyparallel's canning as a pickler: a function travels as its code, and where it arrives it
belongs to the module of the same name, or to the engine's namespace if it was made in ``__main__``;
a reference is looked up where it arrives. Values are pickled with protocol 5, so that arrays stay
out of the pickle and are never copied into it.
"""

from __future__ import annotations

import copyreg
import importlib
import io
import marshal
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.util import MAGIC_NUMBER
from types import CellType, CodeType, FunctionType
from typing import Any, Protocol

import cloudpickle

__all__ = ["Buffer", "dumps", "loads"]

_Pickler: Any = cloudpickle.Pickler

# Nothing about these is special here.
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})

# What ipyparallel's `interactive` and its like mark as the user's own.
_MAIN = "__main__"


class Buffer(Protocol):
    """Bytes, a memoryview, or what else a view of memory can be made of."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


class _Here(threading.local):
    """The namespace that the calling thread unpickles for; its own main module without one."""

    namespace: dict[str, Any] | None = None


_here = _Here()


def dumps(value: Any, *, by_value: bool = False) -> list[Any]:
    """Return a pickle and the buffers that stayed out of it.

    Parameters
    ----------
    by_value
        Pickle functions as cloudpickle does: with the globals that they use.

    Raises
    ------
    Exception
        Whatever pickling raises.
    """
    if type(value) in _PLAIN:
        return [pickle.dumps(value, protocol=5)]
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    _Canner(file, by_value, buffers.append).dump(value)
    return [file.getbuffer(), *(buffer.raw() for buffer in buffers)]


def loads(frames: Sequence[Any], namespace: dict[str, Any] | None = None) -> Any:
    """Return what :func:`dumps` was given, with functions and references of the namespace.

    Without one it is that of ``__main__``.

    Raises
    ------
    Exception
        Whatever unpickling raises: a module is not there, or a name that a reference has.
    """
    before, _here.namespace = _here.namespace, namespace
    try:
        return pickle.loads(frames[0], buffers=frames[1:])
    finally:
        _here.namespace = before


class _Canner(_Pickler):  # type: ignore[misc]
    def __init__(
        self, file: io.BytesIO, by_value: bool, keep: Callable[[pickle.PickleBuffer], Any]
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=keep)
        self._by_value = by_value

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is FunctionType and not self._by_value and not _is_found(obj):
            return _reduce_function(obj)
        if kind is memoryview:
            return memoryview, (pickle.PickleBuffer(obj),)
        if kind.__module__ == "numpy" and kind.__name__ == "ndarray" and _is_plain(obj):
            return _make_array, (pickle.PickleBuffer(obj), obj.dtype.str, obj.shape)
        reduce = _OF_IPYPARALLEL.get((kind.__module__, kind.__qualname__))
        if reduce is not None:
            return reduce(obj)
        return super().reducer_override(obj)


def _is_plain(array: Any) -> bool:
    """Whether an array has its elements in order, and they are of a type that has a short name."""
    return array.flags.c_contiguous and array.dtype.isbuiltin == 1 and not array.dtype.hasobject


def _make_array(buffer: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    import numpy

    return numpy.ndarray(shape, dtype, buffer)


def _is_found(function: FunctionType) -> bool:
    """Whether the function's own name leads to it, in a module that can be imported."""
    name = function.__module__
    if not name or name.startswith("__"):
        return False
    found: Any = sys.modules.get(name)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def _reduce_function(function: FunctionType) -> tuple[Any, ...]:
    module = function.__module__ or _MAIN
    if _is_simple(function):
        try:
            code = marshal.dumps(function.__code__)
        except ValueError:
            # A constant that somebody has put there.
            pass
        else:
            names = (function.__name__, function.__qualname__)
            return _make_simple_function, (MAGIC_NUMBER, code, module, *names, function.__doc__)
    state = (
        function.__qualname__,
        function.__defaults__,
        function.__kwdefaults__,
        function.__annotations__,
        function.__doc__,
        function.__dict__,
        [_contents(cell) for cell in function.__closure__ or ()],
    )
    made = (function.__code__, module, function.__name__)
    # The state comes after the function is known to the pickle, for it may lead back to it.
    return _make_function, made, state, None, None, _complete_function


def _is_simple(function: FunctionType) -> bool:
    """Whether a function has its code and its names, and nothing else."""
    others = (
        function.__closure__,
        function.__defaults__,
        function.__kwdefaults__,
        function.__annotations__,
        function.__dict__,
    )
    return not any(others)


def _make_simple_function(
    magic: bytes, code: bytes, module: str, name: str, qualname: str, doc: Any
) -> FunctionType:
    if magic != MAGIC_NUMBER:
        raise pickle.UnpicklingError(
            f"{qualname}() is code of another version of Python than {sys.version.split()[0]}, "
            "which runs here: have clients and workers run the same"
        )
    function = FunctionType(marshal.loads(code), _globals_of(module), name)
    function.__module__, function.__qualname__, function.__doc__ = module, qualname, doc
    return function


def _contents(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _make_function(code: CodeType, module: str, name: str) -> FunctionType:
    closure = tuple(CellType() for _ in code.co_freevars)
    function = FunctionType(code, _globals_of(module), name, None, closure)
    function.__module__ = module
    return function


def _complete_function(function: FunctionType, state: tuple[Any, ...]) -> None:
    qualname, defaults, kwdefaults, annotations, doc, attributes, cells = state
    function.__qualname__ = qualname
    function.__defaults__ = defaults
    function.__kwdefaults__ = kwdefaults
    function.__annotations__ = annotations
    function.__doc__ = doc
    function.__dict__.update(attributes)
    for cell, contents in zip(function.__closure__ or (), cells, strict=True):
        if contents:
            (cell.cell_contents,) = contents


def _globals_of(module: str) -> dict[str, Any]:
    if not module.startswith("__"):
        return vars(importlib.import_module(module))
    return _namespace()


def _namespace() -> dict[str, Any]:
    if _here.namespace is not None:
        return _here.namespace
    return vars(sys.modules[_MAIN])


def _resolve(name: str) -> Any:
    return eval(name, _namespace())


def _depend(function: Any, condition: Any, args: Any, kwargs: Any) -> Any:
    """Make the function that ipyparallel's ``@depend`` made, if its condition holds here."""
    if condition(*args, **kwargs) is False:
        from ipyparallel.error import UnmetDependency

        raise UnmetDependency
    return function


def _open(buffers: list[Any]) -> Any:
    from ipyparallel.serialize import deserialize_object

    return deserialize_object(buffers, _namespace())[0]


# By name: an engine need not import ipyparallel.
_OF_IPYPARALLEL: dict[tuple[str, str], Callable[[Any], tuple[Any, ...]]] = {
    ("ipyparallel.serialize.canning", "Reference"): lambda obj: (_resolve, (obj.name,)),
    ("ipyparallel.controller.dependency", "dependent"): lambda obj: (
        _depend,
        (obj.f, obj.df, obj.dargs, obj.dkwargs),
    ),
    ("ipyparallel.serialize.serialize", "PrePickled"): lambda obj: (_open, (obj.buffers,)),
}

# Pickles name these by numbers, which costs no import where they are read.
for _number, _maker in enumerate((_make_simple_function, _make_array), 0x54524500):
    copyreg.add_extension(__name__, _maker.__name__, _number)
