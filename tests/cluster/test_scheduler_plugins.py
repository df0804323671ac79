"""Scheduler plugins that want to know what clients submit, and functions that ask the scheduler."""

from __future__ import annotations

from typing import Any

import dask
import pytest
from distributed import SchedulerPlugin, get_client

from client_support import connect, inc


class Graphs(SchedulerPlugin):
    """Notes what it is told."""

    name = "graphs"

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def update_graph(self, scheduler, *, client, keys, tasks, annotations, priority, **kwargs):
        assert kwargs["stimulus_id"]
        assert set(priority) == set(tasks)
        self.told.append(
            {"client": client, "keys": keys, "tasks": tasks, "annotations": annotations}
        )


@pytest.fixture
def told(client):
    client.register_plugin(Graphs())
    yield lambda: client.run_on_scheduler(
        lambda dask_scheduler: dask_scheduler.plugins["graphs"].told
    )
    client.unregister_scheduler_plugin("graphs")


def test_a_call_is_told(client, told):
    future = client.submit(inc, 1, key="one", priority=3)
    assert future.result() == 2
    (graph,) = told()
    assert graph["client"] == client.id
    assert set(graph["keys"]) == set(graph["tasks"]) == {"one"}
    assert graph["annotations"]["priority"] == {"one": 3}


def test_what_is_known_is_not_told_again(client, told):
    future = client.submit(inc, 1)
    again = client.submit(inc, 1)
    assert future.result() == again.result() == 2
    assert [len(graph["tasks"]) for graph in told()] == [1]


def test_calls_of_a_map_are_one_graph(client, told):
    futures = client.map(inc, range(5))
    assert client.gather(futures) == [1, 2, 3, 4, 5]
    (graph,) = told()
    assert set(graph["tasks"]) == {future.key for future in futures}


def test_a_graph_is_told_with_all_its_tasks_and_any_annotation(client, told):
    one = dask.delayed(inc)(1, dask_key_name="one")
    with dask.annotate(colour="red"):
        two = dask.delayed(inc)(one, dask_key_name="two")
    assert client.compute(two, optimize_graph=False).result() == 3
    (graph,) = told()
    assert set(graph["tasks"]) == {"one", "two"}
    assert set(graph["keys"]) == {"two"}
    assert graph["annotations"]["colour"] == {"two": "red"}


def test_what_tasks_submit_is_told(client, told):
    def nested():
        return get_client().submit(inc, 1, key="inner").result()

    assert client.submit(nested, key="outer").result() == 2
    assert [list(graph["tasks"]) for graph in told()] == [["outer"], ["inner"]]


def test_a_second_client_is_heard_whenever_it_came(client, second_client, told):
    future = second_client.submit(inc, 1, key="of-the-second")
    assert future.result() == 2
    assert [graph["client"] for graph in told()] == [second_client.id]


def test_nothing_is_told_after_the_plugin(client):
    client.register_plugin(Graphs())
    client.unregister_scheduler_plugin("graphs")
    assert client.submit(inc, 1).result() == 2
    assert (
        client.run_on_scheduler(lambda dask_scheduler: "graphs" in dask_scheduler.plugins) is False
    )
    assert getattr(client, "_observed", False) is False


def test_functions_on_the_scheduler_can_ask_for_stories(client):
    future = client.submit(inc, 1, key="hero")
    assert future.result() == 2
    story = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.story("hero"))
    assert [transition[0] for transition in story] == ["hero"] * len(story)
    assert story[-1][2] == "memory"


class Members(SchedulerPlugin):
    """Notes who comes; its hooks take their arguments by name, and some are coroutines."""

    name = "members"

    def __init__(self) -> None:
        self.came: list[str] = []

    def add_client(self, client: str, scheduler: Any) -> None:
        assert scheduler.plugins["members"] is self
        self.came.append(client)


class LateMembers(Members):
    name = "late"

    async def add_client(self, client: str, scheduler: Any) -> None:  # type: ignore[override]
        # Those that are no coroutines were called before.
        assert client in scheduler.plugins["members"].came
        self.came.append(client)


def test_hooks_get_their_arguments_by_name(client):
    client.register_plugin(LateMembers())
    client.register_plugin(Members())
    try:
        with connect(client, set_as_default=False) as second:
            second.run_on_scheduler(int)
            for name in ("members", "late"):
                came = client.run_on_scheduler(
                    lambda name, dask_scheduler: dask_scheduler.plugins[name].came, name
                )
                assert second.id in came
    finally:
        client.unregister_scheduler_plugin("members")
        client.unregister_scheduler_plugin("late")
