"""How tasks want to be run: from keywords and annotations to what the connection takes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from numbers import Number
from typing import Any, TypeAlias

from treadle.client._distributed import get_annotations
from treadle.common._numbers import amounts, whole
from treadle.common._priorities import rank

__all__ = [
    "Options",
    "annotated",
    "executor_of",
    "executors_of",
    "of_annotations",
    "of_call",
    "of_calls",
    "of_graph",
    "resolved",
    "warn_of_fifo_timeout",
]

#: ``priority``, ``retries``, ``workers``, ``allow_other``, ``resources``, ``actor``: what is not
#: the default.
Options: TypeAlias = dict[str, Any]

_KNOWN = ("priority", "retries", "workers", "allow_other_workers", "resources")

# What fits into messages.
_MOST_RETRIES = 2**32 - 1


# What distributed's own calls pass, and what Treadle does.
_FIFO_TIMEOUTS = ("100 ms", "60s", 0, "0 ms", "0s", None)


def warn_of_fifo_timeout(value: Any) -> None:
    """Warn of a ``fifo_timeout=`` that asks for something: submissions are never simultaneous."""
    if value not in _FIFO_TIMEOUTS:
        warnings.warn(
            f"fifo_timeout={value!r} has no effect: of two submissions of one priority the earlier "
            "one is first, also if they come together",
            UserWarning,
            stacklevel=4,
        )


def annotated(
    *,
    workers: Any = None,
    allow_other_workers: bool | None = None,
    priority: Any = 0,
    retries: Any = None,
    resources: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return the annotations of a submission: Dask's, where no keyword says otherwise."""
    annotations = dict(get_annotations())
    if priority:
        annotations["priority"] = priority
    if workers:
        annotations["workers"] = workers
    if retries:
        annotations["retries"] = retries
    if allow_other_workers:
        annotations["allow_other_workers"] = allow_other_workers
    if resources:
        annotations["resources"] = resources
    return annotations


def resolved(
    annotations: Mapping[str, Any],
    by_key: Mapping[str, Mapping[Hashable, Any]],
    keys: Collection[Hashable],
) -> dict[str, dict[Hashable, Any]]:
    """Return annotations by name and key, as ``SchedulerPlugin.update_graph`` gets them."""
    found: dict[str, dict[Hashable, Any]] = {}
    for name, value in annotations.items():
        found[name] = {key: value(key) if callable(value) else value for key in keys}
    known = set(keys)
    for name, values in by_key.items():
        own = {key: value for key, value in values.items() if key in known and value is not None}
        if own:
            found.setdefault(name, {}).update(own)
    return found


def of_call(annotations: Mapping[str, Any], actor: bool, key: Hashable) -> Options | None:
    """Return the options of a call, if it has any. An annotation may be a function of the key.

    Raises
    ------
    TypeError
        An annotation has a value of a wrong type.
    ValueError
        A number is out of range.
    """
    if not (annotations or actor):
        return None
    options = of_annotations(
        {
            name: value(key) if callable(value) else value
            for name in _KNOWN
            if (value := annotations.get(name)) is not None
        }
    )
    if actor:
        options["actor"] = True
    return options or None


def of_calls(
    annotations: Mapping[str, Any], actor: bool, keys: Sequence[Hashable]
) -> list[tuple[slice, Options | None, Any]]:
    """Return which calls, one after the other, have which options, and run in which executor.

    It raises what :func:`of_call` does.
    """

    def of(key: Hashable) -> tuple[Options | None, Any]:
        return of_call(annotations, actor, key), executor_of(annotations, key)

    if not any(callable(annotations.get(name)) for name in (*_KNOWN, "executor")):
        return [(slice(0, len(keys)), *of(None))]
    each = [of(key) for key in keys]
    starts = [i for i, options in enumerate(each) if i == 0 or options != each[i - 1]]
    ends = [*starts[1:], len(each)]
    return [(slice(start, end), *each[start]) for start, end in zip(starts, ends, strict=True)]


def executor_of(annotations: Mapping[str, Any], key: Hashable) -> Any:
    """Return the name of the executor that a task is annotated with, or None."""
    name = annotations.get("executor")
    return name(key) if callable(name) else name


def executors_of(
    graph: Collection[Hashable],
    annotations: Mapping[str, Any],
    by_key: Mapping[str, Mapping[Hashable, Any]],
) -> dict[Hashable, Any]:
    """Return the executors of those tasks of a graph that are annotated with one."""
    found: dict[Hashable, Any] = {}
    if "executor" in annotations:
        found = {key: executor_of(annotations, key) for key in graph}
    found.update(by_key.get("executor", {}))
    return {key: name for key, name in found.items() if key in graph and name is not None}


def of_annotations(annotations: Mapping[str, Any]) -> Options:
    """Return the options that annotations of one task stand for; others mean nothing here."""
    options: Options = {}
    if priority := annotations.get("priority"):
        options["priority"] = rank(priority)
    if retries := annotations.get("retries"):
        options["retries"] = whole("retries", retries, 0, _MOST_RETRIES)
    if workers := annotations.get("workers"):
        options["workers"] = names(workers)
        if annotations.get("allow_other_workers"):
            options["allow_other"] = True
    if resources := annotations.get("resources"):
        options["resources"] = amounts(resources)
    return options


def names(workers: Any) -> list[str]:
    """Return names, addresses or hosts of workers as a list of strings."""
    if isinstance(workers, (str, Number)):
        workers = [workers]
    if not isinstance(workers, Iterable):
        raise TypeError(f"workers= must be a list of names, not {type(workers).__name__}")
    return [f"{w[0]}:{w[1]}" if isinstance(w, tuple) else str(w) for w in workers]


def of_graph(
    graph: Mapping[Hashable, Any],
    annotations: Mapping[str, Any],
    by_key: Mapping[str, Mapping[Hashable, Any]],
    actors: bool | Iterable[Hashable] | None,
) -> tuple[Options | None, dict[Hashable, Options] | None]:
    """Return the options of all tasks of a graph, and those of tasks that differ.

    Parameters
    ----------
    annotations
        Of the whole submission; a value may be a function of the key.
    by_key
        ``expr.__dask_annotations__()``: by name, then by key. They count more.
    actors
        Whether the values are actors: all, or those of some keys.
    """
    fixed = {name: annotations[name] for name in _KNOWN if name in annotations}
    called: dict[str, Callable[[Hashable], Any]] = {}
    for name in [name for name in fixed if callable(fixed[name])]:
        called[name] = fixed.pop(name)
    common = of_annotations(fixed)
    if actors is True:
        common["actor"] = True
    varied: dict[Hashable, dict[str, Any]] = {}
    for name, function in called.items():
        for key in graph:
            varied.setdefault(key, {})[name] = function(key)
    for name in _KNOWN:
        for key, value in by_key.get(name, {}).items():
            if key in graph and value is not None:
                varied.setdefault(key, {})[name] = value
    options = {key: of_annotations({**fixed, **values}) for key, values in varied.items()}
    if actors is True:
        for own in options.values():
            own["actor"] = True
    elif actors:
        for key in actors:
            options.setdefault(key, dict(common))["actor"] = True
    return common or None, options or None
