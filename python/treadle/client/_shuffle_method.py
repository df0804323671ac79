"""Chooses between P2P and tasks for shuffles of Dask, if the user has not chosen.

Dask reads its settings while it lowers an expression. A client that becomes Dask's scheduler sets them to
:class:`Unchosen`, which all of Dask takes for ``"tasks"``. Three functions of Dask are wrapped. They
recognise ``Unchosen``, and choose P2P from some number of partitions on.
"""

from __future__ import annotations

import importlib
import logging
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

import dask.base
import dask.config

from treadle._compat.dask import PATCHED, is_partitioned
from treadle.client._bags import change_bags
from treadle.client._distributed import default_client
from treadle.common._numbers import whole
from treadle.shuffle._default_method import Unchosen
from treadle.shuffle._p2p_check import falls_back, why_not

if TYPE_CHECKING:
    from treadle.client._connected import Connected

__all__ = ["unchosen_methods"]

logger = logging.getLogger(__name__)

_FRAMES = "dataframe.shuffle.method"
_ARRAYS = "array.rechunk.method"
# From how many partitions, or chunks, on P2P is chosen. Measured on two workers of one thread
# (docs/benchmarks.md): a task shuffle of a frame has about as many tasks as it has inputs times outputs,
# and is slower from five partitions on. A rechunk by tasks copies each element once, P2P twice.
_BELOW = {"treadle.shuffle.tasks-below": 5, "treadle.rechunk.tasks-below": 64}
_FRAMES_BELOW, _CHUNKS_BELOW = _BELOW
dask.config.update_defaults(
    {"treadle": {name.split(".")[1]: {"tasks-below": below} for name, below in _BELOW.items()}}
)


# The method of the two shuffles of a merge that P2P cannot do. Dask takes "tasks" for the same as
# ``Unchosen``, and then each of the two would be chosen anew.
_FALLEN_BACK = "tasks, not p2p"


def unchosen_methods() -> Any:
    """Return a context in which Treadle chooses the methods that the user has not set."""
    unset = [name for name in (_ARRAYS, _FRAMES) if dask.config.get(name, None) is None]
    return dask.config.set(dict.fromkeys(unset, Unchosen("tasks")))


def _is_worthwhile(partitions: Iterable[int], setting: str) -> bool:
    limit = whole(setting, dask.config.get(setting, _BELOW[setting]), 0, 2**32 - 1)
    return max(partitions) >= limit


# Functions of Dask that optimize a graph, and then give it to their local variable `schedule`.
_COMPUTING = tuple(
    function.__code__
    for function in (dask.base.compute, dask.base.persist, dask.base.compute_as_if_collection)
)
_COLLECTIONS = PATCHED["collections"].place


def _scheduler_of_call() -> Any:
    """Return what the call of ``compute`` or ``persist`` around this one gives its graph to, if any.

    Dask does not pass the argument ``scheduler`` on to what it optimizes.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in _COMPUTING:
            return frame.f_locals.get("schedule")
        if frame.f_code.co_name == "persist" and frame.f_globals.get("__name__") == _COLLECTIONS:
            # It optimizes before it calls Dask's.
            scheduler = frame.f_locals.get("kwargs", {}).get("scheduler")
            return None if scheduler is None else dask.base.get_scheduler(scheduler=scheduler)
        frame = frame.f_back
    return None


def _is_free(method: Any, name: str) -> bool:
    """Whether nobody has chosen a method, and the client that will compute is Treadle's."""
    return isinstance(_chosen(method, name), Unchosen) and _is_ours()


def _is_p2p(method: Any, name: str) -> bool:
    """Whether somebody has chosen P2P, and the client that will compute is Treadle's."""
    return _chosen(method, name) == "p2p" and _is_ours()


def _chosen(method: Any, name: str) -> Any:
    return dask.config.get(name, None) if method is None else method


def _is_ours() -> bool:
    """Whether the client that will compute is Treadle's."""
    return _client() is not None


def _client() -> Connected | None:
    """Return the client that will compute, if it is Treadle's."""
    from treadle.client._connected import Connected

    schedule = _scheduler_of_call()
    if schedule is not None:
        client = getattr(schedule, "__self__", None)
        return client if isinstance(client, Connected) else None
    if dask.config.get("scheduler", None) not in (None, "dask.distributed", "distributed"):
        # The client exists, and something else is to compute.
        return None
    try:
        client = default_client()
    except ValueError:
        return None
    return client if isinstance(client, Connected) else None


def _why_not_served() -> str | None:
    """Return why the shuffle servers of the client that will compute cannot be used, if it has some."""
    client = _client()
    return None if client is None else client.why_not_served()


def _are_frames(*exprs: Any) -> bool:
    """Whether these are frames of pandas: rows of others cannot be shuffled.

    By P2P, those of a class that is derived from one of pandas get the class of the meta. By tasks, they
    keep their own, so these are left to tasks.
    """
    import pandas as pd

    return all(type(expr._meta) is pd.DataFrame for expr in exprs)


def _change_shuffles(module: Any) -> None:
    # Not before Dask's data frames are imported.
    from treadle._compat.dask import ResetIndex

    lower = module.Shuffle._lower

    @wraps(lower)
    def _lower(self: Any) -> Any:
        if self.method == _FALLEN_BACK:
            return lower(self.substitute_parameters({"method": "tasks"}))
        counts = (self.frame.npartitions, self.npartitions_out)
        is_chosen = _is_p2p(self.method, _FRAMES)
        if not is_chosen and not (
            _is_free(self.method, _FRAMES)
            and _is_worthwhile(counts, _FRAMES_BELOW)
            and _are_frames(self.frame)
        ):
            return lower(self)
        # This column is sent, too, or has another name.
        meta, column = self.frame._meta, self.partitioning_index
        if why := why_not(meta, column, self.npartitions_out) or _why_not_served():
            falls_back("a shuffle", why, self._name)
            return lower(self.substitute_parameters({"method": "tasks"}))
        if is_chosen:
            return lower(self)
        shuffled = lower(self.substitute_parameters({"method": "p2p"}))
        # Dask's shuffle by tasks gives outputs that ignore the index a new one. P2P keeps it.
        return ResetIndex(shuffled, drop=True) if self.ignore_index else shuffled

    module.Shuffle._lower = _lower


def _change_merges(module: Any) -> None:
    import pandas as pd

    lower = module.Merge._lower

    @wraps(lower)
    def _lower(self: Any) -> Any:
        counts = (self.operand("_npartitions") or 0, self.left.npartitions, self.right.npartitions)
        sides = ((self.left, self.left_on), (self.right, self.right_on))
        if _is_p2p(self.shuffle_method, _FRAMES):
            if why := _why_no_merge(self):
                falls_back("a merge", why, self._name)
                self = self.substitute_parameters({"shuffle_method": _FALLEN_BACK})
        elif (
            _is_free(self.shuffle_method, _FRAMES)
            and _is_worthwhile(counts[:1] if counts[0] else counts[1:], _FRAMES_BELOW)
            and _are_frames(self.left, self.right)
            # Who is partitioned need not be shuffled, which only a merge of separate shuffles knows.
            and not any(is_partitioned(self, *side) for side in sides)
        ):
            if why := _why_no_merge(self):
                falls_back("a merge", why, self._name)
            method = _FALLEN_BACK if why else "p2p"
            self = self.substitute_parameters({"shuffle_method": method})
        return lower(self)

    def _why_no_merge(merge: Any) -> str | None:
        if merge._is_single_partition_broadcast or merge.is_broadcast_join:
            # What it may shuffle decides for itself.
            return None
        column = module._HASH_COLUMN_NAME
        partitions = merge.operand("_npartitions") or max(
            merge.left.npartitions, merge.right.npartitions
        )
        for side in (merge.left, merge.right):
            meta = side._meta
            if isinstance(meta, pd.DataFrame):
                meta = meta.assign(**{column: 0})
            if why := why_not(meta, column, partitions):
                return why
        return _why_not_served()

    module.Merge._lower = _lower
    _mend_filtered(module.HashJoinP2P)


class _Whole:
    """A merge by P2P of which some outputs are wanted, as one that hashes to all of them."""

    def __init__(self, merge: Any) -> None:
        self._merge = merge
        self.npartitions = merge._npartitions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._merge, name)


def _mend_filtered(merge: Any) -> None:
    """Have a merge give the outputs that are wanted of it.

    Dask's counts these alone, hashes rows to so many, and then reads others: output 0, which
    ``head`` reads, has all rows.
    """
    layer = merge._layer

    @wraps(layer)
    def _layer(self: Any) -> Any:
        if not self._filtered:
            return layer(self)
        graph = layer(_Whole(self))
        wanted = [(self._name, number) for number in self._partitions]
        # One may be wanted twice.
        outputs = [graph[key] for key in wanted]
        for key in set(wanted):
            del graph[key]
        for place, task in enumerate(outputs):
            key = (self._name, place)
            graph[key] = task.substitute({}, key=key)
        return graph

    merge._layer = _layer


def _change_rechunks(module: Any) -> None:
    choose = module._choose_rechunk_method

    @wraps(choose)
    def _choose_rechunk_method(
        old_chunks: Sequence[Any], new_chunks: Sequence[Any], threshold: int | None = None
    ) -> Any:
        # Dask's array expressions have no P2P.
        is_free = _is_free(None, _ARRAYS) and not dask.config.get("array.query-planning", None)
        counts = (math.prod(map(len, chunks)) for chunks in (old_chunks, new_chunks))
        if not is_free or not _is_worthwhile(counts, _CHUNKS_BELOW):
            return choose(old_chunks, new_chunks, threshold)
        # As many as Dask's own choice counts: tasks do well where each chunk has few pieces.
        pieces = math.prod(
            sum(map(len, axis)) for axis in module.old_to_new(old_chunks, new_chunks)
        )
        factor = threshold or dask.config.get("array.rechunk.threshold")
        few = module._graph_size_threshold(old_chunks, new_chunks, factor)
        if pieces < few:
            return "tasks"
        if why := _why_not_served():
            falls_back("a rechunk", why, f"rechunk {old_chunks} {new_chunks}")
            return "tasks"
        return "p2p"

    module._choose_rechunk_method = _choose_rechunk_method


_CHANGES: dict[str, Callable[[Any], None]] = {
    PATCHED["rechunks"].place: _change_rechunks,
    PATCHED["merges"].place: _change_merges,
    PATCHED["shuffles"].place: _change_shuffles,
    PATCHED["bags"].place: change_bags,
}


class _Finder(MetaPathFinder):
    """Changes the modules when they are imported: not every user of a client has pandas."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _CHANGES:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _change(module)

            loader.exec_module = exec_module
        return spec


def _change(module: ModuleType) -> None:
    try:
        _CHANGES[module.__name__](module)
    except (AttributeError, ImportError) as error:
        logger.warning(
            "%s stays as it is, since Treadle does not know this Dask: %s", module.__name__, error
        )


def _install() -> None:
    for name in _CHANGES:
        if name in sys.modules:
            # Waits for a thread that imports it.
            _change(importlib.import_module(name))
    sys.meta_path.insert(0, _Finder())


_install()
