"""Pools of a worker that tasks name: ``dask.annotate(executor="gpu")``, ``Worker.executors["gpu"]``.

The thread that has the task's slot hands the call over, and waits. What the task does about its slot
meanwhile (``secede``, ``worker_client``), it does there.
"""

from __future__ import annotations

import contextvars
import os
import pickle
import threading
from collections import UserDict
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from distributed.utils import iscoroutinefunction

from treadle import _core
from treadle._compat.dask import Alias, DataNode, GraphNode, Task, TaskRef
from treadle._compat.distributed import ThreadPoolExecutor, offload_executor
from treadle.errors._unserved import UnservedError
from treadle.pickling import _by_value
from treadle.worker._slots import in_thread_of, worker_here

if TYPE_CHECKING:
    from treadle.worker._standin import WorkerStandIn

__all__ = ["Executors", "in_executor", "node_in_executor"]

_DEFAULT = "default"


class Executors(UserDict[str, Executor]):
    """``Worker.executors``: those that distributed always has, and what users add.

    Tasks without the annotation run on threads of the native worker. ``default`` is a pool of as many
    threads for whatever else wants one.
    """

    def __init__(self, threads: int) -> None:
        super().__init__()
        self.data = {
            "offload": offload_executor,
            "actor": ThreadPoolExecutor(1, thread_name_prefix="Dask-Actor-Threads"),
            _DEFAULT: ThreadPoolExecutor(threads, thread_name_prefix="Dask-Default-Threads"),
        }

    def __setitem__(self, name: str, executor: Executor) -> None:
        self._refuse_default(name)
        self.data[name] = executor

    def __delitem__(self, name: str) -> None:
        self._refuse_default(name)
        del self.data[name]

    @staticmethod
    def _refuse_default(name: str) -> None:
        if name == _DEFAULT:
            raise UnservedError(
                "Worker.executors['default'] cannot be replaced: tasks run on threads of the native "
                "worker. Add a pool under another name, and annotate tasks: "
                "dask.annotate(executor=…)"
            )

    def named(self, name: Any) -> Executor:
        """Return one by the name that a task gives.

        Raises
        ------
        ValueError
            There is none of that name.
        """
        try:
            return self.data[name]
        except KeyError:
            raise ValueError(
                f"Invalid executor {name!r}; expected one of: {sorted(self.data)}"
            ) from None

    def close(self) -> None:
        """End them, after what they run. The process's own stays."""
        for executor in self.data.values():
            if executor is not offload_executor:
                executor.shutdown(wait=False)


class in_executor:
    """A function that is called in an executor of the worker that runs it."""

    __slots__ = ("__wrapped__", "executor")

    def __init__(self, function: Callable[..., Any], executor: Any) -> None:
        self.__wrapped__ = function
        self.executor = executor

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _call(self.executor, self.__wrapped__, args, kwargs)

    @property
    def __name__(self) -> str:
        return getattr(self.__wrapped__, "__name__", type(self.__wrapped__).__name__)


class _Node:
    """A node of a graph, as a function of what it reads."""

    __slots__ = ("keys", "node")

    def __init__(self, node: GraphNode) -> None:
        self.node = node
        self.keys = tuple(node.dependencies)

    def __call__(self, *values: Any) -> Any:
        return self.node(dict(zip(self.keys, values, strict=True)))

    @property
    def __name__(self) -> str:
        function = getattr(self.node, "func", None)
        return getattr(function, "__name__", type(self.node).__name__)


def node_in_executor(node: GraphNode, executor: Any) -> GraphNode:
    """Return a node that does all of another one in an executor; data stays as it is."""
    if isinstance(node, (Alias, DataNode)):
        return node
    function = _Node(node)
    return Task(node.key, in_executor(function, executor), *map(TaskRef, function.keys))


def _call(name: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    worker: WorkerStandIn | None = worker_here.get(None)
    if worker is None:
        # A task that a client runs again, for a debugger.
        return function(*args, **kwargs)
    executor = worker.executors.named(name)
    node = function.node if isinstance(function, _Node) else None
    is_coroutine = iscoroutinefunction(function) if node is None else node.is_coro
    if name == _DEFAULT or is_coroutine:
        return function(*args, **kwargs)
    if "ThreadPoolExecutor" not in str(type(executor)):
        # Of a process, most likely: as distributed takes it.
        return executor.submit(_run_pickled, _by_value.dumps((function, args, kwargs))).result()
    lent = _Lent(worker)
    context = contextvars.copy_context()
    return lent.hand_to(executor, partial(context.run, _run, lent, function, args, kwargs))


def _run_pickled(pickled: bytes) -> Any:
    function, args, kwargs = pickle.loads(pickled)
    return function(*args, **kwargs)


def _run(lent: _Lent, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    process, thread, worker = os.getpid(), threading.get_ident(), lent.worker
    worker.pool_threads[thread] = lent.key
    try:
        with in_thread_of(lent, worker):
            return function(*args, **kwargs)
    finally:
        if os.getpid() != process:
            _core.end_forked_child("a task")
        del worker.pool_threads[thread]


class _Lent:
    """The calling thread's task, for a thread of a pool: as much of ``Native`` as concerns one task.

    The native side knows a task by its thread. So that thread does what it is asked while it waits.
    """

    def __init__(self, worker: WorkerStandIn) -> None:
        self.worker = worker
        self.key: Hashable = worker.get_current_task()
        self._native = worker._native
        self._started = self._native.started()
        self._asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def hand_to(self, executor: Executor, call: Callable[[], Any]) -> Any:
        """Return what comes of a call in an executor, and do what it asks for meanwhile."""
        thread = threading.get_ident()
        self.worker.waiting_threads.add(thread)
        try:
            future = executor.submit(call)
            future.add_done_callback(lambda _: self._asked.put(None))
            while (asked := self._asked.get()) is not None:
                asked()
        finally:
            self.worker.waiting_threads.discard(thread)
        return future.result()

    def current_key(self) -> Hashable:
        return self.key

    def started(self) -> float | None:
        return self._started

    def secede(self) -> bool:
        return bool(self._ask(self._native.secede))

    def rejoin(self) -> None:
        self._ask(self._native.rejoin)

    def _ask(self, what: Callable[[], Any]) -> Any:
        done: Future[Any] = Future()

        def do() -> None:
            try:
                done.set_result(what())
            except BaseException as error:
                done.set_exception(error)

        self._asked.put(do)
        return done.result()
