"""What hosts Treadle, and what a client needs to know of it.

A further host is a subclass of :class:`Host`: it starts :class:`~treadle.hosting._scheduler_part.SchedulerPart`
in one of its processes, and a :class:`~treadle.hosting._worker_parts.WorkerPart` in each of its workers'.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping
from typing import Any, NamedTuple

from treadle.common._certificates import Certificates

__all__ = ["Host", "Place"]


class Place(NamedTuple):
    """Where a hosted scheduler is, and what lets a client in there."""

    address: str
    secret: bytes
    certificates: Certificates | None
    insecure: bool


class Host(ABC):
    """A cluster of another engine, in which Treadle's scheduler and workers live."""

    async def start(self) -> Place:
        """Start the scheduler, then the workers; leave nothing running if either fails.

        Raises
        ------
        RuntimeError
            It cannot be started, with what to do.
        """
        try:
            place = await self.start_scheduler()
            await self.start_workers(place)
        except BaseException:
            await self.stop()
            raise
        return place

    @abstractmethod
    async def start_scheduler(self) -> Place:
        """Start the scheduler in a process of the host."""

    @abstractmethod
    async def start_workers(self, place: Place) -> None:
        """Start a worker for each worker of the host, present and future.

        One that leaves takes its worker along, whose values move first. One that crashes and is
        replaced has a worker again.
        """

    @abstractmethod
    async def stop(self) -> None:
        """End the workers, then the scheduler: all that was started, and nothing else."""

    @abstractmethod
    def __str__(self) -> str:
        """Describe the host for people."""

    @property
    def dashboard_link(self) -> str | None:
        """Where the host shows its own state; None: nowhere."""
        return None

    @property
    def pages_link(self) -> str | None:
        """Where the host shows the pages of Treadle's scheduler; None: nowhere."""
        return None

    @property
    def own_pages_link(self) -> str | None:
        """The same, whatever ``distributed.dashboard.link`` says: not by a proxy."""
        return self.pages_link

    def owns(self, future: Any) -> bool:
        """Return whether this is a future of the host's own engine."""
        del future
        return False

    async def adopt(self, client: Any, futures: Collection[Any]) -> Mapping[Hashable, Any]:
        """Return futures of ``client`` for futures of the host, by key: worker to worker.

        Raises
        ------
        NotImplementedError
            The host has no futures.
        """
        raise NotImplementedError(f"values cannot come from {self}")

    async def give_back(self, client: Any, futures: Collection[Any]) -> Mapping[Hashable, Any]:
        """Return futures of the host for futures of ``client``, by key: worker to worker.

        Raises
        ------
        NotImplementedError
            The host has no futures.
        """
        raise NotImplementedError(f"values cannot go to {self}")
