"""What distributed's scheduler extensions, scheduler plugins and ``run_on_scheduler`` act on."""

from __future__ import annotations

import asyncio
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable, Mapping
from functools import cached_property
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import dask
import psutil  # type: ignore[import-untyped]
from dask.typing import no_default
from distributed import Scheduler, Status
from distributed.diagnostics.plugin import SchedulerPlugin

from treadle import _core
from treadle._compat.distributed import (
    AsyncTaskGroup,
    Broker,
    CollectTaskMetaDataPlugin,
    EventExtension,
    MemorySamplerExtension,
    MultiLockExtension,
    PublishExtension,
    QueueExtension,
    Serialized,
    get_versions,
    process_preloads,
    serialize,
)
from treadle.common._ask import ask, notify
from treadle.common._calls import of_message, pack, unpack_answer
from treadle.common._log import Log
from treadle.common._loop import LoopThread
from treadle.common._numbers import integer
from treadle.common._settings import preloads_of
from treadle.errors._unserved import UnservedError, is_public, not_followed
from treadle.scheduler._adaptive import target_of, workers_to_close
from treadle.scheduler._connection import Connection
from treadle.scheduler._leases import Semaphores
from treadle.scheduler._metadata import Metadata
from treadle.scheduler._native_view import OF_STEPS, Known
from treadle.scheduler._plugins import NannyPlugins, SchedulerPlugins, WorkerPlugins
from treadle.scheduler._profile import Profiles
from treadle.scheduler._steps import Steps
from treadle.scheduler._variables import Variables
from treadle.worker._run import run_function
from treadle.worker._upload import upload_file

__all__ = ["SchedulerStandIn"]

# Seconds between two looks at whether workers were replaced.
_PAUSE = 0.05


class SchedulerStandIn(Known):
    """The scheduler, as its Python side knows it: with what ``distributed.Scheduler`` has for
    extensions, for plugins and for the functions of ``run_on_scheduler``.

    What it tells of the native scheduler is there to be read (:class:`Known`). It lives in the loop's
    thread.
    """

    def __init__(self, connection: Connection, loop: LoopThread) -> None:
        super().__init__(connection)
        self._log = Log()
        self._ongoing_background_tasks = AsyncTaskGroup()
        self._directory: _core.Directory | None = None
        self.address = connection.address
        self.loop = self.io_loop = loop.io_loop
        self.loop_thread = loop
        self.thread_id = loop.ident
        self.time_started = time.time()
        self.proc = psutil.Process()
        # The native scheduler checks its invariants in tests of its own; nobody serves notebooks here.
        self.validate = self.jupyter = False
        self.status = Status.running
        # What was done when somebody asked last (`is_active`).
        self._done = 0
        self.steps = Steps(self)
        self.handlers: dict[str, Callable[..., Any]] = {}
        self.stream_handlers: dict[str, Callable[..., Any]] = {}
        self.periodic_callbacks: dict[str, Any] = {}
        self.plugins: dict[str, Any] = {}
        self.preloads: Any = None
        self.worker_plugins: dict[str, bytes] = {}
        self.nanny_plugins: dict[str, bytes] = {}
        self._metadata = Metadata(self._tasks)
        self.task_metadata = self._metadata.values
        longest = dask.config.get("distributed.admin.log-length", 10_000)
        self._broker = Broker(longest, self)
        self._scheduler_plugins = SchedulerPlugins(self)
        self._worker_plugins = WorkerPlugins(self, self.worker_plugins)
        self._nanny_plugins = NannyPlugins(self, self.nanny_plugins)
        self._profiles = Profiles(self)
        self.semaphores = Semaphores(self)
        self.multi_locks = MultiLockExtension(self)
        holding: Any = _Holding(self)
        self.extensions: dict[str, Any] = {
            "semaphores": self.semaphores,
            "multi_locks": self.multi_locks,
            "publish": PublishExtension(holding),
            "queues": QueueExtension(holding),
            "variables": Variables(holding),
            "events": EventExtension(self),
            "memory_sampler": MemorySamplerExtension(self),
            "spans": self.steps.spans,
        }
        self._add_handlers()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address!r}>"

    def __setattr__(self, name: str, value: Any) -> None:
        what = getattr(type(self), name, None)
        if isinstance(what, property) and what.fset is None:
            raise UnservedError(
                f"{name} of Treadle's scheduler cannot be set: Python is told of it, and decides nothing. "
                "What can be chosen is in Dask's configuration (distributed.scheduler) where the "
                "scheduler starts"
            )
        super().__setattr__(name, value)

    def _add_handlers(self) -> None:
        self.handlers |= {
            "log_event": self.log_event,
            "events": self.get_events,
            "get_metadata": self.get_metadata,
            "set_metadata": self.set_metadata,
            "run_function": self.run_function,
            "versions": self.versions,
            "logs": self.get_logs,
            "get_logs": self.get_logs,
            "broadcast": self.broadcast,
            "adaptive_target": self.find_target,
            "workers_to_close": self.find_closable,
            "register_scheduler_plugin": self._scheduler_plugins.add,
            "unregister_scheduler_plugin": self._scheduler_plugins.remove,
            "register_worker_plugin": self._worker_plugins.add,
            "unregister_worker_plugin": self._worker_plugins.remove,
            "worker_plugins": self._worker_plugins.names,
            "worker_plugin": self._worker_plugins.get,
            "profile": self._profiles.get,
            "profile_metadata": self._profiles.metadata,
            "start_task_metadata": self._start_task_metadata,
            "stop_task_metadata": self._stop_task_metadata,
            "register_nanny_plugin": self._nanny_plugins.add,
            "unregister_nanny_plugin": self._nanny_plugins.remove,
            "nanny_plugins": self._nanny_plugins.registered,
            "nanny_plugin": self._nanny_plugins.get,
        }
        self.stream_handlers |= {
            "subscribe-topic": self.subscribe_topic,
            "unsubscribe-topic": self.unsubscribe_topic,
            "log-event": self.log_event,
            "update-graph": self._submitted,
            "task-metadata": self._annotated,
        }

    # keys that extensions hold

    def client_desires_keys(self, keys: Iterable[Hashable], client: str) -> None:
        """Want keys, on behalf of an extension. Clients want theirs by themselves."""
        if client not in self.nodes:
            self.held.hold(keys, client)

    def client_releases_keys(self, keys: Iterable[Hashable], client: str, **_: Any) -> None:
        """Want keys no more, on behalf of an extension, or of a client, which is not told."""
        if client in self.nodes:
            self.ask_now("undesire", {"client": client, "keys": list(keys)})
        else:
            self.held.drop(list(keys), client)

    def remove_client(self, client: str) -> None:
        """Forget an extension's keys."""
        self.held.drop_holder(client)

    # clients and workers

    def send_all(
        self, client_msgs: Mapping[str, Iterable[dict[str, Any]]], worker_msgs: Mapping[str, Any]
    ) -> None:
        """Send messages to clients: calls whose answers nobody waits for."""
        del worker_msgs  # nothing here has any
        for client, messages in client_msgs.items():
            for message in messages:
                self.client_send(client, message)

    def client_send(self, client: str, msg: Mapping[str, Any]) -> None:
        """Send a message to a client, unless it is gone."""
        node = self.nodes.get(client)
        if node is not None:
            rest = dict(msg)
            notify(self._connection, node, rest.pop("op"), pack(rest))

    report = client_send

    def tell(self, operation: str, argument: Any) -> None:
        """Call the native scheduler, in any thread; nobody waits for the answer."""
        notify(self._connection, "", operation, argument)

    async def ask(self, node: str, operation: str, argument: Any) -> Any:
        """Call a node and return its answer as it is.

        Raises
        ------
        OSError
            The node is gone.
        Exception
            What the operation raised there.
        """
        return await ask(self._connection, node, operation, argument)

    async def broadcast(
        self,
        *,
        msg: Mapping[str, Any],
        workers: Collection[str] | None = None,
        nanny: bool = False,
        on_error: str = "raise",
        **_: Any,
    ) -> dict[str, Any]:
        """Call workers (all of them by default) and return their answers by address.

        With ``nanny``, call those that look after their processes. ``on_error`` is "raise", "return", "return_pickle" or "ignore".
        """
        if on_error not in ("raise", "return", "return_pickle", "ignore"):
            raise ValueError(
                "on_error must be 'raise', 'return', 'return_pickle', "
                f"or 'ignore'; got {on_error!r}"
            )
        if workers is None:
            identity = await self.ask("", "identity", {"n_workers": -1})
            workers = list(identity["workers"])
        operation, argument = of_message(msg, nanny)
        answers = await asyncio.gather(
            *(self.ask(worker, operation, argument) for worker in workers), return_exceptions=True
        )
        results = {}
        for worker, answer in zip(workers, answers, strict=True):
            if not isinstance(answer, BaseException):
                results[worker] = unpack_answer(answer)
            elif on_error == "raise" or not isinstance(answer, Exception):
                raise answer
            elif on_error != "ignore":
                results[worker] = pickle.dumps(answer) if on_error == "return_pickle" else answer
        return results

    async def _submitted(self, follow: bool = False, **_: Any) -> None:
        """A client tells what it submits, which was noted when it came; with ``follow``, it has had
        the scheduler tell its steps.
        """
        if follow:
            self.steps.begin()
            await self.observe()
        self.steps.apply()

    def _annotated(self, **_: Any) -> None:
        """A worker tells what plugins wrote of a task, which was noted when it came."""

    async def replicate(
        self, keys: Iterable[Hashable], n: int | None = None, workers: Any = None, **_: Any
    ) -> None:
        """Copy values to workers until ``n`` of them, by default all, have each."""
        asked = {"keys": list(keys), "n": n, "workers": None if workers is None else list(workers)}
        await self.ask("", "replicate", asked)

    async def retire_workers(
        self, workers: Any = None, *, names: Any = None, **_: Any
    ) -> dict[str, Any]:
        """Have workers leave; returns what was known of them."""
        asked = {"workers": workers, "names": names}
        asked = {name: list(value) for name, value in asked.items() if value is not None}
        gone: dict[str, Any] = await self.ask("", "retire_workers", asked)
        return gone

    def adaptive_target(self, target_duration: Any = None) -> int:
        """Return how many workers there should be for what there is to do."""
        return target_of(self.ask_now("load", {}), _left(self.identity()), target_duration)

    async def find_target(self, target_duration: Any = None) -> int:
        """Return the same; the loop goes on meanwhile."""
        load = await self.ask("", "load", {})
        return target_of(load, await self._known_workers(), target_duration)

    async def is_active(self) -> bool:
        """Return whether there is something to do, or was since the last time that somebody asked."""
        activity = await self.ask("", "activity", {})
        before, self._done = self._done, activity["done"]
        return bool(activity["unfinished"] or activity["calls"] or activity["done"] != before)

    def workers_to_close(self, *how: Any, **named: Any) -> list[Any]:
        """Return which workers can go; ``how`` is as distributed's scheduler has it."""
        return self._closable(_left(self.identity()), *how, **named)

    async def find_closable(self, *how: Any, **named: Any) -> list[Any]:
        """Return the same; the loop goes on meanwhile."""
        return self._closable(await self._known_workers(), *how, **named)

    def _closable(
        self,
        workers: dict[str, dict[str, Any]],
        memory_ratio: float | None = None,
        n: int | None = None,
        key: Any = None,
        minimum: int | None = None,
        target: int | None = None,
        attribute: str = "address",
    ) -> list[Any]:
        """Return which workers can go: their addresses, or their names.

        Those for which ``key``, a function of a worker or its pickle, is the same go together.
        """
        groups = None
        if key is not None:
            key = pickle.loads(key) if isinstance(key, bytes) else key
            views = self.workers
            groups = {address: key(views[address]) for address in workers}
        chosen = workers_to_close(
            workers,
            n=n,
            target=target,
            minimum=minimum,
            memory_ratio=memory_ratio,
            groups=groups,
        )
        return [workers[one]["name"] if attribute == "name" else one for one in chosen]

    async def _known_workers(self) -> dict[str, dict[str, Any]]:
        return _left(await self.ask("", "identity", {"n_workers": -1}))

    async def remove_worker(self, address: str, **_: Any) -> None:
        """End a worker; its tasks run again elsewhere."""
        await self.ask("", "remove_worker", {"worker": address})

    async def restart(
        self, client: Any = None, timeout: float = 30, wait_for_workers: bool = True, **_: Any
    ) -> None:
        """Drop all tasks and values, and have worker processes replaced by whoever supervises them.

        Workers that are threads of this process stay.

        Raises
        ------
        TimeoutError
            Others have not come within so many seconds.
        """
        del client
        before = await self._known_workers()
        await self.ask("", "restart", {})
        # The plugins were told before: this was called after.
        loop = self.loop_thread.asyncio_loop
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop))
        gone = [one for one, worker in before.items() if worker["pid"] != os.getpid()]
        await self.broadcast(msg={"op": "restart"}, workers=gone, on_error="ignore")
        if gone and wait_for_workers:
            names = {before[one]["name"] for one in gone}
            await asyncio.wait_for(self._replaced(set(gone), names), timeout)

    async def _replaced(self, gone: set[str], names: set[Hashable]) -> None:
        """Wait until these workers are gone, and others of their names are there."""
        while True:
            now = await self._known_workers()
            if not gone & now.keys() and names <= {worker["name"] for worker in now.values()}:
                return
            await asyncio.sleep(_PAUSE)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in OF_STEPS:
            # Their properties have raised the same, which ends here.
            raise not_followed(f"Scheduler.{name}")
        if is_public(Scheduler, name):
            raise UnservedError(
                f"Scheduler.{name} of distributed is not served: Treadle's scheduler is native"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @cached_property
    def id(self) -> str:
        """Its name in ``client.scheduler_info()``."""
        return str(self.identity(0)["id"])

    @property
    def ip(self) -> str:
        """The host of its address."""
        return urlsplit(self.address).hostname or ""

    host = ip

    @property
    def port(self) -> int:
        """The port of its address."""
        return urlsplit(self.address).port or 0

    @property
    def allowed_failures(self) -> int:
        """How many workers may be lost while they run a task, before it fails."""
        return int(self.ask_now("allowed_failures", {}))

    @allowed_failures.setter
    def allowed_failures(self, count: int) -> None:
        count = integer("allowed_failures", count, 0, 2**32 - 1)
        self.ask_now("allowed_failures", {"count": count})

    @property
    def monitor(self) -> SimpleNamespace:
        """Of what is measured here over time: nothing. ``performance_report`` asks how much."""
        return SimpleNamespace(count=0)

    # events, metadata, logs

    def log_event(self, topic: str | Collection[str], msg: Any) -> None:
        """Log an event; those that subscribed the topic are told."""
        self._broker.publish(topic, msg)

    def get_events(self, topic: str | None = None) -> Any:
        """Return the events of a topic, or of all topics by name."""
        return self._broker.get_events(topic)

    def subscribe_topic(self, topic: str, client: str) -> None:
        """Send a client each event of a topic from now on."""
        self._broker.subscribe(topic, client)

    def unsubscribe_topic(self, topic: str, client: str) -> None:
        """Send it no more."""
        self._broker.unsubscribe(topic, client)

    def unsubscribe_all(self, client: str) -> None:
        """Send a client nothing any more: it is gone."""
        for topic in list(self._broker._topics):
            self._broker.unsubscribe(topic, client)

    def set_metadata(self, keys: Collection[Hashable], value: Any = None) -> None:
        """Set a value in nested dictionaries, which are made on the way."""
        self._metadata.put(keys, value)

    def get_metadata(self, keys: Collection[Hashable], default: Any = no_default) -> Any:
        """Return a value from nested dictionaries, or the default, or raise ``KeyError``."""
        return self._metadata.get(keys, default)

    def get_logs(
        self, start: float = 0, n: int | None = None, timestamps: bool = False
    ) -> tuple[Any, ...]:
        """Return (time,) level and text of the log's entries since a time, newest first."""
        return self._log.entries(start, n, timestamps)

    def versions(self, packages: Collection[str] | None = None) -> dict[str, Any]:
        """Return the versions of Python and of packages."""
        versions: dict[str, Any] = get_versions(packages=packages)
        return versions

    # functions, files, plugins

    def run_function(
        self, function: bytes, args: Any = (), kwargs: Any = None, wait: bool = True
    ) -> Coroutine[Any, Any, Any]:
        """Run a function here; ``dask_scheduler``, if it takes that, is this object."""
        return run_function(self, function, args, kwargs, wait)

    @property
    def local_directory(self) -> str:
        """A directory for files of this process, made when it is first asked for."""
        if self._directory is None:
            self._directory = _core.Directory("scheduler", tempfile.gettempdir())
        return str(self._directory.path)

    async def upload_file(
        self, filename: str, data: str | bytes, load: bool = True
    ) -> dict[str, Any]:
        """Write a file to the local directory and import it."""
        return await upload_file(self.local_directory, filename, data, load)

    async def register_worker_plugin(
        self, comm: None, plugin: bytes, name: str, *, idempotent: bool
    ) -> dict[str, dict[str, Any]]:
        """Register a worker plugin, for scheduler plugins that do (``PipInstall``)."""
        del comm
        return _serialized(await self._worker_plugins.add(plugin, name, idempotent=idempotent))

    async def unregister_worker_plugin(self, comm: None, name: str) -> dict[str, dict[str, Any]]:
        """Unregister a worker plugin."""
        del comm
        return _serialized(await self._worker_plugins.remove(name))

    async def register_nanny_plugin(
        self, comm: None, plugin: bytes, name: str, idempotent: bool
    ) -> dict[str, dict[str, Any]]:
        """Register a nanny plugin, for scheduler plugins that do (``UploadDirectory``)."""
        del comm
        return _serialized(await self._nanny_plugins.add(plugin, name, idempotent=idempotent))

    async def unregister_nanny_plugin(self, comm: None, name: str) -> dict[str, dict[str, Any]]:
        """Unregister a nanny plugin."""
        del comm
        return _serialized(await self._nanny_plugins.remove(name))

    def add_plugin(
        self, plugin: SchedulerPlugin, *, idempotent: bool = False, name: str | None = None
    ) -> None:
        """Add a plugin without starting it; see ``distributed.Scheduler.add_plugin``."""
        self._scheduler_plugins.put(plugin, name, idempotent=idempotent)
        self._in_loop(self._scheduler_plugins.observe())

    def remove_plugin(self, name: str | None = None) -> None:
        """Forget a plugin."""
        self._scheduler_plugins.forget(name)
        self._in_loop(self._scheduler_plugins.observe())

    async def register_scheduler_plugin(
        self, plugin: bytes | SchedulerPlugin, name: str | None = None, idempotent: bool = False
    ) -> None:
        """Start a plugin and keep it."""
        await self._scheduler_plugins.add(plugin, name, idempotent=idempotent)

    async def unregister_scheduler_plugin(self, name: str) -> None:
        """Forget a plugin."""
        await self._scheduler_plugins.remove(name)

    def start_task_metadata(self, name: str) -> None:
        """Begin to note the metadata of tasks that are submitted from now on, and how they end."""
        self.add_plugin(CollectTaskMetaDataPlugin(scheduler=self, name=name), name=name)

    async def _start_task_metadata(self, name: str) -> None:
        # Whoever asked submits only when its client has been told to tell.
        self.start_task_metadata(name)
        await self.observe()

    def stop_task_metadata(self, name: str | None = None) -> dict[str, Any]:
        """Return the metadata of the tasks that ended meanwhile, and how they did.

        Raises
        ------
        ValueError
            Nobody began under this name.
        """
        plugin = self.plugins.get(str(name))
        if not isinstance(plugin, CollectTaskMetaDataPlugin):
            raise ValueError(f"Nobody has started to collect task metadata as {name!r}")
        self.steps.sync()
        self.remove_plugin(str(name))
        return {"metadata": plugin.metadata, "state": plugin.state}

    async def _stop_task_metadata(self, name: str | None = None) -> dict[str, Any]:
        found = self.stop_task_metadata(name)
        await self.observe()
        return found

    def _in_loop(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self.loop.asyncio_loop)  # type: ignore[attr-defined]

    async def observe(self) -> None:
        """Have clients tell what they submit, if somebody wants to know."""
        await self._scheduler_plugins.observe()

    def call_plugins(self, hook: str, *args: Any, **kwargs: Any) -> None:
        """Call a hook of all scheduler plugins that have it."""
        self._scheduler_plugins.call(hook, *args, **kwargs)

    async def tell_plugins(self, hook: str, *args: Any, **kwargs: Any) -> None:
        """Call a hook of all scheduler plugins."""
        await self._scheduler_plugins.tell(hook, *args, **kwargs)

    async def preload(self) -> None:
        """Run the preload scripts of schedulers; what importing one raises is raised."""
        scripts, arguments = preloads_of("scheduler")
        if scripts:
            self.preloads = process_preloads(
                self, scripts, arguments, file_dir=self.local_directory
            )
            await self.preloads.start()

    async def close(self) -> None:
        """Tell the plugins that it is over, and clean up."""
        if self.preloads is not None:
            await self.preloads.teardown()
        await self.tell_plugins("before_close")
        self.status = Status.closing
        await self.tell_plugins("close")
        for callback in self.periodic_callbacks.values():
            callback.stop()
        self._log.close()
        if self._directory is not None:
            self._directory.remove()
        self.status = Status.closed


class _Holding:
    """The scheduler for those of distributed's extensions that hold keys: ``tasks`` are these."""

    def __init__(self, scheduler: SchedulerStandIn) -> None:
        self._scheduler = scheduler
        self.tasks = scheduler.held

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)


def _left(identity: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the workers that have not closed."""
    workers = identity["workers"].items()
    return {one: dict(worker) for one, worker in workers if worker["status"] != "closed"}


def _serialized(responses: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Responses with their errors as the wire of distributed leaves them at its scheduler."""
    return {
        worker: {
            name: Serialized(*serialize(value))
            if name in ("exception", "traceback") and isinstance(value, bytes)
            else value
            for name, value in response.items()
        }
        for worker, response in responses.items()
    }
