"""The scheduler and other workers as distributed's code sees them: objects with coroutine methods."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from treadle.common._ask import Calling, ask
from treadle.common._calls import NATIVE, actors_answer, pack, unpack_answer
from treadle.worker._native import Native

__all__ = ["RPC", "SchedulerRPC", "WorkerRPC", "ask_scheduler"]


def ask_scheduler(
    native: Native, operation: str, argument: Mapping[str, Any], timeout: float
) -> Any:
    """Ask the scheduler itself, and wait for the answer for at most so many seconds.

    Raises
    ------
    OSError
        It does not answer, or this worker has ended.
    """
    answered = threading.Event()
    answers: list[tuple[Any, Any]] = []

    def done(result: Any, error: Any) -> None:
        answers.append((result, error))
        answered.set()

    native.call("", operation, argument, done)
    if not answered.wait(timeout):
        raise TimeoutError(f"the scheduler does not answer {operation!r}")
    result, error = answers[0]
    if error is not None:
        raise OSError(f"{operation}: {error}")
    return result


class RPC:
    """A node whose operations are coroutine methods."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address!r}>"

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)

        async def call(**kwargs: Any) -> Any:
            return await self._call(name, kwargs)

        return call

    async def ask(self, operation: str, kwargs: dict[str, Any]) -> Any:
        """Call an operation, given by name."""
        return await self._call(operation, kwargs)

    async def _call(self, operation: str, kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def close_rpc(self) -> None:
        """Nothing is to be closed."""


class _ByWorker(RPC):
    """A node that a worker asks."""

    def __init__(self, native: Calling, address: str) -> None:
        super().__init__(address)
        self._native = native

    async def _python(self, node: str, operation: str, kwargs: dict[str, Any]) -> Any:
        """Call Python code of a node."""
        try:
            answer = await ask(self._native, node, operation, pack(kwargs))
            return unpack_answer(answer) if isinstance(answer, bytes) else answer
        except Exception as error:
            return actors_answer(operation, error)


class WorkerRPC(_ByWorker):
    """Another worker, or this one."""

    async def _call(self, operation: str, kwargs: dict[str, Any]) -> Any:
        return await self._python(self.address, operation, kwargs)


class SchedulerRPC(_ByWorker):
    """The scheduler: the native one for what that serves, its Python side for the rest."""

    async def _call(self, operation: str, kwargs: dict[str, Any]) -> Any:
        if operation in NATIVE:
            return await ask(self._native, "", operation, kwargs)
        if operation == "proxy":
            message = dict(cast("dict[str, Any]", kwargs["msg"]))
            return await self._python(kwargs["worker"], message.pop("op"), message)
        return await self._python("sidecar", operation, kwargs)
