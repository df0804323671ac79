"""Exceptions as bytes, with their tracebacks, which any exception survives.

What distributed does (``distributed.core.error_message``): text that is too long is cut, and an
exception that cannot be pickled, or not be unpickled again, becomes an ``Exception`` of its ``repr``.
In addition, a pickle of more than 1 MiB counts as one that cannot be made, and what the receiver
cannot unpickle becomes a replacement there. A traceback of more than 64 KiB is left out.
"""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
import io
import os
import pickle
import traceback as tracebacks
from types import TracebackType
from typing import Any, cast

import cloudpickle
import dask
from dask.utils import typename
from distributed.exceptions import Reschedule
from distributed.utils import truncate_exception

from treadle._compat.dask import task_spec
from treadle._compat.distributed import worker_module
from treadle._spawned import SCRIPT
from treadle.worker import _tracebacks

__all__ = [
    *("as_message", "dump", "dump_of_call", "load", "load_traceback"),
    *("reschedules", "unserializable"),
]

_LARGEST = 1 << 20
_LONGEST_TRACEBACK = 64 * 1024

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Files whose frames lie between the engine and the user's function.
_HIDDEN = (
    os.path.join(_PACKAGE, "_loop.py"),
    os.path.join(_PACKAGE, "sidecar", ""),
    os.path.join(_PACKAGE, "worker", ""),
    worker_module.__file__,
    task_spec.__file__,
    os.path.join(os.path.dirname(concurrent.futures.__file__), ""),
    os.path.join(os.path.dirname(asyncio.__file__), ""),
)


def dump(exception: BaseException) -> bytes:
    """Return an exception as bytes for :func:`load`."""
    return pickle.dumps(_parts(exception)[:3], protocol=5)


def dump_of_call(exception: BaseException, operation: str) -> bytes:
    """Return what a call raised as bytes; only an ``Exception`` reaches its caller as it is.

    Anything else, such as ``CancelledError``, would end or cancel whoever waits for the answer.
    """
    if not isinstance(exception, Exception):
        exception = _ordinary(exception, f"the call {operation!r}")
    return dump(exception)


def load(data: bytes) -> tuple[BaseException, TracebackType | None]:
    """Return the exception, or its replacement, and its traceback."""
    pickled, traceback, text = split(data)
    try:
        exception = pickle.loads(pickled)
        if not isinstance(exception, BaseException):
            raise TypeError
    except (Exception, SystemExit):
        exception = Exception(text)
    return exception, load_traceback(traceback)


def load_traceback(data: bytes | None) -> TracebackType | None:
    """Return a pickled traceback, or None if it cannot be unpickled here."""
    try:
        loaded = pickle.loads(data) if data is not None else None
    except Exception:
        loaded = None
    return loaded if isinstance(loaded, TracebackType) else None


def split(data: bytes) -> tuple[bytes, bytes | None, str]:
    """Return the pickled exception, its pickled traceback, and its text; neither is opened."""
    return cast("tuple[bytes, bytes | None, str]", pickle.loads(data))


def as_message(exception: BaseException) -> dict[str, Any]:
    """Return what distributed's handlers answer for an exception, for its ``clean_exception``."""
    pickled, traceback, text, shown = _parts(exception)
    return {
        "status": "error",
        "exception": pickled,
        "traceback": traceback,
        "exception_text": text,
        "traceback_text": "".join(tracebacks.format_tb(shown))[-_LONGEST_TRACEBACK:],
    }


def texts(exception: BaseException) -> tuple[str, str]:
    """Return what it says, and its traceback, for people."""
    shown = _visible(_traceback_of(exception))
    return _repr(exception), "".join(tracebacks.format_tb(shown))[-_LONGEST_TRACEBACK:]


def unserializable(value: Any, exception: BaseException, where: str = "") -> TypeError:
    """Return the error of a value that cannot be pickled, in distributed's words, and where it is."""
    what = f"Could not serialize object of type {typename(type(value))}"
    error = TypeError(what, _repr(value), *([where] if where else []))
    error.__cause__ = exception
    return error


def reschedules(exception: BaseException) -> bool:
    """Whether a task raised ``distributed.Reschedule``: it wants to run elsewhere."""
    return isinstance(exception, Reschedule)


def _parts(exception: BaseException) -> tuple[bytes, bytes | None, str, TracebackType | None]:
    """Return the pickled exception, its pickled traceback, its text, and the traceback."""
    if isinstance(exception, (SystemExit, KeyboardInterrupt)):
        # It would end whoever asks for the result.
        exception = _ordinary(exception, "the task")
    shown = _visible(_traceback_of(exception))
    short = _truncated(exception)
    # The traceback travels beside it, but for those of its causes.
    own = _traceback_of(short)
    # A class may forbid to set attributes.
    BaseException.with_traceback(short, None)
    try:
        pickled = _pickle(short)
    finally:
        BaseException.with_traceback(short, own)
    traceback = _dumps(_Pickler, shown) if shown is not None else None
    if traceback is not None and len(traceback) > _LONGEST_TRACEBACK:
        traceback = None
    return pickled, traceback, _repr(short), shown


def _traceback_of(exception: BaseException) -> TracebackType | None:
    # A class may have an attribute of this name.
    base: Any = BaseException
    found: TracebackType | None = base.__traceback__.__get__(exception)
    return found


def _ordinary(exception: BaseException, what: str) -> RuntimeError:
    error = RuntimeError(f"{what} raised {exception!r}")
    return error.with_traceback(_traceback_of(exception))


def _truncated(exception: BaseException) -> BaseException:
    longest = dask.config.get("distributed.admin.max-error-length", 10_000)
    try:
        return cast("BaseException", truncate_exception(exception, longest))
    except BaseException:
        # Its __str__ raises, whatever it may be.
        return exception


def _pickle(exception: BaseException) -> bytes:
    for by in (_Pickler, _CloudPickler):
        try:
            pickled = _dumps(by, exception)
            if by is _Pickler and SCRIPT in pickled:
                # The receiver has another __main__: this has to travel by value.
                continue
            if len(pickled) <= _LARGEST:
                pickle.loads(pickled)
                return pickled
        except BaseException:
            # Methods of its class are called, which may raise anything.
            continue
    return pickle.dumps(Exception(_repr(exception)), protocol=5)


def _reduce(value: Any) -> Any:
    if isinstance(value, TracebackType):
        return _tracebacks.reduce(value)
    if isinstance(value, BaseException):
        return _reduce_exception(value)
    return NotImplemented


def _reduce_exception(exception: BaseException) -> tuple[Any, ...]:
    """Reduce an exception with what it was raised from, and notes.

    One whose class has an ``__init__`` of its own, and no ``__reduce__``, is made without it: what it takes
    is not known. What tblib does, which has no text of ``SyntaxError`` and ``UnicodeError``.
    """
    links = (
        exception.__cause__,
        _traceback_of(exception),
        exception.__context__,
        exception.__suppress_context__,
    )
    kind = type(exception)
    reduced: Any = exception.__reduce__()
    if isinstance(reduced, str):
        raise TypeError(f"__reduce__ of {typename(kind)} returns a name")
    function, arguments, *rest = reduced
    if kind.__reduce__ not in (BaseException.__reduce__, OSError.__reduce__):
        return (_rebuild, (function, arguments, None, {}, links), *rest)
    state = dict(vars(exception))
    if _own_init(kind):
        return _rebuild, (function, arguments, None, state, links)
    made_of = arguments if isinstance(exception, _GROUP) else ()
    set_to = {"args": exception.args}
    if isinstance(exception, OSError):
        for name in ("errno", "strerror", "filename", "filename2"):
            # Set to None, they would be shown.
            if (value := getattr(exception, name)) is not None:
                set_to[name] = value
    return _rebuild, (function, made_of, set_to, state, links)


# Before Python 3.11 there are none.
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())


def _own_init(kind: type[BaseException]) -> bool:
    """Whether nobody has written an ``__init__`` for a class of exceptions but Python itself."""
    return next(c for c in kind.__mro__ if "__init__" in vars(c)).__module__ == "builtins"


def _rebuild(
    function: Any,
    arguments: tuple[Any, ...],
    set_to: dict[str, Any] | None,
    state: dict[str, Any],
    links: tuple[Any, ...],
) -> BaseException:
    made: BaseException
    if set_to is None:
        made = function(*arguments)
    else:
        made = function.__new__(function, *arguments)
        for name, value in set_to.items():
            owner: Any = BaseException if name == "args" else OSError
            getattr(owner, name).__set__(made, value)
    vars(made).update(state)
    # Not as attributes, which the class may forbid to set.
    cause, traceback, context, suppressed = links
    base: Any = BaseException
    base.__cause__.__set__(made, cause)
    base.__traceback__.__set__(made, traceback)
    base.__context__.__set__(made, context)
    base.__suppress_context__.__set__(made, suppressed)
    return made


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return _reduce(obj)


_Base: Any = cloudpickle.Pickler


class _CloudPickler(_Base):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        reduced = _reduce(obj)
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


def _dumps(by: Any, value: Any) -> bytes:
    file = io.BytesIO()
    by(file, protocol=5).dump(value)
    return file.getvalue()


def _visible(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame on that is not the engine's; all of it if each one is."""
    shown = traceback
    while shown is not None and _is_hidden(shown.tb_frame.f_code.co_filename):
        shown = shown.tb_next
    return shown if shown is not None else traceback


def _is_hidden(file: str) -> bool:
    return file.startswith(_HIDDEN)


def _repr(value: Any) -> str:
    try:
        return repr(value)[:10_000]
    except BaseException:
        return f"<{typename(type(value))} whose repr raises>"
