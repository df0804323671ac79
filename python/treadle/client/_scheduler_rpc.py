"""What ``client.scheduler`` is: an object whose attributes are calls to be awaited.

distributed's client, and its locks, queues and the like, ask their scheduler with
``await client.scheduler.who_has(keys=…)``. Here such a call goes to the native scheduler, to its
Python sidecar, or to workers, and what nobody serves is named in a ``NotImplementedError``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dask.sizeof import sizeof

from treadle import _core
from treadle._compat.distributed import dumps
from treadle.client._diagnostics import Diagnostics
from treadle.client._replay import Recipe
from treadle.common import _calls
from treadle.common._ask import Calling, ask, called_back, notify
from treadle.common._calls import NATIVE, error_of
from treadle.common._loop import off_loop
from treadle.common._names import rename_workers
from treadle.common._sizes import by_prefix
from treadle.scheduler._story import told

if TYPE_CHECKING:
    from treadle.client._client import Client

__all__ = ["Node", "Nodes", "Scheduler", "stream"]

# Whose answers have tuples, as all that comes from distributed's scheduler.
_OF_TUPLES = frozenset(["who_has", "has_what", "processing"])


async def ask_all(
    connection: _core.Connection, workers: Mapping[int, str], operation: str, argument: Any
) -> dict[str, Any]:
    """Call members, given with their addresses, over the broadcast plane.

    Returns by address what :func:`ask` would, or the exception that it would raise.
    """
    if not workers:
        return {}
    # It copies the argument, and may wait.
    call = partial(off_loop, connection.call_all, list(workers), operation, argument)
    (answers,) = await called_back(call)
    outcomes: dict[int, Any] = {}
    reason = "it has not answered"
    for number, kind, value in answers:
        if kind == "answer":
            outcomes[number] = value
        elif kind == "error":
            outcomes[number] = error_of(value)
        elif number in workers:
            failure = MemoryError if kind == "refused" else OSError
            outcomes[number] = failure(f"Worker {workers[number]}: {value}")
        else:
            reason = value
    for number in workers.keys() - outcomes.keys():
        outcomes[number] = OSError(f"Worker {workers[number]}: {reason}")
    return {address: outcomes[number] for number, address in workers.items()}


async def ask_python(connection: Calling, node: str, operation: str, kwargs: Any) -> Any:
    """Call a node's Python side, as distributed's handler of that name."""
    try:
        answer = await ask(connection, node, operation, _calls.pack(kwargs))
        return None if answer is None else _calls.unpack_answer(answer)
    except Exception as error:
        return _calls.actors_answer(operation, error)


def stream(connection: Calling, operation: str, kwargs: Mapping[str, Any]) -> None:
    """Send the sidecar a message that nobody answers, after all that was sent before."""
    notify(connection, "sidecar", f"stream:{operation}", _calls.pack(kwargs))


class Node:
    """A worker, whose attributes are calls of its handlers."""

    def __init__(self, connection: Calling, address: str) -> None:
        self._connection = connection
        self.address = address

    def __getattr__(self, operation: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if operation.startswith("__"):
            raise AttributeError(operation)

        async def call(**kwargs: Any) -> Any:
            return await ask_python(self._connection, self.address, operation, kwargs)

        return call

    async def close_rpc(self) -> None:
        """Do nothing: the connection is the client's."""

    async def __aenter__(self) -> Node:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


class Nodes:
    """What ``client.rpc`` is: ``rpc(address)`` gives calls to a worker."""

    def __init__(self, connection: Calling) -> None:
        self._connection = connection

    def __call__(self, address: str) -> Node:
        return Node(self._connection, address)


class Scheduler(Diagnostics):
    """What ``client.scheduler`` is."""

    def __init__(self, client: Client, connection: _core.Connection) -> None:
        super().__init__()
        self._client = client
        self._connection = connection
        self.address: str = connection.address

    def __repr__(self) -> str:
        return f"<Scheduler {self.address!r}>"

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[Any]]:
        if operation.startswith("__"):
            raise AttributeError(operation)
        if operation in NATIVE:
            return self._native(operation)
        # Functions that run on the scheduler may have added handlers of their own.
        return self._sidecar(operation)

    async def _ask(self, operation: str, argument: Mapping[str, Any]) -> Any:
        return await ask(self._connection, "", operation, argument)

    def _native(self, operation: str) -> Callable[..., Awaitable[Any]]:
        async def call(**kwargs: Any) -> Any:
            answer = await ask(self._connection, "", operation, plain(kwargs))
            if operation in _OF_TUPLES:
                answer = {key: tuple(items) for key, items in answer.items()}
            return answer

        return call

    async def identity(self, n_workers: int = -1, **_kwargs: Any) -> dict[str, Any]:
        """Return what the scheduler says about itself and workers."""
        answer: dict[str, Any] = await self._native("identity")(n_workers=n_workers)
        rename_workers(answer["workers"])
        return answer

    async def retire_workers(self, **kwargs: Any) -> dict[str, Any]:
        """Have workers leave; returns what was known of them."""
        gone: dict[str, Any] = await self._native("retire_workers")(**kwargs)
        rename_workers(gone)
        for worker in gone.values():
            worker["status"] = "closed"
        return gone

    async def rebalance(self, **kwargs: Any) -> dict[str, Any]:
        """Move values to workers with fewer bytes, and small ones to those that have fewer.

        Raises
        ------
        KeyError
            A worker is not known.
        """
        if wanted := kwargs.get("workers"):
            known = (await self.identity())["workers"]
            names = {
                name
                for address, worker in known.items()
                for name in (address, str(worker["name"]), worker["host"])
            }
            for worker in wanted:
                if str(worker) not in names:
                    raise KeyError(worker)
        answer: dict[str, Any] = await self._native("rebalance")(**kwargs)
        if "keys" in answer:
            answer["keys"] = tuple(answer["keys"])
        return answer

    async def nbytes(
        self, keys: Sequence[Any] | None = None, summary: bool = True, **_kwargs: Any
    ) -> dict[str, Any]:
        """Return the sizes of values: those of small ones, which are here, in memory.

        Raises
        ------
        KeyError
            There is no such value.
        """
        sizes: dict[Any, int] = await self._native("nbytes")(keys=keys, summary=False)
        if keys is not None:
            sizes = {key: sizes[key] for key in keys}
        for key in sizes:
            if self._connection.is_inline(key):
                sizes[key] = sizeof(self._connection.value(key))
        return by_prefix(sizes) if summary else sizes

    async def has_what(
        self, workers: Sequence[str] | None = None, **_kwargs: Any
    ) -> dict[str, Any]:
        """Return the keys of the values that workers have; none for one that is not here."""
        held: dict[str, Any] = await self._native("has_what")(workers=workers)
        for worker in workers or ():
            if isinstance(worker, str) and "://" in worker:
                held.setdefault(worker, ())
        return held

    def _sidecar(self, operation: str) -> Callable[..., Awaitable[Any]]:
        async def call(**kwargs: Any) -> Any:
            answer = await ask_python(self._connection, "sidecar", operation, kwargs)
            # On distributed's wire, lists become tuples.
            return tuple(answer) if type(answer) is list else answer

        return call

    async def close_rpc(self) -> None:
        """Do nothing: the connection is the client's."""

    # Calls that are more than one message.

    async def broadcast(
        self,
        msg: Mapping[str, Any],
        workers: Sequence[str] | None = None,
        nanny: bool = False,
        on_error: str = "raise",
        **_kwargs: Any,
    ) -> dict[str, Any]:
        """Call a handler of workers (default: all), and return their answers by address.

        With ``nanny``, of those that look after their processes.
        """
        operation, argument = _calls.of_message(msg, nanny)
        places = await self._places(workers)
        together = {number: address for address, number in places.items() if number is not None}
        alone = [address for address, number in places.items() if number is None]
        if len(together) == 1:
            # One call is the same, and shorter.
            alone, together = list(places), {}

        async def call(address: str) -> Any:
            try:
                return await ask(self._connection, address, operation, argument)
            except Exception as error:
                return error

        answers = await ask_all(self._connection, together, operation, argument)
        answers |= zip(alone, await asyncio.gather(*map(call, alone)), strict=True)
        results = {}
        for address in places:
            answer = answers[address]
            if not isinstance(answer, Exception):
                results[address] = None if answer is None else _calls.unpack_answer(answer)
            elif on_error == "return":
                results[address] = answer
            elif on_error == "return_pickle":
                results[address] = dumps(answer)
            elif on_error != "ignore":
                raise answer
        return results

    async def _places(self, workers: Sequence[str] | None) -> dict[str, int | None]:
        """Return the numbers of workers by address, of which some may be given by name.

        One that nobody knows has none.
        """
        # The first time this asks. Since messages keep their order, what it asked for, and whoever
        # has joined, is here when something else is answered.
        self._connection.members()
        await ask(self._connection, "", "running", {"workers": []})
        members = self._connection.members() or []
        by_address: dict[str, int | None] = {address: number for number, _, address, _ in members}
        if workers is None:
            return by_address
        if isinstance(workers, str):
            workers = [workers]
        by_name = {name: address for _, name, address, _ in members}
        addresses = (by_name.get(str(worker), str(worker)) for worker in workers)
        return {address: by_address.get(address) for address in addresses}

    async def proxy(self, worker: str, msg: Mapping[str, Any], **_kwargs: Any) -> Any:
        """Call a handler of one worker."""
        kwargs = dict(msg)
        operation = kwargs.pop("op")
        return await ask_python(self._connection, worker, operation, kwargs)

    async def gather(self, keys: Sequence[Any], **_kwargs: Any) -> dict[str, Any]:
        """Get values by key; those of finished keys of this client."""
        values, errors = await self._client._fetch(list(keys))
        if errors:
            return {"status": "error", "keys": list(errors)}
        return {"status": "OK", "data": values}

    async def replicate(self, keys: Sequence[Any], n: int | None = None, **kwargs: Any) -> Any:
        """Copy values to workers until ``n`` of them, by default all, have each."""
        if n is not None and n <= 0:
            raise ValueError("Can not use replicate to delete data")
        asked = plain({"keys": keys, "n": n, **kwargs})
        return await ask(self._connection, "", "replicate", asked)

    async def retry(self, keys: Sequence[Any], **_kwargs: Any) -> tuple[Any, ...]:
        """Run again what failed; returns the keys."""
        self._connection.retry(list(keys))
        return tuple(keys)

    async def call_stack(self, keys: Sequence[Any] | None = None) -> dict[str, Any]:
        """Return the call stacks of tasks that run, by worker and key."""
        wanted = None if keys is None else set(keys)
        stacks = await self.broadcast({"op": "call_stack", "keys": keys}, on_error="ignore")
        found = {
            worker: {k: tuple(v) for k, v in stack.items() if wanted is None or k in wanted}
            for worker, stack in stacks.items()
        }
        return {worker: stack for worker, stack in found.items() if stack}

    async def worker_logs(
        self, n: int | None = None, workers: Sequence[str] | None = None, nanny: bool = False
    ) -> dict[str, Any]:
        """Return the last lines of the logs of workers."""
        return await self.broadcast({"op": "get_logs", "n": n}, workers=workers, nanny=nanny)

    async def get_story(self, keys_or_stimuli: Sequence[Any] = ()) -> list[Any]:
        """Return what the scheduler remembers of keys."""
        keys = list(keys_or_stimuli)
        return told(await ask(self._connection, "", "story", {"keys": keys}))

    async def get_runspec(self, key: Any, **_kwargs: Any) -> Recipe:
        """Return what a task runs."""
        told = await ask(self._connection, "", "recipe", {"keys": [key]})
        if told is None:
            raise ValueError(
                f"{key!r} has a value and nothing to compute it from: it was scattered, or it is "
                "small. Data of up to 1 KiB lives at the scheduler, which forgets how it came about"
            )
        return Recipe(key, told)

    async def get_error_cause(self, keys: Sequence[Any], **_kwargs: Any) -> Any:
        """Return the key of the task that raised what futures of keys have failed with."""
        states = (self._client.futures.get(key) for key in keys)
        causes = (state.blamed for state in states if state is not None)
        return next((cause for cause in causes if cause is not None), None)

    async def amm_handler(self, method: str) -> Any:
        """Say that there is no active memory manager: Treadle's scheduler moves values itself."""
        if method == "running":
            return False
        if method == "stop":
            return None
        raise NotImplementedError(
            f"Treadle's scheduler does not serve the active memory manager's {method!r}"
        )

    async def restart(
        self, timeout: float = 30, wait_for_workers: bool = True, **_kwargs: Any
    ) -> None:
        """Drop all tasks and values, and start each worker anew."""
        await self._client._restart_cluster(timeout, wait_for_workers)

    async def restart_workers(
        self, workers: Sequence[str], timeout: float = 30, on_error: str = "raise", **_kwargs: Any
    ) -> dict[str, str]:
        """Start some workers anew; returns how that went for each address."""
        return await self._client._restart_some(list(workers), timeout, on_error)


def plain(value: Any) -> Any:
    """Return an argument with containers that the native scheduler knows."""
    if isinstance(value, (set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value
