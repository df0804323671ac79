"""Exceptions as bytes, with their tracebacks, which any exception survives.

Text that is too long is cut, as in distributed (``distributed.core.error_message``). An exception that
cannot be pickled, or not be unpickled again, loses what is the cause of that: attributes, its
``__cause__``; of arguments the ``repr`` is left. A pickle of more than 1 MiB counts as one that cannot be
made. Only an exception whose class cannot be pickled becomes an ``Exception`` of its ``repr``; so does, at
the receiver, what cannot be unpickled there. A traceback of more than 64 KiB is left out.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import pickle
import traceback as tracebacks
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, cast

import dask
from dask.utils import typename
from distributed.exceptions import Reschedule
from distributed.utils import truncate_exception

from treadle import _core
from treadle._compat.dask import task_spec
from treadle._compat.distributed import worker_module
from treadle.errors import _own_frames, _tracebacks
from treadle.errors._reduced import Careful, bare, reduce, remade, traceback_of
from treadle.pickling import _by_value, _lossless
from treadle.pickling._mp_main import SCRIPT

__all__ = [
    *("as_message", "dump", "dump_of_call", "load", "load_traceback"),
    *("reschedules", "unserializable"),
]

_LARGEST = 1 << 20
_LONGEST_TRACEBACK = 64 * 1024
# Characters of the text of a traceback that travels with a failure, for pages.
_TOLD = 4_000

# Files whose frames lie between the engine and the user's function.
_HIDDEN = (
    *_own_frames.between(),
    worker_module.__file__,
    task_spec.__file__,
    os.path.join(os.path.dirname(concurrent.futures.__file__), ""),
    os.path.join(os.path.dirname(asyncio.__file__), ""),
)


def dump(exception: BaseException) -> bytes:
    """Return an exception as bytes for :func:`load`."""
    *parts, shown = _parts(exception)
    return pickle.dumps((*parts, _told(shown)), protocol=5)


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
    return cast("tuple[bytes, bytes | None, str]", pickle.loads(data)[:3])


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
    shown = _visible(traceback_of(exception))
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
    shown = _visible(traceback_of(exception))
    short = _truncated(exception)
    # The traceback travels beside it, but for those of its causes.
    own = traceback_of(short)
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


def _told(traceback: TracebackType | None) -> str:
    """Return the end of a traceback, for people."""
    try:
        return "".join(tracebacks.format_tb(traceback))[-_TOLD:]
    except Exception:
        # A loader of the user's says what the lines are.
        return ""


def _ordinary(exception: BaseException, what: str) -> RuntimeError:
    error = RuntimeError(f"{what} raised {exception!r}")
    return error.with_traceback(traceback_of(exception))


def _truncated(exception: BaseException) -> BaseException:
    longest = dask.config.get("distributed.admin.max-error-length", 10_000)
    try:
        short = cast("BaseException", truncate_exception(exception, longest))
        if type(short) is not type(exception):
            text = str(exception)[:longest]
            short = remade(exception, ("Long error message", text), _repr)
            str(short)
        return short
    except Exception:
        # Its __str__ raises, now or once it is cut.
        return exception
    except BaseException:
        # That would end whoever reads it.
        return Exception(_repr(exception))


def _pickle(exception: BaseException) -> bytes:
    if (pickled := _pickled_whole(exception)) is not None:
        return pickled
    careful = Careful(_dumps_carefully, pickle.loads, _repr)
    for reducer in (partial(reduce, careful=careful), lambda one: bare(one, _repr)):
        try:
            pickled = _dumps(partial(_CloudPickler, reducer=reducer), exception)
            if len(pickled) <= _LARGEST and isinstance(pickle.loads(pickled), BaseException):
                return pickled
        except BaseException:
            continue
    return pickle.dumps(Exception(_repr(exception)), protocol=5)


def _pickled_whole(exception: BaseException) -> bytes | None:
    for by in (_Pickler, _CloudPickler):
        try:
            pickled = _dumps(by, exception)
            if by is _Pickler and SCRIPT in pickled:
                # The receiver has another __main__: this has to travel by value.
                continue
            if len(pickled) <= _LARGEST and isinstance(pickle.loads(pickled), BaseException):
                return pickled
        except BaseException:
            # Methods of its class are called, which may raise anything.
            continue
    return None


def _dumps_carefully(value: Any, careful: Careful) -> bytes:
    pickled = _dumps(partial(_CloudPickler, reducer=partial(reduce, careful=careful)), value)
    if len(pickled) > _LARGEST:
        raise ValueError("too large")
    return pickled


def _reduce(value: Any, reducer: Callable[[BaseException], Any]) -> Any:
    if isinstance(value, TracebackType):
        return _tracebacks.reduce(value)
    # A class may say that it is another one.
    if issubclass(type(value), BaseException):
        return reducer(value)
    return NotImplemented


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return _reduce(obj, reduce)


class _CloudPickler(_by_value.Pickler):
    def __init__(
        self, file: Any, *, reducer: Callable[[BaseException], Any] = reduce, **options: Any
    ) -> None:
        super().__init__(file, **options)
        self._reducer = reducer

    def reducer_override(self, obj: Any) -> Any:
        reduced = _reduce(obj, self._reducer)
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


def _dumps(by: Any, value: Any) -> bytes:
    with _core.Pickling():
        return _lossless.dumps_by(by, value)


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
