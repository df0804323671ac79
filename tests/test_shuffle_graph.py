"""What the client finds out of shuffles in graphs of Dask, also in those that Dask fused."""

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from dask import dataframe as dd
from dask.base import collections_to_expr

from treadle.local._graph import materialize
from treadle.shuffle._graph import is_barrier, shuffles
from treadle.shuffle._spec import position

FRAME = pd.DataFrame({"a": np.arange(40) % 7, "b": np.arange(40.0)})


@pytest.fixture(autouse=True)
def p2p():
    """Have Dask choose P2P, as with a distributed client."""
    with dask.config.set({"dataframe.shuffle.method": "p2p", "array.rechunk.method": "p2p"}):
        yield


def found(collection):
    """Return the graph, its ranks, and the shuffles in it."""
    graph = materialize(collections_to_expr([collection]).optimize())
    ranks = dict(enumerate(graph))
    barriers = [
        (
            node,
            [(n, graph[k]) for n, k in ranks.items() if key in graph[k].dependencies],
        )
        for key, node in graph.items()
        if is_barrier(node)
    ]
    return graph, ranks, shuffles(barriers)


def test_a_shuffle():
    frame = dd.from_pandas(FRAME, npartitions=3)
    graph, ranks, [(name, maps, partitions, outputs, aligned, _, reads, kind)] = found(
        frame.shuffle("a", npartitions=5)
    )
    assert (maps, partitions, outputs, aligned, kind) == (3, 5, [(0, 5)], None, "shuffle")
    assert {graph[ranks[rank]].args[0] for rank, _ in reads} == {name}
    assert sorted(partition for _, partition in reads) == list(range(5))


def test_readers_that_dask_fused():
    frame = dd.from_pandas(FRAME, npartitions=3)
    graph, ranks, [(*_, reads, _kind)] = found(frame.shuffle("a").map_partitions(len))
    assert sorted(partition for _, partition in reads) == [0, 1, 2]
    for rank, partition in reads:
        assert ranks[rank][1] == partition, graph[ranks[rank]]


def test_both_sides_of_a_merge():
    frame = dd.from_pandas(FRAME, npartitions=3)
    other = dd.from_pandas(FRAME.rename(columns={"b": "c"}), npartitions=2)
    _graph, _ranks, [left, right] = found(frame.merge(other, on="a"))
    assert (left[4], right[4]) == (right[0], left[0])
    assert (left[2], left[6]) == (right[2], right[6])
    assert [left[1], right[1]] == [3, 2]
    assert left[7] == right[7] == "merge"
    assert sorted(partition for _, partition in left[6]) == list(range(left[2]))


def test_chunks_are_read_by_their_positions():
    with dask.config.set({"array.chunk-size": "64B"}):
        array = da.ones((6, 4), chunks=(2, 4)).rechunk((6, 1)) + 1
        _graph, ranks, [(_name, maps, partitions, outputs, aligned, _, reads, kind)] = found(array)
    assert kind == "rechunk"
    assert (maps, partitions, outputs, aligned) == (3, 4, [(0, 4)], None)
    assert sorted(partition for _, partition in reads) == list(range(4))
    for rank, partition in reads:
        # It is fused with what follows, and the number of a column is its position.
        assert ranks[rank][-1] == partition


def test_a_graph_without_shuffles():
    frame = dd.from_pandas(FRAME, npartitions=3)
    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        assert found(frame.shuffle("a"))[2] == []


def test_the_position_of_a_chunk():
    assert position((1, 2), ((1, 1), (1, 1, 1))) == 5
