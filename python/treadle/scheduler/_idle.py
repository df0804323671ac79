"""How long a scheduler has had nothing to do."""

from __future__ import annotations

import concurrent.futures
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from treadle.scheduler._restarted import SupervisedSidecar

__all__ = ["IdleTime"]

# Seconds between two questions, and for an answer.
_LOOK = 1.0
_PATIENCE = 5.0


class IdleTime:
    """The idle time of the scheduler that ``sidecar`` stands beside."""

    def __init__(self, sidecar: SupervisedSidecar) -> None:
        self._sidecar = sidecar
        self._since = self._looked = time.monotonic()

    def seconds(self) -> float:
        """Return for how many seconds there was nothing to do. It asks the scheduler once a second."""
        now = time.monotonic()
        if now >= self._looked + _LOOK:
            self._looked = now
            # One that does not answer, or whose Python side starts anew, is not idle.
            if self._run(self._sidecar.scheduler.is_active()) in (True, None):
                self._since = now
        return now - self._since

    def end_cluster(self) -> None:
        """Have the scheduler end, and its workers with it."""
        self._run(self._sidecar.scheduler.ask("", "terminate", {}))

    def _run(self, question: Coroutine[Any, Any, Any]) -> Any:
        # Before Python 3.11 a time limit raises a class of its own. The loop of a Python side that is being
        # replaced may be closed.
        errors = (OSError, TimeoutError, concurrent.futures.TimeoutError, RuntimeError)
        with suppress(*errors):
            return self._sidecar.scheduler.loop_thread.run(question, _PATIENCE)
        return None
