"""Slots of tasks that wait: what distributed's ``secede`` and ``rejoin`` act on, and ``blocking``.

distributed keeps a thread's pool in a thread-local variable, and a task's key and start in another
one, which it sets for each task. Here they are set once for a thread: what differs from task to task
is looked up by the native worker when somebody asks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from treadle._compat.dask import task_state
from treadle._compat.distributed import thread_state, worker_here

if TYPE_CHECKING:
    from treadle.worker._standin import WorkerStandIn

__all__ = ["blocking", "enter_thread", "in_thread_of", "leave_thread", "worker_here"]


class Slots(Protocol):
    """What ``Native`` does for the task of the calling thread."""

    def current_key(self) -> Hashable | None: ...

    def started(self) -> float | None: ...

    def secede(self) -> bool: ...

    def rejoin(self) -> None: ...


class _Here(threading.local):
    """Whose tasks the calling thread runs."""

    native: Slots | None = None


_here = _Here()


class blocking:
    """Gives the slot of the calling thread's task away for the time of a ``with`` block.

    Does nothing in threads that run no task, and for tasks without a slot (they have seceded). The
    end of the block waits for a slot.
    """

    __slots__ = ("_native",)

    def __enter__(self) -> None:
        native = _here.native
        self._native = native if native is not None and native.secede() else None

    def __exit__(self, *_: object) -> Literal[False]:
        if self._native is not None:
            self._native.rejoin()
        return False


def enter_thread(native: Slots, worker: WorkerStandIn) -> None:
    """Make distributed's functions work in the tasks that the calling thread will run."""
    _here.native = native
    worker_here.set(worker)
    thread_state.proceed = True
    thread_state.executor = _Executor(native)
    task_state.execution_state = {"worker": worker}
    task_state.key = _CurrentKey(native.current_key)
    task_state.start_time = _StartTime(native.started)


def leave_thread() -> None:
    """Undo :func:`enter_thread`."""
    _here.native = None
    for state in (thread_state, task_state):
        state.__dict__.clear()
    _unregister()


@contextmanager
def in_thread_of(task: Slots, worker: WorkerStandIn) -> Iterator[None]:
    """Have a thread that is somebody else's run a task; then it is as it was."""
    before = _here.native
    states = [(state, dict(state.__dict__)) for state in (thread_state, task_state)]
    enter_thread(task, worker)
    try:
        yield
    finally:
        _here.native = before
        for state, values in states:
            state.__dict__.clear()
            state.__dict__.update(values)


def _unregister() -> None:
    """Have ``threading`` forget the calling thread, which is not one of its own.

    Whoever asks for the current thread in a task (logging does) registers it; before Python 3.13 it
    would be listed for ever, and in processes that start workers now and then there would be more
    and more of them.
    """
    ident = threading.get_ident()
    # Private, and what Python 3.13 does by itself.
    active: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]
    if isinstance(active.get(ident), threading._DummyThread):
        with threading._active_limbo_lock:  # type: ignore[attr-defined]
            active.pop(ident, None)


class _Executor:
    """The pool of one thread, as far as distributed's ``secede`` and ``rejoin`` use it.

    ``secede`` removes the thread from ``_threads`` (``KeyError``: it has seceded before) and calls
    ``_adjust_thread_count``; ``rejoin`` appends to ``_rejoin_list`` under ``_rejoin_lock``, submits
    something that wakes the pool up, and waits for the event.
    """

    def __init__(self, native: Slots) -> None:
        self._native = native
        self._threads = self
        self._rejoin_lock = threading.Lock()
        self._rejoin_list: list[tuple[threading.Thread, threading.Event]] = []

    def remove(self, thread: threading.Thread) -> None:
        if not self._native.secede():
            raise KeyError(thread)

    def _adjust_thread_count(self) -> None:
        pass  # the native worker lets another thread run as soon as a slot is free

    def submit(self, _function: Callable[[], Any]) -> None:
        _, event = self._rejoin_list.pop()
        self._native.rejoin()
        event.set()


class _CurrentKey:
    """The key of the task that the thread runs, wherever it is compared, shown or pickled."""

    __slots__ = ("_now",)

    def __init__(self, now: Callable[[], Hashable]) -> None:
        self._now = now

    def __bool__(self) -> bool:
        return self._now() is not None

    def __eq__(self, other: object) -> bool:
        return bool(self._now() == other)

    def __hash__(self) -> int:
        return hash(self._now())

    def __repr__(self) -> str:
        return repr(self._now())

    def __str__(self) -> str:
        return str(self._now())

    def __reduce__(self) -> Any:
        return _the_key, (self._now(),)


def _the_key(key: Hashable) -> Hashable:
    return key


class _StartTime:
    """When the task that the thread runs began: distributed subtracts it from the time."""

    __slots__ = ("_now",)

    def __init__(self, now: Callable[[], float | None]) -> None:
        self._now = now

    def __float__(self) -> float:
        return self._now() or 0.0

    def __rsub__(self, time: float) -> float:
        return time - float(self)

    def __repr__(self) -> str:
        return repr(float(self))
