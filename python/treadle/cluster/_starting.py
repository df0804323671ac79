"""Worker processes of a local cluster that are just being started."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from treadle.cluster._worker_process import WorkerProcess

__all__ = ["Starting"]

# Seconds for workers to join, at least.
_LEAST = 60.0

# Seconds between two looks at them.
_PAUSE = 0.005


class Starting:
    """Waits for the worker processes of a cluster that start.

    Parameters
    ----------
    timeout
        How many seconds they have; at least a minute.
    """

    def __init__(self, timeout: float) -> None:
        self._limit = max(timeout, _LEAST)

    @staticmethod
    def among(workers: dict[str, Any]) -> list[tuple[str, WorkerProcess]]:
        """Return those of a cluster's workers, by name, that are just being started."""
        return [
            (name, worker)
            for name, worker in list(workers.items())
            if isinstance(worker, WorkerProcess) and not (worker.announced or worker.is_over)
        ]

    def wait(self, workers: dict[str, Any]) -> None:
        """Wait until none is just being started.

        Raises
        ------
        RuntimeError
            One of the workers cannot be started.
        TimeoutError
            It takes too long.
        """
        until = time.monotonic() + self._limit
        while True:
            ready = not self.among(workers)
            _check(workers.items())
            if ready:
                return
            self._check_time(until)
            time.sleep(_PAUSE)

    async def wait_in_loop(self, workers: dict[str, Any]) -> None:
        """Wait, in an event loop, until none is just being started, and those that were have been.

        Raises
        ------
        RuntimeError
            One of those cannot be started.
        TimeoutError
            It takes too long.
        """
        starting = self.among(workers)
        until = time.monotonic() + self._limit
        while self.among(workers):
            self._check_time(until)
            await asyncio.sleep(_PAUSE)
        _check(starting)

    def _check_time(self, until: float) -> None:
        if time.monotonic() > until:
            raise TimeoutError(f"the workers are not ready after {self._limit:g} s")


def _check(workers: Iterable[tuple[str, Any]]) -> None:
    for name, worker in list(workers):
        if worker.given_up:
            raise RuntimeError(f"the workers cannot be started; worker {name}: {worker.given_up}")
