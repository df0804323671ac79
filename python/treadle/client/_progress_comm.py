"""``distributed.progress`` for Treadle's futures.

Distributed's progress bars open a connection of their own to the scheduler and ask it to run a
plugin that counts tasks. Treadle's scheduler runs no such plugins. What it would count is known to
the client as well, so the "connection" is an object of this process, and the plugin runs here, on
what the client knows of the futures.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from treadle._compat.distributed import Backend, Comm, CommClosedError, Connector, backends
from treadle.client._state import State
from treadle.common._addresses import SCHEME, SCHEME_TLS

if TYPE_CHECKING:
    from treadle.client._connected import Connected

__all__ = ["TreadleBackend", "TreadleTlsBackend", "register"]

_DEFAULT_INTERVAL = 0.1


class _Task:
    """What a progress plugin asks of a scheduler's task."""

    dependencies = ()

    def __init__(self, state: State) -> None:
        self.key = state.key
        self._state = state

    @property
    def who_has(self) -> bool:
        return self._state.status == "finished"

    @property
    def exception(self) -> BaseException | None:
        return self._state.exception if self._state.status == "error" else None


class _Tasks(Mapping[Hashable, _Task]):
    def __init__(self, futures: Mapping[Hashable, State]) -> None:
        self._futures = futures

    def __getitem__(self, key: Hashable) -> _Task:
        return _Task(self._futures[key])

    def __iter__(self) -> Iterator[Hashable]:
        return iter(list(self._futures))

    def __len__(self) -> int:
        return len(self._futures)


class _SchedulerStandIn:
    """A scheduler for a plugin: the keys of one client, and changes when somebody looks."""

    def __init__(self, client: Connected) -> None:
        self.tasks = _Tasks(client.futures)
        self.plugins: dict[str, Any] = {}
        self.extensions = {"spans": None}
        self._states: dict[Hashable, State] = {}

    def add_plugin(self, plugin: Any, **_kwargs: Any) -> None:
        self.plugins[plugin.name] = plugin
        self._states = {
            key: state
            for key in self.tasks
            if (state := self.tasks[key]._state).status in ("pending", "lost")
        }

    def remove_plugin(self, name: str, **_kwargs: Any) -> None:
        self.plugins.pop(name, None)

    def look(self) -> None:
        """Tell the plugin what has happened since the last look."""
        for key, state in list(self._states.items()):
            status = state.status
            if status in ("pending", "lost"):
                continue
            del self._states[key]
            for plugin in list(self.plugins.values()):
                _transition(plugin, key, state, status)


def _transition(plugin: Any, key: Hashable, state: State, status: str) -> None:
    if status == "finished":
        plugin.transition(key, "processing", "memory", stimulus_id="progress")
    elif status == "error":
        exception = state.exception
        plugin.transition(key, "processing", "erred", stimulus_id="progress", exception=exception)
    else:
        plugin.transition(key, "processing", "forgotten", stimulus_id="progress")


class _Feed(Comm):  # type: ignore[misc]
    """A connection to a scheduler that only knows the operation "feed"."""

    def __init__(self, client: Connected, address: str) -> None:
        super().__init__()
        self._client = client
        self._peer_addr = self._local_addr = address
        self._closed = False
        self._request: dict[str, Any] | None = None
        self._scheduler: _SchedulerStandIn | None = None
        self._plugin: Any = None

    @property
    def local_address(self) -> str:
        return self._local_addr

    @property
    def peer_address(self) -> str:
        return self._peer_addr

    @property
    def same_host(self) -> bool:
        return True

    async def write(self, msg: Any, serializers: Any = None, on_error: Any = None) -> int:  # noqa: ARG002
        operation = msg.get("op")
        if operation is not None and operation != "feed":
            raise NotImplementedError(
                f"Treadle's scheduler does not serve {operation!r} of distributed's scheduler"
            )
        self._request = msg
        return 0

    async def read(self, deserializers: Any = None) -> Any:  # noqa: ARG002
        request = self._request
        if self._closed or request is None:
            raise CommClosedError("closed")
        if "op" not in request:
            # Which versions there are: the same ones.
            return dict(request)
        if self._scheduler is None:
            self._scheduler = _SchedulerStandIn(self._client)
            self._plugin = await pickle.loads(request["setup"])(self._scheduler)
        else:
            await asyncio.sleep(request.get("interval") or _DEFAULT_INTERVAL)
        self._scheduler.look()
        return pickle.loads(request["function"])(self._scheduler, self._plugin)

    async def close(self) -> None:
        self._closed = True

    def abort(self) -> None:
        self._closed = True

    def closed(self) -> bool:
        return self._closed


class _Connector(Connector):  # type: ignore[misc]
    def __init__(self, scheme: str) -> None:
        self._scheme = scheme

    async def connect(self, address: str, deserialize: bool = True, **_kwargs: Any) -> Comm:  # noqa: ARG002
        from treadle.client._connected import connected

        wanted = self._scheme + address
        for client in list(connected):
            if client.scheduler is not None and client.scheduler.address == wanted:
                return _Feed(client, wanted)
        # Not an OSError, which distributed takes for a scheduler that is not there yet.
        raise RuntimeError(
            f"no treadle.Client of this process is connected to {wanted}, and a distributed.Client "
            "cannot connect to it: use treadle.Client(...), or import it before "
            "distributed.Client(...) is called"
        )


class TreadleBackend(Backend):  # type: ignore[misc]
    """The scheme of Treadle's addresses, for what distributed does with addresses."""

    _scheme = SCHEME

    def get_connector(self) -> Connector:
        return _Connector(self._scheme)

    def get_listener(self, *_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError("distributed cannot listen at Treadle's addresses")

    def get_address_host(self, loc: str) -> str:
        return loc.rpartition(":")[0].strip("[]")

    def get_address_host_port(self, loc: str) -> tuple[str, int]:
        host, _, port = loc.rpartition(":")
        return host.strip("[]"), int(port)

    def resolve_address(self, loc: str) -> str:
        return loc

    def get_local_address_for(self, loc: str) -> str:
        return loc


class TreadleTlsBackend(TreadleBackend):
    """The same for addresses with TLS."""

    _scheme = SCHEME_TLS


def register() -> None:
    """Let distributed know Treadle's addresses."""
    for backend in (TreadleBackend(), TreadleTlsBackend()):
        backends.setdefault(backend._scheme.removesuffix("://"), backend)
