"""The client."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import compress, islice
from numbers import Number
from queue import Queue
from time import perf_counter_ns
from typing import Any

import dask
from dask.core import flatten, validate_key
from dask.highlevelgraph import HighLevelGraph
from dask.typing import no_default
from dask.utils import format_bytes, funcname, parse_bytes
from distributed.actor import Actor
from tlz import partition_all  # type: ignore[import-untyped]

from treadle import _core
from treadle._compat.dask import HLGExpr
from treadle._compat.distributed import pack_data, parse_timedelta
from treadle.client import _options, _update_graph
from treadle.client._before_connected import Early
from treadle.client._distributed import documented, futures_of
from treadle.client._future import Future
from treadle.client._gather import Gathering, find_futures
from treadle.client._graphs import in_executors, nodes_of
from treadle.client._scatter import Scattering
from treadle.client._state import Cancellation, Expected, State
from treadle.client._views import Viewing
from treadle.common._numbers import integer
from treadle.errors._shortened import shortened
from treadle.worker._executors import in_executor
from treadle.worker._spans import in_span

__all__ = ["Client"]

# How often something is submitted whose arguments other threads cancel meanwhile.
_ATTEMPTS = 10
# The setting that says from what size on the data of a submission is warned of.
_LARGE = "distributed.admin.large-graph-warning-threshold"


class Client(Viewing):
    """A ``distributed.Client`` whose tasks run on Treadle.

    It is one: what accepts a client of distributed accepts it, and everything is documented there.
    Calls that Treadle does not serve raise a ``NotImplementedError`` that names them.

    Parameters
    ----------
    address
        ``"treadle://host:port"`` or ``"treadle+tls://host:port"``, or an object with a
        ``scheduler_address``. Without one, a scheduler is started in this process.
    workers
        How many worker processes to start on this machine; without it (and without ``n_workers`` and
        ``processes``) tasks run on threads of this process. ``n_workers`` means the same.
    threads_per_worker
        How many tasks a worker runs at once; by default the cores are shared out.
    memory_limit
        Of each worker's process: bytes, ``"4 GiB"``, a share of the machine's memory such as 0.5 (1 is all
        of it), ``"auto"`` or 0 for no limit. Above 70 % of it, values are written to disk.
    shuffle_servers
        Where shuffles keep their rows: the address of ``treadle shuffle-master``, whose servers keep each
        row in two copies; or, without an address of a scheduler, how many servers to start. 0: at the workers.
        By default what the cluster says, or ``treadle.shuffle.servers`` of Dask's configuration, or 0.
    secret
        What both sides must know: bytes or a string are the secret itself, a ``pathlib.Path`` is the
        file that holds it. By default it is the user's own, or, with TLS, none.
    certificates
        The prefix that ``treadle certs`` printed (``"treadle-certs/node"``), or a dictionary
        ``{"ca": PATH, "certificate": PATH, "key": PATH}``.
    insecure
        Allow other machines without TLS. The secret is proved all the same.
    security
        A ``distributed.Security``, a dictionary of its parameters, or, only where the client starts
        the cluster, True.
    **kwargs
        What ``distributed.Client`` takes; without an address, what :class:`LocalCluster` takes.

    Examples
    --------
    >>> client = treadle.Client(workers=2)  # doctest: +SKIP
    >>> client.submit(sum, [1, 2]).result()  # doctest: +SKIP
    3
    """

    # Calls

    @documented
    def submit(
        self,
        func: Callable[..., Any],
        *args: Any,
        key: Hashable | None = None,
        workers: Any = None,
        resources: Mapping[str, float] | None = None,
        retries: int | None = None,
        priority: float = 0,
        fifo_timeout: Any = "100 ms",
        allow_other_workers: bool = False,
        actor: bool = False,
        actors: bool = False,
        pure: bool = True,
        **kwargs: Any,
    ) -> Future:
        """Run ``func(*args, **kwargs)`` on a worker.

        ``fifo_timeout`` has no effect: of two calls of one priority the earlier one is first.
        """
        if not callable(func):
            raise TypeError("First input to submit must be a callable function")
        if allow_other_workers not in (True, False, None):
            raise TypeError("allow_other_workers= must be True or False")
        _options.warn_of_fifo_timeout(fifo_timeout)
        actor = actor or actors
        connection = self._usable("send update-graph message")
        if key is None:
            if pure and not actor:
                key = connection.call_key(func, args, kwargs)
            else:
                key = f"{funcname(func)}-{uuid.uuid4()}"
        else:
            validate_key(key)
        with self._refcount_lock:
            future = self._claim(key)
        state = future._bound()[1]
        if state.sent:
            return future
        if allow_other_workers and workers is None:
            future.release()
            raise ValueError("Only use allow_other_workers= if using workers=")
        annotations = _options.annotated(
            workers=workers,
            allow_other_workers=allow_other_workers,
            priority=priority,
            retries=retries,
            resources=resources,
        )
        if _update_graph.is_told(self, annotations):
            _update_graph.tell(self, connection, [key], [key], annotations)
        if "span" in annotations:
            func = in_span(func, annotations["span"])
        if (executor := _options.executor_of(annotations, key)) is not None:
            func = in_executor(func, executor)
        options = _options.of_call(annotations, actor, key)
        submit = partial(connection.submit_call, key, state, func, args, kwargs, options)
        self._submit([future], submit, args, kwargs)
        state.sent = True
        return future

    def _submit(self, futures: list[Future], submit: Callable[[], int], *arguments: Any) -> None:
        """Submit, and give the futures up if that fails."""
        start = perf_counter_ns() if self._recorders else 0
        try:
            try:
                size = submit()
            except _core.MissingDependencyError:
                size = self._submit_again(submit, arguments)
            for future in futures:
                # Another thread has cancelled it meanwhile.
                state = future._state
                if state is not None and state.over is not None:
                    self._disown(state)
        except BaseException:
            self._withdraw(futures)
            raise
        if size:
            self._warn_if_large(size)
        if start:
            self._record("submit", start, len(futures))

    def _submit_again(self, submit: Callable[[], int], arguments: Any) -> int:
        """Submit what reads futures of another client, or futures that were cancelled.

        Another thread may cancel them at any time, also those that are held here.
        """
        found: list[Any] = []
        find_futures(arguments, found)
        keys = {future.key for future in found}
        held: list[Future] = []
        # The first attempt was the caller's.
        for attempt in range(2, _ATTEMPTS + 1):
            held += [Future(key, self) for key in keys]
            try:
                size = submit()
                break
            except _core.MissingDependencyError:
                if attempt == _ATTEMPTS:
                    raise
        for future in held:
            future.release()
        return size

    @staticmethod
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

    def _disown(self, state: State) -> None:
        connection = self._connection
        if connection is not None and not isinstance(connection, Early):
            with self._refcount_lock:
                connection.disown(state, self.futures)

    def _withdraw(self, futures: list[Future]) -> None:
        """Give up futures of keys that could not be submitted."""
        for future in futures:
            future.release()
        self._collect()

    @documented
    def map(
        self,
        func: Callable[..., Any],
        *iterables: Collection[Any],
        key: str | list[Hashable] | None = None,
        workers: Any = None,
        retries: int | None = None,
        resources: Mapping[str, float] | None = None,
        priority: float = 0,
        allow_other_workers: bool = False,
        fifo_timeout: Any = "100 ms",
        actor: bool = False,
        actors: bool = False,
        pure: bool = True,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> list[Future]:
        """Run a function once for each set of arguments.

        Calls are sent while the later ones are still being prepared, with and without
        ``batch_size``.
        """
        if not callable(func):
            raise TypeError("First input to map must be a callable function")
        if all(isinstance(it, (Queue, Iterator)) for it in iterables):
            raise TypeError(
                "Dask no longer supports mapping over Iterators or Queues."
                "Consider using a normal for loop and Client.submit"
            )
        for it in iterables:
            len(it)  # raises of what is not a collection
        if allow_other_workers not in (True, False, None):
            raise TypeError("allow_other_workers= must be True or False")
        _options.warn_of_fifo_timeout(fifo_timeout)
        if allow_other_workers and workers is None:
            raise ValueError("Only use allow_other_workers= if using workers=")
        if workers is not None and not isinstance(workers, (str, Number, list, set)):
            raise TypeError("Workers must be a list or set of workers or None")
        actor = actor or actors
        annotations = _options.annotated(
            workers=workers,
            allow_other_workers=allow_other_workers,
            priority=priority,
            retries=retries,
            resources=resources,
        )
        batch_size = integer("batch_size", batch_size or 0, 0, 2**63 - 1)
        if batch_size <= 1 or batch_size >= max(map(len, iterables), default=0):
            return self._map(func, iterables, key, annotations, actor, pure, kwargs)
        futures: list[Future] = []
        batches = zip(*(partition_all(batch_size, it) for it in iterables), strict=False)
        for number, batch in enumerate(batches):
            start = number * batch_size
            keys = key[start : start + batch_size] if isinstance(key, list) else key
            futures += self._map(func, batch, keys, annotations, actor, pure, kwargs)
        return futures

    def _map(
        self,
        func: Callable[..., Any],
        iterables: tuple[Collection[Any], ...],
        key: str | list[Hashable] | None,
        annotations: Mapping[str, Any],
        actor: bool,
        pure: bool,
        kwargs: Mapping[str, Any],
    ) -> list[Future]:
        connection = self._usable("send update-graph message")
        keys = self._keys_of_calls(connection, func, iterables, key, pure and not actor, kwargs)
        futures: list[Future] = []
        # Those that are to be submitted: a key may occur twice.
        states: list[State] = []
        # The same, once it matters.
        seen: set[State] | None = None
        fresh = []
        known, count = self.futures, _core.count
        with self._refcount_lock:
            for name in keys:
                state = known.get(name)
                if state is None:
                    # As `_claim`, without a call: there may be millions.
                    state = State(name)
                    future = Future(name, self, state)
                    count(future)
                    known[name] = state
                    new = True
                else:
                    future = self._claim(name)
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
        if _update_graph.is_told(self, annotations):
            wanted = [future.key for future in futures]
            _update_graph.tell(self, connection, wanted, keys, annotations)
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

        self._submit(futures, submit, iterables, kwargs)
        for state in states:
            state.sent = True
        return futures

    @staticmethod
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

    # Graphs

    def _graph_to_futures(
        self,
        expr: Any,
        keys: Collection[Hashable],
        span_metadata: Any = None,
        workers: Any = None,
        allow_other_workers: bool | None = None,
        internal_priority: Any = None,  # noqa: ARG002 (distributed's signature)
        user_priority: Any = 0,
        resources: Mapping[str, float] | None = None,
        retries: int | None = None,
        fifo_timeout: Any = 0,
        actors: Any = None,
    ) -> dict[Hashable, Future]:
        connection = self._usable("send update-graph message")
        if allow_other_workers not in (True, False, None):
            raise TypeError("allow_other_workers= must be True, False, or None")
        _options.warn_of_fifo_timeout(fifo_timeout)
        annotations = _options.annotated(
            workers=workers,
            allow_other_workers=allow_other_workers,
            priority=user_priority,
            retries=retries,
            resources=resources,
        )
        if actors is not None and actors is not True and actors is not False:
            actors = list(self._expand_key(actors))
        wanted = list(dict.fromkeys(keys))
        for key in wanted:
            validate_key(key)
        graph, by_key = nodes_of(expr)
        options, options_of = _options.of_graph(graph, annotations, by_key, actors)
        graph = in_executors(graph, _options.executors_of(graph, annotations, by_key))
        submit = partial(self._submit_graph, connection, graph, wanted, options, options_of)
        if _update_graph.is_told(self, annotations, by_key):
            _update_graph.tell(
                self, connection, wanted, graph, annotations, by_key, metadata=span_metadata
            )
        try:
            try:
                return submit()
            except _core.MissingDependencyError:
                # It reads keys that this client has no futures of.
                with self._inputs_held(graph):
                    return submit()
        except _core.CycleError as error:
            # As in distributed, whose scheduler finds it later.
            return self._failed_futures(wanted, error)

    def _submit_graph(
        self,
        connection: _core.Connection,
        graph: Mapping[Hashable, Any],
        wanted: list[Hashable],
        options: _options.Options | None = None,
        options_of: Mapping[Hashable, _options.Options] | None = None,
    ) -> dict[Hashable, Future]:
        start = perf_counter_ns() if self._recorders else 0
        futures = {}
        with self._refcount_lock:
            for key in wanted:
                futures[key] = self._claim(key, State if key in graph else Expected)
        states = [future._bound()[1] for future in futures.values()]
        try:
            size = connection.submit(
                graph, wanted, states, options, options_of, self.shuffle_servers
            )
        except BaseException:
            self._withdraw(list(futures.values()))
            raise
        if size:
            self._warn_if_large(size)
        for state in states:
            state.sent = True
        if start:
            self._record("submit graph", start, len(graph))
        return futures

    def _failed_futures(self, wanted: list[Hashable], error: Exception) -> dict[Hashable, Future]:
        futures = {}
        for key in wanted:
            # Nobody else's: whoever asks for the key again may do better.
            state = State(key)
            state.set_error(error, None)
            futures[key] = Future(key, self, state)
        return futures

    @contextmanager
    def _inputs_held(self, graph: Mapping[Hashable, Any]) -> Iterator[None]:
        """Have futures of the keys that a graph reads and does not make."""
        outside = {key for node in graph.values() for key in node.dependencies if key not in graph}
        with self._refcount_lock:
            held = [self._claim(key, Expected) for key in outside]
            for future in held:
                self._watch(future._bound()[1])
        try:
            yield
        finally:
            for future in held:
                future.release()

    @documented
    def get(
        self,
        dsk: Any,
        keys: Any,
        workers: Any = None,
        allow_other_workers: bool | None = None,
        resources: Mapping[str, float] | None = None,
        sync: bool = True,
        asynchronous: bool | None = None,
        direct: bool | None = None,
        retries: int | None = None,
        priority: float = 0,
        fifo_timeout: Any = "60s",
        actors: Any = None,
        **_kwargs: Any,
    ) -> Any:
        """Compute keys of a graph."""
        if isinstance(dsk, HighLevelGraph):
            dsk = HLGExpr(dsk)
        futures = self._graph_to_futures(
            dsk,
            list(flatten([keys])),
            workers=workers,
            allow_other_workers=allow_other_workers,
            resources=resources,
            fifo_timeout=fifo_timeout,
            retries=retries,
            user_priority=priority,
            actors=actors,
        )
        if not sync:
            return pack_data(keys, futures)
        if self.asynchronous if asynchronous is None else asynchronous:
            return self._get(futures, keys)
        try:
            values = self.gather(list(futures.values()), direct=direct, asynchronous=False)
            return pack_data(keys, dict(zip(futures, values, strict=True)))
        finally:
            for future in futures.values():
                future.release()

    async def _get(self, futures: dict[Hashable, Future], keys: Any) -> Any:
        try:
            return await self._gather(pack_data(keys, futures))
        finally:
            for future in futures.values():
                future.release()

    # Values

    @documented
    def gather(
        self,
        futures: Any,
        errors: str = "raise",
        direct: bool | None = None,
        asynchronous: bool | None = None,
    ) -> Any:
        """Get the values of futures, in whatever containers.

        Values come from the workers that have them, so ``direct`` means nothing here.
        """
        if isinstance(futures, Queue):
            raise TypeError(
                "Dask no longer supports gathering over Iterators and Queues. "
                "Consider using a normal for loop and Client.submit/gather"
            )
        if isinstance(futures, Iterator):
            return (self.gather(f, errors=errors, direct=direct) for f in futures)
        if self.asynchronous if asynchronous is None else asynchronous:
            return self._gather(futures, errors=errors)
        try:
            return self._gather_now(futures, errors)
        except BaseException:
            with shortened():
                raise

    def _gather_now(self, futures: Any, errors: str) -> Any:
        start = perf_counter_ns() if self._recorders else 0
        gathering = Gathering(self, futures, errors)
        values: dict[Hashable, Any] = {}
        while True:
            self._block(gathering.ready())
            keys = self._without_inline(gathering.keys(values), values)
            if not keys:
                if gathering.outdated(values):
                    continue
                if start:
                    self._record("gather", start, len(gathering.futures))
                return gathering.result(values)
            found, failed = self._fetch_now(keys)
            values.update(found)
            gathering.lost(failed)

    def _without_inline(self, keys: list[Hashable], values: dict[Hashable, Any]) -> list[Hashable]:
        """Take the values that are here already; return the other keys."""
        others: list[Hashable] = self._usable("gather").inline(keys, values)
        return others

    async def _gather(
        self,
        futures: Any,
        errors: str = "raise",
        direct: bool | None = None,  # noqa: ARG002 (distributed's signature)
        local_worker: Any = None,  # noqa: ARG002
    ) -> Any:
        try:
            return await self._gathered(futures, errors)
        except BaseException:
            with shortened():
                raise

    async def _gathered(self, futures: Any, errors: str) -> Any:
        start = perf_counter_ns() if self._recorders else 0
        gathering = Gathering(self, futures, errors)
        values: dict[Hashable, Any] = {}
        while True:
            await gathering.wait()
            keys = self._without_inline(gathering.keys(values), values)
            if not keys:
                if gathering.outdated(values):
                    continue
                if start:
                    self._record("gather", start, len(gathering.futures))
                return gathering.result(values)
            found, failed = await self._fetch(keys)
            values.update(found)
            gathering.lost(failed)

    def _value(self, future: Future, timeout: float | None) -> Any:
        """Return the value of a finished future: what :meth:`Future.result` returns."""
        connection = self._usable("gather")
        key = future.key
        if connection.is_inline(key):
            return connection.value(key)
        values, errors = self._fetch_now([key], timeout)
        if key in values:
            return values[key]
        state = future._bound()[1]
        if state.status in ("error", "cancelled"):
            state.throw()
        raise errors[key]

    def _type_of(self, key: Hashable) -> Any:
        """Return the type of a small value: it is looked at only when somebody asks."""
        connection = self._connection
        if connection is None or not connection.is_inline(key):
            return None
        value = connection.value(key)
        return value._cls if isinstance(value, Actor) else type(value)

    async def _scatter(
        self,
        data: Any,
        workers: Any = None,
        broadcast: bool | int = False,
        direct: bool | None = None,  # noqa: ARG002 (distributed's signature)
        local_worker: Any = None,  # noqa: ARG002
        timeout: Any = no_default,
        hash: bool = True,  # noqa: A002
    ) -> Any:
        limit = parse_timedelta(self._timeout if timeout is no_default else timeout, "s")
        scattering = Scattering(data, hash, of_host=None if self._host is None else self._host.owns)
        return await scattering.run(self, workers, broadcast, limit)

    # Tasks

    async def _cancel(
        self,
        futures: Any,
        reason: str | None = None,
        msg: str | None = None,
        force: bool = False,
    ) -> None:
        self._cancel_now(futures, reason, msg, force)

    def _cancel_now(self, futures: Any, reason: str | None, msg: str | None, force: bool) -> None:
        keys = list(dict.fromkeys(future.key for future in futures_of(futures)))
        with self._refcount_lock:
            if self._connection is not None:
                self._connection.cancel(keys, force, reason, msg)
            self._forget(keys, Cancellation(reason, msg))
            if self._connection is not None:
                self._connection.flush()
        self._tell_ended()

    @documented
    def cancel(
        self,
        futures: Any,
        asynchronous: bool | None = None,
        force: bool = False,
        reason: str | None = None,
        msg: str | None = None,
    ) -> Any:
        """Cancel futures."""
        if self._forked:
            self._refuse("cancel futures")
        if self.asynchronous if asynchronous is None else asynchronous:
            return self._cancel(futures, reason=reason, msg=msg, force=force)
        return self._cancel_now(futures, reason, msg, force)

    async def _retry(self, futures: Any) -> None:
        keys = list(dict.fromkeys(future.key for future in futures_of(futures)))
        connection = self._usable("retry")
        # One that another thread cancels is not pending again.
        with self._refcount_lock:
            for key in keys:
                state = self.futures.get(key)
                if state is not None and state.status == "error":
                    state.retry()
        connection.retry(keys)
