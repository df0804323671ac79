"""Runs that somebody looks into, or that happen on somebody else's executor.

The thread that called ``get`` takes each decision here: it starts tasks one by one, calls Dask's
callbacks around each, as Dask's own schedulers do, and keeps the state that callbacks look at.
Everything else goes the native way, which is much faster.
"""

from __future__ import annotations

import os
from concurrent.futures import BrokenExecutor, Executor, Future
from queue import SimpleQueue
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from dask.callbacks import local_callbacks, unpack_callbacks

from treadle import _core
from treadle._compat.dask import convert_legacy_graph
from treadle.local import _in_executor
from treadle.local._callback_state import State
from treadle.local._graph import Cache, Graph, Key, Keys, materialize

__all__ = ["run_steps"]


def run_steps(
    dsk: Graph,
    keys: Keys,
    executor: Executor,
    limit: int,
    cache: Cache | None = None,
    callbacks: Any = None,
    rerun_locally: bool = False,
) -> Any:
    """Compute ``keys`` with at most ``limit`` tasks at once on ``executor``.

    Raises
    ------
    BrokenExecutor
        The executor lost a worker; the note says which tasks were running.
    """
    graph = materialize(dsk)
    with local_callbacks(callbacks) as active:
        # Callbacks look at the tasks, and other processes receive them: they have to be Dask's.
        graph = convert_legacy_graph(graph)
        looked_at = bool(active) or cache is not None
        started = []
        state: dict[str, Any] = {}
        failed = True
        try:
            for callback in active:
                if callback[0]:
                    callback[0](graph)
                started.append(callback)
            steps = _core.Steps(graph, keys, cache)
            book = State(graph, steps.keys(), keys, cache) if looked_at else None
            if book is not None:
                state = book.state
            for _, start_state, _, _, _ in active:
                if start_state:
                    start_state(graph, state)
            _Steps(graph, steps, executor, limit, book, active, rerun_locally).run()
            failed = False
            return steps.results(keys)
        finally:
            for _, _, _, _, finish in started:
                if finish:
                    finish(graph, state, failed)


class _Steps:
    """The loop of :func:`run_steps`."""

    def __init__(
        self,
        graph: dict[Key, Any],
        steps: _core.Steps,
        executor: Executor,
        limit: int,
        book: State | None,
        callbacks: Any,
        rerun_locally: bool,
    ) -> None:
        self.graph = graph
        self.steps = steps
        self.executor = executor
        self.limit = limit
        self.book = book
        self.state = {} if book is None else book.state
        _, _, self.pretask, self.posttask, _ = unpack_callbacks(callbacks)
        self.rerun_locally = rerun_locally
        self.running: dict[Future[Any], _core.Call] = {}
        self.done: SimpleQueue[Future[Any]] = SimpleQueue()
        self.thread = get_ident()
        #: Nanoseconds in which this thread waited or ran tasks.
        self.elsewhere = 0

    def run(self) -> None:
        start = perf_counter_ns()
        try:
            while self.steps.unfinished:
                self.start_some()
                future = self.wait()
                self.finish(self.running.pop(future), future)
        except BrokenExecutor as error:
            if hasattr(error, "add_note"):  # Python 3.11
                keys = [call.key for call in self.running.values()]
                error.add_note(f"Treadle was running these tasks on the executor: {keys}")
            raise
        finally:
            self.steps.record_engine(perf_counter_ns() - start - self.elsewhere)
            for future in self.running:
                future.cancel()

    def wait(self) -> Future[Any]:
        start = perf_counter_ns()
        try:
            return self.done.get()
        finally:  # after an interrupt too
            self.elsewhere += perf_counter_ns() - start

    def start_some(self) -> None:
        while len(self.running) < self.limit and (call := self.steps.start()) is not None:
            if self.book is not None:
                self.book.start(call.key)
            for callback in self.pretask:
                callback(call.key, self.graph, self.state)
            future: Future[Any] = self.executor.submit(call)
            self.running[future] = call
            future.add_done_callback(self.done.put)

    def finish(self, call: _core.Call, future: Future[Any]) -> None:
        try:
            outcome = future.result()
            if isinstance(outcome, bytes):
                value, process, thread, start, end = _in_executor.unpack(outcome)
                self.steps.record(call, process, thread, start, end)
                # Threads of forked processes may have one identity.
                worker = process
            else:
                value, worker, start, end = outcome
                if worker == self.thread:
                    self.elsewhere += end - start
        except BrokenExecutor:
            self.running[future] = call
            raise
        except Exception:
            if self.rerun_locally:
                call.node(call.inputs)
            raise
        self.steps.finish(call, value)
        if self.book is not None:
            self.book.finish(call.key, value)
        for callback in self.posttask:
            callback(call.key, value, self.graph, self.state, worker)


def executor_size(executor: Executor) -> int:
    """How many tasks the executor runs at once, as far as it says so."""
    size: int | None = getattr(executor, "_max_workers", None)
    return size or os.cpu_count() or 1
