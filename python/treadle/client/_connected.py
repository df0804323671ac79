"""A client's connection: how it begins and ends, and what distributed's code sends on it."""

from __future__ import annotations

import _thread
import asyncio
import errno
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import dask.config
from dask.typing import no_default
from distributed import Status
from distributed.utils import LoopRunner, sync
from tornado.ioloop import IOLoop

from treadle import _core
from treadle._compat.distributed import (
    SchedulerInfo,
    parse_timedelta,
)
from treadle.client._before_connected import Early
from treadle.client._coordinated import CoordinatedJob
from treadle.client._defaults import DefaultSettings
from treadle.client._distributed import ClientOfDistributed, ClosedClientError
from treadle.client._handlers import Handlers
from treadle.client._scheduler_rpc import Nodes, Scheduler, stream
from treadle.client._shuffle_method import unchosen_methods
from treadle.client._state import NO_REASON, Cancellation
from treadle.client._waiting import USABLE, Waiting
from treadle.cluster._connection_options import Demands, check_options
from treadle.cluster._local_cluster import LocalCluster
from treadle.common import _addresses, _scheduler_file
from treadle.common._certificates import named
from treadle.common._loop import made_off_loop, off_loop
from treadle.common._secret import kept
from treadle.common._settings import warn_of_unread
from treadle.local._install import Installation, found_by_client, left_by_client
from treadle.pickling._script import refuse_while_imported
from treadle.tracing import _trace
from treadle.tracing._cluster_trace import ClusterTrace, Spans

if TYPE_CHECKING:
    from treadle.hosting import Host

__all__ = ["Connected", "connected"]


logger = logging.getLogger("treadle.client")
# Where distributed logs it.
_of_distributed = logging.getLogger("distributed.client")

# Seconds in which a connection says goodbye.
_GOODBYE = 5.0

# Seconds between looks at whether another one has closed it.
_PAUSE = 0.01

# How the transfer plane's errors end where nothing listens.
_NOBODY = f"(os error {errno.ECONNREFUSED})"

# What distributed's code sends and a connection does by itself, or does not need.
_NEEDLESS = frozenset(["heartbeat-client", "close-client", "close-stream", "report-key"])

# Workers that the client knows about unasked: what a notebook shows.
_SHOWN = 5


class Connected(Waiting):
    """A ``distributed.Client`` on a native connection; what it is asked to do is in its subclass."""

    scheduler: Scheduler | None
    cluster: Any
    _loop_runner: Any
    _installation: Installation | None = None
    #: Whether somebody closes it at this moment.
    _is_ending = False
    #: What let it in at its scheduler.
    _credentials = _addresses.Credentials()
    #: What Treadle is attached to, if this client did that.
    _host: Host | None = None
    #: Whether it was attached, and is closed.
    _is_detached = False
    #: What is to be undone when it is the default client no more.
    _methods: AbstractContextManager[Any] | None = None
    #: What starts it.
    _starting: asyncio.Task[Any] | None = None
    #: Whether nobody has it, who could close it.
    _is_abandoned = False

    def __init__(
        self,
        address: Any = None,
        loop: Any = None,
        timeout: Any = no_default,
        set_as_default: bool = True,
        scheduler_file: Any = None,
        security: Any = None,
        asynchronous: bool = False,
        name: str | None = None,
        heartbeat_interval: Any = None,
        serializers: Any = None,
        deserializers: Any = None,
        extensions: Mapping[str, Any] = {},
        direct_to_workers: bool | None = None,
        connection_limit: int = 512,
        *,
        workers: int | None = None,
        n_workers: int | None = None,
        threads_per_worker: int | None = None,
        memory_limit: Any = "auto",
        processes: bool | None = None,
        shuffle_servers: str | int | None = None,
        secret: bytes | str | Path | None = None,
        certificates: Mapping[str, str] | str | os.PathLike[str] | None = None,
        insecure: bool = False,
        **kwargs: Any,
    ) -> None:
        given = {
            "heartbeat_interval": heartbeat_interval,
            "serializers": serializers,
            "deserializers": deserializers,
            "extensions": extensions or None,
            "direct_to_workers": direct_to_workers,
            "connection_limit": None if connection_limit == 512 else connection_limit,
            "workers": workers,
            "n_workers": n_workers,
            "threads_per_worker": threads_per_worker,
            "processes": processes,
        }
        kwargs |= {name: value for name, value in given.items() if value is not None}
        if memory_limit != "auto":
            # None is no limit.
            kwargs["memory_limit"] = memory_limit
        #: As given; what it comes to is `shuffle_servers`.
        self._shuffle_servers = shuffle_servers
        #: A coordinator decides about the whole job: clients of its workers do not ask.
        self._job = CoordinatedJob(is_part=name == "worker")
        if isinstance(shuffle_servers, int) and shuffle_servers:
            kwargs["shuffle_servers"] = shuffle_servers
        # A loop that the parent's threads ran would never answer.
        _core.refuse_forked()
        refuse_while_imported("a client")
        if name != "worker":
            warn_of_unread()
        if address is None and scheduler_file is None:
            address = dask.config.get("scheduler-address", None)
            if address:
                _of_distributed.info("Config value `scheduler-address` found: %s", address)
        check_options(kwargs, starts=address is None and scheduler_file is None)
        own = _addresses.Credentials(kept(secret), named(certificates), insecure)
        role = "worker" if name == "worker" else "client"
        self._demands = Demands(address, scheduler_file, security, own, role)
        if isinstance(address, str):
            address = self._demands.complete(address)
        self._connection = Early(address if isinstance(address, str) else "")
        self._asyncio_loop = None
        self._observed = False
        # What it hears of: a scheduler's Python side that begins anew is to be told again.
        self._topics: set[str] = set()
        self._released = deque()
        self._ended = deque()
        self._closing = threading.RLock()
        # Who traces.
        self._recorders: tuple[Spans, ...] = ()
        self._collecting = False
        self._collected = False
        self._events: set[asyncio.Task[None]] = set()
        connected.add(self)
        self._default_settings = DefaultSettings()
        try:
            self._methods = unchosen_methods() if set_as_default else None
            self._installation = found_by_client(self) if set_as_default else None
            super().__init__(
                address,
                loop,
                timeout,
                set_as_default,
                scheduler_file,
                self._demands.security,
                asynchronous,
                name,
                **kwargs,
            )
        except BaseException:
            # It goes on in its event loop: Ctrl-C interrupts this thread alone.
            self._abandon()
            raise

    @property
    def shuffle_servers(self) -> str | None:
        """The address of the shuffle master, or the URL of the registry, at whose servers shuffles keep their rows.

        None: the workers keep them.
        """
        given = self._given_servers()
        if given is None:
            given = self._job.servers()
        if isinstance(given, int):
            # Servers of the cluster that the client has started.
            given = getattr(self.cluster, "shuffle_servers", None) if given else None
        return given or None

    def _given_servers(self) -> str | int | None:
        given = self._shuffle_servers
        if given is None:
            given = getattr(self.cluster, "shuffle_servers", None)
        if given is None:
            given = dask.config.get("treadle.shuffle.servers", None)
        return given

    def why_not_served(self) -> str | None:
        """Return why the shuffle servers cannot take a shuffle, if there are any; None: they can."""
        address = self.shuffle_servers
        if address is None:
            return None
        from treadle.shuffle.service._check import why_not_served

        secret, certificates = self._credentials.secret, self._credentials.certificates
        credentials = {
            "secret": secret,
            "certificates": certificates,
            "insecure": self._credentials.insecure,
        }
        return why_not_served(address, credentials)

    def start_early(self) -> None:
        """Have what is asked of the scheduler wait for the connection that is being made."""
        if self.scheduler is None and isinstance(self._connection, Early):
            self.scheduler = Scheduler(self, self._connection)

    @contextmanager
    def as_current(self) -> Iterator[None]:
        """Make this the client of whatever is computed, and of unpickled futures, in the block."""
        with unchosen_methods(), super().as_current():
            yield

    # Beginning

    def start(self, **kwargs: Any) -> None:
        """Connect, in the event loop that it is used in."""
        own = asyncio._get_running_loop() if self._asynchronous else None
        if own is not None and self._loop_runner.loop.asyncio_loop is not own:
            # distributed takes that of the cluster.
            self._loop_runner = LoopRunner(asynchronous=True)
        super().start(**kwargs)

    async def _start(self, timeout: Any = no_default, **_kwargs: Any) -> Connected:
        self._starting = asyncio.current_task()
        self.status = "connecting"
        self._asyncio_loop = asyncio.get_running_loop()
        timeout = parse_timedelta(self._timeout if timeout is no_default else timeout, "s")
        try:
            if self._is_abandoned:
                raise ClosedClientError("the client was abandoned while it was made")
            address, credentials = await self._find_scheduler(timeout)
            connection = await self._connect(address, credentials, timeout)
            await self._begin(connection, timeout)
        except BaseException:
            await self._close(fast=True)
            raise
        return self

    async def _begin(self, connection: _core.Connection, timeout: float) -> None:
        early, self._connection = self._connection, connection
        self.rpc = Nodes(connection)
        self.scheduler = Scheduler(self, connection)
        self.status = "running"
        await off_loop(_trace.attach, self)
        if isinstance(early, Early):
            early.replay(connection)
        asyncio.get_running_loop().add_reader(connection.fileno(), connection.process)
        for topic, handler in ClientOfDistributed._default_event_handlers.items():
            self.subscribe_topic(topic, handler)
        if isinstance(self.cluster, LocalCluster):
            await self._wait_for_local(self.cluster, max(timeout, 60.0))
        if self._given_servers() is None and self._job.begin():
            await self._job.watch(self)
        await self._update_scheduler_info()
        self._periodic_callbacks["scheduler-info"].start()
        await self.preloads.start()

    async def _find_scheduler(self, timeout: float) -> tuple[str, _addresses.Credentials]:
        demands = self._demands
        known = _addresses.Credentials()
        if self.cluster is None and self.scheduler_file is None and self._start_arg is None:
            make = partial(
                LocalCluster.for_client,
                timeout=timeout,
                loop=IOLoop.current(),
                security=None if demands.configured else demands.security,
                secret=demands.given.secret,
                certificates=demands.given.certificates,
                insecure=demands.given.insecure,
                **self._startup_kwargs,
            )
            self.cluster = await made_off_loop(make, LocalCluster._end)
        if isinstance(self.cluster, LocalCluster):
            # Not for what `scale` does: a worker that is to leave may have to end a task first.
            await self.cluster.started()
        elif self.cluster is not None:
            await self.cluster
        if self.cluster is not None:
            address = self.cluster.scheduler_address
        elif self.scheduler_file is not None:
            address, known = await self._read_scheduler_file(timeout)
        else:
            address = self._start_arg
        address = demands.complete(address)
        if known == _addresses.Credentials():
            known = _addresses.known(address)
        self._credentials = demands.credentials(address, known)
        return address, self._credentials

    async def _connect(
        self, address: str, credentials: _addresses.Credentials, timeout: float
    ) -> Any:
        """Connect, and wait a while for a scheduler that is not there yet."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        pause = 0.01
        while True:
            connect = partial(
                _core.Connection,
                address,
                self.id,
                Handlers(self),
                secret=credentials.secret,
                certificates=credentials.certificates,
                insecure=credentials.insecure,
                cluster=credentials.cluster,
                timeout=max(until - loop.time(), 0.01),
                info={"pid": os.getpid()},
            )
            try:
                return await off_loop(connect)
            except OSError as error:
                # A scheduler that refuses says why, and would say it again.
                nobody = error.errno == errno.ECONNREFUSED or _NOBODY in str(error)
                if not nobody and not isinstance(error, TimeoutError):
                    raise
                if loop.time() + pause > until:
                    why = "nobody listens there; is the scheduler running?" if nobody else error
                    raise OSError(
                        f"Timed out trying to connect to {address} after {timeout:g} s: {why}"
                    ) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.5)

    async def _wait_for_local(self, cluster: LocalCluster, timeout: float) -> None:
        """Wait until the workers of this machine that are just being started have joined.

        How many those are may change meanwhile, and what they do then is nothing to wait for: one may
        be paused, or leave.
        """
        if self._start_arg is None:
            await off_loop(cluster.wait_until_ready)
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while not cluster.is_ready():
            if loop.time() > until:
                raise TimeoutError(f"the workers are not ready after {timeout:g} s")
            await asyncio.sleep(_PAUSE)

    async def _read_scheduler_file(self, timeout: float) -> tuple[str, _addresses.Credentials]:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while True:
            try:
                return _addresses.of_file(self.scheduler_file)
            except (FileNotFoundError, _scheduler_file.UnfinishedError):
                # Its writer may not be there yet, or not be through.
                if loop.time() > until:
                    raise
                await asyncio.sleep(0.01)

    async def _update_scheduler_info(self, n_workers: int = _SHOWN) -> None:
        if self._connection is None or self.scheduler is None or self.status != "running":
            return
        with suppress(OSError):
            answer = await self.scheduler.identity(n_workers=n_workers)
            self._scheduler_identity = SchedulerInfo(answer)
            self._job.look(answer)
            # Until the sidecar says otherwise: this answer may be older than what that said.
            self._observed |= answer["observed"]

    # Ending

    async def _close(self, fast: bool = False) -> None:
        # What was asked for leaves in any case, as it does with distributed.
        del fast
        while self._is_ending:
            # For another thread or task: whoever is first past it would stop the loop of both.
            await asyncio.sleep(_PAUSE)
        if self.status == "closed":
            return
        self._is_ending = True
        try:
            await self._end()
        finally:
            self._is_ending = False

    async def _end(self) -> None:
        await self._job.end(self)
        self.status = "closing"
        await self.preloads.teardown()
        for callback in self._periodic_callbacks.values():
            callback.stop()
        self._leave_defaults()
        self._scheduler_identity = SchedulerInfo()
        for task in self._events:
            task.cancel()
        self._forget_all()
        if not isinstance(self._connection, Early):
            await off_loop(_trace.detach, self)
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(ValueError, OSError, RuntimeError):
                asyncio.get_running_loop().remove_reader(connection.fileno())
            await off_loop(connection.close, _GOODBYE)
        if self._start_arg is None and self.cluster is not None:
            await off_loop(self.cluster._end)
        host, self._host = self._host, None
        if host is not None:
            self._is_detached = True
            # Another scheduler may have its address later.
            _addresses.forget(str(self._start_arg))
            await host.stop()
        # The connection's descriptors go with it, and not when the interpreter next looks for cycles.
        self.scheduler = None
        with suppress(AttributeError):
            del self.rpc
        self.status = "closed"

    def _leave_defaults(self) -> None:
        """Make it the default client no more."""
        # distributed sets the second one, if it is to be the default client.
        settings = (self._methods, getattr(self, "_set_config", None))
        self._default_settings.leave(self, [one for one in settings if one is not None])
        if self._installation is not None:
            left_by_client(self, self._installation)
            self._installation = None

    def __exit__(self, *error: Any) -> None:
        self._job.failed |= error[0] is not None
        super().__exit__(*error)

    async def __aexit__(self, *error: Any) -> None:
        self._job.failed |= error[0] is not None
        await super().__aexit__(*error)

    def close(self, timeout: Any = no_default) -> Any:
        """End the connection, and the workers if this client started them.

        In an event loop it returns what has to be awaited.

        Raises
        ------
        TimeoutError
            Not within so many seconds.
        """
        if self.asynchronous:
            return super().close(timeout)
        # Whoever is first ends the loop, in which others would wait.
        with self._closing:
            if self.status == "closed" and not self._is_finalizing():
                # It may have been the connection that ended.
                self._loop_runner.stop()
            return super().close(timeout)

    def __del__(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is None or isinstance(connection, Early) or self.status == "closed":
            return
        try:
            if self.asynchronous:
                self._close_soon()
            else:
                self._abandon()
        except RuntimeError:
            # Its event loop has ended before it, or the interpreter does.
            connection.close(0.0)

    def _abandon(self) -> None:
        """Close it without waiting: nobody has it. A finaliser may come where locks are held."""
        self._is_abandoned = True
        # `threading.Thread` takes locks itself.
        _thread.start_new_thread(self._close_abandoned, ())

    def _close_abandoned(self) -> None:
        # None: the constructor was not there yet.
        runner = getattr(self, "_loop_runner", None)
        if runner is None or not runner.is_started():
            self._leave_defaults()
            self.status = "closed"
            return
        with suppress(Exception):
            sync(self.loop, self._end_start)
        with suppress(Exception):
            runner.stop()

    async def _end_start(self) -> None:
        starting = self._starting
        if starting is not None and not starting.done():
            # It closes what it has begun, and may be at it.
            if not self._is_ending:
                starting.cancel()
            await asyncio.wait([starting])
        await self._close(fast=True)

    def _forget_all(self) -> None:
        """Let all futures know that nothing will come any more."""
        # Nothing is to be collected again, so nobody is to be woken for that.
        self._collecting = True
        with self._refcount_lock:
            self._forget(list(self.futures), NO_REASON)
            self._released.clear()
        self._tell_ended()

    async def _shutdown(self) -> None:
        logger.info("Shutting down scheduler from Client")
        self.status = "closing"
        if self.cluster is None:
            assert self.scheduler is not None
            with suppress(OSError):
                await self.scheduler.terminate()
        elif isinstance(self.cluster, LocalCluster):
            self._forget_all()
            await off_loop(self.cluster._end)
        else:
            await self.cluster.close()
        await self._close()

    def _lost_connection(self, reason: str) -> None:
        """The connection has ended: in any thread."""
        if self.status in ("closing", "closed"):
            return
        status = getattr(self.cluster, "status", None)
        closes = status in (Status.closing, Status.closed)
        # Whoever closes a cluster knows that its clients lose it.
        level = logging.DEBUG if closes else logging.ERROR
        logger.log(level, "Lost the connection to the scheduler: %s", reason)
        message = (
            "Client lost the connection to the scheduler. "
            "Please check your connection and re-run your work."
        )
        self._cancel_all("scheduler-connection-lost", f"{message}\n{reason}")
        self._in_loop(self._close_soon)

    def _close_soon(self) -> None:
        self._keep(asyncio.ensure_future(self._close(fast=True)), self._closings)

    _closings: ClassVar[set[asyncio.Future[Any]]] = set()

    @staticmethod
    def _keep(task: asyncio.Future[Any], among: set[Any]) -> None:
        # The loop itself has only a weak reference to a task.
        among.add(task)
        task.add_done_callback(among.discard)

    def _handle_restart(self) -> None:
        """Everything was dropped: in any thread."""
        self._cancel_all("scheduler-restart", "Scheduler has restarted. Please re-run your work.")

    def _cancel_all(self, reason: str, message: str) -> None:
        with self._refcount_lock:
            self._forget(list(self.futures), Cancellation(reason, message))
            if self._connection is not None:
                self._connection.flush()
            self.generation += 1
        self._tell_ended()

    def _record(self, name: str, start: int, count: int) -> None:
        """Tell those who trace of a call that ends now."""
        for spans in self._recorders:
            spans.add(name, start, count)

    def trace_cluster(self) -> ClusterTrace:
        """Begin to record what the cluster does: for :func:`treadle.trace`."""
        return ClusterTrace(self)

    # Messages of distributed's code

    def _send_to_scheduler(self, msg: Mapping[str, Any]) -> None:
        message = dict(msg)
        operation = message.pop("op")
        if self.status not in (*USABLE, "closing"):
            self._refuse(f"send {operation} message")
        if operation in _NEEDLESS:
            return
        connection = self._connection
        if connection is None:
            return
        if operation in ("client-desires-keys", "client-releases-keys"):
            self._stand_in(connection, operation, message)
        elif operation == "cancel-keys":
            connection.cancel(
                list(message["keys"]),
                bool(message.get("force")),
                message.get("reason"),
                message.get("msg"),
            )
        else:
            if operation == "subscribe-topic":
                self._topics.add(message["topic"])
            elif operation == "unsubscribe-topic":
                self._topics.discard(message["topic"])
            message.setdefault("client", self.id)
            stream(connection, operation, message)

    def _stand_in(
        self, connection: _core.Connection, operation: str, message: Mapping[str, Any]
    ) -> None:
        """Want keys, or want them no more, in somebody's name: ``fire_and_forget``, for one."""
        name = message.get("client", self.id)
        if name == self.id:
            return
        request = "desire" if operation == "client-desires-keys" else "undesire"
        keys = list(message["keys"])
        connection.call("", request, {"client": name, "keys": keys}, _ignore)

    def _event(self, topic: str, event: Any) -> None:
        self._keep(asyncio.ensure_future(self._handle_event(topic, event)), self._events)


def _ignore(_result: Any, error: Any) -> None:
    if error is not None:
        logger.debug("The scheduler refused: %s", error)


#: All clients of this process.
connected: weakref.WeakSet[Connected] = weakref.WeakSet()


def _after_fork() -> None:
    """Leave the parent's connections and event loops alone."""
    for client in list(connected):
        client._asyncio_loop = None
        client._connection = None
        client._collecting = client._forked = True
        client._refcount_lock = threading.RLock()
        client._closing = threading.RLock()
        client.status = "closed"
    connected.clear()


os.register_at_fork(after_in_child=_after_fork)
