"""The client."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from functools import partial
from numbers import Number
from queue import Queue
from typing import Any

from dask.core import flatten, validate_key
from dask.highlevelgraph import HighLevelGraph
from dask.typing import no_default
from dask.utils import funcname
from distributed.actor import Actor
from tlz import partition_all  # type: ignore[import-untyped]

from treadle import _core
from treadle._compat.dask import HLGExpr
from treadle._compat.distributed import pack_data, parse_timedelta
from treadle.client import _options, _submission, _update_graph
from treadle.client._distributed import documented, futures_of
from treadle.client._future import Future
from treadle.client._gather import Gathering
from treadle.client._graphs import in_executors, nodes_of
from treadle.client._scatter import Scattering
from treadle.client._state import Cancellation
from treadle.client._views import Viewing
from treadle.common._numbers import integer
from treadle.errors._shortened import shortened
from treadle.worker._executors import in_executor
from treadle.worker._spans import in_span

__all__ = ["Client"]


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
        Where shuffles keep their rows: the address of ``treadle shuffle-master``, or the URL of another registry of
        shuffle servers (``zk://host/path``), which keep each row in two copies; or, without an address of a
        scheduler, how many servers to start. 0: at the workers.
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
        _submission.submitted(self, [future], submit, args, kwargs)
        state.sent = True
        return future

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
            return _submission.submit_calls(
                self, func, iterables, key, annotations, actor, pure, kwargs
            )
        futures: list[Future] = []
        batches = zip(*(partition_all(batch_size, it) for it in iterables), strict=False)
        for number, batch in enumerate(batches):
            start = number * batch_size
            keys = key[start : start + batch_size] if isinstance(key, list) else key
            futures += _submission.submit_calls(
                self, func, batch, keys, annotations, actor, pure, kwargs
            )
        return futures

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
        submit = partial(
            _submission.submit_graph, self, connection, graph, wanted, options, options_of
        )
        if _update_graph.is_told(self, annotations, by_key):
            _update_graph.tell(
                self, connection, wanted, graph, annotations, by_key, metadata=span_metadata
            )
        try:
            try:
                return submit()
            except _core.MissingDependencyError:
                # It reads keys that this client has no futures of.
                with _submission.inputs_held(self, graph):
                    return submit()
        except _core.CycleError as error:
            # As in distributed, whose scheduler finds it later.
            return _submission.failed_futures(self, wanted, error)

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
            return Gathering(self, futures, errors).now()
        except BaseException:
            with shortened():
                raise

    async def _gather(
        self,
        futures: Any,
        errors: str = "raise",
        direct: bool | None = None,  # noqa: ARG002 (distributed's signature)
        local_worker: Any = None,  # noqa: ARG002
    ) -> Any:
        try:
            return await Gathering(self, futures, errors).in_loop()
        except BaseException:
            with shortened():
                raise

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
