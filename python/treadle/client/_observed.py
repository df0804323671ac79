"""Submissions, told to the scheduler plugins that want to know of them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Any

from treadle.client import _options
from treadle.client._scheduler import Calling, stream

__all__ = ["tell_plugins"]


def tell_plugins(
    connection: Calling,
    client: str,
    wanted: Collection[Hashable],
    tasks: Collection[Hashable],
    annotations: Mapping[str, Any],
    by_key: Mapping[str, Mapping[Hashable, Any]] | None = None,
) -> None:
    """Have the sidecar call ``SchedulerPlugin.update_graph`` for what is about to be submitted.

    The native scheduler knows of few annotations, and plugins may be told of any: so the client
    tells them, and only while one of them listens.

    Parameters
    ----------
    wanted
        The keys that the client has futures of.
    tasks
        The keys of all tasks.
    annotations
        Of all tasks; a value may be a function of the key.
    by_key
        Annotations by name, then by key. Those of all tasks count more.
    """
    resolved = _options.resolved(annotations, by_key or {}, tasks)
    urgent = resolved.get("priority", {})
    message = {
        "client": client,
        "keys": set(wanted),
        "tasks": list(tasks),
        "annotations": resolved,
        # What the user has to do with it: the order within is the native scheduler's.
        "priority": {key: (-urgent.get(key, 0),) for key in tasks},
    }
    stream(connection, "update-graph", message)
