"""The sidecar: calls come in, handlers of the stand-in scheduler answer them."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import dask

from treadle.common._calls import pack_answer, unpack
from treadle.common._loop import LoopThread
from treadle.errors import _pickled as errors
from treadle.scheduler._connection import Connection, Handlers
from treadle.scheduler._leases import Leases
from treadle.scheduler._standin import SchedulerStandIn
from treadle.shuffle._journal import Journal
from treadle.worker._nanny_calls import is_supervisor

if TYPE_CHECKING:
    from treadle.scheduler._shuffle_services import ShuffleServices

__all__ = ["Sidecar"]

logger = logging.getLogger(__name__)

# Calls that wait for what others do. All else ends by itself, and goes on when its caller is gone.
_WAIT = frozenset(
    [
        *("queue_get", "queue_put", "variable_get", "event_wait"),
        *("semaphore_acquire", "multi_lock_acquire"),
    ]
)


class Sidecar:
    """The Python side of a native scheduler: locks, queues, variables, events, published data,
    plugins, and functions that users run on the scheduler, in a thread of its own.

    Parameters
    ----------
    connect
        Makes the connection to the scheduler, of the role "sidecar", which calls the handlers that
        it is given. What it raises is raised.
    journal
        Where shuffles that have ended are recorded.
    credentials
        ``secret``, ``certificates``, ``insecure``: those of the scheduler's connections, also to shuffle
        services.
    preloads
        It runs the preload scripts of Dask's configuration.
    """

    def __init__(
        self,
        connect: Callable[[Handlers], Connection],
        journal: Journal | None = None,
        credentials: Mapping[str, Any] | None = None,
        preloads: bool = False,
    ) -> None:
        self._journal = journal
        self._preloads = preloads
        self._credentials = credentials or {}
        self.closed = threading.Event()
        self.reason: str | None = None
        # Calls of `_WAIT` by node, and all others: a loop itself does not keep its tasks.
        self._waiting: defaultdict[str, set[asyncio.Task[None]]] = defaultdict(set)
        self._running: set[asyncio.Task[None]] = set()
        # First: the connection may end at once.
        self._loop = LoopThread("treadle-sidecar", self._loop_ended)
        try:
            self._connection = connect(self)
            try:
                self._loop.run(self._start())
            except BaseException:
                self._connection.close()
                raise
        except BaseException:
            self._loop.close()
            raise

    async def _start(self) -> None:
        self.scheduler = SchedulerStandIn(self._connection, self._loop)
        self._leases = Leases(self.scheduler.semaphores, self.scheduler.multi_locks)
        self._services: ShuffleServices | None = None
        self.scheduler.handlers["register_shuffle"] = self._register_shuffle
        self.scheduler.handlers["shuffle_records_at_services"] = self._records_at_services
        self._notifications = {
            "client-joined": self._client_joined,
            "client-left": self._client_left,
            "worker-joined": self._worker_joined,
            "worker-lost": self._worker_lost,
            "restarted": self._restarted,
            "steps": self._stepped,
            "shuffle-ended": self._shuffle_ended,
            "shuffle-over": self._shuffle_over,
        }
        asyncio.get_running_loop().add_reader(self._connection.fileno(), self._process)
        self._process()
        if self._journal is not None:
            await self._catch_up(self._journal)
        if dask.config.get("treadle.scheduler.steps", False):
            self.scheduler.steps.begin()
            await self.scheduler.observe()
        if self._preloads:
            await self.scheduler.preload()

    async def _catch_up(self, journal: Journal) -> None:
        """Record the shuffles that ended while there was no sidecar."""
        for told in await self.scheduler.ask("", "shuffle_records", {}):
            if told["state"] != "running":
                journal.write(told)

    def succeed(self, clients: Mapping[str, str], reason: str | None) -> None:
        """Tell the clients of a sidecar that ended, given with their nodes, that this one is new."""

        def tell() -> None:
            for client, node in clients.items():
                self.scheduler.nodes.setdefault(client, node)
                self.scheduler.client_send(client, {"op": "begun-anew", "reason": reason})

        self._loop.soon(tell)

    def close(self, timeout: float = 5.0) -> None:
        """End: plugins are told, the connection is closed, the thread ends."""
        with suppress(Exception):
            self._loop.run(self._end(), timeout)
        self._connection.close()
        self._loop.close(timeout)
        self._ended("closed")

    def __enter__(self) -> Sidecar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _end(self) -> None:
        await self.scheduler.close()
        if self._services is not None:
            self._services.close()
        asyncio.get_running_loop().remove_reader(self._connection.fileno())

    def _loop_ended(self, error: BaseException) -> None:
        self._ended(f"the event loop ended: {error!r}")

    def _ended(self, reason: str) -> None:
        if not self.closed.is_set():
            self.reason = reason
            self.closed.set()

    def _process(self) -> None:
        try:
            self._connection.process()
        except OSError as error:
            self.on_closed(str(error))

    # what the connection calls

    def on_call(self, id: int, node: str, operation: str, argument: Any) -> None:  # noqa: A002
        """Answer a call, soon. Calls begin in the order in which they came."""
        if operation in ("steps", "stream:update-graph", "stream:task-metadata"):
            self._note(node, operation, argument)
        self._loop.soon(self._begin, id, node, operation, argument)

    def _note(self, node: str, operation: str, argument: Any) -> None:
        """Keep what comes of tasks in its order; whoever reads applies it before."""
        try:
            if operation == "steps" and node == "":
                self.scheduler.steps.told(argument)
            elif operation == "stream:task-metadata":
                self.scheduler.steps.annotated(**unpack(argument, opening=False))
            elif node != "":
                self.scheduler.steps.submitted(unpack(argument, opening=False))
        except Exception:
            logger.exception("%s of %s cannot be read", operation, node or "the scheduler")

    def on_stuck(self, keys: list[Hashable], reason: str) -> None:
        """Do nothing: the clients are told, too."""

    def on_restarted(self) -> None:
        """Tell the plugins."""
        self._loop.soon(lambda: asyncio.ensure_future(self._restarted({})))

    def on_closed(self, reason: str) -> None:
        """Stop listening: the scheduler is gone."""

        def stop() -> None:
            with suppress(Exception):
                self._loop.asyncio_loop.remove_reader(self._connection.fileno())

        self._loop.soon(stop)
        self._ended(reason)

    # calls

    def _begin(self, id: int, node: str, operation: str, argument: Any) -> None:  # noqa: A002
        task = asyncio.ensure_future(self._answer(id, node, operation, argument))
        calls = self._waiting[node] if operation in _WAIT else self._running
        calls.add(task)
        task.add_done_callback(calls.discard)

    async def _answer(self, id: int, node: str, operation: str, argument: Any) -> None:  # noqa: A002
        notification = self._notifications.get(operation) if node == "" else None
        answer: bytes | None = None
        failure = None
        try:
            if notification is not None:
                await notification(argument)
            else:
                answer = await self._result(id, node, operation, argument)
        except BaseException as error:
            # Locks and queues of all clients are here: nothing that one of them asks for ends them.
            failure = errors.dump_of_call(error, operation)
        # Nobody waits for it when the connection is over.
        with suppress(ConnectionError):
            try:
                self._connection.answer(id, answer, failure)
            except (ValueError, TypeError) as error:
                # It is too long; what is said instead is not.
                failure = errors.dump(ValueError(f"{operation}: {error}"))
                self._connection.answer(id, None, failure)

    async def _result(self, id: int, node: str, operation: str, argument: Any) -> bytes:  # noqa: A002
        handler = self._handler(operation)
        kwargs = unpack(argument, opening=False)
        if isinstance(kwargs.get("name"), list):
            # On distributed's wire, lists become tuples.
            kwargs["name"] = tuple(kwargs["name"])
        # Of the function: a method would keep the sidecar in the cache.
        parameters = _parameters(getattr(handler, "__func__", handler))
        if "comm" in parameters:
            kwargs["comm"] = None
        if "client" in parameters:
            kwargs.setdefault("client", node)
            self.scheduler.nodes[kwargs["client"]] = node
        self._leases.before(node, operation, kwargs)
        async with AsyncExitStack() as stack:
            if operation in ("queue_put", "variable_set") and kwargs.get("key") is not None:
                # Until the extension holds it: the caller may release it as soon as we answer.
                held = self.scheduler.held.held(kwargs["key"], f"call-{node}-{id}")
                await stack.enter_async_context(held)
            result = handler(**kwargs)
            if inspect.isawaitable(result):
                result = await result
        self._leases.after(node, operation, kwargs, result)
        try:
            return pack_answer(result)
        except Exception as error:
            value = result.get("result") if isinstance(result, dict) else result
            failure = errors.unserializable(getattr(value, "data", value), error)
            if operation == "run_function":
                return pack_answer(errors.as_message(failure))
            raise failure from None

    def _handler(self, operation: str) -> Callable[..., Any]:
        handlers, name = self.scheduler.handlers, operation
        if operation.startswith("stream:"):
            handlers, name = self.scheduler.stream_handlers, operation.removeprefix("stream:")
        try:
            return handlers[name]
        except KeyError:
            raise NotImplementedError(
                f"Treadle's scheduler does not serve {operation!r} of distributed's scheduler"
            ) from None

    # what the scheduler says by itself

    async def _client_joined(self, about: dict[str, Any]) -> None:
        client = about["client"]
        if is_supervisor(client):
            # A connection for a single call, of which there may be one each second.
            return
        self.scheduler.nodes[client] = client
        logger.info("Receive client connection: %s", client)
        self.scheduler.log_event(["all", client], {"action": "add-client", "client": client})
        await self.scheduler.tell_plugins("add_client", scheduler=self.scheduler, client=client)

    async def _client_left(self, about: dict[str, Any]) -> None:
        client = about["client"]
        await self._gone({client, self.scheduler.nodes.get(client, client)})
        if is_supervisor(client):
            return
        logger.info("Remove client %s", client)
        self.scheduler.log_event(["all", client], {"action": "remove-client", "client": client})
        await self.scheduler.tell_plugins("remove_client", scheduler=self.scheduler, client=client)

    async def _worker_joined(self, about: dict[str, Any]) -> None:
        self.scheduler.steps.count_threads()
        address = about["address"]
        logger.info("Register worker addr: %s name: %s", address, about["name"])
        self.scheduler.log_event(address, {"action": "add-worker"})
        self.scheduler.log_event("all", {"action": "add-worker", "worker": address})
        await self.scheduler.tell_plugins("add_worker", scheduler=self.scheduler, worker=address)

    async def _worker_lost(self, about: dict[str, Any]) -> None:
        self.scheduler.steps.count_threads()
        await self._gone({about["address"], about["name"]})
        stimulus = f"worker-lost-{time.time()}"
        address = about["address"]
        logger.info("Remove worker addr: %s name: %s", address, about["name"])
        event = {"action": "remove-worker", "stimulus_id": stimulus}
        self.scheduler.log_event(address, event)
        self.scheduler.log_event("all", {**event, "worker": address})
        await self.scheduler.tell_plugins(
            "remove_worker",
            scheduler=self.scheduler,
            worker=address,
            stimulus_id=stimulus,
        )

    async def _stepped(self, _about: dict[str, Any]) -> None:
        self.scheduler.steps.apply()

    async def _shuffle_ended(self, told: dict[str, Any]) -> None:
        if self._journal is not None:
            self._journal.write(told)

    # shuffles whose rows are at stand-alone servers

    def _at_services(self) -> ShuffleServices:
        if self._services is None:
            # Most clusters have none.
            from treadle.scheduler._shuffle_services import ShuffleServices

            cluster = self._connection.cluster or ""
            self._services = ShuffleServices(cluster, self._credentials, self._numbers_running)
        return self._services

    async def _numbers_running(self) -> set[int]:
        return {told["number"] for told in await self.scheduler.ask("", "shuffles", {})}

    async def _register_shuffle(self, **asked: Any) -> tuple[int, int, str]:
        return await self._at_services().register(**asked)

    async def _records_at_services(self) -> dict[int, dict[str, Any]]:
        return {} if self._services is None else await self._services.records()

    async def _shuffle_over(self, told: dict[str, Any]) -> None:
        await self._at_services().over(told["number"], told["service"])

    async def _restarted(self, _about: dict[str, Any]) -> None:
        self.scheduler.steps.restarted()
        await self.scheduler.tell_plugins("restart", self.scheduler)

    async def _gone(self, nodes: set[str]) -> None:
        """Free what nodes held, end their calls that wait, and forget them."""
        waiting = [task for node in nodes for task in self._waiting.pop(node, ())]
        # In one step: a multi-lock that nobody waits for any more must not be next in turn.
        self._free(nodes)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        # One of them may have got a lease just before.
        self._free(nodes)
        for name, node in list(self.scheduler.nodes.items()):
            if name in nodes or node in nodes:
                del self.scheduler.nodes[name]
                self.scheduler.unsubscribe_all(name)

    def _free(self, nodes: set[str]) -> None:
        for node in nodes:
            self._leases.gone(node)


@cache
def _parameters(handler: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(handler).parameters)
