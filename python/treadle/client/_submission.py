"""How a client submits calls and graphs, and what becomes of the futures if that fails."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from itertools import compress, islice
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import dask
from dask.core import validate_key
from dask.utils import format_bytes, funcname, parse_bytes

from treadle import _core
from treadle.client import _options, _update_graph
from treadle.client._before_connected import Early
from treadle.client._future import Future
from treadle.client._gather import find_futures
from treadle.client._state import Expected, State
from treadle.worker._executors import in_executor
from treadle.worker._spans import in_span

if TYPE_CHECKING:
    from treadle.client._client import Client

__all__ = ["failed_futures", "inputs_held", "submit_calls", "submit_graph", "submitted", "withdraw"]

# How often something is submitted whose arguments other threads cancel meanwhile.
_ATTEMPTS = 10
# The setting that says from what size on the data of a submission is warned of.
_LARGE = "distributed.admin.large-graph-warning-threshold"


def submitted(
    client: Client, futures: list[Future], submit: Callable[[], int], *arguments: Any
) -> None:
    """Submit, and give the futures up if that fails."""
    start = perf_counter_ns() if client._recorders else 0
    try:
        try:
            size = submit()
        except _core.MissingDependencyError:
            size = _submit_again(client, submit, arguments)
        for future in futures:
            # Another thread has cancelled it meanwhile.
            state = future._state
            if state is not None and state.over is not None:
                _disown(client, state)
    except BaseException:
        withdraw(client, futures)
        raise
    if size:
        _warn_if_large(size)
    if start:
        client._record("submit", start, len(futures))


def _submit_again(client: Client, submit: Callable[[], int], arguments: Any) -> int:
    """Submit what reads futures of another client, or futures that were cancelled.

    Another thread may cancel them at any time, also those that are held here.
    """
    found: list[Any] = []
    find_futures(arguments, found)
    keys = {future.key for future in found}
    held: list[Future] = []
    # The first attempt was the caller's.
    for attempt in range(2, _ATTEMPTS + 1):
        held += [Future(key, client) for key in keys]
        try:
            size = submit()
            break
        except _core.MissingDependencyError:
            if attempt == _ATTEMPTS:
                raise
    for future in held:
        future.release()
    return size


def _disown(client: Client, state: State) -> None:
    connection = client._connection
    if connection is not None and not isinstance(connection, Early):
        with client._refcount_lock:
            connection.disown(state, client.futures)


def withdraw(client: Client, futures: list[Future]) -> None:
    """Give up futures of keys that could not be submitted."""
    for future in futures:
        future.release()
    client._collect()


def _warn_if_large(size: int) -> None:
    """Warn of data of so many bytes that came with a submission."""
    # What surrounds the data is not counted, so equal is more.
    if size >= parse_bytes(dask.config.get(_LARGE)):
        warnings.warn(
            f"Sending large graph of size {format_bytes(size)}.\n"
            "This may cause some slowdown.\n"
            "Consider loading the data in tasks, or client.scatter and its futures.",
            UserWarning,
            stacklevel=4,
        )


def submit_calls(
    client: Client,
    func: Callable[..., Any],
    iterables: tuple[Collection[Any], ...],
    key: str | list[Hashable] | None,
    annotations: Mapping[str, Any],
    actor: bool,
    pure: bool,
    kwargs: Mapping[str, Any],
) -> list[Future]:
    connection = client._usable("send update-graph message")
    keys = _keys_of_calls(connection, func, iterables, key, pure and not actor, kwargs)
    futures: list[Future] = []
    # Those that are to be submitted: a key may occur twice.
    states: list[State] = []
    # The same, once it matters.
    seen: set[State] | None = None
    fresh = []
    known, count = client.futures, _core.count
    with client._refcount_lock:
        for name in keys:
            state = known.get(name)
            if state is None:
                # As `_claim`, without a call: there may be millions.
                state = State(name)
                future = Future(name, client, state)
                count(future)
                known[name] = state
                new = True
            else:
                future = client._claim(name)
                new = not state.sent
                if new:
                    seen = set(states) if seen is None else seen
                    new = state not in seen
            if new:
                states.append(state)
                if seen is not None:
                    seen.add(state)
            fresh.append(new)
            futures.append(future)
    if not states:
        return futures
    if len(states) != len(fresh):
        keys = list(compress(keys, fresh))
    parts = _options.of_calls(annotations, actor, keys)
    if _update_graph.is_told(client, annotations):
        wanted = [future.key for future in futures]
        _update_graph.tell(client, connection, wanted, keys, annotations)
    if "span" in annotations:
        func = in_span(func, annotations["span"])
    functions = {
        name: func if name is None else in_executor(func, name)
        for name in {executor for _, _, executor in parts}
    }

    def submit() -> int:
        arguments: Any = zip(*iterables, strict=False)
        if len(states) != len(fresh):
            arguments = compress(arguments, fresh)
        if len(parts) > 1:
            arguments = list(arguments)
        size = 0
        # Those of an earlier attempt are there already.
        while parts:
            part, options, executor = parts[0]
            some = arguments[part] if isinstance(arguments, list) else arguments
            told = keys[part], states[part], functions[executor], some, kwargs, options
            # Nothing, before there is a connection.
            size += connection.submit_calls(*told) or 0
            del parts[0]
        return size

    submitted(client, futures, submit, iterables, kwargs)
    for state in states:
        state.sent = True
    return futures


def _keys_of_calls(
    connection: _core.Connection,
    func: Callable[..., Any],
    iterables: tuple[Collection[Any], ...],
    key: str | list[Hashable] | None,
    pure: bool,
    kwargs: Mapping[str, Any],
) -> list[Hashable]:
    if key is not None and not isinstance(key, str):
        count = min(map(len, iterables), default=0)
        keys = list(islice(key, count))
        for name in keys:
            validate_key(name)
        if len(keys) < count:
            raise ValueError(f"{count} calls need {count} keys, not {len(keys)}")
        return keys
    prefix = key or funcname(func)
    if pure:
        made = connection.call_keys(func, zip(*iterables, strict=False), kwargs)
        if key is None:
            return list(made)
        return [f"{prefix}-{name.rpartition('-')[2]}" for name in made]
    unique = uuid.uuid4()
    count = min(map(len, iterables), default=0)
    return [f"{prefix}-{unique}-{i}" for i in range(count)]


def submit_graph(
    client: Client,
    connection: _core.Connection,
    graph: Mapping[Hashable, Any],
    wanted: list[Hashable],
    options: _options.Options | None = None,
    options_of: Mapping[Hashable, _options.Options] | None = None,
) -> dict[Hashable, Future]:
    start = perf_counter_ns() if client._recorders else 0
    futures = {}
    with client._refcount_lock:
        for key in wanted:
            futures[key] = client._claim(key, State if key in graph else Expected)
    states = [future._bound()[1] for future in futures.values()]
    try:
        size = connection.submit(graph, wanted, states, options, options_of, client.shuffle_servers)
    except BaseException:
        withdraw(client, list(futures.values()))
        raise
    if size:
        _warn_if_large(size)
    for state in states:
        state.sent = True
    if start:
        client._record("submit graph", start, len(graph))
    return futures


def failed_futures(
    client: Client, wanted: list[Hashable], error: Exception
) -> dict[Hashable, Future]:
    futures = {}
    for key in wanted:
        # Nobody else's: whoever asks for the key again may do better.
        state = State(key)
        state.set_error(error, None)
        futures[key] = Future(key, client, state)
    return futures


@contextmanager
def inputs_held(client: Client, graph: Mapping[Hashable, Any]) -> Iterator[None]:
    """Have futures of the keys that a graph reads and does not make."""
    outside = {key for node in graph.values() for key in node.dependencies if key not in graph}
    with client._refcount_lock:
        held = [client._claim(key, Expected) for key in outside]
        for future in held:
            client._watch(future._bound()[1])
    try:
        yield
    finally:
        for future in held:
            future.release()
