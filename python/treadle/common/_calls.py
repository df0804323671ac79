"""What travels in calls between Python sides: clients, the scheduler's sidecar, workers.

A call's operation is the name of distributed's handler, its argument the pickled keyword arguments,
its answer what that handler returns. What distributed marks to be serialised (``to_serialize``)
becomes an :class:`Opaque`, which whoever only passes it on never unpickles: the scheduler need not
be able to import what its users publish.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

from treadle._compat.distributed import Serialize, ToPickle
from treadle.errors import _pickled as errors
from treadle.pickling import _by_value, _lossless

__all__ = [
    "NATIVE",
    "Opaque",
    "actors_answer",
    "error_of",
    "of_message",
    "pack",
    "pack_answer",
    "unpack",
    "unpack_answer",
]

# What the native scheduler serves with plain values as arguments and answers, of what distributed's has. All
# else is the sidecar's, which functions that run there may give further handlers.
NATIVE = frozenset(
    [
        *("identity", "ncores", "ncores_running", "who_has", "has_what", "nbytes", "processing"),
        *("retire_workers", "terminate"),
    ]
)

_OF_ACTORS = frozenset(["actor_execute", "actor_attribute"])

# Arguments that somebody gets back: data of queues and variables, metadata, events.
_CARRIED = frozenset(["data", "value", "msg"])


class Opaque:
    """The pickle of an object that is only passed on."""

    __slots__ = ("pickle",)

    def __init__(self, pickle: bytes) -> None:
        self.pickle = pickle

    def __reduce__(self) -> tuple[Any, ...]:
        return Opaque, (self.pickle,)

    def __repr__(self) -> str:
        return f"<Opaque: {len(self.pickle)} bytes>"


class _Packer(_by_value.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (Serialize, ToPickle)):
            return Opaque, (_by_value.dumps_as_needed(obj.data),)
        return super().reducer_override(obj)


class _Opener(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if module == __name__ and name == "Opaque":
            return pickle.loads
        return super().find_class(module, name)


def _pack(value: Any) -> bytes:
    return _lossless.dumps_by(_Packer, value)


def _is_plain(value: Any, depth: int = 8) -> bool:
    """Whether any Python can unpickle the value, but for what becomes opaque by itself."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str, bytes, Serialize, ToPickle):
        return True
    if depth == 0:
        return False
    if kind in (list, tuple):
        return all(_is_plain(item, depth - 1) for item in value)
    if kind is dict:
        return all(_is_plain(item, depth - 1) for pair in value.items() for item in pair)
    return False


def _as_carried(value: Any) -> Any:
    """Return plain data as distributed's wire leaves it, where lists become tuples."""
    kind = type(value)
    if kind in (list, tuple):
        return tuple(map(_as_carried, value))
    if kind is dict:
        return {key: _as_carried(item) for key, item in value.items()}
    return value


def pack(kwargs: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the argument of a call.

    Raises
    ------
    TypeError
        An argument cannot be pickled; pickle's own errors likewise.
    """
    if "data" in kwargs and not _is_plain(kwargs["data"]):
        # Of a queue or a variable.
        kwargs = {**kwargs, "data": Serialize(kwargs["data"])}
    for name in _CARRIED & kwargs.keys():
        kwargs = {**kwargs, name: _as_carried(kwargs[name])}
    return {"kwargs": _pack(dict(kwargs))}


def of_message(message: Mapping[str, Any], nanny: bool) -> tuple[str, dict[str, bytes]]:
    """Return operation and argument of a call to workers, given as distributed has it.

    With ``nanny`` the call is to whoever looks after a worker's process.
    """
    kwargs = dict(message)
    operation = kwargs.pop("op")
    if nanny:
        kwargs["call"], operation = operation, "nanny"
    return operation, pack(kwargs)


def unpack(argument: Any, *, opening: bool) -> dict[str, Any]:
    """Return the keyword arguments of a call, with what is opaque unpickled or as it is.

    Raises
    ------
    ValueError
        The argument is none of :func:`pack`'s.
    Exception
        Whatever unpickling raises: a module is not there, for example.
    """
    packed = argument.get("kwargs") if isinstance(argument, dict) else None
    if not isinstance(packed, bytes):
        raise ValueError(f"a call needs pickled keyword arguments, not {argument!r:.200}")
    kwargs = _Opener(io.BytesIO(packed)).load() if opening else pickle.loads(packed)
    if not isinstance(kwargs, dict):
        raise ValueError(f"a call needs keyword arguments, not {type(kwargs).__name__}")
    return kwargs


def pack_answer(value: Any) -> bytes:
    """Return an answer as it travels. Raises what pickling raises."""
    return _pack(value)


def unpack_answer(answer: bytes) -> Any:
    """Return what was answered, unpickled throughout. Raises what unpickling raises."""
    return _Opener(io.BytesIO(answer)).load()


def actors_answer(operation: str, error: Exception) -> dict[str, Any]:
    """Return what a call has raised as the answer of an actor; raise it where none was called.

    Distributed's actors expect an ``OSError`` and nothing else: whoever waits for a method would wait
    for ever.
    """
    if operation not in _OF_ACTORS or isinstance(error, OSError):
        raise error
    return {"status": "error", "exception": error}


def error_of(error: Any) -> BaseException:
    """Return the exception that a call's error stands for.

    What the other side's code raised is raised again, with its traceback. What the scheduler says
    by itself (the node is gone) is an ``OSError``, as distributed's callers expect of a lost worker.
    """
    if isinstance(error, bytes):
        exception, traceback = errors.load(error)
        if isinstance(exception, StopIteration):
            # No future and no coroutine can raise it.
            return RuntimeError(f"the call raised {exception!r}")
        return exception.with_traceback(traceback)
    if isinstance(error, BaseException):
        raw = error.args[0] if error.args else None
        return error_of(raw) if isinstance(raw, bytes) else error
    return OSError(str(error))
