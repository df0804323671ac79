"""What distributed's cluster managers ask a scheduler."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from treadle.common import _calls
from treadle.common._calls import NATIVE
from treadle.common._loop import off_loop
from treadle.common._names import rename_workers
from treadle.worker._nanny_calls import RefusedError

if TYPE_CHECKING:
    from treadle.cluster._local_cluster import LocalCluster

__all__ = ["SchedulerComm", "identity"]


class SchedulerComm:
    """``Cluster.scheduler_comm``: an object whose attributes are calls to be awaited."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    @property
    def address(self) -> str:
        """The scheduler's."""
        return self._cluster.scheduler_address

    def __getattr__(self, operation: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if operation.startswith("_"):
            raise AttributeError(operation)

        async def call(**kwargs: Any) -> Any:
            return await off_loop(self.ask, operation, kwargs)

        return call

    def ask(self, operation: str, kwargs: dict[str, Any]) -> Any:
        """Ask the scheduler, and wait for its answer."""
        if operation in NATIVE:
            return self._cluster._tell(operation, kwargs)
        try:
            answer = self._cluster._tell(operation, _calls.pack(kwargs), "sidecar")
        except RefusedError as refused:
            raise _calls.error_of(refused.error) from None
        return None if answer is None else _calls.unpack_answer(answer)

    async def retire_workers(
        self, workers: Any = None, *, names: Any = None, **_: Any
    ) -> dict[str, Any]:
        """Have workers leave, after their values have moved; returns what was known of them."""
        return await off_loop(self._cluster._scaling.retire_alone, workers, names)

    async def identity(self, n_workers: int = -1) -> dict[str, Any]:
        """Return what the scheduler says about itself and its workers."""
        return await off_loop(identity, self._cluster, n_workers)

    async def close_rpc(self) -> None:
        """Do nothing: there is no connection."""


def identity(cluster: LocalCluster, n_workers: int = -1) -> dict[str, Any]:
    """Return what a cluster's scheduler says about itself and its workers, as users know them."""
    answer: dict[str, Any] = cluster._tell("identity", {"n_workers": n_workers})
    rename_workers(answer["workers"])
    return answer
