"""Tasks that leave the process, and what comes back.

An executor that runs its calls in other processes pickles them. A call of the engine is then
replaced by one that carries its node and inputs, pickled by value; what it returns is
packed by us too, so that an exception that cannot be pickled does not break the executor.
"""

from __future__ import annotations

import os
import pickle
import threading
import traceback
from time import perf_counter_ns
from typing import Any

from treadle import _core
from treadle.pickling._by_value import dumps

__all__ = ["RemoteError", "can_be_pickled", "reduce", "unpack"]


class RemoteError(RuntimeError):
    """A task failed in another process with an exception that cannot be pickled.

    The message has the exception's type and text; the cause has its traceback.
    """


class RemoteTraceback(Exception):
    """The traceback of an exception in another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def can_be_pickled(value: Any) -> bool:
    """Whether a value can be pickled; large buffers are not copied for the answer."""
    try:
        dumps(value, buffer_callback=lambda _: None)
    except Exception:
        return False
    return True


def reduce(call: _core.Call) -> tuple[Any, ...]:
    """How a call is pickled."""
    return RemoteCall, (repr(call.key), dumps((call.node, call.inputs)))


class RemoteCall:
    """A task with its inputs."""

    def __init__(self, name: str, payload: bytes) -> None:
        self.name = name
        self.payload = payload

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteCall, (self.name, self.payload)

    def __call__(self) -> bytes:
        """Run the task; the packed outcome."""
        start = perf_counter_ns()
        try:
            node, values = pickle.loads(self.payload)
            start = perf_counter_ns()
            outcome = (True, node(values))
        except Exception as error:
            outcome = (False, portable(error))
        where = (os.getpid(), threading.get_ident(), start, perf_counter_ns())
        try:
            return dumps((*outcome, *where))
        except Exception as error:
            failure = TypeError(f"the result of task {self.name} cannot be pickled: {error}")
            return dumps((False, portable(failure), *where))


def portable(error: Exception) -> tuple[bytes, str]:
    """An exception as bytes that can be unpickled, and its traceback as text."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        payload = dumps(error)
        pickle.loads(payload)
    except Exception:
        summary = "".join(traceback.format_exception_only(type(error), error)).strip()
        payload = dumps(RemoteError(summary))
    return payload, text


def unpack(outcome: bytes) -> tuple[Any, int, int, int, int]:
    """Value, process, thread, start and end of a task; raises what the task raised."""
    succeeded, value, process, thread, start, end = pickle.loads(outcome)
    if not succeeded:
        payload, text = value
        raise pickle.loads(payload) from RemoteTraceback(text)
    return value, process, thread, start, end
