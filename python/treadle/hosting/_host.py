"""What hosts Treadle, and what a client needs to know of it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from treadle._security import Certificates

__all__ = ["Host", "Place"]


class Place(NamedTuple):
    """Where a hosted scheduler is, and what lets a client in there."""

    address: str
    secret: bytes
    certificates: Certificates | None
    insecure: bool


class Host(Protocol):
    """A cluster of another engine, in which Treadle's scheduler and workers live."""

    def start(self) -> Place:
        """Start the scheduler, and a worker beside each worker of the host, present and future.

        Raises
        ------
        RuntimeError
            It cannot be started, with what to do. Nothing is left running.
        """

    def stop(self) -> None:
        """End the workers, then the scheduler. Nothing is left."""

    def __str__(self) -> str:
        """Describe the host for people."""

    @property
    def dashboard_link(self) -> str | None:
        """Where the host shows its own state."""
