"""A sidecar that is replaced when it ends unasked."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from treadle.scheduler._connection import Connection, Handlers
from treadle.scheduler._sidecar import Sidecar
from treadle.scheduler._standin import SchedulerStandIn
from treadle.shuffle._journal import Journal

__all__ = ["SupervisedSidecar"]

logger = logging.getLogger(__name__)

# Seconds between attempts to connect another.
_PAUSE = 1.0
# Seconds in which a scheduler that ends is seen to have ended, once it has closed its connections.
_END = 0.2


class SupervisedSidecar:
    """A :class:`Sidecar` for as long as it is wanted.

    Tasks go on while there is none. Locks, queues and variables begin anew with each, which clients
    are told.

    Parameters
    ----------
    connect, credentials, preloads
        As for :class:`Sidecar`. What it raises the first time is raised.
    journal
        Where shuffles that have ended are recorded. It is closed at the end.
    ended
        Returns whether the scheduler has ended, after so many seconds at the latest, as
        ``treadle._core.Scheduler.wait`` does: no sidecar is wanted then.
    """

    def __init__(
        self,
        connect: Callable[[Handlers], Connection],
        journal: Journal | None = None,
        credentials: Mapping[str, Any] | None = None,
        ended: Callable[[float], bool] = lambda _seconds: False,
        preloads: bool = False,
    ) -> None:
        self._preloads = preloads
        self._scheduler_ended = ended
        self._connect = connect
        self._journal = journal
        self._credentials = credentials
        self._lock = threading.Lock()
        self._unwanted = threading.Event()
        self._sidecar = Sidecar(connect, journal, credentials, preloads)
        threading.Thread(target=self._watch, name="treadle-watch-sidecar", daemon=True).start()

    @property
    def scheduler(self) -> SchedulerStandIn:
        """What the present sidecar's handlers act on."""
        return self._sidecar.scheduler

    def close(self) -> None:
        """End it for good."""
        self._unwanted.set()
        with self._lock:
            self._sidecar.close()
        if self._journal is not None:
            self._journal.close()

    def _watch(self) -> None:
        while not self._unwanted.is_set():
            self._sidecar.closed.wait()
            if self._scheduler_ended(_END):
                return
            try:
                self._replace()
            except Exception:
                # It may end only now.
                if self._unwanted.is_set() or self._scheduler_ended(_PAUSE):
                    return
                logger.warning("The Python side cannot be started yet", exc_info=True)
                self._unwanted.wait(_PAUSE)

    def _replace(self) -> None:
        with self._lock:
            if self._unwanted.is_set():
                return
            reason = self._sidecar.reason
            logger.error("The scheduler's Python side ended (%s): starting another", reason)
            clients = self._sidecar.scheduler.nodes
            self._sidecar.close()
            self._sidecar = Sidecar(self._connect, self._journal, self._credentials, self._preloads)
            self._sidecar.succeed(clients, reason)
