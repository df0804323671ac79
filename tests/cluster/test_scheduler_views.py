"""What functions of `run_on_scheduler` read of the scheduler's state."""

from __future__ import annotations

from typing import Any

import distributed
import pytest

import treadle
from waiting import until


@pytest.fixture(scope="module")
def client() -> Any:
    with treadle.Client(n_workers=2, threads_per_worker=1, processes=False) as client:
        yield client


def test_tasks_are_all_that_the_scheduler_knows(client: Any) -> None:
    x = client.submit(sum, [1, 2], key="view-x")
    y = client.submit(abs, x, key="view-y", workers=["nobody"], allow_other_workers=False)
    z = client.submit(abs, x, key="view-z")
    assert z.result() == 3

    def look(dask_scheduler: Any) -> Any:
        tasks = dask_scheduler.tasks
        y = tasks["view-y"]
        return {
            "states": dask_scheduler.get_task_status(["view-x", "view-y", "view-z", "no"]),
            "keys": {key for key in tasks if str(key).startswith("view-")},
            "snapshot": {t.key: t.state for t in tasks.values() if t.prefix_key == "view-x"},
            "waits": (y.state, {t.key for t in y.dependencies}, y.host_restrictions),
            "wanted": {c.client_key for c in tasks["view-x"].who_wants},
            "at": {w.address for w in tasks["view-x"].who_has} <= set(dask_scheduler.workers),
            "none": "no" in tasks,
            "unrunnable": {task.key for task in dask_scheduler.unrunnable},
            "occupancy": dask_scheduler.total_occupancy,
            "log": [step[2] for step in dask_scheduler.story("view-x")],
        }

    seen = client.run_on_scheduler(look)
    assert seen["states"] == {
        "view-x": "memory",
        "view-y": "no-worker",
        "view-z": "memory",
        "no": None,
    }
    assert seen["keys"] == {"view-x", "view-y", "view-z"}
    assert seen["waits"] == ("no-worker", {"view-x"}, {"nobody"})
    assert seen["wanted"] == {client.id}
    assert seen["at"]
    assert not seen["none"]
    assert seen["unrunnable"] == {"view-y"}
    assert seen["occupancy"] == 0
    assert seen["log"][-1] == "memory"
    y.release()


def test_prefixes_and_groups_count(client: Any) -> None:
    futures = client.map(lambda i: i, range(5), key=[("grouped-1", i) for i in range(5)])
    client.gather(futures)

    def look(dask_scheduler: Any) -> Any:
        prefix = dask_scheduler.task_prefixes["grouped"]
        group = dask_scheduler.task_groups["grouped-1"]
        return len(group), prefix.states["memory"], [g.name for g in prefix.groups]

    assert client.run_on_scheduler(look) == (5, 5, ["grouped-1"])


def test_a_view_of_one_key_follows_it(client: Any) -> None:
    future = client.submit(sum, [5, 6], key="follow")
    assert future.result() == 11

    def keep(dask_scheduler: Any) -> str:
        dask_scheduler.kept = dask_scheduler.tasks["follow"]
        return str(dask_scheduler.kept.state)

    assert client.run_on_scheduler(keep) == "memory"
    future.release()

    def state(dask_scheduler: Any) -> str:
        return str(dask_scheduler.kept.state)

    until(lambda: client.run_on_scheduler(state) == "forgotten", "the task is forgotten")


def test_workers_are_described(client: Any) -> None:
    def look(dask_scheduler: Any) -> Any:
        return {
            address: (worker.name, worker.nthreads, worker.status.name)
            for address, worker in dask_scheduler.workers.items()
        }

    seen = client.run_on_scheduler(look)
    assert seen.keys() == client.scheduler_info(n_workers=-1)["workers"].keys()
    assert sorted(seen.values()) == [(0, 1, "running"), (1, 1, "running")]


@pytest.mark.parametrize("name", ["computations", "idle", "saturated"])
def test_what_is_not_served_says_so(client: Any, name: str) -> None:
    with pytest.raises(NotImplementedError, match=name):
        client.run_on_scheduler(lambda dask_scheduler: getattr(dask_scheduler, name))


def test_views_cannot_be_changed(client: Any) -> None:
    future = client.submit(sum, [1], key="fixed")
    future.result()

    def change(dask_scheduler: Any) -> None:
        dask_scheduler.tasks["fixed"].state = "released"

    with pytest.raises(AttributeError, match="view"):
        client.run_on_scheduler(change)
    with pytest.raises(NotImplementedError, match="annotations"):
        client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.tasks["fixed"].annotations)


def test_memory_counts_small_values(client: Any) -> None:
    future = client.submit(sum, [1], key="counted-small")
    assert future.result() == 1

    def look(dask_scheduler: Any) -> Any:
        (worker,) = dask_scheduler.tasks["counted-small"].who_has
        return worker.nbytes, worker.memory.managed, dask_scheduler.memory.managed

    assert all(nbytes > 0 for nbytes in client.run_on_scheduler(look))


def test_who_holds_keys_is_a_client(client: Any) -> None:
    queue = distributed.Queue("held-here", client=client)
    future = client.submit(sum, [3], key="in-queue")
    queue.put(future)

    def look(dask_scheduler: Any) -> Any:
        wanted = dask_scheduler.clients["queue-held-here"].wants_what
        return [task.key for task in wanted]

    assert client.run_on_scheduler(look) == ["in-queue"]
    assert queue.get().result() == 3


def test_a_worker_that_has_left_is_no_client() -> None:
    async def make_queue(dask_worker: Any) -> str:
        # What asks in its own name is among the clients.
        await dask_worker.scheduler.queue_create(name="of-worker", maxsize=0)
        return str(dask_worker.address)

    def look(dask_scheduler: Any) -> list[str]:
        return list(dask_scheduler.clients)

    with treadle.Client(n_workers=1, threads_per_worker=1, processes=False) as client:
        (address,) = client.run(make_queue).values()
        assert address in client.run_on_scheduler(look)
        client.retire_workers([address])
        until(lambda: client.run_on_scheduler(look) == [client.id], "it is forgotten")


class Counting:
    """Handlers of a library, as the storage of ``optuna`` has them."""

    def __init__(self, scheduler: Any) -> None:
        self.count = 0
        scheduler.handlers["counting_add"] = self.add
        scheduler.handlers["counting_read"] = self.read

    def add(self, number: int) -> None:
        self.count += number

    async def read(self) -> dict[str, int]:
        return {"count": self.count}


def test_handlers_that_functions_add_are_served(client: Any) -> None:
    def add_handlers(dask_scheduler: Any) -> None:
        dask_scheduler.extensions["counting"] = Counting(dask_scheduler)

    async def add_at_worker(dask_worker: Any) -> None:
        await dask_worker.scheduler.counting_add(number=10)

    client.run_on_scheduler(add_handlers)
    client.sync(client.scheduler.counting_add, number=2)
    workers = len(client.run(add_at_worker))
    assert workers
    assert client.sync(client.scheduler.counting_read) == {"count": 2 + 10 * workers}
    with pytest.raises(NotImplementedError, match="'counting_forget'"):
        client.sync(client.scheduler.counting_forget)


def test_events_tell_who_comes_and_goes(client: Any) -> None:
    with treadle.Client(client.scheduler.address, set_as_default=False) as other:
        name = other.id

    def actions() -> set[tuple[str, Any]]:
        events = client.get_events("all")
        return {(event["action"], event.get("client", "worker")) for _, event in events}

    until(lambda: ("remove-client", name) in actions(), "the other client is seen to go")
    assert {("add-client", name), ("add-worker", "worker")} <= actions()


def test_the_scheduler_has_one_id(client: Any) -> None:
    def of_it(dask_scheduler: Any) -> Any:
        return dask_scheduler.id

    assert client.run_on_scheduler(of_it) == client.scheduler_info()["id"]
