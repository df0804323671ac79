"""A Dask cluster as the host: a plugin of its scheduler starts ours, one of its workers starts ours."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import distributed
from distributed.diagnostics.plugin import SchedulerPlugin, WorkerPlugin

from treadle import _core
from treadle._security import Certificates, certificates_of
from treadle.hosting._host import Place

__all__ = ["DaskHost"]

# The name of both plugins.
NAME = "treadle"
# Seconds in which Dask's scheduler answers.
_PATIENCE = 5.0
# Seconds in which the values of a worker that leaves move to others.
_HAND_OVER = 10.0
_LOOPBACK = "127.0.0.1"


class HostedScheduler(SchedulerPlugin):
    """Treadle's scheduler in the process of Dask's."""

    name = NAME

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._part: Any = None

    async def start(self, scheduler: Any) -> None:
        from treadle.hosting._parts import SchedulerPart

        host = host_of(scheduler.address)
        certificates = certificates_at(scheduler, "scheduler")
        insecure = certificates is None and not _is_loopback(host)
        self._part = await asyncio.to_thread(
            SchedulerPart, host, self._secret, certificates, insecure
        )
        self.address = self._part.address

    async def close(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            await asyncio.to_thread(part.close)


class HostedWorker(WorkerPlugin):
    """Treadle's worker in the process of a worker of Dask."""

    name = NAME

    def __init__(
        self, scheduler: str, secret: bytes, nthreads: int | None, memory_fraction: float
    ) -> None:
        self._scheduler = scheduler
        self._secret = secret
        self._nthreads = nthreads
        self._memory_fraction = memory_fraction
        self._part: Any = None

    async def setup(self, worker: Any) -> None:
        from treadle.hosting._parts import WorkerPart

        host = host_of(worker.address)
        certificates = certificates_at(worker, "worker")
        limit = worker.memory_manager.memory_limit or 0
        make = partial(
            WorkerPart,
            self._scheduler,
            host=host,
            directory=worker.local_directory,
            secret=self._secret,
            certificates=certificates,
            insecure=certificates is None and not _is_loopback(host),
            name=str(worker.name),
            nthreads=self._nthreads or worker.state.nthreads,
            memory_limit=int(limit * self._memory_fraction),
            resources=dict(worker.state.total_resources),
        )
        try:
            self._part = await asyncio.to_thread(make)
        except Exception as error:
            text = f"Treadle's worker cannot start on worker {worker.address}: {error}"
            raise RuntimeError(text) from error

    async def teardown(self, worker: Any) -> None:  # noqa: ARG002
        part, self._part = self._part, None
        if part is not None:
            await asyncio.to_thread(part.close, _HAND_OVER)


class DaskHost:
    """A Dask cluster, through a client of it."""

    def __init__(self, client: Any, nthreads: int | None, memory_fraction: float) -> None:
        self._client = client
        self._nthreads = nthreads
        self._memory_fraction = memory_fraction
        self._address = client.scheduler.address
        self._has_scheduler = self._has_workers = False

    def __str__(self) -> str:
        return f"the Dask cluster at {self._address}"

    @property
    def dashboard_link(self) -> str | None:
        link: str | None = self._client.dashboard_link
        return link

    def start(self) -> Place:
        self._check_versions()
        secret = secrets.token_bytes(32)
        try:
            return self._start(secret)
        except BaseException:
            self.stop()
            raise

    def _start(self, secret: bytes) -> Place:
        client = self._client
        if client.run_on_scheduler(_is_attached):
            raise RuntimeError(
                f"Treadle is attached to {self} already: detach it first (client.detach()), or "
                "connect a further treadle.Client to the address of the attached one"
            )
        self._has_scheduler = True
        client.register_plugin(HostedScheduler(secret), name=NAME)
        address = client.run_on_scheduler(_address)
        self._has_workers = True
        plugin = HostedWorker(address, secret, self._nthreads, self._memory_fraction)
        client.register_plugin(plugin, name=NAME)
        certificates = certificates_of(client.security, "client") if _has_tls(client) else None
        return Place(address, secret, certificates, certificates is None)

    def _check_versions(self) -> None:
        """Refuse a cluster that has no Treadle, or another one."""
        ours = _core.__version__
        client = self._client
        found = {"the scheduler": client.run_on_scheduler(_version)}
        found |= {f"worker {name}": v for name, v in client.run(_version).items()}
        for where, version in found.items():
            if version == ours:
                continue
            what = "is not installed" if version is None else f"has the version {version}"
            raise RuntimeError(
                f"Treadle {what} on {where} of {self}, and {ours} here. Run "
                f"`pip install treadle=={ours}` there, or register distributed's plugin "
                f"PipInstall(['treadle=={ours}'])"
            )

    def stop(self) -> None:
        # A cluster that has gone has taken Treadle along.
        with suppress(OSError):
            if self._client.status == "running":
                self._stop(self._client)
                return
            # Its user has closed it.
            options: dict[str, Any] = {"timeout": _PATIENCE, "set_as_default": False}
            with distributed.Client(
                self._address, security=self._client.security, **options
            ) as client:
                self._stop(client)

    def _stop(self, client: distributed.Client) -> None:
        if self._has_workers:
            self._has_workers = False
            # A worker that is closing has removed its plugin.
            with suppress(KeyError):
                client.unregister_worker_plugin(NAME)
        if self._has_scheduler:
            self._has_scheduler = False
            client.run_on_scheduler(_close)


def host_of(address: str) -> str:
    """Return the interface of an address of Dask: the loopback one inside a process."""
    parts = urlsplit(address)
    if parts.scheme in ("tcp", "tls") and parts.hostname:
        return parts.hostname
    return _LOOPBACK


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def certificates_at(server: Any, role: str) -> Certificates | None:
    """Return the certificates of a Dask scheduler or worker; None: its connections have no TLS."""
    if not server.address.startswith("tls://"):
        return None
    return certificates_of(server.security, role)


def _has_tls(client: Any) -> bool:
    return bool(client.scheduler.address.startswith("tls://"))


# What runs in the cluster. Treadle may not be installed there, so it goes there by value.


def _by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    function.__module__ = "__main__"
    return function


@_by_value
def _version() -> str | None:
    try:
        import treadle
    except ImportError:
        return None
    return treadle.__version__


@_by_value
def _is_attached(dask_scheduler: Any) -> bool:
    return "treadle" in dask_scheduler.plugins


@_by_value
def _address(dask_scheduler: Any) -> str:
    address: str = dask_scheduler.plugins["treadle"].address
    return address


@_by_value
async def _close(dask_scheduler: Any) -> None:
    plugin = dask_scheduler.plugins.pop("treadle", None)
    if plugin is not None:
        await plugin.close()
