"""Futures of Dask that become Treadle's, and back. The values do not pass through the client."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Hashable
from typing import Any

import distributed

from treadle.client._gather import without_inline
from treadle.client._state import State, until
from treadle.common._ask import ask
from treadle.hosting import _value_exchange
from treadle.hosting._dask import NAME

__all__ = ["adopted", "given_back"]

# The priority of what takes a value: no computation should have to end first.
_FIRST = 1_000_000

#: Runs a coroutine function with Dask's client in that client's loop.
Ask = Callable[..., Awaitable[Any]]


#: What both engines have, by key: the state of Treadle's future, and the number of Dask's task.
Same = dict[Hashable, tuple[State, int]]


async def adopted(
    client: Any, futures: Collection[Any], ask_dask: Ask, scheduler: str, same: Same
) -> dict[Hashable, Any]:
    """Return futures of Treadle's client for those of Dask's, once Treadle has the values.

    Raises
    ------
    ValueError
        One is not finished, or Treadle's client has another one of its key.
    RuntimeError
        The task of one failed there, or it is lost.
    """
    by_key = {future.key: future for future in futures}
    for future in by_key.values():
        _check(future, future._state, "Dask")
    who_has, names, numbers = await ask_dask(_where, list(by_key))
    groups: defaultdict[str, list[Hashable]] = defaultdict(list)
    for key in by_key:
        holders = [address for address in who_has.get(key, ()) if address in names]
        if not holders:
            raise RuntimeError(
                f"{key!r} is lost: no worker of Dask has it any more. Compute it again there"
            )
        groups[names[holders[0]]].append(key)
    # What was released is no future any more.
    client._collect()
    for key in by_key:
        state = client.futures.get(key)
        if state is not None and not _is_same(same, key, state, numbers):
            raise ValueError(
                f"Treadle's client has a future of {key!r} that was not adopted from this one of "
                "Dask, and may have another value: cancel that future first"
            )
    found: dict[Hashable, Any] = {}
    for name, keys in groups.items():
        made = client.map(
            _value_exchange.take,
            keys,
            [list(who_has[key]) for key in keys],
            scheduler=scheduler,
            key=keys,
            workers=[name],
            # Another one asks Dask's workers.
            allow_other_workers=True,
            priority=_FIRST,
        )
        found.update(zip(keys, made, strict=True))
    _note(same, client, {key: future._bound()[1] for key, future in found.items()}, numbers)
    await _settle(found.values())
    return found


async def given_back(
    client: Any, futures: Collection[Any], ask_dask: Ask, scheduler: str, same: Same
) -> dict[Hashable, Any]:
    """Return futures of Dask's client for those of Treadle's, once Dask's workers have the values.

    Raises
    ------
    ValueError
        One is not finished, or Dask has another task of its key.
    RuntimeError
        The task of one failed, or Dask has no workers.
    """
    by_key = {future.key: future for future in futures}
    states = {key: future._bound()[1] for key, future in by_key.items()}
    for key, future in by_key.items():
        _check(future, states[key], "Treadle")
    there, names, numbers = await ask_dask(_where, list(by_key))
    if not names:
        raise RuntimeError("Dask has no workers that could take values")
    for key in numbers:
        if not _is_same(same, key, states[key], numbers):
            raise ValueError(
                f"Dask has a task of {key!r} that this value was not adopted from, and may have "
                "another value: cancel Dask's future of it, or this one, first"
            )
    new = [key for key in by_key if not there.get(key)]
    # Small values are here already.
    small: dict[Hashable, Any] = {}
    large = without_inline(client, new, small)
    holders = await ask(client._connection, "", "who_has", {"keys": large})
    groups: defaultdict[str, list[Hashable]] = defaultdict(list)
    for key in large:
        groups[next(iter(holders.get(key, ())), "")].append(key)
    given = await asyncio.gather(
        *(_give(client, one, keys, names, scheduler) for one, keys in groups.items()),
        return_exceptions=True,
    )
    failed = [part for part in given if isinstance(part, BaseException)]
    places = {
        key: place
        for part in given
        if not isinstance(part, BaseException)
        for key, place in part.items()
    }
    lost = [key for key in large if key not in places]
    if lost:
        await ask_dask(_free, large)
        raise (
            failed[0]
            if failed
            else RuntimeError(f"{lost[0]!r} is lost: no worker of Treadle has it any more")
        )
    types = {key: future.type for key, future in by_key.items()}
    found: dict[Hashable, Any] = await ask_dask(_known, places, small, types)
    _note(same, client, states, await ask_dask(_numbers, list(by_key)))
    return found


def _is_same(same: Same, key: Hashable, state: State, numbers: dict[Hashable, int]) -> bool:
    """Whether both engines have the value of a key from one of them."""
    known = same.get(key)
    return known is not None and known[0] is state and known[1] == numbers.get(key)


def _note(
    same: Same, client: Any, states: dict[Hashable, State], numbers: dict[Hashable, int]
) -> None:
    """Note what both engines have now, and drop what Treadle's client has no more."""
    for key in [key for key, (state, _) in same.items() if client.futures.get(key) is not state]:
        del same[key]
    same |= {key: (state, numbers[key]) for key, state in states.items() if key in numbers}


async def _give(
    client: Any, holder: str, keys: list[Hashable], names: dict[str, str], scheduler: str
) -> dict[Hashable, tuple[str, int]]:
    """Have a worker of Treadle give values to the worker of Dask beside it, or to any."""
    identity = await ask(client._connection, "", "identity", {"n_workers": -1})
    if holder not in identity["workers"]:
        return {}
    name = str(identity["workers"][holder]["name"])
    beside = next((address for address, other in names.items() if other == name), None)
    address = beside or next(iter(names))
    answers = await client._run(_value_exchange.give, keys, address, scheduler, workers=[holder])
    return {key: (address, nbytes) for key, nbytes in answers[holder].items()}


def _check(future: Any, state: Any, engine: str) -> None:
    status = future.status
    if status == "finished":
        return
    if status == "pending":
        raise ValueError(
            f"{future.key!r} still runs on {engine}: wait for it first, with distributed.wait(...)"
        )
    if status == "error":
        error = state.raised()[0] if isinstance(state, State) else state.exception
        raise RuntimeError(
            f"{future.key!r} has no value: its task failed on {engine}: {error!r}"
        ) from error
    raise RuntimeError(f"{future.key!r} has no value: it is {status} on {engine}")


async def _settle(futures: Collection[Any]) -> None:
    """Wait for futures of Treadle, and raise what one of their tasks did."""
    states = [future._bound()[1] for future in futures]
    await until(states)
    for state in states:
        if state.status != "finished":
            state.throw()


# In the loop of Dask's client


async def _where(
    dask: Any, keys: list[Hashable]
) -> tuple[dict[Hashable, list[str]], dict[str, str], dict[Hashable, int]]:
    """Return where Dask has values, the names of its workers by address, and its tasks' numbers."""
    identity = await dask.scheduler.identity(n_workers=-1)
    names = {one: str(worker["name"]) for one, worker in identity["workers"].items()}
    found = await dask.scheduler.who_has(keys=keys) if keys else {}
    who_has = {key: list(holders) for key, holders in found.items()}
    return who_has, names, await _numbers(dask, keys)


async def _numbers(dask: Any, keys: list[Hashable]) -> dict[Hashable, int]:
    found: dict[Hashable, int] = await dask.run_on_scheduler(_numbers_of, keys)
    return found


def _numbers_of(keys: list[Hashable], dask_scheduler: Any) -> dict[Hashable, int]:
    numbers: dict[Hashable, int] = dask_scheduler.plugins[NAME].numbers(keys)
    return numbers


async def _free(dask: Any, keys: list[Hashable]) -> None:
    """Have Dask free what its workers were given of these, and its scheduler has not been told of."""
    held = await dask.run(_sizes, keys, on_error="ignore")
    known = await dask.scheduler.who_has(keys=keys)
    places = {
        key: (address, nbytes)
        for address, sizes in held.items()
        for key, nbytes in sizes.items()
        if not known.get(key)
    }
    # Nobody keeps the futures.
    await _known(dask, places, {}, dict.fromkeys(places))


def _sizes(keys: list[Hashable], dask_worker: Any) -> dict[Hashable, int]:
    tasks = dask_worker.state.tasks
    return {key: tasks[key].nbytes or 0 for key in keys if key in dask_worker.data and key in tasks}


async def _known(
    dask: Any,
    places: dict[Hashable, tuple[str, int]],
    small: dict[Hashable, Any],
    types: dict[Hashable, Any],
) -> dict[Hashable, Any]:
    """Tell Dask's scheduler of values that its workers were given, and return futures of all keys.

    Small values go there by itself.
    """
    scattered = await dask._scatter(small) if small else {}
    if places:
        await dask.scheduler.update_data(
            who_has={key: [address] for key, (address, _) in places.items()},
            nbytes={key: nbytes for key, (_, nbytes) in places.items()},
            client=dask.id,
        )
    make: Any = distributed.Future
    found: dict[Hashable, Any] = {key: make(key, dask) for key in types}
    for key, kind in types.items():
        if key not in scattered:
            dask.futures[key].finish(type=kind)
    return found
