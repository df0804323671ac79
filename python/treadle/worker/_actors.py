"""Actors: objects that stay where a task made them, and are called from elsewhere."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from distributed.actor import Actor
from distributed.utils import iscoroutinefunction

from treadle import _core
from treadle._compat.dask import TaskRef
from treadle._compat.distributed import run_actor
from treadle.common._calls import Opaque
from treadle.common._groups import prefix_of
from treadle.errors import _pickled as errors
from treadle.pickling import _by_value
from treadle.worker._slots import worker_here

if TYPE_CHECKING:
    from treadle.worker._standin import WorkerStandIn

__all__ = ["Actors"]


class Actors:
    """The actors of a worker.

    As in distributed, one thread runs the methods of all actors of a worker, in the order in which
    they were called; methods that are coroutine functions run in the worker's loop.
    """

    def __init__(self, worker: WorkerStandIn) -> None:
        self._worker = worker
        self._instances = worker.state.actors
        self._numbers: dict[Hashable, int] = {}
        self._lock = threading.Lock()

    def add(self, key: Hashable, instance: Any, number: int = 0) -> Actor:
        """Keep an actor, and return a handle of it. ``number`` tells it from others of its key."""
        self._instances[key] = instance
        self._numbers[key] = number
        # Never bound to a client: with a future of its own it would keep the actor alive for ever.
        # In tasks of this worker it works by the worker alone; elsewhere it is unpickled, and bound.
        handle = Actor.__new__(Actor)
        TaskRef.__init__(handle, key)
        handle._cls = type(instance)
        handle._address = self._worker.address
        handle._key = key
        handle._worker = self._worker
        handle._client = handle._future = None
        vars(handle)["_try_bind_worker_client"] = _stay_unbound
        return handle

    def drop(self, key: Hashable, number: int = 0) -> None:
        """Forget an actor, unless another one has its key by now: this may be told late."""
        if self._numbers.get(key) == number:
            self._numbers.pop(key)
            self._instances.pop(key, None)

    def clear(self) -> None:
        """Forget all actors."""
        self._numbers.clear()
        self._instances.clear()

    async def execute(
        self,
        actor: Hashable = None,
        function: str = "",
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Call a method; what it raises is part of the answer."""
        keywords = dict(kwargs or {})
        separate_thread = keywords.pop("separate_thread", True)
        instance = self._instances[actor]
        try:
            method = getattr(instance, function)
            worker_here.set(self._worker)
            if iscoroutinefunction(method):
                result = await method(*args, **keywords)
            elif separate_thread:
                result = await asyncio.get_running_loop().run_in_executor(
                    self._worker.executors["actor"],
                    partial(
                        _run_method,
                        os.getpid(),
                        method,
                        tuple(args),
                        keywords,
                        {"worker": self._worker},
                        f"{prefix_of(actor)}.{function}",
                        self._worker.pool_threads,
                        self._lock,
                    ),
                )
            else:
                result = method(*args, **keywords)
            return _answer(result)
        except Exception as error:
            return _failure(error)

    def attribute(self, actor: Hashable = None, attribute: str = "") -> dict[str, Any]:
        """Read an attribute."""
        try:
            return _answer(getattr(self._instances[actor], attribute))
        except Exception as error:
            return _failure(error)


def _run_method(process: int, *call: Any) -> Any:
    try:
        return run_actor(*call)
    finally:
        if os.getpid() != process:
            _core.end_forked_child("a method of an actor")


def _stay_unbound() -> None:
    pass


def _answer(value: Any) -> dict[str, Any]:
    try:
        pickled = _by_value.dumps_as_needed(value)
    except Exception as error:
        raise errors.unserializable(value, error) from error
    return {"status": "OK", "result": Opaque(pickled)}


def _failure(error: Exception) -> dict[str, Any]:
    return {"status": "error", "exception": Opaque(errors.as_message(error)["exception"])}
