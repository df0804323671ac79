"""Who holds which leases and locks, so that they are free when a client or a worker is gone.

distributed's extensions do not know who holds what: they wait until leases time out, and locks of
several names are never free again.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from distributed.metrics import time

from treadle import _core
from treadle._compat.distributed import MultiLockExtension, SemaphoreExtension

__all__ = ["Leases", "Semaphores"]


class Semaphores(SemaphoreExtension):  # type: ignore[misc]
    """distributed's, whose leases do not end by a time in which this process was stopped.

    It did not listen then; whoever holds a lease may have been stopped as well.
    """

    def __init__(self, scheduler: Any) -> None:
        self._stops = _core.stops()
        super().__init__(scheduler)

    def _check_lease_timeout(self) -> None:
        stops, self._stops = self._stops, _core.stops()
        if stops != self._stops:
            now = time()
            for leases in self.leases.values():
                leases.update(dict.fromkeys(leases, now))
        super()._check_lease_timeout()


class Leases:
    """What the nodes hold of semaphores (locks are some) and multi-locks."""

    def __init__(self, semaphores: SemaphoreExtension, multi_locks: MultiLockExtension) -> None:
        self._semaphores = semaphores
        self._multi_locks = multi_locks
        self._leases: defaultdict[str, set[tuple[Any, str]]] = defaultdict(set)
        self._requests: defaultdict[str, set[str]] = defaultdict(set)

    def before(self, node: str, operation: str, kwargs: dict[str, Any]) -> None:
        """Note what a node asks for."""
        if operation == "multi_lock_acquire":
            self._requests[node].add(kwargs["id"])

    def after(self, node: str, operation: str, kwargs: dict[str, Any], result: Any) -> None:
        """Note what it got, or gave back."""
        if operation == "semaphore_acquire":
            if result:
                self._leases[node].add(_lease(kwargs))
        elif operation == "semaphore_release":
            # Whoever releases it: a lease may be handed to another node.
            for leases in self._leases.values():
                leases.discard(_lease(kwargs))
        elif operation == "multi_lock_release" or (
            operation == "multi_lock_acquire" and not result
        ):
            for requests in self._requests.values():
                requests.discard(kwargs["id"])

    def gone(self, node: str) -> None:
        """Free what a node holds."""
        for name, lease in self._leases.pop(node, ()):
            if lease in self._semaphores.leases.get(name, ()):
                self._semaphores.release(name=name, lease_id=lease)
        for request in self._requests.pop(node, ()):
            if request in self._multi_locks.requests:
                self._multi_locks.release(id=request)


def _lease(kwargs: dict[str, Any]) -> tuple[Any, str]:
    name = kwargs["name"]
    return (tuple(name) if isinstance(name, list) else name), kwargs["lease_id"]
