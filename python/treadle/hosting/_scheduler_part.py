"""The scheduler that a host starts, in a process of the host."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from treadle.cluster._local_cluster import LocalCluster
from treadle.common._certificates import Certificates
from treadle.scheduler._standin import SchedulerStandIn

if TYPE_CHECKING:
    from treadle.client import Client

__all__ = ["SchedulerPart"]


class _Cluster(LocalCluster):
    # The host's own scheduler has run them.
    _preloads = False


class SchedulerPart:
    """Treadle's scheduler in this process.

    Parameters
    ----------
    host
        The interface on which it listens.
    secret, certificates, insecure
        As :class:`treadle.LocalCluster` has them.
    pages
        Where it has pages, as ``IP:PORT``; None: nowhere.
    """

    def __init__(
        self,
        host: str,
        secret: bytes,
        certificates: Certificates | None,
        insecure: bool,
        pages: str | None = None,
    ) -> None:
        self._links: dict[str, Any] = {
            "secret": secret,
            "certificates": certificates,
            "insecure": insecure,
        }
        # It listens at host:port: an address of IPv6 has colons of its own.
        host = f"[{host}]" if ":" in host else host
        self._cluster = _Cluster(0, host=host, dashboard_address=pages, **self._links)
        self.address = self._cluster.scheduler_address

    @property
    def pages_link(self) -> str | None:
        """Where it has pages, with their token."""
        return self._cluster.pages_link

    def adaptive_target(self, target_duration: Any, *, timeout: float) -> int:
        """Return how many workers there should be for what there is to do."""
        asked = self._python.find_target(target_duration)
        target: int = self._python.loop_thread.run(asked, timeout)
        return target

    async def is_active(self) -> bool:
        """Return whether there is something to do, or was since the last time that somebody asked."""
        return await self._python.is_active()

    def needed(self, *, timeout: float) -> set[str]:
        """Return the names of the workers that are not to go, for their tasks or their values."""
        needed: set[str] = self._python.loop_thread.run(self._find_needed(), timeout)
        return needed

    async def _find_needed(self) -> set[str]:
        python = self._python
        identity = await python.ask("", "identity", {"n_workers": -1})
        can_go = await python.find_closable()
        workers = identity["workers"].items()
        return {str(worker["name"]) for address, worker in workers if address not in can_go}

    def retire(self, names: Collection[str], *, timeout: float) -> None:
        """Have workers leave once others have their values.

        Raises
        ------
        TimeoutError
            They have not, within so many seconds.
        """
        self._python.loop_thread.run(self._python.retire_workers(names=list(names)), timeout)

    def connect(self) -> Client:
        """Return a new client, in this process, that nobody else uses."""
        from treadle.client import Client

        # Not the user's: nobody is warned of settings that it does not read.
        return Client(self.address, name="worker", set_as_default=False, **self._links)

    async def ask(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Ask the scheduler something, in any event loop."""
        return await self._python.ask("", operation, arguments)

    def tell(self, operation: str, arguments: dict[str, Any]) -> None:
        """Tell the scheduler something, in any thread, without waiting for its answer."""
        self._python.tell(operation, arguments)

    @property
    def _python(self) -> SchedulerStandIn:
        python: SchedulerStandIn = self._cluster.scheduler
        return python

    def close(self) -> None:
        self._cluster.close()
