"""What nanny plugins know: whoever looks after a worker process, as ``distributed.Nanny``."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from distributed import Status
from distributed.diagnostics.plugin import NannyPlugin

from treadle import _core
from treadle._compat.distributed import get_plugin_name, is_dumpable, process_preloads
from treadle.common._log import OF_NANNIES, Log
from treadle.common._loop import LoopThread
from treadle.common._names import name_of
from treadle.common._settings import preloads_of
from treadle.errors._unserved import UnservedError, is_public
from treadle.worker._channel import Channel
from treadle.worker._plugins import call_hook
from treadle.worker._rpc import RPC
from treadle.worker._run import run_function

if TYPE_CHECKING:
    from treadle.cluster._worker_process import WorkerProcess

__all__ = ["Nanny"]

logger = logging.getLogger("treadle.nanny")

# Seconds for the plugins to be torn down.
_FAREWELL = 5.0

# Seconds between two looks at a process that starts.
_TICK = 0.02


class Nanny:
    """Looks after one worker; it lives as long as its processes do, one after another.

    It has what plugins use of ``distributed.Nanny``. Plugins run in a loop of its own.
    """

    def __init__(self, process: WorkerProcess, parent: str) -> None:
        self._process = process
        self._parent = parent
        self._directory: _core.Directory | None = None
        self._making = threading.Lock()
        self._setting_up = asyncio.Lock()
        # The sidecar's numbers of the registrations: a plugin may come on two ways.
        self._numbers: dict[str, int | None] = {}
        self._log = Log(loggers=OF_NANNIES)
        self._loop = LoopThread(f"treadle-nanny-{process.name}", self._loop_ended)
        self.loop = self.io_loop = self._loop.io_loop
        self.thread_id = self._loop.ident
        self.id = f"{type(self).__name__}-{uuid.uuid4()}"
        self.name = name_of(process.name)
        self.plugins: dict[str, NannyPlugin] = {}
        #: What the environment of the next process has beside that of this one.
        self.env = process.env
        self.scheduler_addr = ""
        #: Where the worker spills, as it said last.
        self.worker_dir: str | None = None
        self.scheduler = _Scheduler(self)
        self.preloads: Any = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name!r}, process {self.pid}>"

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """``distributed.Nanny``: plugins ask whether it is one."""
        from distributed import Nanny as Theirs

        return Theirs

    def __getattr__(self, name: str) -> Any:
        from distributed import Nanny as Theirs

        if is_public(Theirs, name):
            raise UnservedError(
                f"Nanny.{name} of distributed is not served: a worker of Treadle is looked after by "
                "whoever started its process, where nobody else connects to"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _loop_ended(self, error: BaseException) -> None:
        logger.error("The nanny of worker %s serves no more calls: %r", self.name, error)

    # what it is

    @property
    def status(self) -> Status:
        """``running``, or ``closed`` when there is no process any more and will be none."""
        return Status.closed if self._process.is_over else Status.running

    @property
    def process(self) -> WorkerProcess:
        """The worker's process."""
        return self._process

    @property
    def pid(self) -> int:
        """The id of the present process, or of the last one."""
        return self._process.pid

    @property
    def worker_address(self) -> str | None:
        """Where the worker listens, or None while a process starts."""
        return self._process.address

    @property
    def local_directory(self) -> str:
        """A directory for files, from which the worker can import. It goes with the nanny."""
        with self._making:
            if self._directory is None:
                self._directory = _core.Directory("worker", self._parent)
                self._process.paths = [str(self._directory.path)]
        return str(self._directory.path)

    def is_alive(self) -> bool:
        """Whether there is a process."""
        return self.status is Status.running

    # what plugins do with it

    async def restart(self, timeout: float = 30, reason: str = "nanny-restart") -> str:
        """Have another process replace the present one; returns "OK" or "timed out"."""
        logger.info("Restarting worker %s. Reason: %s", self.name, reason)
        before = self.pid
        until = time.monotonic() + timeout
        self._process.restart()
        while self.pid == before or not self._process.announced:
            if time.monotonic() > until or self._process.is_over:
                return "timed out"
            await asyncio.sleep(_TICK)
        return "OK"

    async def kill(self, timeout: float = 5, reason: str = "nanny-kill") -> None:
        """End the present process; another replaces it.

        Raises
        ------
        TimeoutError
            It has not ended in this time.
        """
        logger.info("Ending worker %s. Reason: %s", self.name, reason)
        before = self.pid
        until = time.monotonic() + timeout
        self._process.restart()
        while self.pid == before and not self._process.is_over:
            if time.monotonic() > until:
                raise TimeoutError(f"worker {self.name} has not ended within {timeout} s")
            await asyncio.sleep(_TICK)

    async def close(self, timeout: float = 5, reason: str = "nanny-close") -> str:
        """End the worker: its process is not replaced."""
        del timeout  # it is told, and not waited for
        logger.info("Closing the nanny of worker %s. Reason: %s", self.name, reason)
        self._process.close()
        return "OK"

    def log_event(self, topic: str | Sequence[str], msg: Any) -> None:
        """Log an event for those that subscribed its topic. The message must be plain data."""
        if not is_dumpable(msg):
            raise TypeError(f"Message must be msgpack serializable. Got {type(msg)=} instead.")

        async def log() -> None:
            # The worker may be gone.
            with suppress(OSError):
                await self.scheduler.log_event(topic=topic, msg=msg)

        self._loop.soon(lambda: asyncio.ensure_future(log()))

    def get_logs(
        self, start: float = 0, n: int | None = None, timestamps: bool = False
    ) -> tuple[Any, ...]:
        """Return (time,) level and text of what nannies of this process logged, newest first."""
        return self._log.entries(start, n, timestamps)

    async def plugin_add(
        self, plugin: bytes | NannyPlugin, name: str | None = None, number: int | None = None
    ) -> dict[str, Any]:
        """Set a plugin up; it replaces one of the same name. Errors are the answer.

        ``number`` tells registrations of one name apart: each is set up once.
        """
        if isinstance(plugin, bytes):
            plugin = pickle.loads(plugin)
        if not isinstance(plugin, NannyPlugin):
            raise TypeError(f"{plugin!r} is not a NannyPlugin")
        if name is None:
            name = get_plugin_name(plugin)
        known = number is not None and self._numbers.get(name) == number
        self._numbers[name] = number
        async with self._setting_up:
            if known:
                return {"status": "OK"}
            self.plugins[name] = plugin
            answer = await call_hook(plugin, "setup", f"Nanny plugin {name}", logger, nanny=self)
            if answer["status"] == "OK" and getattr(plugin, "restart", False):
                self._process.stale = True
        return answer

    async def plugin_remove(self, name: str) -> dict[str, Any]:
        """Tear a plugin down and forget it. Errors are the answer."""
        self._numbers.pop(name, None)
        plugin = self.plugins.pop(name, None)
        # Nobody registered it here: the worker has come since.
        if plugin is None:
            return {"status": "OK"}
        return await call_hook(plugin, "teardown", f"Nanny plugin {name}", logger, nanny=self)

    # what its worker hands on

    async def serve(self, channel: Channel, operation: str, kwargs: dict[str, Any]) -> Any:
        """Answer a call that came through the worker's process."""
        if operation == "missing":
            return self._missing(**kwargs)
        if operation == "plugin_add":
            return await self._add(channel, **kwargs)
        if operation == "plugin_remove":
            return await self.plugin_remove(**kwargs)
        if operation == "run":
            return await run_function(self, **kwargs)
        if operation == "get_logs":
            return self.get_logs(**kwargs)
        raise NotImplementedError(f"Treadle's nannies do not serve {operation!r}")

    def _missing(
        self, registered: list[tuple[str, int]], scheduler: str, directory: str
    ) -> list[str]:
        """Return the names of the plugins that were not set up here, of all that there are."""
        self.scheduler_addr = self.scheduler.address = scheduler
        self.worker_dir = directory
        return [name for name, number in registered if self._numbers.get(name) != number]

    async def _add(self, channel: Channel, **kwargs: Any) -> dict[str, Any]:
        answer = await self.plugin_add(**kwargs)
        if self._process.stale:
            if self._process.is_of(channel):
                return {**answer, "restart": True, "paths": self._process.paths}
            # A process that began before the plugin was set up: whoever asked is gone.
            self._process.restart()
        return {**answer, "restart": False, "paths": self._process.paths}

    async def ask_scheduler(self, operation: str, kwargs: dict[str, Any]) -> Any:
        """Have the worker's process ask the scheduler.

        Raises
        ------
        OSError
            There is no process, or it ends meanwhile.
        """
        return await self._process.ask("scheduler", {"operation": operation, "kwargs": kwargs})

    # its beginning and its end

    def preload(self) -> None:
        """Run the preload scripts of nannies; what importing one raises is raised."""
        scripts, arguments = preloads_of("nanny")
        self.preloads = process_preloads(self, scripts, arguments, file_dir=self.local_directory)
        self._loop.run(self.preloads.start())

    @property
    def loop_thread(self) -> LoopThread:
        """Where it serves."""
        return self._loop

    def finish(self) -> None:
        """Tear the plugins down: there will be no process any more."""

        async def tear_down() -> None:
            for name in list(self.plugins):
                await self.plugin_remove(name)
            if self.preloads is not None:
                await self.preloads.teardown()

        # Whatever becomes of them, the rest ends, too.
        with suppress(Exception):
            self._loop.run(tear_down(), _FAREWELL)
        self._loop.close(_FAREWELL)
        self._log.close()
        if self._directory is not None:
            self._directory.remove()


class _Scheduler(RPC):
    """The scheduler, which the worker's process asks."""

    def __init__(self, nanny: Nanny) -> None:
        super().__init__(nanny.scheduler_addr)
        self._nanny = nanny

    async def _call(self, operation: str, kwargs: dict[str, Any]) -> Any:
        return await self._nanny.ask_scheduler(operation, kwargs)
