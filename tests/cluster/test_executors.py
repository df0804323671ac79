"""Executors of a worker that tasks are annotated with: ``dask.annotate(executor="gpu")``."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import dask
import dask.array as da
import pytest
from distributed import WorkerPlugin, get_client, get_worker, secede, worker_client

from client_support import SOON, client_class, distributed_fails, fail, inc

pytestmark = pytest.mark.usefixtures("quiet")


class Pools(WorkerPlugin):
    name = "pools"

    def setup(self, worker):
        worker.executors["mine"] = ThreadPoolExecutor(1, thread_name_prefix="mine")
        worker.executors["processes"] = ProcessPoolExecutor(1)


@pytest.fixture
def client(client):
    client.register_plugin(Pools())
    yield client
    client.unregister_worker_plugin("pools")

    def drop(dask_worker):
        for name in ("mine", "processes"):
            dask_worker.executors.pop(name).shutdown()

    client.run(drop)


def thread(*_):
    return threading.current_thread().name.rpartition("_")[0]


@dask.delayed
def delayed_thread(*_):
    return thread()


def here(x=None):
    """What functions find in a task."""
    worker = get_worker()
    key = worker.get_current_task()
    running = [found for found in worker.active_threads.values() if found == key]
    return thread(), key, len(running), get_client().submit(inc, 1).key != key


def test_calls_run_in_the_executor(client):
    with dask.annotate(executor="mine"):
        future = client.submit(thread, pure=False)
        mapped = client.map(thread, range(3), pure=False)
        again = client.map(thread, range(3), pure=False, batch_size=2)
    assert future.result(timeout=SOON) == "mine"
    assert client.gather(mapped + again) == ["mine"] * 6
    assert client.submit(thread, pure=False).result(timeout=SOON) != "mine"


def test_collections_run_in_the_executor(client):
    with dask.annotate(executor="mine"):
        one, other = delayed_thread(1), delayed_thread(2)
    last = delayed_thread(one, other)
    found = dask.compute(one, other, last, optimize_graph=False)
    assert found[:2] == ("mine", "mine")
    assert found[2] != "mine"
    with dask.annotate(executor="mine"):
        x = da.ones(10, chunks=5).map_blocks(lambda b: b if thread() == "mine" else 0 * b)
        assert x.sum().compute(optimize_graph=False) == 10
        # Of the whole submission.
        assert client.compute(delayed_thread(3)).result(timeout=SOON) == "mine"
        assert client.get({"a": (inc, 1), "b": (thread, "a"), "c": "b"}, ["b", "c"]) == ["mine"] * 2


@distributed_fails("the function itself is taken for a name")
def test_a_function_of_the_key_says_which(client):
    def which(key):
        return "mine" if "mine" in key else None

    with dask.annotate(executor=which):
        futures = client.map(thread, range(3), key=["mine-1", "other-2", "mine-3"])
        one = client.submit(thread, key="mine-4")
    found = [name == "mine" for name in client.gather([*futures, one])]
    assert found == [True, False, True, True]


@pytest.mark.parametrize("name", ["default", "offload", "actor"])
def test_executors_that_each_worker_has(client, name):
    with dask.annotate(executor=name):
        assert client.submit(here, pure=False).result(timeout=SOON)[2:] == (1, True)


def test_a_task_knows_its_worker_and_its_key(client):
    with dask.annotate(executor="mine"):
        assert client.submit(here, key="a-key").result(timeout=SOON) == ("mine", "a-key", 1, True)


@distributed_fails("a task in a pool of processes has no worker")
def test_a_process_of_a_pool_does_not_take_another_task_for_its_own(client):
    def key():
        return get_worker().get_current_task()

    for _ in range(2):
        with dask.annotate(executor="processes"):
            future = client.submit(key, pure=False)
        with pytest.raises(RuntimeError, match="belongs to the parent process"):
            future.result(timeout=SOON)


def test_the_thread_is_left_as_it_was(client):
    with dask.annotate(executor="mine"):
        client.submit(here, pure=False).result(timeout=SOON)

    def left(dask_worker):
        from dask.context import thread_state

        executor = dask_worker.executors["mine"]
        return executor.submit(lambda: dict(vars(thread_state))).result(SOON)

    workers = client.run(left)
    assert all("execution_state" not in found for found in workers.values())
    assert not any(client.run(lambda dask_worker: dask_worker.active_threads).values())


@distributed_fails("its worker processes are daemons, which may have no children")
def test_processes_of_a_pool(client):
    offset = 5
    with dask.annotate(executor="processes"):
        future = client.submit(lambda x: (os.getpid(), x + offset), 1, pure=False)
        node = client.compute(dask.delayed(lambda x: (os.getpid(), x + offset))(2))
    pids = client.run(os.getpid).values()
    for found, value in ((future, 6), (node, 7)):
        pid, result = found.result(timeout=SOON)
        assert pid not in pids
        assert result == value


@pytest.mark.parametrize("how", ["submit", "map", "compute"])
def test_an_unknown_executor_fails_the_task_by_name(client, how):
    with dask.annotate(executor="none-such"):
        if how == "submit":
            future = client.submit(inc, 1)
        elif how == "map":
            (future,) = client.map(inc, [2])
        else:
            future = client.compute(dask.delayed(inc)(3))
    with pytest.raises(ValueError, match=r"Invalid executor 'none-such'; expected one of: \['act"):
        future.result(timeout=SOON)


@pytest.mark.parametrize(
    "name",
    [
        "mine",
        pytest.param(
            "processes", marks=distributed_fails("its worker processes may have no children")
        ),
    ],
)
def test_errors_and_retries(client, name, tmp_path):
    def once(path):
        with open(path, "a") as file:
            file.write(".")
        with open(path) as file:
            if len(file.read()) < 3:
                raise ValueError("not yet")
        return "done"

    with dask.annotate(executor=name):
        failed = client.submit(fail, "in the pool")
        again = client.submit(once, str(tmp_path / "file"), retries=2)
    with pytest.raises(ValueError, match="in the pool"):
        failed.result(timeout=SOON)
    assert again.result(timeout=SOON) == "done"


def test_a_coroutine_runs_in_the_loop(client):
    async def coroutine():
        return thread()

    with dask.annotate(executor="mine"):
        assert client.submit(coroutine).result(timeout=SOON) != "mine"


@distributed_fails("a pool of concurrent.futures cannot be left")
@pytest.mark.parametrize("kind", ["secede", "worker_client"])
def test_a_task_gives_its_slot_away(client, kind):
    def outer():
        if kind == "secede":
            secede()
            return get_client().submit(inc, 1, pure=False, workers=get_worker().address).result()
        with worker_client() as inside:
            return inside.submit(inc, 1, pure=False, workers=get_worker().address).result()

    with dask.annotate(executor="mine"):
        assert client.submit(outer, pure=False).result(timeout=SOON) == 2


@distributed_fails("all tasks run in the pool then")
def test_the_pool_of_all_tasks_cannot_be_replaced(client):
    def replace(dask_worker):
        with pytest.raises(AttributeError, match="'default'"):
            dask_worker.executors["default"] = None
        return dask_worker.executor.submit(inc, 1).result()

    assert set(client.run(replace).values()) == {2}


def test_pools_end_with_their_worker():
    pool = ThreadPoolExecutor(1)
    with client_class()(processes=False, dashboard_address=None, set_as_default=False) as client:
        (worker,) = client.cluster.workers.values()
        worker.executors["mine"] = pool
        with dask.annotate(executor="mine"):
            assert client.submit(inc, 1).result(timeout=SOON) == 2
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(inc, 1)


def test_the_rows_of_a_p2p_shuffle_move_all_the_same(client):
    import dask.dataframe as dd
    import pandas as pd

    frame = dd.from_pandas(pd.DataFrame({"x": range(100)}), npartitions=4)
    with (
        dask.config.set({"dataframe.shuffle.method": "p2p"}),
        dask.annotate(executor="offload"),
    ):
        shuffled = client.compute(frame.shuffle("x"))
    assert sorted(shuffled.result(timeout=SOON).x) == list(range(100))


def test_a_task_of_an_executor_is_run_again_at_the_client(client):
    @dask.delayed
    def fails():
        raise ValueError("again")

    with dask.annotate(executor="mine"):
        future = client.compute(fails())
    with pytest.raises(ValueError, match="again"):
        client.recreate_error_locally(future)
