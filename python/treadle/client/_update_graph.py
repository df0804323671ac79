"""Submissions, told to the scheduler's Python side while somebody there wants to know of them."""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Mapping
from typing import TYPE_CHECKING, Any

import dask

from treadle.client import _options
from treadle.client._distributed import ClientOfDistributed
from treadle.client._scheduler_rpc import stream
from treadle.common._ask import Calling, notify

if TYPE_CHECKING:
    from treadle.client._client import Client

__all__ = ["is_told", "tell"]

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")

# Frames of this package between the user's call and the code that looks for it, at most.
_OURS = 24


def is_told(
    client: Client, annotations: Mapping[str, Any], by_key: Mapping[str, Any] | None = None
) -> bool:
    """Whether a submission is to be told: somebody wants to know of all, or it has a span."""
    return client._observed or "span" in annotations or (by_key is not None and "span" in by_key)


def tell(
    client: Client,
    connection: Calling,
    wanted: Collection[Hashable],
    tasks: Collection[Hashable],
    annotations: Mapping[str, Any],
    by_key: Mapping[str, Mapping[Hashable, Any]] | None = None,
    metadata: Any = None,
) -> None:
    """Tell what is about to be submitted: ``SchedulerPlugin.update_graph``, spans, computations.

    The native scheduler knows of few annotations, and plugins may be told of any: so the client
    tells them, and only while one of them listens. If there is a span, the scheduler tells the steps
    of tasks from now on.

    Parameters
    ----------
    wanted
        The keys that the client has futures of.
    tasks
        All tasks: their keys, or a graph.
    annotations
        Of all tasks; a value may be a function of the key.
    by_key
        Annotations by name, then by key. They count more than those of all tasks.
    metadata
        What collections were computed, for the span.
    """
    keys = _needed(wanted, tasks) if isinstance(tasks, Mapping) else list(tasks)
    resolved = _options.resolved(annotations, by_key or {}, keys)
    follow = "span" in resolved
    if follow:
        notify(connection, "", "observe", {"steps": True})
    urgent = resolved.get("priority", {})
    message = {
        "client": client.id,
        "keys": set(wanted),
        "tasks": keys,
        "annotations": resolved,
        "common": {name: value for name, value in annotations.items() if not callable(value)},
        # What the user has to do with it: the order within is the native scheduler's.
        "priority": {key: (-urgent.get(key, 0),) for key in keys},
        "code": _code(),
        "span_metadata": metadata,
        "follow": follow,
    }
    stream(connection, "update-graph", message)


def _needed(wanted: Collection[Hashable], graph: Mapping[Hashable, Any]) -> list[Hashable]:
    """Return the tasks of a graph that are computed, each before what it reads, as distributed does."""
    left = list(wanted)
    seen: dict[Hashable, None] = {}
    while left:
        key = left.pop()
        if key not in seen and key in graph:
            seen[key] = None
            left.extend(graph[key].dependencies)
    return list(seen)


def _code() -> tuple[Any, ...]:
    """Return the user's code around the call, outermost first, as the configuration wants."""
    frames: int = dask.config.get("distributed.diagnostics.computations.nframes", 0)
    if frames <= 0:
        return ()
    found = ClientOfDistributed._get_computation_code(nframes=frames + _OURS)
    theirs = [code for code in found if not code.filename.startswith(_PACKAGE)]
    return tuple(theirs[-frames:])
