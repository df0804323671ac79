"""The supervisor of a worker process, as the process calls it: it runs nanny plugins."""

from __future__ import annotations

import importlib
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treadle.common._ask import ask_now
from treadle.common._calls import pack, unpack_answer
from treadle.common._loop import LoopThread
from treadle.worker._channel import Channel
from treadle.worker._nanny_calls import connect
from treadle.worker._rpc import RPC, SchedulerRPC

if TYPE_CHECKING:
    from treadle import _core

__all__ = ["Supervisor"]

# Seconds that the scheduler's Python side has to say which plugins there are.
_PATIENCE = 60.0


class Supervisor:
    """Calls in both directions between a worker and whoever looks after its process.

    Parameters
    ----------
    name, directory
        Of the worker.
    end
        The worker's end of the socket pair; None: nobody looks after it who runs plugins.
    """

    def __init__(self, name: str, directory: str, end: socket.socket | None) -> None:
        self._name = name
        self._directory = directory
        self._end = end
        self._channel: Channel | None = None
        self._loop: LoopThread
        self._scheduler: RPC

    @property
    def is_there(self) -> bool:
        """Whether somebody runs nanny plugins for this worker."""
        return self._end is not None

    def prepare(self, address: str, credentials: Mapping[str, Any], timeout: float = 30.0) -> bool:
        """Hand over, before the worker joins, the plugins that the supervisor does not have.

        Returns whether one of them wants another process.

        Raises
        ------
        OSError
            The scheduler cannot be reached.
        """
        connection = connect(address, self._name, credentials, timeout)
        try:
            try:
                answer = ask_now(connection, "nanny_plugins", pack({}), _PATIENCE, "sidecar")
            except OSError:
                return False  # a scheduler without a Python side
            if not (registered := unpack_answer(answer)):
                return False
            loop = LoopThread(f"treadle-plugins-{self._name}", lambda _error: None)
            try:
                return loop.run(self._prepare(connection, loop, registered))
            finally:
                loop.close()
        finally:
            connection.close()

    async def _prepare(
        self, connection: _core.Connection, loop: LoopThread, registered: list[tuple[str, int]]
    ) -> bool:
        loop.asyncio_loop.add_reader(connection.fileno(), connection.process)
        connection.process()
        self.attach(loop, SchedulerRPC(connection, connection.address))
        try:
            return await self.hand_over(registered)
        finally:
            loop.asyncio_loop.remove_reader(connection.fileno())

    def attach(self, loop: LoopThread, scheduler: RPC) -> None:
        """Serve the supervisor in a loop from now on, by asking a scheduler."""
        self._loop = loop
        self._scheduler = scheduler

    async def call(self, operation: str, kwargs: Mapping[str, Any]) -> Any:
        """Call the supervisor.

        Raises
        ------
        NotImplementedError
            There is none that runs plugins.
        OSError
            It is gone.
        Exception
            What it raised.
        """
        if self._end is None:
            raise NotImplementedError(
                f"worker {self._name} has no nanny: it runs on threads of a process of somebody "
                "else's, or was started with --no-nanny. Start workers as processes that are looked "
                "after (Client(workers=2), `treadle worker`), or use a WorkerPlugin"
            )
        if self._channel is None:
            self._channel = Channel(
                self._end, self._serve, lambda: self._loop, "treadle-supervisor"
            )
        answer = await self._channel.ask(operation, kwargs)
        if operation == "plugin_add":
            for path in answer.pop("paths"):
                if path not in sys.path:
                    sys.path.insert(0, path)
            importlib.invalidate_caches()
        return answer

    async def hand_over(self, registered: list[tuple[str, int]]) -> bool:
        """Have the supervisor set up those plugins that it does not have.

        Returns whether one of them wants another process.
        """
        about = {"scheduler": self._scheduler.address, "directory": self._directory}
        missing = await self.call("missing", {"registered": registered, **about})
        restart = False
        for name in missing:
            found = await self._scheduler.nanny_plugin(name=name)
            if found is None:
                continue
            plugin, number = found
            answer = await self.call(
                "plugin_add", {"plugin": plugin, "name": name, "number": number}
            )
            restart = bool(answer.get("restart"))
        return restart

    async def _serve(self, _channel: Channel, operation: str, kwargs: dict[str, Any]) -> Any:
        if operation != "scheduler":
            raise NotImplementedError(f"Treadle's workers do not serve {operation!r}")
        return await self._scheduler.ask(**kwargs)
