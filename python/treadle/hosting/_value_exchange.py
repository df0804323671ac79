"""What moves values between a worker of Treadle and the worker of Dask beside it.

In one process the value itself passes. Otherwise Dask's own connections carry it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Hashable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import distributed

from treadle._compat.distributed import ConnectionPool, Serialize, gather_from_workers
from treadle.common._certificates import of_prefix
from treadle.common._loop import off_loop

__all__ = ["enter", "give", "leave", "take"]

# Seconds in which one value moves.
_PATIENCE = 600.0
# Seconds until a value that is computed again is asked for again: the first time, and at most.
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 1.0
# The states of a task of Dask whose value is lost, and will be there again.
_COMING = ("waiting", "no-worker", "queued", "processing", "memory")

# Dask's workers in this process that have one of ours, by address.
_workers: dict[str, Any] = {}


def enter(worker: Any) -> None:
    """Have values of a worker of Dask, in this process, pass without a copy."""
    _workers[worker.address] = worker


def leave(worker: Any) -> None:
    """Undo :func:`enter`."""
    _workers.pop(worker.address, None)


def take(key: Hashable, holders: Sequence[str], scheduler: str) -> Any:
    """Return a value that Dask's workers have: the task of an adopted future.

    Parameters
    ----------
    key
        Of the value, in Dask.
    holders
        The addresses of Dask's workers that had it.
    scheduler
        The address of Dask's scheduler, which knows where else it is.

    Raises
    ------
    RuntimeError
        No worker of Dask has it any more.
    TypeError
        It is an actor.
    """
    for address in holders:
        worker = _workers.get(address)
        if worker is not None:
            found = _run_in(worker, _held(worker, key))
            if found:
                return found[0]
    return _through(scheduler, partial(_fetch, key, scheduler))


async def give(
    keys: Sequence[Hashable], address: str, scheduler: str, dask_worker: Any
) -> dict[Hashable, int]:
    """Give a worker of Dask values of this worker, in its loop: whatever its tasks do meanwhile.

    Parameters
    ----------
    keys
        Of the values.
    address
        Of Dask's worker, which is beside this one.
    scheduler
        The address of Dask's scheduler.
    dask_worker
        Treadle's worker, as :meth:`distributed.Client.run` gives it.

    Returns
    -------
    How many bytes each takes. Those are left out that are not here any more.
    """
    sizes = {}
    for key in keys:
        try:
            # It may have to be loaded from disk.
            value = await off_loop(dask_worker.data.__getitem__, key)
        except KeyError:
            continue
        worker = _workers.get(address)
        if worker is not None:
            answer = await asyncio.wrap_future(_begin_in(worker, _update(worker, key, value)))
        else:
            send = partial(_send, key, value, address)
            answer = await _with_own_connections(scheduler, send, dask_worker)
        sizes[key] = answer["nbytes"][key]
    return sizes


async def _held(worker: Any, key: Hashable) -> tuple[Any, ...]:
    if key in worker.state.actors:
        raise TypeError(f"{key!r} is an actor of Dask: it stays there")
    # In the worker's own loop: the value may have to be loaded from disk.
    return (worker.data[key],) if key in worker.data else ()


async def _update(worker: Any, key: Hashable, value: Any) -> Any:
    return worker.update_data(data={key: value})


async def _send(key: Hashable, value: Any, address: str, rpc: ConnectionPool) -> Any:
    return await rpc(address).update_data(data={key: Serialize(value)})


async def _fetch(key: Hashable, scheduler: str, rpc: ConnectionPool) -> Any:
    pause = _FIRST_PAUSE
    while True:
        # It may have moved. Whoever asks a worker that is dead waits for half a minute.
        holders = (await rpc(scheduler).who_has(keys=[key]))[key]
        if holders:
            data, _, failed, _ = await gather_from_workers({key: holders}, rpc)
            if failed:
                raise RuntimeError(
                    f"{key!r} cannot be read from Dask's workers: see the worker's log"
                )
            if key in data:
                return data[key]
        elif (await rpc(scheduler).get_task_status(keys=[key]))[key] not in _COMING:
            raise RuntimeError(
                f"{key!r} is lost: no worker of Dask has it any more. Compute it again there, and "
                "adopt it again"
            )
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LAST_PAUSE)


def _through(scheduler: str, function: Callable[[ConnectionPool], Coroutine[Any, Any, Any]]) -> Any:
    """Call a function with connections to the Dask cluster."""
    for worker in list(_workers.values()):
        if worker.scheduler.address == scheduler:
            return _run_in(worker, function(worker.rpc))
    asking = _with_own_connections(scheduler, function, distributed.get_worker())
    return asyncio.run(asyncio.wait_for(asking, _PATIENCE))


async def _with_own_connections(
    scheduler: str, function: Callable[[ConnectionPool], Coroutine[Any, Any, Any]], here: Any
) -> Any:
    security = distributed.Security()
    if scheduler.startswith("tls://"):
        from treadle.hosting._worker_parts import directory_of_host

        beside = os.path.dirname(here._connection["certificates"]["ca"])
        own = of_prefix(os.path.join(directory_of_host(beside), "node"))
        security = distributed.Security(
            require_encryption=True,
            tls_ca_file=own["ca"],
            tls_worker_cert=own["certificate"],
            tls_worker_key=own["key"],
        )
    pool = ConnectionPool(connection_args=security.get_connection_args("worker"))
    async with pool:
        return await function(pool)


def _run_in(worker: Any, coroutine: Coroutine[Any, Any, Any]) -> Any:
    return _begin_in(worker, coroutine).result(_PATIENCE)


def _begin_in(worker: Any, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
    return asyncio.run_coroutine_threadsafe(coroutine, worker.loop.asyncio_loop)
