"""What ``ipyparallel.Client`` is to its views, on a Treadle client."""

from __future__ import annotations

import logging
import pickle
import secrets
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import ipyparallel
from traitlets import HasTraits

from treadle._compat.ipyparallel import MessageFuture, multi_future
from treadle.views._apart import Apart
from treadle.views._arrivals import succeeded
from treadle.views._balanced import LoadBalancedView
from treadle.views._cast import Cast, CastResult
from treadle.views._finished import Finished
from treadle.views._flag import Flag
from treadle.views._messages import History, Outstanding
from treadle.views._tasks import Task, Tasks
from treadle.views._transport import Transport
from treadle.views._views import BroadcastView, DirectView

if TYPE_CHECKING:
    from treadle.client._client import Client

__all__ = ["Engines"]

logger = logging.getLogger("treadle.views")

# Seconds that the list of engines is good for a call: asking costs a round trip.
_FRESH = 0.2


class _Futures(dict[str, MessageFuture]):
    """Futures by message id; those of casts are made when somebody looks for them."""

    def __init__(self, client: Engines) -> None:
        super().__init__()
        self._client = client

    def get(self, name: str, default: Any = None) -> Any:
        """Return the future of a message that is not finished."""
        found = super().get(name)
        if found is None and name in self._client.outstanding:
            cast = self._client.cast_of(name)
            found = None if cast is None else cast[0].message(cast[1])
        return default if found is None else found

    def __contains__(self, name: object) -> bool:
        return self.get(str(name)) is not None

    def __missing__(self, name: str) -> MessageFuture:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found


class Engines(ipyparallel.Client):  # type: ignore[misc]
    """An ``ipyparallel.Client`` whose engines are Treadle's workers.

    Its views work as ipyparallel documents them; what differs is in ``docs/views.md``.
    """

    _ids: list[int]

    def __init__(self, client: Client) -> None:
        HasTraits.__init__(self)
        self._client = client
        self._apart = Apart(client)
        self._transport = Transport(client, self._came)
        self._task_scheme = "treadle"
        self._by_value = False
        self._finished = Finished()
        self._tasks = Tasks(self)
        self._prefix = secrets.token_hex(16)
        self._lock = threading.Lock()
        # By number: what is not finished.
        self._casts: dict[int, Cast] = {}
        # Those to which something is being delivered: they are needed again if that is interrupted.
        self._arriving: dict[int, Cast] = {}
        self._futures = _Futures(self)
        self._refreshed = -1.0
        # The last engines of a cast, by how many they are.
        self._last_lists: dict[int, list[int]] = {}
        # Why nothing arrives any more.
        self._over: str | None = None
        self._registrations = self._submitted = 0
        # The last cast that is known to have failed somewhere.
        self._failed = 0
        self._early: dict[int, list[tuple[Sequence[int], str, Any, bytes]]] = {}

    @cached_property
    def history(self) -> History:
        """The ids of all messages."""
        return History()

    @cached_property
    def outstanding(self) -> Outstanding:
        """The ids of those whose results have not come."""
        return Outstanding(self._casts)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._client!r}>"

    def __del__(self) -> None:
        pass

    def close(self, linger: Any = None) -> None:
        """Close the client."""
        del linger
        self._client.close()

    @property
    def _closed(self) -> bool:
        return self._client.status in ("closing", "closed")

    # engines

    @property
    def ids(self) -> list[int]:
        """The numbers of the engines that there are now."""
        self._refresh()
        return list(self._ids)

    def _refresh(self) -> None:
        if self._closed:
            return
        engines = self._transport.engines()
        self._refreshed = time.monotonic()
        if list(engines) == self._ids:
            return
        self._ids = list(engines)
        # Of those that left, too: results that are under way name them.
        self._engines.update({engine.id: engine.uuid for engine in engines.values()})

    def _build_targets(self, targets: Any) -> tuple[list[bytes], list[int]]:
        if time.monotonic() > self._refreshed + _FRESH:
            self._refresh()
        # All of them, as most calls have it: who they are is known.
        known = self._ids
        if known and (targets is None or targets in ("all", known)):
            return [], list(known)
        idents, ids = super()._build_targets(targets)
        missing = set(ids).difference(self._ids)
        if missing:
            raise IndexError(f"No such engine: {min(missing)}")
        if len(set(ids)) < len(ids):
            twice = min(one for one in ids if ids.count(one) > 1)
            raise ValueError(f"engine {twice} is named twice: name each one once")
        return idents, ids

    def wait_for_engines(
        self,
        n: int | None = None,
        *,
        timeout: float = -1,
        block: bool = True,
        interactive: bool | None = None,
        widget: Any = None,
    ) -> None:
        """Wait until there are ``n`` engines.

        Raises
        ------
        TimeoutError
            Not within so many seconds; a negative number is no limit.
        """
        del interactive, widget
        if not block:
            raise NotImplementedError("Treadle's wait_for_engines() always blocks")
        until = None if timeout is None or timeout < 0 else time.monotonic() + timeout
        while len(self.ids) < (n or 1):
            if until is not None and time.monotonic() > until:
                raise TimeoutError(f"there are {len(self._ids)} engines after {timeout} s, not {n}")
            time.sleep(0.01)

    # casts

    def cast(
        self,
        engines: Sequence[int],
        operation: str,
        payload: Sequence[Any],
        *,
        label: Any = None,
        request: str = "apply_request",
        tree: tuple[int | None, int | None] = (None, None),
        **options: Any,
    ) -> Cast:
        """Have engines do something, all with one payload, through a tree of this depth and degree."""
        if self._closed:
            raise RuntimeError("Client cannot be used after it was closed")
        head = pickle.dumps((operation, options, self._failed))
        submitted = datetime.now(timezone.utc)
        # The history keeps the engines of each cast: one list is enough for calls to the same ones.
        listed = self._last_lists.get(len(engines))
        if listed is None or listed != engines:
            listed = self._last_lists[len(engines)] = list(engines)
        with self._lock:
            # What arrives before the cast's number is known here is kept.
            self._registrations += 1
        early: Sequence[Any] = ()
        cast = None
        try:
            number = self._transport.cast(engines, head, payload, *tree)
            cast = Cast(self, number, listed, request, label, submitted)
            self.history.add(cast)
        finally:
            with self._lock:
                if cast is not None:
                    self._casts[number] = cast
                    early = self._early.pop(number, ())
                self._registrations -= 1
                if not self._registrations:
                    self._early.clear()
                over = self._over
        for arrival in early:
            cast.arrive(*arrival)
        if over is not None:
            # It was not among those that were lost.
            _lose(cast, over)
        return cast

    def submit(self, task: Task, *, timeout: float | None, label: Any) -> MessageFuture:
        """Have the scheduler run a task in the namespace of an engine; returns its future."""
        if self._closed:
            raise RuntimeError("Client cannot be used after it was closed")
        with self._lock:
            self._submitted += 1
            name = f"{self._prefix}_task_{self._submitted}"
        task.message = self.new_message(name, "apply_request", label)
        self.outstanding.add(name)
        self.history.append(name)
        task.message.output.metadata.update(
            follow=list(task.follow), after=list(task.after), submitted=datetime.now(timezone.utc)
        )
        self._tasks.submit(task, timeout)
        return task.message

    def new_message(self, name: str, request: str, label: Any) -> MessageFuture:
        """Return the future of a message, known by its id until it is finished."""
        header = {"msg_type": request}
        future = self.create_message_futures(name, header, async_result=True, label=label)[0]
        future.output.metadata["msg_id"] = name
        both = multi_future([future, future.output])
        both.add_done_callback(lambda _: self._forget(name))
        return future

    def _forget(self, name: str) -> None:
        for cache in (self.results, self._futures, self._output_futures, self.metadata):
            cache.pop(name, None)

    def _came(self, *arrival: Any) -> None:
        self._apart.call(partial(self._arrived, *arrival))

    def _arrived(
        self,
        number: int,
        engines: Sequence[int],
        kind: str,
        frames: Sequence[Any],
        times: bytes,
    ) -> None:
        if kind == "finished" and not succeeded(frames):
            self._failed = max(self._failed, number)
        with self._lock:
            cast = self._casts.get(number) or self._arriving.get(number)
            if cast is None:
                if self._registrations:
                    self._early.setdefault(number, []).append((engines, kind, frames, times))
                return
            self._arriving[number] = cast
        try:
            cast.arrive(engines, kind, frames, times)
        except Exception:
            logger.exception("%s of cast %d at engines %s", kind, number, engines)
        self._arriving.pop(number, None)

    def ended(self, cast: Cast) -> None:
        """Take note that all results of a cast have come."""
        with self._lock:
            self._casts.pop(cast.number, None)
        self._finished.add(cast)

    def resolve(self, future: MessageFuture, result: Any) -> None:
        """Finish a message."""
        self.outstanding.discard(future.msg_id)
        self.results[future.msg_id] = result
        if not future.output.done():
            future.output.set_result(None)
        if not future.done():
            future.set_result(result)

    def cast_of(self, name: str) -> tuple[Cast, int] | None:
        """Return the cast and the engine of a message, if they are known."""
        prefix, _, rest = name.partition("_")
        number, _, engine = rest.partition("_")
        if prefix != self._prefix or not number.isdigit() or not engine.isdigit():
            return None
        with self._lock:
            cast = self._casts.get(int(number))
        cast = cast or self._finished.get(int(number))
        return None if cast is None else (cast, int(engine))

    def wait_until(self, flag: Flag, timeout: float | None) -> None:
        """Wait for a flag that is set with what arrives."""
        self._transport.wait(flag, partial(self._apart.is_set, flag), timeout)

    def disconnected(self, reason: str) -> None:
        """Lose all that is not finished."""
        with self._lock:
            self._over = reason
            casts = list(self._casts.values())
        for cast in casts:
            _lose(cast, reason)
        self._tasks.disconnected(reason)
        self._apart.close()

    # what is asked beside the casts

    def abort(self, jobs: Any = None, targets: Any = None, block: bool | None = None) -> None:
        """Have calls not run that have not begun: their results are a ``TaskAborted``.

        Without jobs all that are outstanding.
        """
        del block
        ids = set(self.outstanding if jobs is None else self._ids_of(jobs))
        engines = None if targets is None else self._build_targets(targets)[1]
        with self._lock:
            casts = [cast for cast in self._casts.values() if not ids.isdisjoint(cast.names)]
        # Some engines of a cast are asked one by one, and answer in their turn.
        all_of: list[int] = []
        some_of: list[int] = []
        for cast in casts:
            is_all = engines is None or set(cast.engines) <= set(engines)
            (all_of if is_all else some_of).append(cast.number)
        if all_of:
            self._transport.abort(all_of)
        if some_of:
            self._transport.abort(some_of, engines)
        self._tasks.abort(ids)

    def _ids_of(self, jobs: Any) -> list[str]:
        if isinstance(jobs, (str, ipyparallel.AsyncResult)):
            jobs = [jobs]
        ids: list[str] = []
        for job in jobs:
            if isinstance(job, str):
                ids.append(job)
            elif isinstance(job, ipyparallel.AsyncResult):
                ids.extend(job.msg_ids)
            else:
                raise TypeError(f"Invalid msg_id type {job!r}, expected str or AsyncResult")
        return ids

    def send_signal(self, sig: int | str, targets: Any = None, block: bool | None = None) -> None:
        """Send engines a signal; SIGINT reaches what runs there, and nothing else."""
        del block
        self._ask(targets, "engine-signal", number=sig)

    def clear(self, targets: Any = None, block: bool | None = None) -> Any:
        """Forget all names in the namespaces of engines."""
        block = self.block if block is None else block
        engines = self._build_targets(targets)[1]
        done = CastResult(self, self.cast(engines, "clear", []), "clear", single=False)
        return done.get() if block else done

    def queue_status(self, targets: Any = "all", verbose: bool = False) -> dict[Any, Any]:
        """Return how many calls wait or run at engines, and how many are completed."""
        del verbose
        status = self._ask(targets, "engine-status")
        found: dict[Any, Any] = {engine: {**one, "tasks": 0} for engine, one in status.items()}
        if isinstance(targets, int):
            return dict(found[self._build_targets(targets)[1][0]])
        return {**found, "unassigned": 0}

    def _ask(self, targets: Any, operation: str, **kwargs: Any) -> dict[int, Any]:
        engines = self._build_targets(targets)[1]
        answers = self._transport.ask(engines, operation, **kwargs)
        for answer in answers.values():
            if isinstance(answer, BaseException) and not isinstance(answer, OSError):
                raise answer
        return answers

    def shutdown(
        self,
        targets: Any = "all",
        restart: bool = False,
        hub: bool = False,
        block: bool | None = None,
    ) -> None:
        """Have workers leave; with ``hub`` the scheduler ends, too."""
        del block
        if restart:
            raise NotImplementedError("to start workers anew, use treadle.Client.restart_workers()")
        if hub:
            self._client.shutdown()
            return
        engines = self._build_targets(targets)[1]
        self._client.retire_workers([self._transport.address(engine) for engine in engines])

    # results that came before

    def result_status(self, msg_ids: Any, status_only: bool = True) -> dict[str, Any]:
        """Return which messages are ``pending`` and ``completed``, and results of the latter."""
        content: dict[str, Any] = {"pending": [], "completed": []}
        for name in self._msg_ids_from_jobs(msg_ids):
            if name in self.outstanding:
                content["pending"].append(name)
                continue
            found = self.cast_of(name)
            if found is None and name not in self.results:
                raise KeyError(f"No Future or result for msg_id: {name}")
            content["completed"].append(name)
            if found is not None and not status_only:
                cast, engine = found
                metadata = self.metadata[name]
                metadata.update(cast.message(engine).output.metadata)
                # What is finished forgets its own.
                self.metadata[name] = metadata
                self.results[name] = content[name] = cast.result(engine)
        return content

    def purge_hub_results(self, jobs: Any = (), targets: Any = ()) -> None:
        """Forget results that are kept for ``get_result``."""
        if targets:
            raise NotImplementedError("Treadle keeps results by their ids, not by engine")
        if jobs == "all":
            self._finished.forget()
            return
        for name in self._msg_ids_from_jobs(jobs):
            found = self.cast_of(name)
            if found is not None:
                self._finished.forget(found[0].number)

    def purge_everything(self) -> None:
        """Forget all results and the history."""
        self.purge_results("all")
        self.history.clear()

    def resubmit(self, *_args: Any, **_kwargs: Any) -> Any:
        """Refuse."""
        raise NotImplementedError("Treadle does not keep what was called: call it again")

    def hub_history(self) -> list[str]:
        """Return the ids of this client's messages."""
        return list(self.history)

    def db_query(self, *_args: Any, **_kwargs: Any) -> Any:
        """Refuse."""
        raise NotImplementedError("Treadle has no database of results")

    def become_dask(self, *_args: Any, **_kwargs: Any) -> Any:
        """Refuse: that is a method of the client itself, which is one of Dask already."""
        raise NotImplementedError("treadle.Client is a client of Dask already")

    # views

    def direct_view(
        self,
        targets: Any = "all",
        *,
        depth: int | None = None,
        degree: int | None = None,
        **flags: Any,
    ) -> DirectView:
        """Return a view that runs everything on each of its engines.

        ``depth`` and ``degree`` are those of :meth:`broadcast_view`.
        """
        single = isinstance(targets, int)
        if not isinstance(targets, str) or targets != "all":
            targets = self._build_targets(targets)[1]
        view = DirectView(client=self, targets=targets[0] if single else targets, **flags)
        view.set_tree(depth=depth, degree=degree)
        return view

    def broadcast_view(
        self,
        targets: Any = "all",
        is_coalescing: bool = False,
        *,
        depth: int | None = None,
        degree: int | None = None,
        **flags: Any,
    ) -> BroadcastView:
        """Return a view that runs everything on each of its engines.

        Each call is one message, and so are its results, with ``is_coalescing`` and without.

        Parameters
        ----------
        depth, degree
            Of the tree of engines through which calls go, in place of what Treadle plans for their
            size. ``depth`` is how many engines a call passes at most between the first one and the
            last: with 0 the first one sends to all others. ``degree`` is to how many others an
            engine sends, at most. Of ``depth`` alone follows the smallest degree that suffices. A
            call raises ``ValueError`` if its engines have no such tree.

        Raises
        ------
        ValueError
            ``depth`` is no whole number from 0 on, or ``degree`` none from 1 on.
        """
        targets = self._build_targets(targets)[1]
        view = BroadcastView(client=self, targets=targets, **flags)
        view.is_coalescing = is_coalescing
        view.set_tree(depth=depth, degree=degree)
        return view

    def load_balanced_view(self, targets: Any = None, **flags: Any) -> LoadBalancedView:
        """Return a view that runs each call on one of its engines, which the scheduler chooses."""
        if targets == "all":
            targets = None
        if targets is not None:
            targets = self._build_targets(targets)[1]
        return LoadBalancedView(client=self, targets=targets, **flags)


def _lose(cast: Cast, reason: str) -> None:
    if engines := cast.waiting():
        cast.arrive(engines, "lost", [reason.encode()], b"")
