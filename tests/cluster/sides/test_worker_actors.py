"""Actors on a worker."""

from __future__ import annotations

import asyncio
import pickle
import threading
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from distributed import (
    get_worker,
)
from distributed.actor import Actor
from distributed.protocol import to_serialize
from python_sides import SOON, Hub, HubClient, HubWorker

import treadle


class Counter:
    step = 1
    n = 0
    other: Any = None

    def increment(self) -> int:
        self.n += self.step
        return self.n

    async def aincrement(self) -> int:
        await asyncio.sleep(0)
        self.n += self.step
        return self.n

    def add(self, x: int, *, times: int = 1) -> int:
        self.n += x * times
        return self.n

    def fail(self) -> None:
        raise ValueError("no")

    def lock(self) -> Any:
        return threading.Lock()

    def where(self) -> Any:
        return threading.current_thread().name, get_worker().get_current_task()

    def twice(self) -> int:
        """Calls itself by its handle, on the same worker."""
        self.other.increment().result()
        return self.other.increment().result()


def execute(caller: HubClient, worker: HubWorker, function: str, *args: Any, **kwargs: Any) -> Any:
    return caller.start(
        worker.address,
        "actor_execute",
        actor="counter",
        function=function,
        args=[to_serialize(arg) for arg in args],
        kwargs={name: to_serialize(value) for name, value in kwargs.items()},
    )


@pytest.fixture
def counter(worker: HubWorker) -> Counter:
    counter = Counter()
    worker.run(lambda: worker.service.add_actor("counter", counter), "counter")
    return counter


def test_an_actors_handle_can_be_sent(worker: HubWorker) -> None:
    handle = worker.run(lambda: worker.service.add_actor("counter", Counter()), "counter")
    assert isinstance(handle, Actor)
    assert repr(handle) == "<Actor: Counter, key=counter>"
    assert not hasattr(handle, "nbytes")
    assert handle._client is None, "its future would keep the actor alive for ever"
    again = pickle.loads(cloudpickle.dumps(handle))
    assert (again._cls, again._address, again.key) == (Counter, worker.address, "counter")


@pytest.mark.usefixtures("counter")
def test_the_methods_of_an_actor_run_in_the_order_of_the_calls(
    caller: HubClient, worker: HubWorker
) -> None:
    futures = [execute(caller, worker, "increment") for _ in range(20)]
    results = [future.result(SOON)["result"] for future in futures]
    assert results == list(range(1, 21))
    assert execute(caller, worker, "add", 5, times=2).result(SOON)["result"] == 30
    assert execute(caller, worker, "aincrement").result(SOON)["result"] == 31
    name, task = execute(caller, worker, "where").result(SOON)["result"]
    assert name.startswith("Dask-Actor-Threads")
    assert task == "counter.where"
    name, _ = execute(caller, worker, "increment", separate_thread=False), None
    assert name.result(SOON)["result"] == 32


def test_an_actors_attributes_are_read(
    caller: HubClient, worker: HubWorker, counter: Counter
) -> None:
    counter.n = 7
    read = caller.ask(worker.address, "actor_attribute", actor="counter", attribute="n")
    assert read == {"status": "OK", "result": 7}
    missing = caller.ask(worker.address, "actor_attribute", actor="counter", attribute="m")
    assert isinstance(missing["exception"], AttributeError)


@pytest.mark.usefixtures("counter")
def test_what_an_actor_raises_is_the_answer(caller: HubClient, worker: HubWorker) -> None:
    response = execute(caller, worker, "fail").result(SOON)
    assert response["status"] == "error"
    assert isinstance(response["exception"], ValueError)
    response = execute(caller, worker, "lock").result(SOON)
    assert isinstance(response["exception"], TypeError)
    worker.service.drop_actor("counter")
    with pytest.raises(KeyError):
        execute(caller, worker, "increment").result(SOON)


def test_an_actor_is_not_dropped_by_the_late_end_of_an_earlier_one(worker: HubWorker) -> None:
    service = worker.service
    for number in (1, 2):
        worker.run(partial(service.add_actor, "counter", Counter(), number))
    service.drop_actor("counter", 1)
    assert list(service.worker.state.actors) == ["counter"]
    service.drop_actor("counter", 2)
    assert service.worker.state.actors == {}


def test_an_actors_handle_works_in_tasks(
    hub: Hub, worker: HubWorker, counter: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(treadle, "Client", _no_client, raising=False)
    other = HubWorker(hub, "other", tmp_path)
    pickled = cloudpickle.dumps(worker.run(lambda: worker.service.add_actor("counter", counter)))

    def task() -> Any:
        handle = pickle.loads(pickled)
        futures = [handle.increment() for _ in range(3)]
        return [future.result(timeout=SOON) for future in futures], handle.n

    assert other.run(task) == ([1, 2, 3], 3)
    assert worker.run(task) == ([4, 5, 6], 6)

    async def coroutine() -> Any:
        handle = pickle.loads(pickled)
        return await handle.increment(), await handle.n

    assert other.run(coroutine) == (7, 7)
    other.leave()


def _no_client(*args: Any, **kwargs: Any) -> Any:
    raise ValueError("no scheduler to connect to in this test")


def test_an_actor_calls_an_actor_of_its_worker(
    caller: HubClient, worker: HubWorker, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(treadle, "Client", _no_client, raising=False)
    counter.other = worker.run(lambda: worker.service.add_actor("counter", counter))
    assert execute(caller, worker, "twice").result(SOON)["result"] == 2


def test_a_restart_ends_the_actors(worker: HubWorker, counter: Counter) -> None:
    worker.service.restarted()
    assert worker.service.worker.state.actors == {}
