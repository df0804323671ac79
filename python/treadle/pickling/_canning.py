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
from functools import lru_cache
from importlib.util import MAGIC_NUMBER
from operator import attrgetter
from types import CellType, CodeType, FunctionType
from typing import Any, Protocol, TypeAlias, TypeVar

from treadle._compat.ipyparallel import CANNED
from treadle.pickling import _by_value, _lossless
from treadle.pickling._lossless import PLAIN

__all__ = [
    "Buffer",
    "dumps",
    "dumps_call",
    "dumps_values",
    "loads",
    "loads_call",
    "loads_values",
    "remembered",
]

# What ipyparallel's `interactive` and its like mark as the user's own.
_MAIN = "__main__"


# Buffers that stay out of a pickle: a message has at most 65,535 frames.
_MOST_BUFFERS = 60_000

# Bytes of a frame that is remembered.
_SHORT = 8 << 10

_Read = TypeVar("_Read")


def remembered(read: Callable[[Any], _Read]) -> Callable[[Any], _Read]:
    """Have a function that reads a frame know short ones again, by their bytes: they often come again.

    What it returns is not the caller's to change.
    """
    known = lru_cache(maxsize=256)(read)

    def read_again(frame: Any) -> _Read:
        is_short = type(frame) is bytes and len(frame) <= _SHORT
        return known(frame) if is_short else read(frame)

    return read_again


class Buffer(Protocol):
    """Bytes, a memoryview, or what else a view of memory can be made of."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


class _Here(threading.local):
    """The namespace that the calling thread unpickles for; its own main module without one."""

    namespace: dict[str, Any] | None = None


_here = _Here()


def dumps(value: Any, *, by_value: bool = False) -> list[Any]:
    """Return a pickle and the buffers that stayed out of it: the first 60,000.

    Parameters
    ----------
    by_value
        Pickle functions as cloudpickle does: with the globals that they use.

    Raises
    ------
    Exception
        Whatever pickling raises.
    """
    if type(value) in PLAIN:
        return [pickle.dumps(value, protocol=5)]
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []

    def is_within(buffer: pickle.PickleBuffer) -> bool:
        if len(buffers) == _MOST_BUFFERS:
            return True
        buffers.append(buffer)
        return False

    _Canner(file, by_value, is_within).dump(value)
    # Not `getbuffer()`: the garbage collector of Python 3.13 may close a file of which there are views,
    # which raises `BufferError`. This copies nothing.
    return [file.getvalue(), *(buffer.raw() for buffer in buffers)]


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


def dumps_call(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, by_value: bool = False
) -> list[Any]:
    """Return the frames of a call, for :func:`loads_call`.

    What nearly all functions are is the first frame, which is the same each time that the function
    is called: who reads it has it already. The others are in the pickle of the arguments.

    Raises
    ------
    Exception
        Whatever pickling raises.
    """
    kind = type(function)
    if kind is FunctionType and not by_value and not _is_found(function):
        simple = _simple(function)
        if simple is not None:
            frame = pickle.dumps(simple, protocol=5)
            return [frame, *(dumps((args, kwargs)) if args or kwargs else ())]
    return [b"", *dumps((function, args, kwargs), by_value=by_value)]


def loads_call(
    frames: Sequence[Any], namespace: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the function, the arguments and the keyword arguments of a call.

    Raises
    ------
    Exception
        Whatever unpickling raises; see :func:`loads`.
    """
    first = frames[0]
    if not len(first):
        function, args, kwargs = loads(frames[1:], namespace)
        return function, args, kwargs
    code, module, annotations, qualname = _read_simple(first)
    function = FunctionType(code, namespace if module.startswith("__") else _globals_of(module))
    function.__module__ = module
    if qualname:
        function.__qualname__ = qualname
    if annotations:
        function.__annotations__ = annotations.copy()
    if len(frames) == 1:
        return function, (), {}
    args, kwargs = loads(frames[1:], namespace)
    return function, args, kwargs


def dumps_values(values: dict[Any, Any], *, by_value: bool = False) -> list[Any]:
    """Return the frames of named values, for :func:`loads_values`.

    Of plain arrays there are names, types and shapes, which are often those of the last time, and
    the arrays' bytes.

    Raises
    ------
    Exception
        Whatever pickling raises.
    """
    if 0 < len(values) <= _MOST_BUFFERS and all(_is_plain(value) for value in values.values()):
        kinds = [(name, array.dtype.str, array.shape) for name, array in values.items()]
        buffers = [pickle.PickleBuffer(array).raw() for array in values.values()]
        return [pickle.dumps(kinds, protocol=5), *buffers]
    return [b"", *dumps(values, by_value=by_value)]


def loads_values(frames: Sequence[Any], namespace: dict[str, Any]) -> dict[Any, Any]:
    """Return values by their names. Arrays are views of their frames.

    Raises
    ------
    Exception
        Whatever unpickling raises; see :func:`loads`.
    """
    first = frames[0]
    if not len(first):
        values: dict[Any, Any] = loads(frames[1:], namespace)
        return values
    make, kinds = _read_kinds(first)
    found = {}
    for index, (name, dtype, shape) in enumerate(kinds, 1):
        found[name] = make(shape, dtype, frames[index])
    return found


class _Canner(_by_value.Pickler):
    def __init__(
        self, file: io.BytesIO, by_value: bool, is_within: Callable[[pickle.PickleBuffer], bool]
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=is_within)
        self._by_value = by_value

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is FunctionType and not self._by_value and not _is_found(obj):
            reduced = _reduce_function(obj)
            return super().reducer_override(obj) if reduced is None else reduced
        if _is_plain(obj):
            return _make_array, (pickle.PickleBuffer(obj), obj.dtype.str, obj.shape)
        reduce = _OF_IPYPARALLEL.get((kind.__module__, kind.__qualname__))
        if reduce is not None:
            return reduce(obj)
        found = _lossless.reduce(obj)
        if found is not NotImplemented:
            return found
        return super().reducer_override(obj)


def _is_plain(value: Any) -> bool:
    """Whether it is an array with its elements in order, of a type that has a short name."""
    kind = type(value)
    if kind.__module__ != "numpy" or kind.__name__ != "ndarray":
        return False
    dtype = value.dtype
    has_short_name = dtype.isbuiltin == 1 and dtype.kind != "V" and dtype.metadata is None
    return bool(value.flags.c_contiguous and has_short_name and not dtype.hasobject)


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


def _reduce_function(function: FunctionType) -> tuple[Any, ...] | None:
    """Return how a function is made of its code; None, if nobody else has the globals that it needs."""
    simple = _simple(function)
    if simple is not None:
        return _make_simple_function, simple
    module = function.__module__ or _MAIN
    if "__wrapped__" in function.__dict__:
        # `functools.wraps` has given it the name of another function's module.
        module = function.__globals__.get("__name__", module)
    if not _is_there(module):
        return None
    state = (
        function.__module__ or _MAIN,
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


#: A magic number, code, the name of a module, annotations, the qualified name if the code has it not.
_Simple: TypeAlias = "tuple[bytes, bytes, str, dict[str, Any], str]"


def _simple(function: FunctionType) -> _Simple | None:
    """Return what a function is, if it is its code, with the names in it, and annotations."""
    others = (
        function.__closure__,
        function.__defaults__,
        function.__kwdefaults__,
        function.__dict__,
    )
    annotations = function.__annotations__
    module = function.__module__ or _MAIN
    if not _is_there(module):
        return None
    if any(others) or not all(map(_is_named, annotations.values())):
        return None
    plain = FunctionType(function.__code__, {}, function.__code__.co_name)
    named = attrgetter("__name__", "__doc__")
    if named(function) != named(plain):
        return None
    # Before Python 3.11 code has a plain name only, which for a function in a function is another one.
    qualname = function.__qualname__ if function.__qualname__ != plain.__qualname__ else ""
    try:
        code = marshal.dumps(function.__code__)
    except ValueError:
        # A constant that somebody has put there.
        return None
    return MAGIC_NUMBER, code, module, annotations, qualname


def _is_there(module: str) -> bool:
    """Whether there are globals of a module, and not just a name: named tuples have methods of none."""
    return module.startswith("__") or module in sys.modules


def _is_named(annotation: Any) -> bool:
    """Whether all functions that are annotated with it may share it."""
    if annotation is None or type(annotation) is str:
        return True
    return type(annotation) is type and annotation.__module__ == "builtins"


def _make_simple_function(
    magic: bytes, code: bytes, module: str, annotations: dict[str, Any], qualname: str
) -> FunctionType:
    function = FunctionType(_read_code(magic, code), _globals_of(module))
    function.__module__ = module
    if qualname:
        function.__qualname__ = qualname
    function.__annotations__ = annotations
    return function


def _read_code(magic: bytes, code: bytes) -> CodeType:
    if magic != MAGIC_NUMBER:
        raise pickle.UnpicklingError(
            f"a function is code of another version of Python than {sys.version.split()[0]}, "
            "which runs here: have clients and workers run the same"
        )
    found: CodeType = marshal.loads(code)
    return found


@remembered
def _read_simple(frame: Any) -> tuple[CodeType, str, dict[str, Any], str]:
    magic, code, module, annotations, qualname = pickle.loads(frame)
    return _read_code(magic, code), module, annotations, qualname


@remembered
def _read_kinds(frame: Any) -> tuple[Callable[..., Any], list[tuple[Any, Any, Any]]]:
    """Return what makes arrays, and their names, types and shapes."""
    import numpy

    kinds = [(name, numpy.dtype(dtype), shape) for name, dtype, shape in pickle.loads(frame)]
    return numpy.ndarray, kinds


def _contents(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _make_function(code: CodeType, module: str, name: str) -> FunctionType:
    closure = tuple(CellType() for _ in code.co_freevars)
    return FunctionType(code, _globals_of(module), name, None, closure)


def _complete_function(function: FunctionType, state: tuple[Any, ...]) -> None:
    module, qualname, defaults, kwdefaults, annotations, doc, attributes, cells = state
    function.__module__ = module
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
    from treadle._compat.ipyparallel import deserialize_object

    return deserialize_object(buffers, _namespace())[0]


# By module and name: an engine need not import ipyparallel.
_OF_IPYPARALLEL: dict[tuple[str, str], Callable[[Any], tuple[Any, ...]]] = {
    CANNED["Reference"].parts: lambda obj: (_resolve, (obj.name,)),
    CANNED["dependent"].parts: lambda obj: (_depend, (obj.f, obj.df, obj.dargs, obj.dkwargs)),
    CANNED["PrePickled"].parts: lambda obj: (_open, (obj.buffers,)),
}

# Pickles name these by numbers, which costs no import where they are read.
for _number, _maker in enumerate((_make_simple_function, _make_array), 0x54524500):
    copyreg.add_extension(__name__, _maker.__name__, _number)
