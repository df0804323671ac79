"""A scheduler in this process, and workers: on threads of it, or processes of this machine."""

from __future__ import annotations

import _thread
import asyncio
import logging
import math
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Any

from dask.utils import format_bytes, parse_bytes
from distributed import Status
from distributed.deploy.cluster import Cluster
from distributed.utils import Log, Logs, get_ip_interface, silence_logging_cmgr

from treadle import _core
from treadle._compat.distributed import SchedulerInfo, SpecCluster
from treadle.cluster._clusters import alive
from treadle.cluster._connection_options import security_of_cluster
from treadle.cluster._credentials import ClusterCredentials
from treadle.cluster._local_scheduler import LocalScheduler
from treadle.cluster._local_workers import (
    ByName,
    LocalProcess,
    environment_of,
    process_worker,
    thread_worker,
)
from treadle.cluster._options import (
    WorkersOfBeginning,
    dashboard_at,
    http_address,
    level_of,
    warn_without_effect,
    with_links,
)
from treadle.cluster._scaling import FAREWELL, Adaptive, Scaling
from treadle.cluster._scheduler_comm import SchedulerComm, identity
from treadle.cluster._starting import Starting
from treadle.cluster._worker_process import Death, WorkerProcess, prepare_for
from treadle.common._certificates import Certificates, named
from treadle.common._loop import made_apart, off_loop
from treadle.common._names import name_of
from treadle.common._numbers import MOST_WORKERS, integer
from treadle.common._secret import kept
from treadle.common._settings import temporary_directory
from treadle.common._stderr import wait_for_asides
from treadle.errors._unserved import UnservedError
from treadle.pickling import _script
from treadle.worker._nanny_calls import tell
from treadle.worker._thread import ThreadWorker

__all__ = ["LocalCluster"]

# Seconds for whoever reads what workers printed.
_LAST_WORDS = 0.5


class LocalCluster(SpecCluster):  # type: ignore[misc]
    """A scheduler as threads of this process, with workers on this machine.

    It is a ``distributed.SpecCluster`` of Treadle's processes: it can be scaled by hand or by load
    (:meth:`adapt`), and be used with ``async with``. Its clients share its event loop.

    Parameters
    ----------
    workers, n_workers
        How many worker processes. Without it, one worker runs on threads of this process.
    threads_per_worker
        How many tasks a worker runs at once; by default, and with 0, the cores are shared out.
    processes
        False: workers are threads of this process, however many there are. True without a number of
        workers: one process for each core.
    memory_limit
        Of each worker's process: bytes, ``"4 GiB"``, a share of the machine's memory such as 0.5 (1 is all
        of it), ``"auto"`` or 0 for no limit. Above 70 % of it, values are written to disk. With ``"auto"``, the
        workers of the beginning get equal shares; those that :meth:`scale` adds get as much as these. If it
        begins without workers, the share of each is that of its threads in the cores.
    resources
        Abstract resources of each worker, for ``resources=`` of tasks; by default those of
        ``distributed.worker.resources`` in Dask's configuration.
    local_directory
        Where workers keep what they spill; by default Dask's ``temporary-directory``.
    dashboard_address
        Where the scheduler shows its state and metrics: ``":8787"``; None: nowhere.
    host, scheduler_port
        Where the scheduler listens: on the loopback interface, at any port. Other processes of this
        user can join by the address.
    security, protocol
        A ``distributed.Security`` with certificates, or ``"tls://"``: all connections have TLS. With
        ``True``, or where encryption is demanded and no certificates are named, certificates are
        made for this cluster. Without either, Dask's configuration decides.
    secret
        What both sides must know: bytes or a string are the secret itself, a ``pathlib.Path`` is the
        file that holds it. By default it is the user's own.
    certificates
        The prefix that ``treadle certs`` printed (``"treadle-certs/node"``), or a dictionary
        ``{"ca": PATH, "certificate": PATH, "key": PATH}``.
    insecure
        Allow other machines without TLS. The secret is proved all the same.
    name
        Of the cluster, for people.
    asynchronous
        It is used in the running event loop: ``await`` it, or ``async with``, and await what is called.
    interface
        The network interface whose address the scheduler and the workers have, instead of ``host``.
    env, preload, lifetime, lifetime_stagger, lifetime_restart
        For workers that are processes: variables of their environment; modules or scripts whose
        ``dask_setup(worker)`` runs before the first task; after what time they leave, when their values
        have moved (``"1h"``), give or take what time, and whether others replace them then.
    silence_logs
        The level below which distributed's loggers say nothing on standard error, here and in the
        workers. Logs that are kept have it all (``client.get_worker_logs``). False: they say all.
    loop
        The event loop, which runs, of the cluster and its clients. By default one that the first client
        begins, or :meth:`adapt`.
    worker_dashboard_address
        Of distributed's cluster. It is warned of.
    worker_timeout
        A worker that says nothing for so many seconds is lost.
    history
        Write what the cluster does to a new file, or into a directory, for ``treadle history PATH``.
    shuffle_servers
        How many shuffle servers to start: processes that keep the rows of shuffles, each row in two copies.
        Or the address of ``treadle shuffle-master``, or the URL of another registry, whose servers do it. By default
        workers keep them.
    """

    # Whether it waits at the beginning for its workers.
    _waits = True
    #: The class of its clients. ``treadle.client`` says it, which stands on this package.
    client_class: Any = None
    #: Whether the scheduler runs the preload scripts of Dask's configuration.
    _preloads = True

    @classmethod
    def for_client(cls, **options: Any) -> LocalCluster:
        """Make one for a client that waits for its workers itself: it may trace how they join."""
        cluster = cls.__new__(cls)
        cluster._waits = False
        cluster.__init__(**options)  # type: ignore[misc]
        return cluster

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
        interface: str | None = None,
        scheduler_port: int = 0,
        timeout: float = 10.0,
        worker_timeout: float = 10.0,
        history: str | os.PathLike[str] | None = None,
        shuffle_servers: str | int = 0,
        security: Any = None,
        protocol: str | None = None,
        secret: bytes | str | Path | None = None,
        certificates: Certificates | str | os.PathLike[str] | None = None,
        insecure: bool = False,
        name: str | None = None,
        asynchronous: bool = False,
        loop: Any = None,
        silence_logs: Any = logging.WARNING,
        env: Mapping[str, Any] | None = None,
        preload: str | Sequence[str] | None = None,
        lifetime: Any = None,
        lifetime_stagger: Any = None,
        lifetime_restart: bool | None = None,
        worker_dashboard_address: Any = None,
        **options: Any,
    ) -> None:
        warn_without_effect(worker_dashboard_address)
        self._level = level_of(silence_logs)
        if interface is not None:
            if host is not None:
                raise ValueError("give host= or interface=, not both")
            host = get_ip_interface(interface)
        certificates = named(certificates)
        host, self.security = security_of_cluster(security, protocol, host, certificates)
        count, in_process, worker_options = WorkersOfBeginning.of(
            workers=workers,
            n_workers=n_workers,
            threads_per_worker=threads_per_worker,
            processes=processes,
            memory_limit=memory_limit,
            resources=resources,
            local_directory=local_directory,
            env=env,
            preload=preload,
            lifetime=lifetime,
            lifetime_stagger=lifetime_stagger,
            lifetime_restart=lifetime_restart,
            **options,
        )
        if not in_process:
            _script.refuse_while_imported("a cluster of worker processes", spawned=True)
        self._lock = threading.Lock()
        self._closed = False
        #: Whether somebody else ends it when the program does.
        self._has_owner = False
        self._timeout = timeout
        self._starting = Starting(timeout)
        self._silence = ExitStack()
        # Not that of `SpecCluster`, which would start a loop, and all else in it.
        name = name or secrets.token_hex(4)
        Cluster.__init__(self, asynchronous=asynchronous, loop=loop, name=name)
        self._loop: Any = self._loop_runner.loop if asynchronous else None
        if loop is not None:
            # Whoever is in it is to await.
            _ = self.loop
        self.scheduler_comm = SchedulerComm(self)
        #: The workers by name, which is text here; numbers are found, too.
        self.workers: dict[str, Any] = ByName()
        self._i = 0
        self._scaling = Scaling(self)
        # Calls of `scale` in the event loop, which is to be awaited.
        self._scaled: set[asyncio.Future[None]] = set()
        self._in_process = in_process
        self.new_spec = {
            "cls": ThreadWorker if in_process else LocalProcess,
            "options": {
                "nthreads": worker_options.nthreads,
                "memory_limit": worker_options.memory_limit,
                "resources": worker_options.resources,
            },
        }
        self._address = "<not started>"
        parent = worker_options.local_directory or temporary_directory()
        self._directory = _core.Directory("cluster", parent)
        self.directory = str(self._directory.path)
        #: What workers that are processes know of this one.
        self.script_file = os.path.join(self.directory, "script.json")
        _script.write(self.script_file)
        #: The address of the shuffle master at whose servers shuffles keep their rows.
        self.shuffle_servers = shuffle_servers if isinstance(shuffle_servers, str) else None
        self._scheduler: LocalScheduler | None = None
        # In the cluster's directory.
        self._worker_options = replace(worker_options, local_directory=None)
        begin = partial(
            self._begin,
            count,
            secret=kept(secret),
            certificates=certificates,
            insecure=insecure,
            listen=f"{host or '127.0.0.1'}:{scheduler_port}",
            http=http_address(dashboard_address),
            worker_timeout=worker_timeout,
            history=history,
            shuffle_servers=0 if isinstance(shuffle_servers, str) else shuffle_servers,
        )
        self._begun: asyncio.Future[None] | None = None
        if asynchronous:
            self._begun = asyncio.ensure_future(off_loop(begin))
        else:
            made_apart(begin, lambda _: self._end())

    def _begin(
        self,
        count: int,
        *,
        secret: bytes | str | Path | None,
        certificates: Certificates | None,
        insecure: bool,
        shuffle_servers: int,
        **options: Any,
    ) -> None:
        """Start the scheduler, with further options, then the workers."""
        try:
            if self._level:
                self._silence.enter_context(silence_logging_cmgr(self._level))
            self._credentials = ClusterCredentials(
                self.directory, secret, certificates, self.security, insecure
            )
            self.secret_file = str(self._credentials.secret)
            self._scheduler = LocalScheduler(
                self._credentials, self._timeout, self._preloads, **options
            )
            self._address = self._scheduler.address
            if shuffle_servers:
                self.shuffle_servers = self._scheduler.start_shuffle_servers(
                    shuffle_servers, self.directory
                )
            self._scaling.ask(count)
            self._scaling.apply()
            if self._waits:
                self.wait_until_ready()
        except BaseException:
            self._end()
            raise
        self.status = Status.running
        alive.add(self)

    def wait_until_ready(self) -> None:
        """Wait until the workers of the beginning have joined, and have all that they need.

        Raises
        ------
        RuntimeError
            One of them cannot be started.
        TimeoutError
            It takes too long.
        """
        self._starting.wait(self.workers)

    def _died(self, death: Death) -> None:
        """Tell the scheduler, which only knows that a connection has ended."""
        if self._closed:
            return
        with suppress(OSError):
            self._tell("worker-exited", death.as_told())

    def _tell(self, operation: str, argument: Any, node: str = "", **limit: float | None) -> Any:
        """Ask the scheduler, or another node, and return its answer; ``patience`` is for that.

        Raises
        ------
        OSError
            It refuses, or does not answer in time.
        """
        return tell(
            self.scheduler_address,
            operation,
            argument,
            node=node,
            credentials=self._credentials.of("client"),
            name=self.name,
            timeout=self._timeout,
            **limit,
        )

    @property
    def scheduler(self) -> Any:
        """The scheduler as ``run_on_scheduler`` has it: views of its workers, tasks and clients.

        Raises
        ------
        RuntimeError
            The cluster has not started.
        """
        if self._scheduler is None:
            raise RuntimeError("the cluster has not started: it has no scheduler yet")
        return self._scheduler.sidecar.scheduler

    @property
    def dashboard_link(self) -> str | None:
        """Where the scheduler shows its state and metrics."""
        return dashboard_at(None if self._scheduler is None else self._scheduler.http)

    @property
    def pages_link(self) -> str | None:
        """Where the scheduler itself serves its pages."""
        return None if self._scheduler is None else self._scheduler.http

    def is_ready(self) -> bool:
        """Return whether no worker process is just being started."""
        return not self._starting.among(self.workers)

    # where it runs

    @property
    def loop(self) -> Any:
        """The event loop: that of ``loop=``, the one it was made in, or one that begins when asked for.

        Raises
        ------
        AttributeError
            None has begun, and the cluster is closed.
        """
        with self._lock:
            if self._loop is None:
                if self._closed:
                    raise AttributeError("this cluster is closed, and has had no event loop")
                self._loop_runner.start()
                self._loop = self._loop_runner.loop
        return self._loop

    @property
    def asynchronous(self) -> bool:
        """Whether the caller is in the cluster's event loop, where nothing may wait."""
        if self._loop is None:
            return False
        try:
            return asyncio.get_running_loop() is self._loop.asyncio_loop
        except RuntimeError:
            return False

    def _do(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function that waits; in the event loop, return what is to be awaited."""
        if not self.asynchronous:
            return function(*args)
        return asyncio.ensure_future(self._do_there(function, *args))

    async def _do_there(self, function: Callable[..., Any], *args: Any) -> Any:
        await self.started()
        return await off_loop(function, *args)

    def __await__(self) -> Any:
        return self._settled().__await__()

    async def started(self) -> None:
        """Wait until the scheduler and the workers of the beginning are there."""
        if self._begun is not None:
            # Who no longer waits does not end it: `close` waits for it, too.
            await asyncio.shield(self._begun)

    async def _settled(self) -> LocalCluster:
        """Wait until there are as many workers as :meth:`scale` was asked for."""
        await self.started()
        if self.asynchronous:
            for scaled in list(self._scaled):
                await asyncio.shield(scaled)
        await self._starting.wait_in_loop(self.workers)
        return self

    @property
    def scheduler_address(self) -> str:
        """Where the scheduler listens."""
        return self._address

    # how many workers there are

    def scale(self, n: int = 0, memory: Any = None, cores: int | None = None) -> Any:
        """Start or retire workers until there are ``n``; those that go hand their values over.

        With ``cores`` or ``memory``, until the workers have so much of both together.
        """
        if cores is not None:
            n = max(n, math.ceil(cores / self._threads_per_worker()))
        if memory is not None:
            limit = self._memory_per_worker()
            if not limit:
                raise ValueError("scale(memory=...): the workers have no memory_limit")
            n = max(n, math.ceil(parse_bytes(memory) / limit))
        self._scaling.ask(integer("n", n, 0, MOST_WORKERS))
        if not self.asynchronous:
            return self._scaling.apply()
        scaled = self._do(self._scaling.apply)
        self._scaled.add(scaled)
        scaled.add_done_callback(self._scaled.discard)
        return scaled

    scale_up = scale

    async def scale_down(self, workers: Any) -> None:
        """Retire workers, given by name; one that cannot leave stays.

        That is one with an actor, and the last one if there are values.
        """
        await off_loop(self._scaling.scale_down, [str(name) for name in workers])

    @property
    def worker_spec(self) -> dict[str | int, Any]:
        """What is wanted, by name: ``cls`` and ``options`` of each worker."""
        return {name_of(name): self.new_spec for name in self._scaling.wanted()}

    @property
    def requested(self) -> set[Any]:
        """The names of the workers that were started."""
        return set(map(name_of, self._scaling.staying()))

    @property
    def observed(self) -> set[Any]:
        """The names of the workers that the scheduler knows."""
        return {worker["name"] for worker in identity(self)["workers"].values()}

    @wraps(SpecCluster.adapt)
    def adapt(self, *args: Any, **kwargs: Any) -> Any:
        """Scale by load from now on: see ``distributed.SpecCluster.adapt``.

        ``minimum``, ``maximum`` (or of cores or memory) bound the number of workers; returns
        distributed's ``Adaptive``.
        """
        if not args:
            kwargs.setdefault("Adaptive", Adaptive)
        return super().adapt(*args, **kwargs)

    async def _correct_state(self) -> None:
        """Do nothing: :meth:`scale` does all of it."""

    def _start_workers(self, names: list[str]) -> None:
        if self._in_process:
            made = {name: thread_worker(self, name, self._worker_options) for name in names}
            self.workers |= made
            return
        # The scheduler waits a little for the causes of their deaths.
        self._tell("supervise", {"names": names})
        prepare_for(len(names), environment_of(self._worker_options))
        for name in names:
            self.workers[name] = process_worker(self, name, self._worker_options)

    @property
    def scheduler_info(self) -> SchedulerInfo:
        """What the scheduler says about itself and its workers."""
        return SchedulerInfo(identity(self))

    @scheduler_info.setter
    def scheduler_info(self, _info: Any) -> None:
        """Forget it: it is asked for whenever it is read."""

    def wait_for_workers(self, n_workers: int, timeout: float | None = None) -> Any:
        """Wait until so many workers are there.

        Raises
        ------
        TimeoutError
            Not within so many seconds.
        """
        if self.asynchronous:
            return asyncio.ensure_future(self._wait_in_loop(n_workers, timeout))
        with self._own_client() as client:
            # Its public method asks this one.
            return client.sync(client._wait_for_workers, n_workers, timeout)

    async def _wait_in_loop(self, n_workers: int, timeout: float | None) -> None:
        # Not in a thread: `scale` may need one meanwhile, and there are few.
        await self.started()
        async with self._own_client(asynchronous=True) as client:
            await client._wait_for_workers(n_workers, timeout)

    def get_logs(self, cluster: bool = True, scheduler: bool = True, workers: Any = True) -> Any:
        """Return the logs of the scheduler and of workers, by "Scheduler" and by address."""
        return self._do(self._logs, cluster, scheduler, workers)

    def _logs(self, cluster: bool, scheduler: bool, workers: Any) -> dict[str, Any]:
        logs = Logs()
        if cluster:
            logs["Cluster"] = Log("\n".join(text for _, text in self._cluster_manager_logs))
        with self._own_client() as client:
            if scheduler:
                logs["Scheduler"] = client.get_scheduler_logs()
            if workers:
                logs |= client.get_worker_logs(workers=None if workers is True else workers)
        return logs

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            from distributed import LocalCluster as Theirs

            if hasattr(Theirs, name):
                raise UnservedError(f"treadle.LocalCluster does not serve {name!r}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def get_client(self) -> Any:
        """Return the present client, if it is one of the cluster, or a new one."""
        with suppress(ValueError):
            present = self.client_class.current()
            if present.cluster is self:
                return present
        return self.client_class(self)

    def _own_client(self, asynchronous: bool = False) -> Any:
        # By the address: it does not wait for workers.
        return self.client_class(
            self.scheduler_address, set_as_default=False, asynchronous=asynchronous
        )

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

    def close(self, timeout: float | None = FAREWELL) -> Any:
        """End the workers, then the scheduler."""
        return self._do(self._end, timeout)

    async def _close(self) -> None:
        await self._do_there(self._end)

    def _end(self, timeout: float | None = FAREWELL) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.status = Status.closing
        alive.discard(self)
        if self._adaptive is not None:
            self._adaptive.stop(reason="cluster-closed")
        self._scaling.end(FAREWELL if timeout is None else timeout)
        wait_for_asides(_LAST_WORDS)
        if self._scheduler is not None:
            self._scheduler.close()
        self._directory.remove()
        self._silence.close()
        self.status = Status.closed
        if self._loop is not None and not self.called_from_running_loop:
            self._loop_runner.stop()

    def __del__(self) -> None:
        """Say nothing of one that is not closed: its processes end with this one."""
        runner = getattr(self, "_loop_runner", None)
        if runner is not None and runner.is_started():
            # It waits for the loop's thread, which may be this one.
            with suppress(RuntimeError):
                _thread.start_new_thread(runner.stop, ())

    def __enter__(self) -> LocalCluster:
        if self.asynchronous:
            raise TypeError("Used 'with' with asynchronous class; please use 'async with'")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        # What this process knows: nobody is asked.
        there = [worker for worker in self._scaling.staying().values() if worker.announced]
        text = (
            f"{type(self).__name__}({self.name}, {self.scheduler_address!r}, workers={len(there)}"
        )
        text += f", threads={sum(worker.nthreads for worker in there)}"
        limits = [worker.memory_limit for worker in there]
        if all(limits):
            text += f", memory={format_bytes(sum(limits))}"
        return f"{text})"

    def _widget(self) -> None:
        """Have notebooks show it as HTML: distributed's widget would ask the scheduler in the loop."""

    def _repr_html_(self) -> str:
        import html

        head = f"<div><b>LocalCluster</b> {html.escape(repr(self))}</div>"
        if self.status is not Status.running:
            return head
        # As a page shows it: the first few workers.
        shown: str = SchedulerInfo(identity(self, 5))._repr_html_()
        return head + with_links(shown, self.dashboard_link)
