"""Each attribute of distributed's objects is served, or raises an error that names it and Treadle."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import distributed
import psutil
import pytest
from distributed import WorkerPlugin

import treadle
from client_support import AGAINST, SOON, fail
from treadle.errors._unserved import UnservedError

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="distributed has them all")


def public(thing: Any) -> dict[str, bool | None]:
    """The names that an object has, and whether each is a coroutine function; None: no method."""
    found = {}
    for name in {*dir(thing), *vars(thing)}:
        if not name.startswith("_"):
            # As a function of its class, so that no property is read.
            value = inspect.getattr_static(thing, name, None)
            is_method = inspect.isfunction(value)
            found[name] = inspect.iscoroutinefunction(value) if is_method else None
    return found


async def of_distributed() -> dict[str, dict[str, bool | None]]:
    async with (
        distributed.Scheduler(dashboard_address=None, port=0) as scheduler,
        distributed.Worker(scheduler.address) as worker,
        distributed.Nanny(scheduler.address, nthreads=1) as nanny,
    ):
        return {"Worker": public(worker), "Nanny": public(nanny), "Scheduler": public(scheduler)}


@pytest.fixture(scope="module")
def theirs() -> dict[str, dict[str, bool | None]]:
    return asyncio.run(of_distributed())


@pytest.fixture(scope="module")
def client():
    with treadle.Client(workers=1, set_as_default=False) as client:
        yield client


def looked_at(thing: Any, kind: str, names: dict[str, bool | None]) -> list[str]:
    """What is neither served as it is in distributed nor refused by name."""
    wrong = []
    for name, is_coroutine in names.items():
        try:
            value = getattr(thing, name)
        except Exception as error:
            text = str(error)
            named = f"{kind}.{name}" in text and ("Treadle" in text or "treadle" in text)
            if not (isinstance(error, UnservedError) and named):
                wrong.append(f"{name}: {error!r}")
            continue
        if is_coroutine is not None and is_coroutine != inspect.iscoroutinefunction(value):
            wrong.append(f"{name} is a coroutine function in one of them only")
    return wrong


def test_each_attribute_of_a_worker(client, theirs):
    names = theirs["Worker"]
    assert len(names) > 100
    found = client.run(lambda dask_worker: looked_at(dask_worker, "Worker", names))
    assert list(found.values()) == [[]]


def test_each_attribute_of_a_nanny(client, theirs):
    names = theirs["Nanny"]
    found = client.run(lambda dask_worker: looked_at(dask_worker, "Nanny", names), nanny=True)
    assert list(found.values()) == [[]]


def test_each_attribute_of_the_scheduler(client, theirs):
    names = theirs["Scheduler"]
    assert len(names) > 200
    assert client.run_on_scheduler(lambda dask_scheduler: looked_at(
        dask_scheduler, "Scheduler", names)) == []  # fmt: skip


def test_what_nobody_has_is_an_attribute_error(client):
    def ask(dask_worker):
        with pytest.raises(AttributeError) as caught:
            dask_worker.no_such_thing  # noqa: B018
        return type(caught.value)

    assert list(client.run(ask).values()) == [AttributeError]


class Sets(WorkerPlugin):
    def __init__(self, what):
        self.what = what

    def setup(self, worker):
        self.what()


def test_what_a_worker_serves(client):
    async def look(dask_worker):
        with dask_worker.active_threads_lock:
            assert dask_worker.active_keys == set()
        assert dask_worker.execution_state["worker"] is dask_worker
        assert dask_worker.monitor.recent()["memory"] > 0
        assert dask_worker.monitor.count >= 2
        assert dask_worker.host == dask_worker.ip == "127.0.0.1"
        assert await dask_worker.plugin_add(Sets(list), name="sets") == {"status": "OK"}
        assert "sets" in dask_worker.plugins
        assert (await dask_worker.plugin_remove("sets"))["status"] == "OK"
        assert (await dask_worker.plugin_add(Sets(fail), name="fails"))["status"] == "error"
        with pytest.raises(ValueError, match="failed"):
            await dask_worker.plugin_add(Sets(fail), name="fails", catch_errors=False)
        await dask_worker.plugin_remove("fails")

    client.run(look)


def test_periodic_callbacks_of_a_worker_end_with_it():
    client = treadle.Client(set_as_default=False)
    (worker,) = client.cluster.workers.values()

    async def start(dask_worker):
        from tornado.ioloop import PeriodicCallback

        callback = PeriodicCallback(list, 1000)
        dask_worker.periodic_callbacks["mine"] = callback
        callback.start()

    client.run(start)
    callback = worker.periodic_callbacks["mine"]
    assert callback.is_running()
    client.close()
    assert not callback.is_running()


def test_what_the_scheduler_serves(client):
    client.submit(sum, [1, 2], key="kept").result(timeout=SOON)
    kept = client.submit(sum, [3, 4], key="kept")

    def look(dask_scheduler):
        scheduler = dask_scheduler
        (worker,) = scheduler.workers
        assert scheduler.adaptive_target() == 0
        # A small value is at the scheduler.
        assert scheduler.workers_to_close(None, 1) == [worker]
        assert scheduler.workers_to_close(attribute="name", target=0) == list(scheduler.aliases)
        assert scheduler.workers_to_close(minimum=1) == []
        assert scheduler.n_tasks == 1
        assert list(scheduler.aliases.values()) == [worker]
        assert scheduler.total_memory == scheduler.workers[worker].memory_limit
        assert scheduler.allowed_failures == 3
        scheduler.allowed_failures = 5
        assert scheduler.allowed_failures == 5
        for count in (-1, 2**32, 2**70):
            with pytest.raises(ValueError, match="give an integer from 0 to 4294967295"):
                scheduler.allowed_failures = count
        with pytest.raises(TypeError, match="give an integer"):
            scheduler.allowed_failures = 4.9
        scheduler.allowed_failures = 3
        with pytest.raises(UnservedError, match=r"port of Treadle.*distributed\.scheduler"):
            scheduler.port = 5
        assert scheduler.address.endswith(f"{scheduler.ip}:{scheduler.port}")
        assert scheduler.proc == psutil.Process()
        scheduler.start_task_metadata("mine")
        assert scheduler.stop_task_metadata("mine") == {"metadata": {}, "state": {}}

    client.run_on_scheduler(look)
    del kept
