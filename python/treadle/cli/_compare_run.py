"""Runs a script on one engine for ``treadle bench compare``, and notes its results and times.

``python -m treadle.cli._compare_run ENGINE FILE PROFILE SCRIPT [ARGUMENT …]``: engine ``dask`` leaves all
as it is, ``treadle`` has the script's graphs and clients run on Treadle. What was noted is pickled into the
file. With profile ``1``, what the functions of tasks take is noted as well, which costs time.
"""

from __future__ import annotations

import os
import pickle
import runpy
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from importlib import import_module
from typing import Any

import cloudpickle
import dask.base

__all__ = ["MOST"]

#: Bytes of results that are kept to be compared; of what is beyond, Dask's tokens are.
MOST = 1 << 30


class _Watch:
    """The calls of ``compute`` and ``persist`` that the script makes itself, not those inside of others."""

    def __init__(self) -> None:
        self.results: list[tuple[str, Any]] = []
        self.computing = self.scheduling = self.tasks = 0.0
        self._kept = 0
        self._depth = 0
        self._thread = threading.get_ident()

    def watch(self) -> None:
        for name, keeps in (("compute", True), ("persist", False)):
            watched = self._call(getattr(dask.base, name), keeps)
            setattr(dask.base, name, watched)
            setattr(dask, name, watched)
        chosen = dask.base.get_scheduler

        @wraps(chosen)
        def get_scheduler(*args: Any, **options: Any) -> Any:
            schedule: Any = chosen(*args, **options)  # type: ignore[no-untyped-call]
            return None if schedule is None else self._schedule(schedule)

        dask.base.get_scheduler = get_scheduler

    def _is_inside(self) -> bool:
        return self._depth > 0 or threading.get_ident() != self._thread

    def _call(self, function: Callable[..., Any], keeps: bool) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            if self._is_inside():
                return function(*args, **options)
            self._depth += 1
            started = time.perf_counter()
            try:
                result = function(*args, **options)
            finally:
                self._depth -= 1
                self.computing += time.perf_counter() - started
            if keeps:
                self._keep(result)
            return result

        return call

    def _schedule(self, schedule: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(schedule)
        def run(*args: Any, **options: Any) -> Any:
            # One engine may look for another scheduler in its own.
            if self._depth != 1 or threading.get_ident() != self._thread:
                return schedule(*args, **options)
            self._depth += 1
            started = time.perf_counter()
            try:
                return schedule(*args, **options)
            finally:
                self._depth -= 1
                self.scheduling += time.perf_counter() - started

        # Treadle's client finds out by it who computes.
        if (owner := getattr(schedule, "__self__", None)) is not None:
            run.__self__ = owner  # type: ignore[attr-defined]
        return run

    def _keep(self, result: Any) -> None:
        with suppress(Exception):
            pickled = cloudpickle.dumps(result)
            if self._kept + len(pickled) <= MOST:
                self._kept += len(pickled)
                self.results.append(("value", pickled))
                return
        token = dask.base.tokenize(result)
        self.results.append(("token", token))


def _use_treadle() -> None:
    import treadle

    treadle.install()
    with suppress(ImportError):
        distributed = import_module("distributed")
        for name in ("Client", "LocalCluster"):
            setattr(distributed, name, getattr(treadle, name))


def _import_early() -> None:
    """Import what scripts import anyway: both engines are measured without it."""
    for name in ("numpy", "pandas", "dask.array", "dask.dataframe", "dask.bag", "distributed"):
        with suppress(ImportError):
            import_module(name)


def main() -> None:
    """Run the script, and write what was noted even if it fails."""
    engine, path, profile, script, *arguments = sys.argv[1:]
    _import_early()
    watch = _Watch()
    if engine == "treadle":
        _use_treadle()
    watch.watch()
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    started = time.perf_counter()
    try:
        if profile == "1":
            from dask.diagnostics.profile import Profiler

            with Profiler() as profiler:
                runpy.run_path(script, run_name="__main__")
            watch.tasks = sum(task.end_time - task.start_time for task in profiler.results)
        else:
            runpy.run_path(script, run_name="__main__")
    finally:
        noted = {
            "seconds": time.perf_counter() - started,
            "computing": watch.computing,
            "scheduling": watch.scheduling,
            "tasks": watch.tasks,
            "results": watch.results,
        }
        with open(path, "wb") as file:
            pickle.dump(noted, file)


if __name__ == "__main__":
    main()
