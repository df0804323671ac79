"""What ``get_worker()`` returns: a worker with the public attributes of ``distributed.Worker``."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import pickle
import sys
import threading
import uuid
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import dask
from dask.utils import parse_timedelta
from distributed import Status, profile
from distributed.utils import in_async_call

from treadle._compat.distributed import AsyncTaskGroup, SystemMonitor, get_versions, is_dumpable
from treadle.common._ask import ask
from treadle.common._calls import pack
from treadle.common._names import name_of
from treadle.common._numbers import amounts
from treadle.errors._unserved import UnservedError, is_public
from treadle.pickling._script import refuse_while_imported
from treadle.worker._data import Data
from treadle.worker._ends import Cause
from treadle.worker._executors import Executors
from treadle.worker._rpc import SchedulerRPC, WorkerRPC, ask_scheduler
from treadle.worker._upload import upload_file

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from distributed import Client
    from distributed.diagnostics.plugin import WorkerPlugin
    from tornado.ioloop import IOLoop

    from treadle.common._log import Log
    from treadle.common._loop import LoopThread
    from treadle.shuffle._plugin import Shuffles
    from treadle.worker._engine import Engine
    from treadle.worker._native import Native
    from treadle.worker._plugins import Plugins

__all__ = ["WorkerStandIn", "coroutine_key"]

logger = logging.getLogger(__name__)

# Seconds that the scheduler's Python side has to take an event.
_PATIENCE = 5.0

# The key of the asynchronous task that runs in this context: those share the loop's thread.
coroutine_key: contextvars.ContextVar[Hashable] = contextvars.ContextVar("coroutine_key")


@dataclass(frozen=True)
class TaskHere:
    """A task that is at a worker, as it was when it was looked at."""

    key: Hashable
    #: "waiting" (for inputs), "ready" (for a slot), "executing", "long-running" or "memory".
    state: str
    #: What ``WorkerPlugin.transition`` writes here is told to the scheduler when the task has run.
    metadata: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __repr__(self) -> str:
        return f"<TaskState {self.key!r} {self.state}>"


class _Tasks(Mapping[Hashable, TaskHere]):
    """``Worker.state.tasks``."""

    def __init__(self, native: Native, metadata: Mapping[Hashable, dict[str, Any]]) -> None:
        self._native = native
        self._metadata = metadata

    def _now(self) -> dict[Hashable, TaskHere]:
        told = self._metadata
        states = self._native.tasks().items()
        return {key: TaskHere(key, state, told.get(key, {})) for key, state in states}

    def __getitem__(self, key: Hashable) -> TaskHere:
        return self._now()[key]

    def __contains__(self, key: object) -> bool:
        return key in self._native.tasks()

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._native.tasks())

    def __len__(self) -> int:
        return len(self._native.tasks())

    def values(self) -> Any:
        """Return all of them, as they are now."""
        return self._now().values()

    def items(self) -> Any:
        """Return all of them with their keys, as they are now."""
        return self._now().items()

    def __repr__(self) -> str:
        return repr(self._now())


class _State:
    """``Worker.state``."""

    #: The native worker checks its invariants in tests of its own.
    validate = False

    def __init__(self, worker: WorkerStandIn) -> None:
        self._worker = worker
        self.nthreads = worker._native.nthreads
        self.actors: dict[Hashable, Any] = {}
        self.data = worker.data
        self.total_resources = dict(worker._native.resources)
        self.address = worker.address
        self._metadata: dict[Hashable, dict[str, Any]] = {}

    @property
    def available_resources(self) -> dict[str, float]:
        """How much of each resource no task uses, as the scheduler knows it now."""
        asked = ask_scheduler(self._worker._native, "identity", {"n_workers": -1}, _PATIENCE)
        used = asked["workers"].get(self.address, {}).get("used_resources", {})
        return {name: total - used.get(name, 0) for name, total in self.total_resources.items()}

    @property
    def tasks(self) -> Mapping[Hashable, TaskHere]:
        """The tasks that are here, by key, whenever that is read.

        Those that wait, that run, and that have a value here. A small value is at the scheduler, and
        its task is here no more once it is done. Values that came from other workers are not listed.
        """
        return _Tasks(self._worker._native, self._metadata)

    def annotate(self, key: Hashable) -> None:
        """Keep what is written into the metadata of a task that begins, until :meth:`annotated`."""
        self._metadata[key] = {}

    def annotated(self, key: Hashable) -> None:
        """Tell the scheduler what was written into the metadata of a task, which has run."""
        metadata = self._metadata.pop(key, None)
        if metadata:
            self._worker.tell_sidecar("stream:task-metadata", {"key": key, "metadata": metadata})

    @property
    def executing_count(self) -> int:
        """How many tasks run now, without those that have seceded."""
        return list(self._worker._native.tasks().values()).count("executing")

    @property
    def executed_count(self) -> int:
        """How many tasks have run here so far."""
        return self._worker._native.executed()

    @property
    def running(self) -> bool:
        """Whether it starts tasks: it is not paused, and does not end."""
        return self._worker.status is Status.running


class _MemoryManager:
    """``Worker.memory_manager``."""

    def __init__(self, data: Data, memory_limit: int | None) -> None:
        self.data = data
        self.memory_limit = memory_limit


class _Plugins(dict[str, "WorkerPlugin"]):
    """``Worker.plugins``."""

    def __init__(self, native: Native, credentials: Mapping[str, Any]) -> None:
        super().__init__()
        self._native = native
        self._credentials = credentials
        self._shuffles: Shuffles | None = None
        self._making = threading.Lock()

    def __missing__(self, name: str) -> Shuffles:
        """Where distributed's own workers have what their P2P shuffles need."""
        if name != "shuffle":
            raise KeyError(name)
        with self._making:
            if self._shuffles is None:
                from treadle.shuffle._plugin import Shuffles

                self._shuffles = Shuffles(self._native, self._credentials)
            return self._shuffles

    def close_shuffles(self) -> None:
        """Leave the shuffle services that tasks have used."""
        if self._shuffles is not None:
            self._shuffles.close()


class WorkerStandIn:
    """The worker that runs the calling task.

    It has what the documentation of ``distributed.Worker`` names, and what distributed's own
    functions use in tasks. The rest of a worker is native.
    """

    def __init__(
        self, native: Native, loop: LoopThread, log: Log, connection: Mapping[str, Any]
    ) -> None:
        self._native = native
        self._loop = loop
        self._log = log
        self._connection = {key: value for key, value in connection.items() if value is not None}
        self._clients: list[Client] = []
        self._client_lock = threading.Lock()
        self._ongoing_background_tasks = AsyncTaskGroup()
        # It tells this registration from others of the same name.
        self.id = f"{type(self).__name__}-{native.id}-{uuid.uuid4()}"
        self.name = name_of(native.name)
        self.address = self.contact_address = self.worker_address = native.address
        self.data = Data(native)
        self.memory_manager = _MemoryManager(self.data, native.memory_limit or None)
        self.state = _State(self)
        self.local_directory = native.directory
        self.loop: IOLoop = loop.io_loop
        self.io_loop = self.loop
        self.thread_id = loop.ident
        self.scheduler = SchedulerRPC(native, native.scheduler)
        self.plugins: _Plugins = _Plugins(native, self._connection)
        self.extensions: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}
        # What plugins start, and the worker's end stops.
        self.periodic_callbacks: dict[str, Any] = {}
        # Set by the service.
        self.preloads: Any = None
        # distributed's own code holds it while it reads `active_threads`; nothing is changed under it.
        self.active_threads_lock = threading.Lock()
        self.execution_state = {"scheduler": native.scheduler, "ioloop": self.loop, "worker": self}
        self.executors = Executors(native.nthreads)
        # What runs in threads of pools, by their identifiers: keys of tasks, and for methods of actors
        # "Counter-1f.increment".
        self.pool_threads: dict[int, Hashable] = {}
        # Those that wait for such a thread.
        self.waiting_threads: set[int] = set()
        self.security = connection.get("security")
        self._status = Status.running
        self._monitor: Any = None
        self.nanny = None
        # Set by the service.
        self.engine: Engine
        self.plugin_manager: Plugins

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address!r}, name: {self.name}, status: {self.status.name}>"

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """``distributed.Worker``: plugins and libraries ask whether a worker is one."""
        from distributed import Worker

        return Worker

    def __getattr__(self, name: str) -> Any:
        from distributed import Worker

        if is_public(Worker, name):
            raise UnservedError(
                f"Worker.{name} of distributed is not served: Treadle's workers are native"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # what it is

    @property
    def status(self) -> Status:
        """``running``, ``paused``, ``closing`` or ``closed``.

        It is paused while there is too little memory, and when ``Status.paused`` was set: it starts
        no tasks then, and the scheduler sends it none, until ``Status.running`` is set. Tasks that
        run go on. Nothing else can be set.
        """
        if self._status is not Status.running:
            return self._status
        if self._native.ended is not None:
            return Status.closed
        return Status.paused if self._native.is_paused() else Status.running

    @status.setter
    def status(self, status: Status) -> None:
        if status not in (Status.running, Status.paused):
            raise UnservedError(
                f"Worker.status = {status!r}: only Status.paused and Status.running can be set. "
                "close() and close_gracefully() end a worker"
            )
        self._native.hold(status is Status.paused)

    @property
    def nthreads(self) -> int:
        """How many tasks it runs at once."""
        return self.state.nthreads

    @property
    def executor(self) -> Executor:
        """A pool of as many threads as it runs tasks at once; see :class:`Executors`."""
        return self.executors["default"]

    @property
    def ip(self) -> str:
        """The host of its address."""
        return urlsplit(self.address).hostname or ""

    host = ip

    @property
    def listen_address(self) -> str:
        """Its address."""
        return self.address

    @property
    def port(self) -> int:
        """The port of its address."""
        return urlsplit(self.address).port or 0

    @property
    def memory_limit(self) -> int | None:
        """Bytes of memory for values, or None where there is no limit."""
        return self.memory_manager.memory_limit

    @property
    def resources(self) -> dict[str, float]:
        """Its abstract resources."""
        return self.state.total_resources

    @property
    def active_threads(self) -> dict[int, Hashable]:
        """The keys of the tasks that run, by the identifier of the thread."""
        running = {**self._native.running(), **self.pool_threads}
        for thread in self.waiting_threads.copy():
            running.pop(thread, None)
        return running

    @property
    def active_keys(self) -> set[Hashable]:
        """The keys of the tasks that run."""
        return set(self._native.running().values())

    @property
    def monitor(self) -> Any:
        """distributed's measurements of this process: one more, each time this is read."""
        if self._monitor is None:
            self._monitor = SystemMonitor()
        self._monitor.update()
        return self._monitor

    def identity(self) -> dict[str, Any]:
        """Describe the worker."""
        return {
            "type": "Worker",
            "id": self.name,
            "scheduler": self._native.scheduler,
            "nthreads": self.nthreads,
            "memory_limit": self.memory_limit,
        }

    def keys(self) -> list[Hashable]:
        """Return the keys of the values here, of tasks and of users."""
        return list(dict.fromkeys((*self._native.keys(), *self.data.own)))

    def versions(self, packages: Collection[str] | None = None) -> dict[str, Any]:
        """Return the versions of Python and of packages."""
        versions: dict[str, Any] = get_versions(packages=packages)
        return versions

    def get_logs(
        self, start: float = 0, n: int | None = None, timestamps: bool = False
    ) -> tuple[Any, ...]:
        """Return (time,) level and text of the log's entries since a time, newest first."""
        return self._log.entries(start, n, timestamps)

    def get_call_stack(self, keys: Collection[Hashable] | None = None) -> dict[Hashable, Any]:
        """Return the Python frames of the tasks that run, as text, by key."""
        frames = sys._current_frames()
        running = {
            key: frames[thread]
            for thread, key in self.active_threads.items()
            if thread in frames and (keys is None or key in keys)
        }
        return {key: profile.call_stack(frame) for key, frame in running.items()}

    # for tasks

    def get_current_task(self) -> Hashable:
        """Return the key of the task that runs in this thread, or in this coroutine.

        Raises
        ------
        KeyError
            There is none.
        """
        try:
            return coroutine_key.get()
        except LookupError:
            pass
        key = self._native.current_key()
        return key if key is not None else self.pool_threads[threading.get_ident()]

    def log_event(self, topic: str | Collection[str], msg: Any) -> None:
        """Log an event for those that subscribed its topic. The message must be plain data."""
        if not is_dumpable(msg):
            raise TypeError(f"Message must be msgpack serializable. Got {type(msg)=} instead.")
        if isinstance(msg, dict) and topic != self.address:
            msg = {**msg, "worker": self.address}
        self.tell_sidecar("log_event", {"topic": topic, "msg": msg})

    def tell_sidecar(self, operation: str, argument: Mapping[str, Any]) -> None:
        """Call the scheduler's Python side; it has heard that before a task that calls this is done."""
        told = threading.Event()
        self._native.call("sidecar", operation, pack(dict(argument)), lambda *_: told.set())
        if not self._loop.inside:
            # So that clients hear of it before they hear that the task is done.
            told.wait(_PATIENCE)

    async def set_resources(self, **resources: float) -> None:
        """Have other amounts of these abstract resources from now on; the others stay as they are.

        Tasks that run go on. Those that a resource is needed for and that have not been sent here wait
        until there is enough of it.

        Raises
        ------
        OSError
            The scheduler does not answer.
        ValueError
            An amount is no number, or less than 0.
        """
        total = {**self.state.total_resources, **amounts(resources)}
        asked = ask(self._native, "", "set_resources", {"resources": total})
        try:
            await asyncio.wait_for(asked, _PATIENCE)
        except asyncio.TimeoutError:
            raise TimeoutError("the scheduler does not answer 'set_resources'") from None
        self.state.total_resources = total

    def digest_metric(self, name: Hashable, value: float) -> None:
        """Do nothing: the native side measures."""

    def handle_stimulus(self, *stimuli: Any) -> None:
        """Do nothing: the native side knows that a task seceded."""

    def rpc(self, address: str) -> WorkerRPC:
        """Return another worker, whose operations are coroutine methods."""
        return WorkerRPC(self._native, address)

    @property
    def client(self) -> Client:
        """A client of this worker's scheduler, which all of its tasks share."""
        return self._get_client()

    def _get_client(self, timeout: Any = None) -> Client:
        """Return the client that the tasks share; the first call makes it."""
        refuse_while_imported("or uses a client")
        # A thread that makes a client needs the loop for that, so the loop must not wait for it.
        locked = self._client_lock.acquire(blocking=not self._loop.inside)
        try:
            client = next(filter(self._is_usable, self._clients), None)
            if client is None:
                client = self._make_client(timeout)
                self._clients.append(client)
        finally:
            if locked:
                self._client_lock.release()
        self.log_event("worker-get-client", {"client": client.id, "timeout": timeout})
        return client

    def _make_client(self, timeout: Any) -> Client:
        from distributed.client import default_client

        # The worker may be threads of a client's process.
        existing: Client | None
        try:
            existing = default_client()
        except ValueError:
            existing = None
        if existing is not None and self._is_usable(existing):
            return existing
        import treadle

        if timeout is None:
            timeout = dask.config.get("distributed.comm.timeouts.connect")
        client = treadle.Client(
            self._native.scheduler,
            loop=self.loop,
            asynchronous=in_async_call(self.loop),
            set_as_default=existing is None,
            direct_to_workers=True,
            name="worker",
            timeout=parse_timedelta(timeout, "s"),
            **self._connection,
        )
        # A coroutine uses it before it is connected.
        client.start_early()
        return client

    def _is_usable(self, client: Client) -> bool:
        scheduler = getattr(client, "scheduler", None)
        if scheduler is None or scheduler.address != self._native.scheduler:
            return False
        if client.status in ("closing", "closed"):
            return False
        # A coroutine must not block the loop: it needs a client that knows the loop.
        return not self._loop.inside or client.loop is self.loop

    # what plugins do with it

    async def upload_file(
        self, filename: str, data: str | bytes, load: bool = True
    ) -> dict[str, Any]:
        """Write a file to the local directory and import it (.py, .zip, .egg)."""
        return await upload_file(self.local_directory, filename, data, load)

    async def plugin_add(
        self, plugin: bytes | WorkerPlugin, name: str | None = None, catch_errors: bool = True
    ) -> dict[str, Any]:
        """Set a plugin up here; what that raises is the answer, or is raised."""
        return _caught(await self.plugin_manager.add(plugin, name), catch_errors)

    async def plugin_remove(self, name: str) -> dict[str, Any]:
        """Tear a plugin down; what that raises is the answer."""
        return await self.plugin_manager.remove(name)

    async def close_gracefully(self, **_: Any) -> None:
        """Begin to leave: the worker's values move to others first."""
        self._native.drain()

    async def close(self, reason: str = "worker-close", **_: Any) -> None:
        """Begin to end, as soon as whoever asked for it is answered."""
        self._close_with(reason, Cause.CLOSED)

    def _close_with(self, reason: str, cause: Cause) -> None:
        # Not in the loop, which the end of the worker waits for.
        arguments = (reason, 0, cause.value)
        end = threading.Thread(target=self._native.close, args=arguments, daemon=True)
        self._loop.soon(end.start)

    async def _close_clients(self) -> None:
        clients, self._clients = self._clients, []
        for client in clients:
            try:
                # The process's own client stays.
                if client.loop is self.loop:
                    await asyncio.wait_for(client._close(fast=True), 2)
            except Exception:
                logger.debug("closing the tasks' client", exc_info=True)


def _caught(answer: dict[str, Any], catch_errors: bool) -> dict[str, Any]:
    if answer["status"] == "error" and not catch_errors:
        raise pickle.loads(answer["exception"])
    return answer
