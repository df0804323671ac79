"""A scheduler in this process, and workers: on threads of it, or processes of this machine."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import dask
from dask.system import CPU_COUNT
from dask.utils import parse_bytes
from distributed.core import Status
from distributed.objects import SchedulerInfo
from distributed.system import MEMORY_LIMIT
from distributed.utils import format_dashboard_link

from treadle import _core
from treadle._settings import scheduler_settings
from treadle.client import _addresses
from treadle.client._process import Death, WorkerProcess, template_of
from treadle.client._template import Template
from treadle.sidecar import Sidecar
from treadle.worker import Service

__all__ = ["LocalCluster"]

logger = logging.getLogger("treadle.client")

# Seconds for the scheduler to answer: workers hand their values over meanwhile.
_PATIENCE = 60.0

# Seconds for all workers to end by themselves.
_FAREWELL = 5.0

# Of distributed's LocalCluster: nothing here to be told by them.
_IGNORED = ("asynchronous", "loop", "silence_logs", "worker_dashboard_address", "protocol", "name")


class LocalCluster:
    """A scheduler as threads of this process, with workers on this machine.

    Parameters
    ----------
    workers, n_workers
        How many worker processes. Without it, one worker runs on threads of this process.
    threads_per_worker
        How many tasks a worker runs at once; by default the cores are shared out.
    processes
        False: workers are threads of this process, however many there are. True without a number of
        workers: one process for each core.
    memory_limit
        Of each worker, for values: bytes, ``"4 GiB"``, a fraction of the memory there is, ``"auto"``
        or 0 for none.
    resources
        Abstract resources of each worker, for ``resources=`` of tasks.
    local_directory
        Where workers keep what they spill; by default Dask's ``temporary-directory``.
    dashboard_address
        Where the scheduler shows its state and metrics: ``":8787"``; None: nowhere.
    host, scheduler_port
        Where the scheduler listens: on the loopback interface, at any port. Other processes of this
        user can join by the address.
    worker_timeout
        A worker that says nothing for so many seconds is lost.
    """

    def __init__(
        self,
        workers: int | None = None,
        threads_per_worker: int | None = None,
        *,
        n_workers: int | None = None,
        processes: bool | None = None,
        memory_limit: Any = "auto",
        resources: Mapping[str, float] | None = None,
        local_directory: str | os.PathLike[str] | None = None,
        dashboard_address: str | int | None = ":0",
        host: str | None = None,
        scheduler_port: int = 0,
        timeout: float = 10.0,
        worker_timeout: float = 10.0,
        **ignored: Any,
    ) -> None:
        if unknown := sorted(set(ignored) - set(_IGNORED)):
            raise TypeError(f"treadle.LocalCluster does not take {', '.join(unknown)}")
        count = workers if workers is not None else n_workers
        if count is not None and count < 0:
            raise ValueError(f"workers={count}: give how many, or none")
        in_process = count is None and not processes if processes is None else not processes
        if count is None:
            count = 1 if in_process else CPU_COUNT
        threads = threads_per_worker or max(1, CPU_COUNT // max(count, 1))
        limit = memory_limit_of(memory_limit, max(count, 1))
        self._lock = threading.Lock()
        self._closed = False
        self._timeout = timeout
        self.name = secrets.token_hex(4)
        self.status = Status.created
        self.workers: dict[str, Any] = {}
        parent = local_directory or dask.config.get("temporary-directory", None)
        if parent is not None:
            os.makedirs(parent, exist_ok=True)
        # Only this user gets into it.
        self.directory = tempfile.mkdtemp(prefix="treadle-", dir=parent)
        self.secret_file, self._secret = _secret_of(self.directory)
        self._server: Any = None
        self._sidecar: Sidecar | None = None
        try:
            self._server = _core.Server(
                f"{host or '127.0.0.1'}:{scheduler_port}",
                secret=self._secret,
                http=http_address(dashboard_address),
                settings=scheduler_settings(worker_timeout),
            )
            self.scheduler_address: str = self._server.address
            _addresses.remember(self.scheduler_address, secret=self._secret)
            self._sidecar = Sidecar(self._connect_sidecar)
            make = self._thread_worker if in_process else self._process_worker
            self._in_process = in_process
            self._make_worker: Callable[..., Any] = partial(
                make, threads=threads, limit=limit, resources=dict(resources or {})
            )
            self.scale(count)
        except BaseException:
            self.close()
            raise
        self.status = Status.running
        _alive.add(self)

    def _connect_sidecar(self, handlers: Any) -> Any:
        return _core.Connection(
            self.scheduler_address,
            "sidecar",
            handlers,
            role="sidecar",
            secret=self._secret,
            timeout=self._timeout,
        )

    def _thread_worker(
        self, name: str, threads: int, limit: int, resources: Mapping[str, float]
    ) -> ThreadWorker:
        return ThreadWorker(
            self.scheduler_address,
            name=name,
            nthreads=threads,
            memory_limit=limit,
            directory=self._directory_of(name),
            resources=resources,
            secret=self._secret,
        )

    def _process_worker(
        self,
        name: str,
        threads: int,
        limit: int,
        resources: Mapping[str, float],
        template: Template | None = None,
    ) -> WorkerProcess:
        arguments = [self.scheduler_address, "--supervised", "--name", name]
        arguments += ["--nthreads", str(threads), "--memory-limit", str(limit)]
        arguments += ["--local-directory", self._directory_of(name)]
        arguments += ["--secret-file", self.secret_file]
        if resources:
            text = " ".join(f"{resource}={amount}" for resource, amount in resources.items())
            arguments += ["--resources", text]
        return WorkerProcess(name, arguments, self._died, template)

    def _directory_of(self, name: str) -> str:
        path = os.path.join(self.directory, f"worker-{name}")
        os.makedirs(path, exist_ok=True)
        return path

    def _died(self, death: Death) -> None:
        """Tell the scheduler, which only knows that a connection has ended."""
        if self._closed:
            return
        exit_of = {"name": death.name, "pid": death.pid, "log": death.log}
        exit_of |= {"exitcode": death.exitcode, "signal": death.signal, "oom": death.out_of_memory}
        with suppress(OSError):
            self._tell("worker-exited", exit_of)

    def _tell(self, operation: str, argument: dict[str, Any]) -> Any:
        """Ask the scheduler, and return its answer.

        Raises
        ------
        OSError
            It refuses, or does not answer in time.
        """
        connection = _core.Connection(
            self.scheduler_address,
            f"Supervisor-{self.name}-{secrets.token_hex(4)}",
            _Silent(),
            secret=self._secret,
            timeout=self._timeout,
        )
        answered: list[Any] = []
        try:
            connection.call("", operation, argument, lambda *answer: answered.append(answer))
            if not connection.wait(lambda: bool(answered), max(self._timeout, _PATIENCE)):
                raise TimeoutError(f"the scheduler does not answer {operation!r}")
        finally:
            connection.close()
        answer, error = answered[0]
        if error is not None:
            raise OSError(f"{operation}: {error}")
        return answer

    @property
    def dashboard_link(self) -> str | None:
        """Where the scheduler shows its state and metrics."""
        return dashboard_at(None if self._server is None else self._server.http)

    def failed(self) -> str | None:
        """Return why workers cannot be started, if they cannot."""
        for name, worker in self.workers.items():
            if isinstance(worker, WorkerProcess) and worker.given_up:
                return f"worker {name}: {worker.given_up}"
        return None

    def scale(self, n: int) -> None:
        """Start or retire workers until there are ``n``; those that go hand their values over."""
        names = [str(number) for number in range(n)]
        fresh = [name for name in names if name not in self.workers]
        if fresh:
            self._start(fresh)
        surplus = list(self.workers)[n:]
        if surplus:
            self._tell("retire_workers", {"names": surplus})
            for name in surplus:
                worker = self.workers.pop(name)
                worker.close()
                if isinstance(worker, WorkerProcess):
                    worker.join(_FAREWELL)

    def _start(self, names: list[str]) -> None:
        if self._in_process:
            self.workers |= {name: self._make_worker(name) for name in names}
            return
        # The scheduler waits a little for the causes of their deaths.
        self._tell("supervise", {"names": names})
        with template_of(len(names)) as template:
            for name in names:
                self.workers[name] = self._make_worker(name, template=template)

    @property
    def scheduler_info(self) -> SchedulerInfo:
        """What the scheduler says about itself and its workers."""
        return SchedulerInfo(self._tell("identity", {"n_workers": -1}))

    def adapt(self, **_kwargs: Any) -> None:
        """Refuse."""
        raise NotImplementedError("treadle.LocalCluster does not serve adapt(): use scale(n)")

    def get_client(self) -> Any:
        """Return a new client of the cluster."""
        from treadle.client._client import Client

        return Client(self)

    def is_thread(self, name: str) -> bool:
        """Whether a worker is threads of this process, which cannot be started anew."""
        return isinstance(self.workers.get(name), ThreadWorker)

    def restart(self, names: list[str] | None = None) -> bool:
        """Have worker processes replaced: all, or some by name; returns whether there are any."""
        restarted = False
        for name in list(self.workers) if names is None else names:
            worker = self.workers.get(name)
            if isinstance(worker, WorkerProcess):
                worker.restart()
                restarted = True
        return restarted

    def close(self, timeout: float = _FAREWELL) -> None:
        """End the workers, then the scheduler."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.status = Status.closing
        _alive.discard(self)
        for worker in self.workers.values():
            with suppress(Exception):
                worker.close()
        for worker in self.workers.values():
            if isinstance(worker, WorkerProcess):
                worker.join(timeout)
        if self._sidecar is not None:
            self._sidecar.close()
        if self._server is not None:
            _addresses.forget(self.scheduler_address)
            self._server.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.status = Status.closed

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        address = getattr(self, "scheduler_address", "not started")
        return f"<LocalCluster {address!r} workers={len(self.workers)}>"

    def _repr_html_(self) -> str:
        import html

        head = f"<div><b>LocalCluster</b> {html.escape(repr(self))}</div>"
        if self.status is not Status.running:
            return head
        # As a page shows it: the first few workers.
        shown: str = SchedulerInfo(self._tell("identity", {"n_workers": 5}))._repr_html_()
        return head + shown


def _secret_of(directory: str) -> tuple[str, str]:
    """Return the secret of this user and its file: other processes of the user can join.

    Where the user has no place for one, the cluster has its own, which nobody else learns of.
    """
    try:
        path = os.fspath(_core.user_secret_file())
        with open(path, encoding="utf-8") as file:
            return path, file.read().strip()
    except (OSError, ValueError) as error:
        logger.info("Only this process can use this cluster: %s", error)
    path = os.path.join(directory, "secret")
    secret = secrets.token_hex(32)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret)
    return path, secret


class ThreadWorker:
    """A worker on threads of this process."""

    def __init__(self, scheduler: str, *, secret: str, **options: Any) -> None:
        self._service = Service(connection={"secret": secret})
        self._native: Any = _core.Worker(
            scheduler,
            service=self._service,
            secret=secret,
            info={**Service.info(), "local_directory": options["directory"]},
            **options,
        )
        try:
            self._native.start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it, after a little time for the tasks that run."""
        try:
            self._native.close("its client was closed")
        finally:
            self._service.stop()


class _Silent:
    """Handlers of a connection that only makes a call."""

    def on_call(self, id: int, node: str, operation: str, argument: Any) -> None:  # noqa: A002
        """Leave it unanswered."""

    def on_stuck(self, keys: list[Any], reason: str) -> None:
        """Do nothing."""

    def on_restarted(self) -> None:
        """Do nothing."""

    def on_closed(self, reason: str) -> None:
        """Do nothing."""


def cluster_at(address: str) -> LocalCluster | None:
    """Return the cluster of this process whose scheduler has an address."""
    for cluster in list(_alive):
        if cluster.scheduler_address == address:
            return cluster
    return None


def memory_limit_of(limit: Any, workers: int) -> int:
    """Return the bytes that each of so many workers may use; 0: no limit."""
    if limit is None or limit == 0:
        return 0
    if limit == "auto":
        return int(MEMORY_LIMIT / workers)
    if isinstance(limit, float) and limit <= 1.0:
        return int(limit * MEMORY_LIMIT)
    if isinstance(limit, str):
        with suppress(ValueError):
            return memory_limit_of(float(limit), workers)
        return int(parse_bytes(limit))
    return int(limit)


def http_address(address: str | int | None) -> str | None:
    """Return where the scheduler's pages are, as ``host:port``, on the loopback interface."""
    if address is None:
        return None
    text = str(address)
    host, _, port = text.rpartition(":")
    return f"{host or '127.0.0.1'}:{port or 0}"


def dashboard_at(http: str | None) -> str | None:
    """Return the link to the pages of a scheduler, as ``distributed.dashboard.link`` has it."""
    if http is None:
        return None
    pages = urlsplit(http)
    link: str = format_dashboard_link(pages.hostname, pages.port)
    return link


_alive: weakref.WeakSet[LocalCluster] = weakref.WeakSet()


def _after_fork() -> None:
    """Leave the parent's processes alone."""
    for cluster in list(_alive):
        cluster._closed = True
    _alive.clear()


os.register_at_fork(after_in_child=_after_fork)
