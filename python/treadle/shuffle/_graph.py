"""What the client tells the scheduler of the shuffles in a Dask graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from treadle._compat.dask import GraphNode, Task, execute_subgraph
from treadle._compat.distributed import LIBRARY
from treadle.shuffle._spec import describe, position

if TYPE_CHECKING:
    from treadle._compat.distributed import P2PBarrierTask

    # A task that reads the barrier, with its rank in the submission.
    Reader = tuple[int, GraphNode]
    # Name, number of inputs, number of partitions, ranges of partitions that are read, the name of the
    # other shuffle of a merge, the spec for workers, the ranks of readers with their partitions, and
    # what people call it.
    Shuffle = tuple[
        str, int, int, list[tuple[int, int]], str | None, bytes, list[tuple[int, int]], str
    ]


def is_barrier(node: GraphNode) -> bool:
    """Return whether a node of a graph is the barrier of a shuffle."""
    kind = LIBRARY.loaded("P2PBarrierTask")
    return kind is not None and isinstance(node, kind)


def shuffles(barriers: list[tuple[P2PBarrierTask, list[Reader]]]) -> list[Shuffle]:
    """Return what the scheduler must know of the shuffles of these barriers, in their order."""
    return [_shuffle(barrier, readers) for barrier, readers in barriers]


def _shuffle(barrier: P2PBarrierTask, readers: list[Reader]) -> Shuffle:
    spec: Any = barrier.spec
    partitions, outputs, data = describe(spec)
    name = str(spec.id)
    aligned = None
    reads = []
    for rank, node in readers:
        found = set()
        for names, partition in unpacks(node):
            if name in names:
                found.add(partition)
                # Both sides of a merge are read together.
                aligned = next((other for other in names if other != name), aligned)
        if len(found) == 1:
            reads.append((rank, number_of(found.pop(), spec)))
    maps = len(barrier.dependencies)
    return name, maps, partitions, outputs, aligned, data, reads, kind_named(spec, aligned)


def kind_named(spec: Any, aligned: Any) -> str:
    """Return what people call a shuffle; ``aligned`` is the other side of a merge, if it is one."""
    if hasattr(spec, "new"):
        return "rechunk"
    return "shuffle" if aligned is None else "merge"


def number_of(partition: Any, spec: Any) -> int:
    """Return the number of a partition that a graph names: a number, or the index of a chunk."""
    return position(partition, spec.new) if isinstance(partition, tuple) else int(partition)


def unpacks(node: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield what a task reads of shuffles: their names, and the partition."""
    from treadle._compat.distributed import merge_unpack, rechunk_unpack, shuffle_unpack

    if not isinstance(node, Task):
        return
    if node.func is execute_subgraph:
        for inner in node.args[0].values():
            yield from unpacks(inner)
    elif node.func in (shuffle_unpack, rechunk_unpack):
        yield (node.args[0],), node.args[1]
    elif node.func is merge_unpack:
        yield node.args[:2], node.args[2]
