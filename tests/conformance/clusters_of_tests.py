"""Clusters that tests of distributed make: `LocalCluster` is Treadle's, `SpecCluster` has Treadle's parts.

`distributed.SpecCluster` stays what it is. The schedulers and workers that it makes are those of
`servers_of_tests.py`, and it asks such a scheduler by Treadle's own calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from distributed.core import rpc

from servers_of_tests import CHECKS, unserved
from treadle.client import LocalCluster
from treadle.cluster._clusters import cluster_at
from treadle.cluster._scheduler_comm import SchedulerComm, identity

# Seconds between two looks at which workers there are.
_PAUSE = 0.01


class LocalClusterOfTest(LocalCluster):
    """`distributed.LocalCluster`, for what Treadle's has."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        unserved(kwargs.pop("scheduler_kwargs", {}), CHECKS)
        if "nthreads" in kwargs:
            kwargs.setdefault("threads_per_worker", kwargs.pop("nthreads"))
        try:
            super().__init__(*args, **kwargs)
        except TypeError as error:
            pytest.skip(str(error))


class SchedulerCommOfTest(SchedulerComm):
    """`SpecCluster.scheduler_comm`, the connection by which it hears of workers included."""

    async def live_comm(self) -> WorkerStatus:
        """Return what tells of workers that come and go."""
        return WorkerStatus(self._cluster)


class WorkerStatus:
    """A connection of distributed's after `subscribe_worker_status`."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._known: Mapping[str, Any] | None = None
        self._closed = False

    async def write(self, _message: Mapping[str, Any]) -> None:
        """Do nothing: there is one subject only."""

    async def read(self) -> Any:
        """Return what the scheduler says of itself, and later which workers have come and gone."""
        known = self._known
        while not self._closed and not self._cluster._closed:
            now = await asyncio.to_thread(identity, self._cluster)
            workers = self._known = now["workers"]
            if known is None:
                return now
            changes: list[tuple[str, Any]] = [
                ("add", {"workers": {address: workers[address]}})
                for address in workers.keys() - known.keys()
            ]
            changes += [("remove", address) for address in known.keys() - workers.keys()]
            if changes:
                return changes
            await asyncio.sleep(_PAUSE)
        raise OSError("the cluster is closed")

    async def close(self) -> None:
        """Have who reads be told that this is over."""
        self._closed = True


def rpc_of_test(address: str, **kwargs: Any) -> Any:
    """`rpc` of `SpecCluster`."""
    cluster = cluster_at(address)
    return rpc(address, **kwargs) if cluster is None else SchedulerCommOfTest(cluster)
