"""A Dask cluster as the host: a plugin of its scheduler starts ours, one of its workers starts ours."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import ipaddress
import itertools
import logging
import pickle
import secrets
import sys
import textwrap
import weakref
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import dask
import distributed
from distributed import Status
from distributed.diagnostics.plugin import SchedulerPlugin, WorkerPlugin

from treadle._compat.distributed import dumps
from treadle._core import __version__
from treadle.common._certificates import Certificates
from treadle.common._loop import off_loop
from treadle.common._secret import new_secret
from treadle.common._security import certificates_of, temporary
from treadle.common._settings import resources_of
from treadle.common._worker_options import WorkerOptions
from treadle.hosting._host_base import Host, Place
from treadle.hosting._start_part import made
from treadle.hosting._version_check import SCHEDULER, check_hosts, check_installed

__all__ = ["DaskHost", "HostedScheduler", "HostedWorker"]

# The name of both plugins.
NAME = "treadle"
# Seconds in which Dask's scheduler answers.
_PATIENCE = 5.0
# Seconds in which the values of a worker that retires move to others.
_RETIRING = 60.0
# Seconds after which a worker that could not join tries again.
_AGAIN = 10.0
# Seconds between two looks at whether there is something to do. Dask looks for idle time four times a second.
_LOOK = 1.0
_LOOPBACK = "127.0.0.1"
# How ``distributed.dashboard.link`` begins where it leads to the scheduler itself.
_DIRECT = "{scheme}://{host}:{port}"

logger = logging.getLogger("treadle.hosting")


# Plugins that start in this process, by Dask's scheduler and their names.
_starting: WeakKeyDictionary[Any, dict[str, HostedScheduler]] = WeakKeyDictionary()


class HostedScheduler(SchedulerPlugin):
    """Treadle's scheduler in the process of Dask's. Dask's adaptive scaling knows its load."""

    name = NAME
    #: Whether its pages are shown behind those of Dask's.
    has_pages = True

    #: What is said of a cluster that has one already: with what to do.
    taken = (
        "Treadle is attached to {} already: detach it first (client.detach(), or "
        "treadle.detach(dask_client) where that client is gone), or connect a further treadle.Client to "
        "the address of the attached one"
    )

    def __init__(self, secret: bytes, certificates: Certificates | None) -> None:
        self._secret = secret
        self._certificates = certificates
        #: Tells it from one that another client starts.
        self.token = secrets.token_hex(8)
        self._part: Any = None
        self._relay: Any = None
        self._is_closed = False
        # Names of workers that are not to go: as of the last time that somebody asked.
        self._needed: frozenset[str] = frozenset()

    async def start(self, scheduler: Any) -> None:
        """Start it, as the only one of this name.

        Raises
        ------
        RuntimeError
            There is one, or the cluster ends, or nobody wants it any more.
        """
        from treadle.hosting._relay import Relay
        from treadle.hosting._scheduler_part import SchedulerPart

        # Dask adds the plugin only after this.
        starting = _starting.setdefault(scheduler, {})
        if self.name in starting or self.name in scheduler.plugins:
            raise RuntimeError(self.taken.format(f"the Dask cluster at {scheduler.address}"))
        starting[self.name] = self
        try:
            links = links_of(scheduler, self._certificates)
            relays = self.has_pages and Relay.fits(scheduler)
            # Only Dask's scheduler asks for them.
            pages = f"{_LOOPBACK}:0" if relays else None
            make = partial(SchedulerPart, secret=self._secret, pages=pages, **links)
            part = await made(make, lambda: not self._is_closed and _runs(scheduler))
            if part is None:
                raise RuntimeError(
                    "Treadle has not started: the cluster ends, or was left meanwhile"
                )
        finally:
            del starting[self.name]
        self._part = part
        self.address = part.address
        self._scheduler = scheduler
        if relays and part.pages_link is not None:
            self._relay = Relay(scheduler, part.pages_link, self.name)
        # Numbers of tasks of Dask, by their ids. A reference takes out what is forgotten: the id may be
        # another task's later.
        self._numbers: dict[int, tuple[Any, int]] = {}
        self._count = itertools.count()
        self._enter()

    def _enter(self) -> None:
        """Answer what Dask's adaptive scaling asks, and look whether Treadle is idle."""
        scheduler = self._scheduler
        self._watching = asyncio.create_task(self._keep_awake())
        self._handlers = {
            name: scheduler.handlers[name]
            for name in ("adaptive_target", "workers_to_close", "retire_workers")
        }
        own: dict[str, Callable[..., Any]] = {
            "adaptive_target": self._adaptive_target,
            "workers_to_close": self._workers_to_close,
            "retire_workers": self._retire_workers,
        }
        scheduler.handlers |= own

    def leave(self) -> None:
        """Leave all to Dask's scheduler."""
        self._scheduler.handlers |= self._handlers
        self._watching.cancel()

    async def _keep_awake(self) -> None:
        """Have Dask's scheduler not be idle while Treadle has something to do.

        It would end its cluster after ``distributed.scheduler.idle-timeout``, and others that ask it
        (``check_idle``) would, too.
        """
        scheduler = self._scheduler
        while True:
            timeout = scheduler.idle_timeout
            await asyncio.sleep(min(_LOOK, timeout / 4) if timeout else _LOOK)
            with suppress(OSError):
                if await self._part.is_active():
                    scheduler.idle_since = None

    async def close(self) -> None:
        self._is_closed = True
        part, self._part = self._part, None
        relay, self._relay = self._relay, None
        if relay is not None:
            relay.close()
        if part is not None:
            self.leave()
            await off_loop(part.close)

    @property
    def shown(self) -> bool:
        """Whether Dask's scheduler shows the pages of Treadle's."""
        return self._relay is not None

    def numbers(self, keys: Collection[Hashable]) -> dict[Hashable, int]:
        """Return a number of Dask's task of each key, which no other task has: the next one of the
        same key has another. Tasks that have no value, and get none, are left out."""
        found = {}
        for key in keys:
            task = self._scheduler.tasks.get(key)
            if task is None or task.state == "released":
                continue
            own = id(task)
            if own not in self._numbers:
                forget = partial(_forget, self._numbers, own)
                self._numbers[own] = weakref.ref(task, forget), next(self._count)
            found[key] = self._numbers[own][1]
        return found

    # What adaptive scaling asks

    async def _adaptive_target(self, target_duration: Any = None) -> int:
        await self._look()
        theirs: int = self._handlers["adaptive_target"](target_duration=target_duration)
        ours: int = await self._ask("adaptive_target", target_duration)
        return max(theirs, ours)

    async def _workers_to_close(self, **kwargs: Any) -> list[Any]:
        await self._look()
        chosen: list[Any] = self._handlers["workers_to_close"](**kwargs)
        return chosen

    def valid_workers_downscaling(self, scheduler: Any, workers: list[Any]) -> list[Any]:
        """Leave out workers whose tasks or values of Treadle are needed."""
        del scheduler
        return [worker for worker in workers if str(worker.name) not in self._needed]

    async def _look(self) -> None:
        """Find out which workers are not to go: those that Treadle's scheduler would keep."""
        self._needed = frozenset(await self._ask("needed"))

    async def _retire_workers(self, **kwargs: Any) -> Any:
        """Retire workers when their values of Treadle are elsewhere."""
        states = self._scheduler.workers
        if kwargs.get("names") is None and kwargs.get("workers") is None:
            # Dask would choose by what was asked before.
            given = ("names", "workers", "close_workers", "remove", "stimulus_id")
            rest = {name: value for name, value in kwargs.items() if name not in given}
            chosen = await self._workers_to_close(**rest)
            kwargs = {name: kwargs[name] for name in given if name in kwargs} | {"workers": chosen}
        named = {str(name) for name in kwargs.get("names") or ()}
        addresses = set(kwargs.get("workers") or ())
        asked = {one: str(state.name) for one, state in states.items()}
        asked = {one: name for one, name in asked.items() if one in addresses or name in named}
        if asked:
            # Dask's worker takes its own time when it ends.
            # Before Python 3.11 a time limit raises a class of its own.
            with suppress(OSError, TimeoutError, concurrent.futures.TimeoutError):
                await self._ask("retire", set(asked.values()))
        gone: Any = ()
        try:
            gone = await self._handlers["retire_workers"](**kwargs)
        finally:
            if stay := [one for one in asked if one in states and one not in gone]:
                # Dask has declined: their values are nowhere else.
                run = {"op": "run", "function": dumps(_rejoin), "wait": True}
                await self._scheduler.broadcast(msg=run, workers=stay, on_error="ignore")
        return gone

    async def _ask(self, what: str, *args: Any) -> Any:
        return await off_loop(partial(getattr(self._part, what), *args, timeout=_RETIRING))


def _forget(numbers: dict[int, Any], own: int, _: Any) -> None:
    numbers.pop(own, None)


def _runs(scheduler: Any) -> bool:
    return scheduler.status is Status.running


class HostedWorker(WorkerPlugin):
    """Treadle's worker in the process of a worker of Dask, or in one beside it.

    A worker of Dask that joins later and has no Treadle, or another version, gets a plugin that does
    nothing: it would not start with an error here.
    """

    name = NAME
    #: Whether values pass between it and Dask's worker in the same process.
    passes_values = True

    def __init__(
        self,
        place: Place,
        nthreads: int | None,
        memory_fraction: float,
        processes: bool,
    ) -> None:
        self._arguments = place, nthreads, memory_fraction, processes
        self._scheduler = place.address
        self._secret = place.secret
        self._certificates = place.certificates
        self._nthreads = nthreads
        self._memory_fraction = memory_fraction
        self._processes = processes
        self._part: Any = None
        self._trying: asyncio.Task[None] | None = None
        self._is_torn_down = False

    def __reduce__(self) -> Any:
        made = pickle.dumps(partial(type(self), *self._arguments))
        # As text: the bytes of a function are not the same in another version of Python.
        source = textwrap.dedent(inspect.getsource(made_where_it_fits))
        call = "exec(source, names) or names['made_where_it_fits'](made, version, python)"
        names: dict[str, Any] = {
            "made": made,
            "version": __version__,
            "python": list(sys.version_info[:2]),
            "source": source,
            "names": {},
        }
        return eval, (call, names)

    async def setup(self, worker: Any) -> None:
        from treadle.hosting import _worker_parts

        part: Callable[..., Any] = _worker_parts.WorkerPart
        if self._processes:
            # It has connections to Dask, too.
            own = certificates_of(worker.security, "worker") if _has_tls(worker) else None
            part = partial(_worker_parts.ProcessPart, certificates_of_host=own)
        options = WorkerOptions(
            nthreads=self._nthreads or worker.state.nthreads,
            memory_limit=int((worker.memory_manager.memory_limit or 0) * self._memory_fraction),
            resources=resources_of(worker.state.total_resources),
            local_directory=worker.local_directory,
        )
        make = partial(
            part,
            self._scheduler,
            options,
            name=str(worker.name),
            secret=self._secret,
            **links_of(worker, self._certificates),
        )
        try:
            if self._processes and worker.address.startswith("inproc://"):
                raise ValueError(
                    "processes=True: nothing can be connected to a worker of Dask at inproc://. "
                    "Start the Dask cluster with protocol='tcp://'"
                )
            await self._begin(worker, make)
        except Exception as error:
            if isinstance(error, OSError):
                # Who attaches is told, and has this plugin torn down. A worker that comes later may
                # reach the scheduler in a while.
                self._trying = asyncio.create_task(self._try_again(worker, make))
            text = f"Treadle's worker cannot start on worker {worker.address}: {error}"
            raise RuntimeError(text) from error

    async def _begin(self, worker: Any, make: Callable[[], Any]) -> None:
        from treadle.hosting import _value_exchange

        self._part = await made(make, lambda: not self._is_torn_down)
        # Otherwise the worker ends, or Treadle was detached meanwhile.
        if self._part is not None and self.passes_values and not self._processes:
            _value_exchange.enter(worker)

    async def _try_again(self, worker: Any, make: Callable[[], Any]) -> None:
        while self._part is None and not self._is_torn_down:
            await asyncio.sleep(_AGAIN)
            try:
                await self._begin(worker, make)
            except Exception as error:
                logger.warning("Treadle's worker still cannot start: %s", error)

    async def rejoin(self) -> None:
        """Have a worker again where ours has left."""
        if self._part is not None:
            await off_loop(self._part.rejoin)

    async def teardown(self, worker: Any) -> None:
        from treadle.hosting import _value_exchange

        self._is_torn_down = True
        if self._trying is not None:
            self._trying.cancel()
        part, self._part = self._part, None
        if part is not None:
            await off_loop(part.close)
        if self.passes_values:
            _value_exchange.leave(worker)


class DaskHost(Host):
    """A Dask cluster, through a client of it. Coroutines run in any loop, and its own is used."""

    #: The name of both plugins.
    name = NAME
    #: What is said of a cluster that has none.
    missing = "Treadle is not attached to {}"

    def __init__(
        self,
        client: Any,
        nthreads: int | None,
        memory_fraction: float,
        processes: bool,
    ) -> None:
        self._client = client
        self._options = nthreads, memory_fraction, processes
        self._address: str = client.scheduler.address
        self._has_workers = False
        # Whether Dask's pages lead to Treadle's.
        self._is_shown = False
        # Of the plugin of the scheduler, if there is one; "": of whoever has started it.
        self._token: str | None = None
        # What both engines have, by key: the state of our future, and the number of Dask's task.
        self._same: dict[Hashable, tuple[Any, int]] = {}

    def __str__(self) -> str:
        return f"the Dask cluster at {self._address}"

    @property
    def dashboard_link(self) -> str | None:
        if self._client.status != "running":
            return None
        link: str | None = self._client.dashboard_link
        return link

    @property
    def pages_link(self) -> str | None:
        link = self.dashboard_link
        if link is None or not self._is_shown:
            return None
        return f"{link.removesuffix('status').removesuffix('/')}/{self.name}/"

    @property
    def own_pages_link(self) -> str | None:
        link = self.pages_link
        if link is None or dask.config.get("distributed.dashboard.link").startswith(_DIRECT):
            return link
        identity = self._client._scheduler_identity
        scheme = "https" if dask.config.get("distributed.scheduler.dashboard.tls.cert") else "http"
        host = urlsplit(self._address).hostname
        if self._address.startswith("inproc"):
            host = _LOOPBACK
        host = f"[{host}]" if host and ":" in host else host
        return f"{scheme}://{host}:{identity['services']['dashboard']}/{self.name}/"

    async def _ask(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a coroutine function with Dask's client, in the loop of that."""
        loop = self._client.loop.asyncio_loop
        if loop is asyncio.get_running_loop():
            return await function(self._client, *args)
        asked = asyncio.run_coroutine_threadsafe(function(self._client, *args), loop)
        return await asyncio.wrap_future(asked)

    # Beginning

    async def start_scheduler(self) -> Place:
        await self._ask(self._check)
        secret, certificates = new_secret(), None
        if self._address.startswith("tls://"):
            # Dask's own need not have the name that Treadle asks for.
            certificates = certificates_of(await off_loop(temporary))
        plugin = self.scheduler_plugin(secret, certificates)
        self._token = plugin.token
        address, self._is_shown = await self._ask(_start_scheduler, plugin)
        return Place(address, secret, certificates, certificates is None)

    async def start_workers(self, place: Place) -> None:
        self._has_workers = True
        await self._ask(_register, self.worker_plugin(place))

    def scheduler_plugin(self, secret: bytes, certificates: Certificates | None) -> HostedScheduler:
        """Return what starts Treadle's scheduler."""
        return HostedScheduler(secret, certificates)

    def worker_plugin(self, place: Place) -> WorkerPlugin:
        """Return what starts a worker of Treadle."""
        return HostedWorker(place, *self._options)

    async def _check(self, client: Any) -> None:
        """Refuse a cluster that has an attachment, or processes that do not fit."""
        check_hosts(await client.get_versions(), str(self))
        scheduler, workers = await asyncio.gather(
            client.run_on_scheduler(_installed), client.run(_installed)
        )
        check_installed({SCHEDULER: scheduler, **workers}, str(self))

    # Ending

    async def stop(self) -> None:
        # A cluster that has gone has taken Treadle along.
        with suppress(OSError):
            if self._client.status == "running":
                await self._ask(self._stop)
                return
            # Its user has closed it.
            options: dict[str, Any] = {"timeout": _PATIENCE, "set_as_default": False}
            async with distributed.Client(
                self._address, security=self._client.security, asynchronous=True, **options
            ) as client:
                await self._stop(client)

    async def undo(self) -> None:
        """End what any client has started.

        Raises
        ------
        RuntimeError
            Nobody has.
        """
        if not await self._ask(_is_there, self.name):
            raise RuntimeError(self.missing.format(self))
        self._token, self._has_workers = "", True
        await self.stop()

    async def _stop(self, client: Any) -> None:
        try:
            if self._has_workers:
                self._has_workers = False
                # A worker that is closing has removed its plugin, or the scheduler. The connection to
                # one that dies meanwhile is lost.
                with suppress(KeyError, ValueError, OSError):
                    await client.unregister_worker_plugin(self.name)
        finally:
            token, self._token = self._token, None
            if token is not None:
                await client.run_on_scheduler(_close, self.name, token)

    # Values

    def owns(self, future: Any) -> bool:
        if not isinstance(future, distributed.Future):
            return False
        scheduler = getattr(future.client, "scheduler", None)
        return scheduler is not None and scheduler.address == self._address

    async def adopt(self, client: Any, futures: Collection[Any]) -> Mapping[Hashable, Any]:
        from treadle.hosting._futures import adopted

        return await adopted(client, futures, self._ask, self._address, self._same)

    async def give_back(self, client: Any, futures: Collection[Any]) -> Mapping[Hashable, Any]:
        from treadle.hosting._futures import given_back

        return await given_back(client, futures, self._ask, self._address, self._same)


async def _rejoin(dask_worker: Any) -> None:
    plugin = dask_worker.plugins.get(NAME)
    if isinstance(plugin, HostedWorker):
        await plugin.rejoin()


def made_where_it_fits(made, version, python):  # type: ignore[no-untyped-def]
    """Return the plugin of a worker, or one that does nothing where Treadle is not what it is here.

    Only its text goes to the worker.
    """
    import logging
    import pickle
    import sys

    from distributed.diagnostics.plugin import WorkerPlugin

    log = logging.getLogger("distributed.worker")
    own = list(sys.version_info[:2])
    if own != list(python):
        log.warning(
            "Treadle is attached to this cluster, and will not use this worker: it runs Python %d.%d, "
            "and the client Python %d.%d",
            *(*own, *python),
        )
        return WorkerPlugin()
    try:
        import treadle

        found = treadle.__version__
    except ImportError as error:
        found = f"none ({error})"
    if found == version:
        return pickle.loads(made)()
    log.warning(
        "Treadle %s is attached to this cluster, and will not use this worker, which has %s: "
        "pip install treadle==%s here, and start the worker again",
        *(version, found, version),
    )
    return WorkerPlugin()


def links_of(server: Any, certificates: Certificates | None) -> dict[str, Any]:
    """Return how Treadle listens beside a scheduler or worker of Dask: ``host``, ``certificates``
    (None: its connections have no TLS) and ``insecure``."""
    parts = urlsplit(server.address)
    host = parts.hostname if parts.scheme in ("tcp", "tls") else None
    host = host or _LOOPBACK  # inside a process
    insecure = certificates is None and not _is_loopback(host)
    return {"host": host, "certificates": certificates, "insecure": insecure}


def _has_tls(server: Any) -> bool:
    return bool(server.address.startswith("tls://"))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# In the loop of Dask's client


async def _start_scheduler(client: Any, plugin: Any) -> tuple[str, bool]:
    await client.register_plugin(plugin, name=plugin.name)
    place: tuple[str, bool] = await client.run_on_scheduler(_place, plugin.name)
    return place


async def _register(client: Any, plugin: Any) -> None:
    await client.register_plugin(plugin, name=plugin.name)


# What runs in the cluster. Treadle may not be installed there, so it goes there by value.


def _by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    function.__module__ = "__main__"
    return function


@_by_value
def _installed() -> tuple[str | None, str]:
    """Return the version of Treadle there, and why it cannot be imported."""
    try:
        import treadle
    except ImportError as error:
        return None, "" if error.name == "treadle" else str(error)
    return treadle.__version__, ""


@_by_value
def _place(name: str, dask_scheduler: Any) -> tuple[str, bool]:
    plugin = dask_scheduler.plugins[name]
    return plugin.address, plugin.shown


async def _is_there(client: Any, name: str) -> bool:
    found: bool = await client.run_on_scheduler(_has_plugin, name)
    return found


def _has_plugin(name: str, dask_scheduler: Any) -> bool:
    return name in dask_scheduler.plugins


async def _close(name: str, token: str, dask_scheduler: Any) -> None:
    """End what was started, if it is that of the token, or of anybody without one."""
    plugin = dask_scheduler.plugins.get(name) or _starting.get(dask_scheduler, {}).get(name)
    if plugin is not None and token in ("", plugin.token):
        dask_scheduler.plugins.pop(name, None)
        await plugin.close()
