"""ipyparallel's views whose calls are one message, however many engines they have."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import ipyparallel
from ipyparallel import AsyncMapResult, AsyncResult, Reference

from treadle._compat.ipyparallel import PrePickled, getname, partitioning
from treadle.common._numbers import whole
from treadle.pickling import _canning
from treadle.views._cast import Cast, CastResult
from treadle.views._messages import History, Outstanding
from treadle.views._per_engine import SpreadFunction, Spreading

__all__ = ["BroadcastView", "DirectView"]

# Bytes of partitions that all engines get, rather than each of them a message of its own.
_LITTLE = 64 * 1024


class _SpreadFunction(SpreadFunction):
    """A function whose arguments are spread over the engines of a view."""

    def _cast(
        self, sequences: Sequence[Any], longest: int, elementwise: bool
    ) -> tuple[list[Any], dict[str, int]]:
        engines = _listed(self.view, None)
        chosen, values, counts = [], [], []
        for index, engine in enumerate(engines):
            parts = tuple(
                self.mapObject.getPartition(sequence, index, len(engines), longest)
                for sequence in sequences
            )
            if any(len(part) for part in parts):
                chosen.append(engine)
                values.append(parts)
                counts.append(min(map(len, parts)) if elementwise else 1)
        with self.view.temp_flags(**self.flags):
            children = self.view._cast_parts(
                "part", chosen, values, common=self.func, elementwise=elementwise
            )
        sizes = {child.msg_id: count for child, count in zip(children, counts, strict=True)}
        return children, sizes


class _Casting(Spreading):
    """What direct and broadcast views do in one cast."""

    client: Any
    targets: Any
    track: bool
    label: Any

    _function = _SpreadFunction

    # Of the tree of engines: what the user has asked for.
    _tree: tuple[int | None, int | None] = (None, None)

    def set_tree(self, *, depth: int | None = None, degree: int | None = None) -> None:
        """Have calls go through a tree of this depth and degree; None: as Treadle plans it.

        See :meth:`Engines.broadcast_view`.
        """
        self._tree = (
            None if depth is None else whole("depth", depth, 0, 2**32 - 1),
            None if degree is None else whole("degree", degree, 1, 2**32 - 1),
        )

    @cached_property
    def history(self) -> History:
        """The ids of all messages of this view."""
        return History()

    @cached_property
    def outstanding(self) -> Outstanding:
        """The ids of those whose results have not come."""
        return Outstanding()

    def _remember(self, cast: Cast) -> None:
        self.history.add(cast)
        self.outstanding.watch(cast)

    def _sync_results(self) -> None:
        self.outstanding.sweep()

    def _dumps(self, value: Any) -> list[Any]:
        return _canning.dumps(value, by_value=self.client._by_value)

    def _call(
        self,
        operation: str,
        payload: Sequence[Any],
        targets: Any,
        block: bool | None,
        *,
        name: str,
        label: Any = None,
        **options: Any,
    ) -> Any:
        client = self.client
        targets = self.targets if targets is None else targets
        engines = client._build_targets(targets)[1]
        label = self.label if label is None else label
        cast = client.cast(engines, operation, payload, label=label, tree=self._tree, **options)
        self._remember(cast)
        result = CastResult(client, cast, name, single=isinstance(targets, int))
        try:
            return self._finish(result, block)
        finally:
            self._sync_results()

    def _really_apply(
        self,
        f: Any,
        args: Any = None,
        kwargs: Any = None,
        targets: Any = None,
        block: bool | None = None,
        track: bool | None = None,  # noqa: ARG002 (nothing of the caller's is sent)
        label: Any = None,
    ) -> Any:
        if not callable(f) and not isinstance(f, (Reference, PrePickled)):
            raise TypeError(f"f must be callable, not {type(f)}")
        by_value = self.client._by_value
        payload = _canning.dumps_call(f, tuple(args or ()), dict(kwargs or {}), by_value=by_value)
        return self._call("apply", payload, targets, block, name=getname(f), label=label)

    def execute(
        self,
        code: str,
        silent: bool = True,
        targets: Any = None,
        block: bool | None = None,
        label: Any = None,
    ) -> Any:
        """Run code in the namespaces of engines."""
        if not isinstance(code, str):
            raise TypeError(f"code must be text, not {type(code)}")
        result = self._call(
            "execute",
            [code.encode()],
            targets,
            False,
            name="execute",
            label=label,
            request="execute_request",
            silent=bool(silent),
        )
        self._finish(result, block)
        return result

    def push(
        self,
        ns: Any,
        targets: Any = None,
        block: bool | None = None,
        track: bool | None = None,  # noqa: ARG002
    ) -> Any:
        """Give names values in the namespaces of engines."""
        if not isinstance(ns, dict):
            raise TypeError(f"Must be a dict, not {type(ns)}")
        payload = _canning.dumps_values(ns, by_value=self.client._by_value)
        return self._call("push", payload, targets, block, name="_push")

    def pull(self, names: Any, targets: Any = None, block: bool | None = None) -> Any:
        """Return values of names, or of a list of names, of each engine."""
        if isinstance(names, (list, tuple, set)):
            names = list(names)
            for name in names:
                if not isinstance(name, str):
                    raise TypeError(f"keys must be str, not type {type(name)!r}")
        elif not isinstance(names, str):
            raise TypeError(f"names must be strs, not {names!r}")
        return self._call("pull", self._dumps(names), targets, block, name="_pull")

    def scatter(
        self,
        key: str,
        seq: Any,
        dist: str = "b",
        flatten: bool = False,
        targets: Any = None,
        block: bool | None = None,
        track: bool | None = None,  # noqa: ARG002 (nothing of the caller's is sent)
    ) -> Any:
        """Partition a sequence, and give each engine its part under a name."""
        targets = self.targets if targets is None else targets
        engines = self.client._build_targets(targets)[1]
        cut = partitioning.dists[dist]()
        parts = [cut.getPartition(seq, index, len(engines)) for index in range(len(engines))]
        values = [{key: part[0] if flatten and len(part) == 1 else part} for part in parts]
        futures = self._cast_parts("push", engines, values)
        result = AsyncResult(self.client, futures, fname="scatter", targets=engines, owner=True)
        result._scatter_lengths = [len(part) for part in parts]
        if self.block if block is None else block:
            result.get()
            return None
        return result

    def _cast_parts(
        self,
        operation: str,
        engines: Sequence[int],
        values: Sequence[Any],
        *,
        common: Any = None,
        **options: Any,
    ) -> list[Any]:
        """Have each engine do something with a value of its own, and one that all share."""
        shared = self._dumps(common)
        parts = {engine: self._dumps(value) for engine, value in zip(engines, values, strict=True)}
        size = sum(memoryview(frame).nbytes for part in parts.values() for frame in part)
        together = [list(engines)] if size <= _LITTLE else [[engine] for engine in engines]
        futures: list[Any] = []
        for some in together:
            payload = _nested(shared, {engine: parts[engine] for engine in some})
            cast = self.client.cast(
                some, operation, payload, label=self.label, own=True, tree=self._tree, **options
            )
            self._remember(cast)
            futures += cast.messages()
        return futures

    def gather(
        self, key: str, dist: str = "b", targets: Any = None, block: bool | None = None
    ) -> Any:
        """Return the parts that engines have of a sequence, put together."""
        children = self.pull(key, targets=_listed(self, targets), block=False)._children
        result = AsyncMapResult(self.client, children, partitioning.dists[dist](), fname="gather")
        return self._finish(result, block)

    def map(
        self,
        f: Any,
        *sequences: Any,
        block: bool | None = None,
        track: bool = False,
        return_exceptions: bool = False,
        label: Any = None,
    ) -> Any:
        """Call a function with the elements of sequences, of which each engine gets a part."""
        assert len(sequences) > 0, "must have some sequences to map onto!"
        block = self.block if block is None else block
        flags = {} if label is None else {"label": label}
        function = _SpreadFunction(
            self, f, block=block, track=track, return_exceptions=return_exceptions, **flags
        )
        return function.map(*sequences)

    # serialisation

    def use_cloudpickle(self) -> Any:
        """Have functions take the globals that they use along, in both directions."""
        return self._choose_pickler(True)

    def use_pickle(self) -> Any:
        """Have functions use the globals of the engine, as at first."""
        return self._choose_pickler(False)

    def use_dill(self) -> Any:
        """Refuse."""
        raise NotImplementedError(
            "Treadle does not pickle with dill: use_cloudpickle() does as much"
        )

    def _choose_pickler(self, by_value: bool) -> Any:
        self.client._by_value = by_value
        return self._call("pickler", [], None, None, name="use_pickle", by_value=by_value)


class DirectView(_Casting, ipyparallel.DirectView):  # type: ignore[misc]
    """ipyparallel's ``DirectView``."""


class BroadcastView(_Casting, ipyparallel.BroadcastView):  # type: ignore[misc]
    """ipyparallel's ``BroadcastView``."""


def _listed(view: Any, targets: Any) -> list[int]:
    engines: list[int] = view.client._build_targets(view.targets if targets is None else targets)[1]
    return engines


def _nested(shared: Sequence[Any], parts: dict[int, list[Any]]) -> list[Any]:
    """Return a payload of pickles within a pickle; their buffers are not copied into it."""

    def of(frames: Sequence[Any]) -> list[Any]:
        return [pickle.PickleBuffer(frame) for frame in frames]

    return _canning.dumps((of(shared), {engine: of(part) for engine, part in parts.items()}))
