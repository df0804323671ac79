"""The Python sides of a cluster in one process: a scripted scheduler instead of the native one.

`Hub` routes calls as the scheduler does. The sidecar is the real one, on a `HubConnection`; workers
are the real service, on a `HubWorker` whose slots and threads are those of this process.
"""

from __future__ import annotations

import contextvars
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from treadle.common._calls import error_of, pack, unpack, unpack_answer
from treadle.scheduler import Sidecar
from treadle.worker import Service

SOON = 30
ADDRESS = "treadle://127.0.0.1:1"


class HubClient:
    """A client as the scheduler sees one: it calls, and it is called."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub = hub
        self.name = name
        self.called: list[tuple[str, dict[str, Any]]] = []

    def start(self, node: str, operation: str, **kwargs: Any) -> Future[Any]:
        """Call, and do not wait for the answer."""
        future: Future[Any] = Future()

        def done(result: Any, error: Any) -> None:
            if error is not None:
                future.set_exception(error_of(error))
            else:
                future.set_result(unpack_answer(result) if isinstance(result, bytes) else result)

        self.hub.call(self.name, node, operation, pack(kwargs), done)
        return future

    def ask(self, node: str, operation: str, **kwargs: Any) -> Any:
        return self.start(node, operation, **kwargs).result(SOON)

    def sidecar(self, operation: str, **kwargs: Any) -> Any:
        return self.ask("sidecar", operation, **kwargs)

    def take(self, number: int, node: str, operation: str, argument: Any) -> None:
        self.called.append((operation, unpack(argument, opening=True)))
        self.hub.answer(number, None)

    def leave(self) -> None:
        """Its connection ends."""
        del self.hub.nodes[self.name]
        self.hub.notify("client-left", client=self.name)


class HubConnection:
    """The sidecar's connection."""

    address = ADDRESS

    def __init__(self, hub: Hub, handlers: Any) -> None:
        self.hub = hub
        self.handlers = handlers
        self.states: dict[Hashable, Any] = {}
        self._inbox: deque[Callable[[], None]] = deque()
        self._reads, self._writes = os.pipe()

    def put(self, action: Callable[[], None]) -> None:
        """Something has come."""
        self._inbox.append(action)
        with suppress(OSError):
            os.write(self._writes, b"x")

    def take(self, number: int, node: str, operation: str, argument: Any) -> None:
        self.put(lambda: self.handlers.on_call(number, node, operation, argument))

    def fileno(self) -> int:
        return self._reads

    def process(self) -> int:
        count = 0
        while self._inbox:
            os.read(self._reads, 1)
            self._inbox.popleft()()
            count += 1
        return count

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        until = time.monotonic() + (timeout or SOON)
        while not done():
            if time.monotonic() > until:
                return False
            self.process()
            time.sleep(0.001)
        return True

    def flush(self) -> None:
        pass

    def watch(self, key: Hashable, state: Any) -> None:
        self.states[key] = state
        self.hub.watched.append(key)
        self.tell(key)

    def tell(self, key: Hashable) -> None:
        """Send the notice of a key that is watched."""
        method, *args = self.hub.keys.get(key, ("lose",))
        if key in self.states:
            state = self.states[key]
            self.put(lambda: getattr(state, method)(*args))

    def release(self, keys: Iterable[Hashable]) -> None:
        for key in keys:
            del self.states[key]

    def call(self, node: str, operation: str, argument: Any, done: Any) -> None:
        self.hub.call(
            "sidecar", node, operation, argument, lambda *answer: self.put(lambda: done(*answer))
        )

    def answer(self, number: int, result: Any, error: Any = None) -> None:
        self.hub.answer(number, result, error)

    def close(self, timeout: float = 5.0) -> None:
        self.hub.nodes.pop("sidecar", None)
        reads, writes, self._reads, self._writes = self._reads, self._writes, -1, -1
        for descriptor in (reads, writes):
            with suppress(OSError):
                os.close(descriptor)


class HubWorker:
    """A worker's native side: threads that run what a test hands to them, at most so many at once."""

    scheduler = ADDRESS
    memory_limit = 1 << 30
    is_recorded = False
    resources: dict[str, float] = {"GPU": 2.0}  # noqa: RUF012

    def __init__(
        self, hub: Hub, name: str, directory: Path, nthreads: int = 1, **service: Any
    ) -> None:
        self.hub = hub
        self.name = name
        self.id = len(hub.nodes)
        self.address = f"treadle://127.0.0.1:{1000 + self.id}"
        self.nthreads = nthreads
        self.directory = str(directory)
        self.values: dict[Hashable, Any] = {}
        self.observed = False
        self.seceded = 0
        self.ended: list[str] = []
        self._free = threading.Semaphore(nthreads)
        self._local = threading.local()
        self._running: dict[int, Hashable] = {}
        self.service = Service(connection={"secret": b"secret"}, **service)
        hub.nodes[self.address] = self
        self.service.start(self)

    def remove_directory(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    # for tests

    def start(self, function: Callable[[], Any], key: Hashable = "task") -> Future[Any]:
        """Run a task in a thread of its own, as soon as a slot is free."""
        future: Future[Any] = Future()

        def work() -> None:
            self.service.enter_thread()
            self._free.acquire()
            self._local.slot = True
            self._local.key, self._local.started = key, time.time()
            self._running[threading.get_ident()] = key
            try:
                value = contextvars.copy_context().run(function)
                if hasattr(value, "cr_await"):
                    value = self.service.run_coroutine(key, value)
                future.set_result(value)
            except BaseException as error:
                future.set_exception(error)
            finally:
                del self._running[threading.get_ident()]
                self._local.key = None
                if self._local.slot:
                    self._free.release()
                self.service.leave_thread()

        threading.Thread(target=work, daemon=True).start()
        return future

    def run(self, function: Callable[[], Any], key: Hashable = "task") -> Any:
        return self.start(function, key).result(SOON)

    def take(self, number: int, node: str, operation: str, argument: Any) -> None:
        self.service.call(number, node, operation, argument)

    def leave(self) -> None:
        self.service.stop()
        if self.hub.nodes.pop(self.address, None) is not None:
            self.hub.notify("worker-lost", address=self.address, name=self.name, cause="exited")

    # for the service

    def current_key(self) -> Hashable | None:
        return getattr(self._local, "key", None)

    def started(self) -> float | None:
        return getattr(self._local, "started", None)

    def nudge_engine(self) -> None:
        """Nobody waits for casts here."""

    def secede(self) -> bool:
        if not getattr(self._local, "slot", False):
            return False
        self._local.slot = False
        self.seceded += 1
        self._free.release()
        return True

    def rejoin(self) -> None:
        if getattr(self._local, "slot", True):
            return
        self._free.acquire()
        self._local.slot = True

    def running(self) -> dict[int, Hashable]:
        return dict(self._running)

    def observe(self, wanted: bool) -> None:
        self.observed = wanted

    def keys(self) -> list[Hashable]:
        return list(self.values)

    def has(self, key: Hashable) -> bool:
        return key in self.values

    def get(self, key: Hashable) -> Any:
        return self.values[key]

    def answer(self, number: int, result: Any, error: Any = None) -> None:
        self.hub.answer(number, result, error)

    def call(self, node: str, operation: str, argument: Any, done: Any) -> None:
        self.hub.call(self.address, node, operation, argument, done)

    def drain(self) -> None:
        self.ended.append("drained")

    def close(self, reason: str, status: int = 0, cause: str = "closed") -> None:
        self.ended.append(reason)


class Hub:
    """The scheduler: it routes calls, and knows what it is told of keys."""

    def __init__(self) -> None:
        self.nodes: dict[str, Any] = {}
        # Of each key the method of a watching state, and its arguments.
        self.keys: dict[Hashable, tuple[Any, ...]] = {}
        self.watched: list[Hashable] = []
        self._lock = threading.Lock()
        self._waiting: dict[int, Any] = {}
        self._calls = 0

    def call(self, asker: str, node: str, operation: str, argument: Any, done: Any) -> None:
        if node == "":
            if operation != "identity":
                # It holds no values, and nobody follows its tasks.
                done({"has_what": {}, "observe": None, "tasks": []}[operation], None)
                return
            workers = {
                address: {"name": worker.name, "nthreads": worker.nthreads, "pid": 0}
                for address, worker in self.nodes.items()
                if isinstance(worker, HubWorker)
            }
            done({"type": "Scheduler", "address": ADDRESS, "workers": workers}, None)
            return
        if node not in self.nodes:
            done(None, f"no node {node}")
            return
        with self._lock:
            self._calls += 1
            number = self._calls
            self._waiting[number] = done
        self.nodes[node].take(number, asker, operation, argument)

    def answer(self, number: int, result: Any, error: Any = None) -> None:
        self._waiting.pop(number)(result, error)

    def notify(self, what: str, **about: Any) -> None:
        """Tell the sidecar something, and wait until it has done what that asks for."""
        if "sidecar" in self.nodes:
            told = threading.Event()
            self.call("", "sidecar", what, about, lambda *_: told.set())
            assert told.wait(SOON)

    def becomes(self, key: Hashable, method: str, *args: Any) -> None:
        """The standing of a key."""
        self.keys[key] = (method, *args)
        self.nodes["sidecar"].tell(key)

    @property
    def held(self) -> set[Hashable]:
        """The keys that the sidecar wants."""
        return set(self.nodes["sidecar"].states)

    def add_sidecar(self) -> Sidecar:
        def connect(handlers: Any) -> HubConnection:
            connection = self.nodes["sidecar"] = HubConnection(self, handlers)
            return connection

        return Sidecar(connect)

    def add_client(self, name: str) -> HubClient:
        client = self.nodes[name] = HubClient(self, name)
        return client
