"""What code on a worker reads of it and may set: its status, its tasks, its values, and plugins."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import distributed
import pytest
from dask import delayed
from distributed import Status, WorkerPlugin, get_worker, wait

from client_support import AGAINST, Gate, inc, pass_gate
from process_support import until

LARGE = 100_000


def set_status(status: str, dask_worker: Any = None) -> None:
    dask_worker.status = Status[status]


def states(dask_worker: Any = None) -> dict[Any, str]:
    return {key: task.state for key, task in dask_worker.state.tasks.items()}


def statuses(client: distributed.Client) -> dict[str, str]:
    found = client.scheduler_info(n_workers=-1)["workers"]
    return {address: worker["status"] for address, worker in found.items()}


def test_a_paused_worker_starts_no_task_until_it_runs_again(
    client: distributed.Client, workers: list[str]
) -> None:
    paused, other = workers
    client.run(set_status, "paused", workers=[paused])
    try:
        until(lambda: statuses(client) == {paused: "paused", other: "running"}, "it is paused")
        assert client.run(lambda dask_worker: dask_worker.status.name) == {
            paused: "paused",
            other: "running",
        }
        meant = client.submit(inc, 1, workers=[paused])
        places = client.map(lambda _: get_worker().address, range(20), pure=False)
        assert set(client.gather(places)) == {other}
        data = client.scatter(list(range(4)))
        assert {*sum(client.who_has(data).values(), ())} == {other}
        assert not meant.done()
    finally:
        client.run(set_status, "running", workers=[paused])
    assert meant.result() == 2
    until(lambda: statuses(client)[paused] == "running", "it runs again")


def test_a_paused_worker_goes_on_with_what_it_runs(
    client: distributed.Client, workers: list[str], gate: Gate
) -> None:
    running = client.submit(pass_gate, gate, 7, workers=workers[:1])
    until(gate.arrived, "the task runs")
    client.run(set_status, "paused", workers=workers[:1])
    try:
        gate.open()
        assert running.result() == 7
    finally:
        client.run(set_status, "running", workers=workers[:1])


@pytest.mark.skipif(AGAINST != "treadle", reason="distributed's own worker takes any status")
def test_a_worker_is_not_ended_by_its_status(client: distributed.Client) -> None:
    with pytest.raises(NotImplementedError, match="close"):
        client.run(set_status, "closed")
    assert set(statuses(client).values()) == {"running"}


def pass_gate_once(gate: Gate, value: int) -> int:
    """None is sent behind a task of a function that takes long, and other tests pass gates, too."""
    return pass_gate(gate, value)


def test_the_tasks_of_a_worker_are_seen_there(
    client: distributed.Client, workers: list[str], gate: Gate
) -> None:
    here = workers[:1]
    value = client.submit(bytes, LARGE, key="value", workers=here)
    wait(value)
    # In one submission: behind a task that has run for long, none is sent.
    both = [
        delayed(pass_gate_once)(gate, number, dask_key_name=key)
        for number, key in enumerate(["running", "behind"])
    ]
    running, behind = client.compute(both, workers=here, optimize_graph=False)
    until(gate.arrived, "the task runs")
    until(lambda: "behind" in client.run(states, workers=here)[here[0]], "one waits behind it")
    expected = {"value": "memory", "running": "executing", "behind": "ready"}
    assert client.run(states, workers=here) == {here[0]: expected}
    executing = client.run(lambda dask_worker: dask_worker.state.executing_count)
    assert executing == {workers[0]: 1, workers[1]: 0}
    gate.open()
    assert client.gather([running, behind]) == [0, 1]
    before = client.run(lambda dask_worker: dask_worker.state.executed_count)
    client.gather(client.map(inc, range(5), workers=here, pure=False))
    after = client.run(lambda dask_worker: dask_worker.state.executed_count)
    assert after[here[0]] - before[here[0]] == 5
    del value, running, behind
    until(lambda: client.run(states, workers=here) == {here[0]: {}}, "the tasks are forgotten")


def seceded(gate: Gate) -> None:
    distributed.secede()
    pass_gate(gate)


def test_a_task_that_has_seceded_is_long_running(client: distributed.Client, gate: Gate) -> None:
    task = client.submit(seceded, gate, key="long")
    until(gate.arrived, "the task runs")
    assert {"long": "long-running"} in client.run(states).values()
    gate.open()
    task.result()


def test_small_values_are_among_the_values_of_a_worker(
    client: distributed.Client, workers: list[str]
) -> None:
    made = client.submit(inc, 1, key="made", workers=workers[:1])
    scattered = client.scatter({"sent": "text"}, workers=workers[1:])
    wait(made)
    found = client.run(lambda dask_worker: dict(dask_worker.data))
    assert found == {workers[0]: {"made": 2}, workers[1]: {"sent": "text"}}
    with pytest.raises(KeyError):
        client.run(lambda dask_worker: dask_worker.data["none"])
    del scattered


class Steps(WorkerPlugin):
    """Notes how tasks go on, at the worker."""

    name = "steps"

    def setup(self, worker: Any) -> None:
        assert isinstance(worker, distributed.Worker)
        self.steps: list[tuple[Any, str, str]] = []

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        self.steps.append((key, start, finish))


def told(client: distributed.Client, key: str) -> list[str]:
    """The states that a task had, as the plugins of the workers were told."""
    found: list[str] = []
    for steps in client.run(lambda dask_worker: dask_worker.plugins["steps"].steps).values():
        mine = [(start, finish) for of, start, finish in steps if of == key]
        for (_, finish), (start, _) in pairwise(mine):
            assert finish == start
        found += [start for start, _ in mine] + [finish for _, finish in mine[-1:]]
    return found


BEGUN = ["released", "waiting", "ready", "executing"]
GONE = ["released", "forgotten"]


def test_plugins_are_told_how_tasks_go_on(client: distributed.Client, workers: list[str]) -> None:
    client.register_plugin(Steps())
    try:
        small = client.submit(inc, 1, key="small", workers=workers[:1])
        large = client.submit(bytes, LARGE, key="large", workers=workers[:1])
        reader = client.submit(len, large, key="reader", workers=workers[1:])
        wrong = client.submit(divmod, 1, 0, key="wrong", workers=workers[:1])
        assert (small.result(), reader.result()) == (2, LARGE)
        with pytest.raises(ZeroDivisionError):
            wrong.result()
        # What happened before it is told before the call.
        assert told(client, "large") == [*BEGUN, "memory"]
        assert told(client, "wrong")[:5] == [*BEGUN, "error"]
        del small, large, reader, wrong
        for key in ("small", "large", "reader"):
            until(lambda key=key: told(client, key) == [*BEGUN, "memory", *GONE], f"{key} is gone")
        until(lambda: told(client, "wrong") == [*BEGUN, "error", *GONE], "wrong is gone")
    finally:
        client.unregister_worker_plugin("steps")


def pass_gate_or_go(gate: Gate, value: int) -> int:
    """The same, of which it is not known either how long it takes."""
    return pass_gate(gate, value)


def test_a_task_that_is_taken_back_is_told(
    client: distributed.Client, workers: list[str], gate: Gate
) -> None:
    client.register_plugin(Steps())
    try:
        keys = ["walrus", "otter"]
        here = workers[:1]
        running, behind = client.map(pass_gate_or_go, [gate] * 2, range(2), key=keys, workers=here)
        until(gate.arrived, "the task runs")
        until(lambda: told(client, "otter") == BEGUN[:3], "one waits behind it")
        behind.cancel()
        until(lambda: told(client, "otter") == [*BEGUN[:3], *GONE], "it is gone")
        gate.open()
        running.result()
    finally:
        client.unregister_worker_plugin("steps")


async def set_resources(amounts: dict[str, float], dask_worker: Any = None) -> dict[str, float]:
    await dask_worker.set_resources(**amounts)
    return dict(dask_worker.state.available_resources)


def test_a_worker_can_have_other_resources(
    client: distributed.Client, workers: list[str], gate: Gate
) -> None:
    one, _ = workers
    task = client.submit(pass_gate, gate, 7, resources={"NEW": 1})
    assert not task.done()
    client.run(set_resources, {"NEW": 2}, workers=[one])
    until(gate.arrived, "the task runs")
    assert client.run(set_resources, {"NEW": 3}, workers=[one]) == {one: {"NEW": 2}}
    found = client.scheduler_info(n_workers=-1)["workers"]
    assert [found[worker]["resources"].get("NEW") for worker in workers] == [3, None]
    gate.open()
    assert task.result() == 7
    assert client.run(set_resources, {"NEW": 0}, workers=[one]) == {one: {"NEW": 0}}
