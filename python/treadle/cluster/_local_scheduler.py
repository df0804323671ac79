"""The scheduler of a local cluster."""

from __future__ import annotations

import os
from typing import Any

from treadle import _core
from treadle.cluster._credentials import ClusterCredentials
from treadle.common import _addresses
from treadle.common._settings import scheduler_settings
from treadle.scheduler import SupervisedSidecar
from treadle.shuffle._journal import Journal, path_of

__all__ = ["LocalScheduler"]


class LocalScheduler:
    """A scheduler on threads of this process, with its Python side and, if asked for, shuffle servers.

    Parameters
    ----------
    credentials
        Of the cluster.
    timeout
        How many seconds its Python side has to connect.
    preloads
        Whether it runs the preload scripts of Dask's configuration.
    listen, http
        Where it listens, and where its pages are; None: nowhere.
    worker_timeout
        A worker that says nothing for so many seconds is lost.
    history
        A file for what the cluster does, or a directory for one.
    """

    def __init__(
        self,
        credentials: ClusterCredentials,
        timeout: float,
        preloads: bool,
        *,
        listen: str,
        http: str | None,
        worker_timeout: float,
        history: str | os.PathLike[str] | None = None,
    ) -> None:
        self._credentials = credentials
        self._timeout = timeout
        self._shuffle_service: Any = None
        self._sidecar: SupervisedSidecar | None = None
        own = credentials.of("scheduler")
        settings = scheduler_settings(worker_timeout, history)
        self._native: Any = _core.Scheduler(listen, http=http, settings=settings, **own)
        self.address: str = self._native.address
        try:
            _addresses.remember(self.address, **credentials.of("client"))
            path = path_of(None)
            journal = None if path is None else Journal(path, self._native.cluster)
            self._sidecar = SupervisedSidecar(
                self.connect_sidecar, journal, own, self._native.wait, preloads
            )
        except BaseException:
            self.close()
            raise

    @property
    def http(self) -> str | None:
        """Where its pages are, with the token that lets in."""
        http: str | None = self._native.http
        return http

    @property
    def sidecar(self) -> SupervisedSidecar:
        """Its Python side."""
        assert self._sidecar is not None
        return self._sidecar

    def connect_sidecar(self, handlers: Any) -> Any:
        """Return a connection of its Python side."""
        return _core.Connection(
            self.address,
            "sidecar",
            handlers,
            role="sidecar",
            timeout=self._timeout,
            **self._credentials.of("scheduler"),
        )

    def start_shuffle_servers(self, count: int, directory: str) -> str:
        """Start servers for the rows of shuffles; return the address of their master.

        Raises
        ------
        ValueError
            The cluster has credentials of its own, which they would not know.
        """
        from treadle.shuffle import Service

        if not self._credentials.are_the_users_own:
            raise ValueError(
                f"shuffle_servers={count} starts servers with the user's own secret and without TLS: for "
                "others, start `treadle shuffle-master` and `treadle shuffle-server` with the same secret "
                "or certificates, and give the master's address"
            )
        self._shuffle_service = Service(servers=count, local_directory=directory)
        address: str = self._shuffle_service.address
        return address

    def close(self) -> None:
        """End it, and what it has started."""
        if self._sidecar is not None:
            self._sidecar.close()
        if self._shuffle_service is not None:
            self._shuffle_service.close()
        _addresses.forget(self.address)
        self._native.close()
