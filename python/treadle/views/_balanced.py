"""ipyparallel's load-balanced view, whose calls the scheduler places."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import ipyparallel
from ipyparallel import AsyncResult, Dependency, Reference

from treadle._compat.ipyparallel import PrePickled, getname
from treadle.pickling import _canning
from treadle.views._per_engine import SpreadFunction, Spreading
from treadle.views._tasks import Task
from treadle.worker._balanced import map_part

__all__ = ["LoadBalancedView"]

# What an engine is to do with what follows.
_APPLY = pickle.dumps(("apply", {}, 0))


class _ChunkedFunction(SpreadFunction):
    """A function whose arguments are spread over tasks."""

    def _cast(
        self, sequences: Sequence[Any], longest: int, elementwise: bool
    ) -> tuple[list[Any], dict[str, int]]:
        count = -(-longest // (self.chunksize or 1))
        children, counts = [], {}
        with self.view.temp_flags(block=False, **self.flags):
            for index in range(count):
                parts = [
                    self.mapObject.getPartition(sequence, index, count, longest)
                    for sequence in sequences
                ]
                if elementwise:
                    # As the builtin one: the shortest sequence ends it.
                    size = min(map(len, parts))
                    if not size:
                        continue
                    result = self.view.apply(map_part, self.func, *parts)
                else:
                    size = 1
                    result = self.view.apply(self.func, *parts)
                result.owner = False
                children += result._children
                counts[result.msg_ids[0]] = size
        return children, counts


class LoadBalancedView(Spreading, ipyparallel.LoadBalancedView):  # type: ignore[misc]
    """ipyparallel's ``LoadBalancedView``."""

    _function = _ChunkedFunction

    def _really_apply(
        self,
        f: Any,
        args: Any = None,
        kwargs: Any = None,
        block: bool | None = None,
        track: bool | None = None,  # noqa: ARG002 (nothing of the caller's is sent)
        after: Any = None,
        follow: Any = None,
        timeout: float | None = None,
        targets: Any = None,
        retries: int | None = None,
        label: Any = None,
    ) -> Any:
        if not callable(f) and not isinstance(f, (Reference, PrePickled)):
            raise TypeError(f"f must be callable, not {type(f)}")
        retries = self.retries if retries is None else retries
        if not isinstance(retries, int):
            raise TypeError(f"retries must be int, not {type(retries)!r}")
        targets = self.targets if targets is None else targets
        call = (f, tuple(args or ()), dict(kwargs or {}))
        task = Task(
            [_APPLY, *_canning.dumps_call(*call, by_value=self.client._by_value)],
            () if targets is None else self.client._build_targets(targets)[1],
            _dependency(self.after if after is None else after),
            _dependency(self.follow if follow is None else follow),
            retries,
        )
        message = self.client.submit(
            task,
            timeout=self.timeout if timeout is None else timeout,
            label=self.label if label is None else label,
        )
        self.history.append(message.msg_id)
        self.outstanding.add(message.msg_id)
        result = AsyncResult(self.client, message, fname=getname(f), targets=None, owner=True)
        if self.block if block is None else block:
            try:
                return result.get()
            except KeyboardInterrupt:
                pass
        self._sync_results()
        return result

    def map(
        self,
        f: Any,
        *sequences: Any,
        block: bool | None = None,
        chunksize: int = 1,
        ordered: bool = True,
        return_exceptions: bool = False,
        label: Any = None,
    ) -> Any:
        """Call a function with the elements of sequences, so many in a task."""
        assert len(sequences) > 0, "must have some sequences to map onto!"
        function = _ChunkedFunction(
            self,
            f,
            block=self.block if block is None else block,
            chunksize=chunksize,
            ordered=ordered,
            return_exceptions=return_exceptions,
            label=self.label if label is None else label,
        )
        return function.map(*sequences)


def _dependency(value: Any) -> Dependency:
    return value if isinstance(value, Dependency) else Dependency(value or [])
