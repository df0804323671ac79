"""The workloads of Dask's published scaling report, each as its snippet is printed.

Sizes grow with the cores of the cluster (``n_cores``; the report's ``n`` is taken for the same). A workload gets a
client and that number, and returns how much it did: tasks, or bytes. What is timed is all that is in it; what the
report makes beforehand (the array, the frame) is made by ``Data`` and not timed again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def inc(x: Any) -> Any:
    return x + 1


def add(x: Any, y: Any) -> Any:
    return x + y


def slowinc(x: Any, delay: float = 0.1) -> Any:
    time.sleep(delay)
    return x + 1


def slowadd(x: Any, y: Any, delay: float = 0.1) -> Any:
    time.sleep(delay)
    return x + y


def slowsum(L: Any, delay: float = 0.1) -> Any:
    time.sleep(delay)
    return sum(L)


# Workers do not have this file: its functions go to them as they are.
for _function in (inc, add, slowinc, slowadd, slowsum):
    _function.__module__ = "__main__"


@dataclass(frozen=True)
class Workload:
    """One snippet."""

    title: str
    run: Callable[[Any, int, Data], float]
    #: "tasks" or "MB": of what `run` returns the number, or the bytes.
    unit: str = "tasks"
    #: Whether it computes: with more threads than cores it measures the machine.
    computes: bool = False


class Data:
    """The array and the frame of a cluster, made when they are first needed."""

    def __init__(self, client: Any, n_cores: int, chunk: int = 2000, rows: int = 1_000_000) -> None:
        self._client = client
        self.n_cores = n_cores
        self._chunk = chunk
        self._rows = rows
        self._array: Any = None
        self._frame: Any = None

    @property
    def side(self) -> int:
        return int(5000 * math.sqrt(self.n_cores))

    @property
    def length(self) -> int:
        return 2_000_000 * self.n_cores

    def make_array(self) -> None:
        import dask.array as da
        from distributed import wait

        size = (self.side, self.side)
        x = da.random.randint(0, 10000, size=size, chunks=(self._chunk, self._chunk))
        x = x.persist()
        wait(x)
        self._array = x

    def make_frame(self) -> None:
        import dask.array as da
        import dask.dataframe as dd
        from distributed import wait

        x = da.random.randint(0, 10000, size=(self.length, 10), chunks=(self._rows, 10))
        df = dd.from_dask_array(x).persist()
        wait(df)
        self._frame = df

    @property
    def array(self) -> Any:
        if self._array is None:
            self.make_array()
        return self._array

    @property
    def frame(self) -> Any:
        if self._frame is None:
            self.make_frame()
        return self._frame

    @property
    def array_bytes(self) -> int:
        return 8 * self.side**2

    @property
    def frame_bytes(self) -> int:
        return 80 * self.length

    def keys(self) -> set[str]:
        """The keys of what is there."""
        from distributed import futures_of

        return {str(future.key) for future in futures_of([self._array, self._frame])}

    def drop_array(self) -> None:
        self._array = None

    def drop_frame(self) -> None:
        self._frame = None


# Tasks


def seconds_long(client: Any, n: int, _: Data) -> float:
    from distributed import wait

    futures = client.map(slowinc, range(4 * n), delay=1)  # 1s delay
    wait(futures)
    return len(futures)


def tenths(client: Any, n_cores: int, _: Data) -> float:
    from distributed import wait

    futures = client.map(slowinc, range(100 * n_cores))  # 100ms delay
    wait(futures)
    return len(futures)


def fast(client: Any, n_cores: int, _: Data) -> float:
    from distributed import wait

    futures = client.map(inc, range(n_cores * 200))  # fast
    wait(futures)
    return len(futures)


def tree(_client: Any, n: int, _: Data) -> float:
    from dask import delayed

    L: Any = range(2**7 * n)
    while len(L) > 1:  # while there is more than one element left
        # add neighbors together
        L = [delayed(slowadd)(a, b) for a, b in zip(L[::2], L[1::2])]  # noqa: B905

    L[0].compute()
    return 2**7 * n - 1


def neighbours(client: Any, n: int, _: Data) -> float:
    from distributed import wait

    L: Any = range(20 * n)
    L = client.map(slowadd, L[:-1], L[1:])
    L = client.map(slowadd, L[:-1], L[1:])
    wait(L)
    return 2 * 20 * n - 3


def sequential(_client: Any, _n: int, _: Data) -> float:
    from dask import delayed

    x: Any = 1

    for _i in range(100):
        x = delayed(inc)(x)

    # The report has turned fusion off.
    x.compute(optimize_graph=False)
    return 100


def in_the_loop(client: Any, n: int, _: Data) -> float:
    from dask.distributed import as_completed

    futures = client.map(slowinc, range(n * 20))
    count = len(futures)

    pool = as_completed(futures)
    batches = pool.batches()

    while True:
        try:
            batch = next(batches)
            if len(batch) == 1:
                batch += next(batches)
        except StopIteration:
            break
        future = client.submit(slowsum, batch)
        count += 1
        pool.add(future)
    return count


# Arrays


def create_array(_client: Any, _n: int, data: Data) -> float:
    data.drop_array()
    data.make_array()
    return data.array_bytes


def elementwise(_client: Any, _n: int, data: Data) -> float:
    import dask.array as da
    from distributed import wait

    x = data.array
    y = da.sin(x) ** 2 + da.cos(x) ** 2
    y = y.persist()
    wait(y)
    return data.array_bytes


def reduction(_client: Any, _n: int, data: Data) -> float:
    data.array.std().compute()
    return data.array_bytes


def element(_client: Any, _n: int, data: Data) -> float:
    data.array[1234, 4567].compute()
    return 8


def communication(_client: Any, _n: int, data: Data) -> float:
    from distributed import wait

    x = data.array
    y = x + x.T
    y = y.persist()
    wait(y)
    return data.array_bytes


def rechunking(_client: Any, _n: int, data: Data) -> float:
    from distributed import wait

    y = data.array.rechunk((20000, 200)).persist()
    wait(y)

    y = y.rechunk((200, 20000)).persist()
    wait(y)
    return 2 * data.array_bytes


def overlap(_client: Any, _n: int, data: Data) -> float:
    from distributed import wait

    y = data.array.map_overlap(slowinc, depth=1, delay=0.1).persist()
    wait(y)
    return data.array_bytes


# Dataframes


def create_frame(_client: Any, _n: int, data: Data) -> float:
    data.drop_frame()
    data.make_frame()
    return data.frame_bytes


def slow_partitions(_client: Any, _n: int, data: Data) -> float:
    from distributed import wait

    df = data.frame
    y = df.map_partitions(slowinc, meta=df).persist()
    wait(y)
    return data.frame_bytes


def arithmetic(_client: Any, _n: int, data: Data) -> float:
    from distributed import wait

    df = data.frame
    y = (df[0] + 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10).persist()
    wait(y)
    return data.frame_bytes / 10


def row(_client: Any, _n: int, data: Data) -> float:
    data.frame.loc[123456].compute()
    return 80


def std(_client: Any, _n: int, data: Data) -> float:
    data.frame.std().compute()
    return data.frame_bytes


def std_of_series(_client: Any, _n: int, data: Data) -> float:
    data.frame[0].std().compute()
    return data.frame_bytes / 10


def groupby(_client: Any, _n: int, data: Data) -> float:
    data.frame.groupby(0)[1].mean().compute()
    return data.frame_bytes / 5


def groupby_apply(_client: Any, _n: int, data: Data) -> float:
    df = data.frame
    df.groupby(0).apply(len).compute()  # this would be faster as df.groupby(0).size()
    return data.frame_bytes


def set_index(_client: Any, _n: int, data: Data) -> float:
    from distributed import wait

    y = data.frame.set_index(1).persist()
    wait(y)
    return data.frame_bytes


def rolling(_client: Any, _n: int, data: Data) -> float:
    from distributed import wait

    y = data.frame.rolling(5).mean().persist()
    wait(y)
    return data.frame_bytes


TASKS = {
    "tasks-1s": Workload("embarrassingly parallel, 1 s", seconds_long),
    "tasks-100ms": Workload("embarrassingly parallel, 100 ms", tenths),
    "tasks-fast": Workload("embarrassingly parallel, fast", fast, computes=True),
    "tree": Workload("tree reduction", tree),
    "neighbours": Workload("nearest neighbour", neighbours),
    "sequential": Workload("sequential", sequential),
    "client-in-the-loop": Workload("client in the loop", in_the_loop),
}
ARRAYS = {
    "array-create": Workload("create dataset", create_array, "MB", computes=True),
    "array-elementwise": Workload("sin(x)**2 + cos(x)**2", elementwise, "MB", computes=True),
    "array-std": Workload("std", reduction, "MB", computes=True),
    "array-element": Workload("random access", element, "MB"),
    "array-transpose": Workload("x + x.T", communication, "MB", computes=True),
    "array-rechunk": Workload("rechunking", rechunking, "MB", computes=True),
    "array-overlap": Workload("nearest neighbour", overlap, "MB", computes=True),
}
FRAMES = {
    "frame-create": Workload("create dataset", create_frame, "MB", computes=True),
    "frame-100ms": Workload("map_partitions, 100 ms", slow_partitions, "MB", computes=True),
    "frame-arithmetic": Workload("arithmetic", arithmetic, "MB", computes=True),
    "frame-loc": Workload("random access", row, "MB"),
    "frame-std": Workload("std", std, "MB", computes=True),
    "frame-series-std": Workload("std of a series", std_of_series, "MB", computes=True),
    "frame-groupby": Workload("groupby mean", groupby, "MB", computes=True),
    "frame-groupby-apply": Workload("groupby apply", groupby_apply, "MB", computes=True),
    "frame-set-index": Workload("set_index", set_index, "MB", computes=True),
    "frame-rolling": Workload("rolling mean", rolling, "MB", computes=True),
}
GROUPS = {"tasks": TASKS, "arrays": ARRAYS, "dataframes": FRAMES}
ALL = {name: workload for group in GROUPS.values() for name, workload in group.items()}
