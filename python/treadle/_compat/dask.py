"""Private parts of Dask."""

from __future__ import annotations

from typing import Any

from treadle._compat import Contact, Library

__all__ = ["LIBRARY", "NODES", "PATCHED", "is_partitioned"]

_READ = "read and run the nodes of graphs"

#: What the engine (Rust: `crates/python/dask`, `crates/python/recipe`) reads by itself, slots included.
NODES = {
    "Alias": Contact("dask._task_spec:Alias", _READ, ("target",)),
    "DataNode": Contact("dask._task_spec:DataNode", _READ, ("value",)),
    "Dict": Contact("dask._task_spec:Dict", _READ, ("constructor",)),
    "GraphNode": Contact("dask._task_spec:GraphNode", _READ),
    "List": Contact("dask._task_spec:List", _READ),
    "NestedContainer": Contact("dask._task_spec:NestedContainer", _READ, ("to_container",)),
    "Set": Contact("dask._task_spec:Set", _READ),
    "Task": Contact("dask._task_spec:Task", _READ, ("args", "func", "kwargs")),
    "TaskRef": Contact("dask._task_spec:TaskRef", _READ, ("key",)),
    "Tuple": Contact("dask._task_spec:Tuple", _READ),
    "convert_legacy_task": Contact(
        "dask._task_spec:convert_legacy_task", "make a node of a task that is a tuple"
    ),
    "execute_subgraph": Contact("dask._task_spec:_execute_subgraph", "run fused tasks"),
    "identity_cast": Contact("dask._task_spec:_identity_cast", "build containers of inputs"),
    "parse_input": Contact("dask._task_spec:parse_input", "find references in arguments"),
}

#: What `treadle.client._shuffle_method` changes in modules of Dask, when these are imported.
PATCHED = {
    # Looked at, not changed: the frames of its `persist`.
    "collections": Contact(
        "dask.dataframe.dask_expr._collection", "see which scheduler a frame is persisted by"
    ),
    "bags": Contact(
        "dask.bag.core", "hold the futures that a bag is made of", ("Task", "from_delayed", "reify")
    ),
    "rechunks": Contact(
        "dask.array.rechunk",
        "choose between P2P and tasks for rechunks",
        ("_choose_rechunk_method", "_graph_size_threshold", "old_to_new"),
    ),
    "merges": Contact(
        "dask.dataframe.dask_expr._merge",
        "choose between P2P and tasks for merges",
        ("HashJoinP2P", "Merge"),
    ),
    "shuffles": Contact(
        "dask.dataframe.dask_expr._shuffle",
        "choose between P2P and tasks for shuffles",
        ("Shuffle",),
    ),
}

LIBRARY = Library(
    "dask",
    oldest="2025.11.0",
    newest="2026.8.0",
    requirement="dask>=2025.11",
    contacts={
        **NODES,
        **PATCHED,
        "DependenciesMapping": Contact(
            "dask._task_spec:DependenciesMapping", "see which tasks of a graph nobody reads"
        ),
        "HLGExpr": Contact("dask._expr:HLGExpr", "recognise a collection that is a graph"),
        "MultiprocessingPoolExecutor": Contact(
            "dask.local:MultiprocessingPoolExecutor", "recognise a pool that Dask has wrapped"
        ),
        "ResetIndex": Contact(
            "dask.dataframe.dask_expr._expr:ResetIndex",
            "give what P2P shuffles with an ignored index a new one",
        ),
        "convert_legacy_graph": Contact(
            "dask._task_spec:convert_legacy_graph", "make nodes of tasks that are tuples"
        ),
        "get_context": Contact(
            "dask.multiprocessing:get_context", "start processes as Dask's configuration has them"
        ),
        "initialize_worker_process": Contact(
            "dask.multiprocessing:initialize_worker_process", "initialize processes as Dask does"
        ),
        "synchronous_executor": Contact(
            "dask.local:synchronous_executor", "recognise that no threads are wanted"
        ),
        "task_spec": Contact("dask._task_spec", "hide its frames in tracebacks"),
        "task_state": Contact(
            "dask.context:thread_state", "tell Dask which task and worker a thread has"
        ),
    },
)


def is_partitioned(merge: Any, expr: Any, on: Any) -> bool:
    """Whether an input of a merge is partitioned by what it is merged on, so that nobody shuffles it.

    Up to 2026.3 Dask spells the name of the method without its "y".
    """
    kind = type(merge)
    name = "_on_condition_already_partitioned"
    method = getattr(kind, name, None) or getattr(kind, name.replace("already", "alread"))
    return bool(method(merge, expr, on))


def __getattr__(name: str) -> Any:
    found = LIBRARY.find(name)
    globals()[name] = found
    return found
