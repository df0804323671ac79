"""Treadle inside a real Ray cluster: `make test-ray` installs what it needs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle
from waiting import until

ray = pytest.importorskip("ray", reason="`make test-ray` installs it")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster with a head of one CPU, to which this process is connected."""
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 1, "object_store_memory": 100_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=options | {"resources": {"blue": 2}})
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def client(cluster: Any) -> Iterator[treadle.Client]:
    del cluster
    with treadle.attach_ray() as client:
        yield client


def names(client: treadle.Client) -> set[str]:
    return {str(one["name"]) for one in client.scheduler_info(-1)["workers"].values()}


def test_a_worker_is_on_each_node_and_has_what_the_node_has(client: treadle.Client) -> None:
    assert client.submit(sum, [1, 2]).result() == 3
    (node,) = (node for node in ray.nodes() if node["Alive"])
    (worker,) = client.scheduler_info(-1)["workers"].values()
    assert worker["name"] == f"ray-{node['NodeID'][:12]}"
    assert worker["nthreads"] == 1
    assert client.submit(sum, [1, 2], resources={"blue": 2}).result() == 3
    assert "Ray cluster" in repr(client)
    assert "dashboard" not in repr(client), "this cluster has none"


def test_ray_goes_on_beside_it_and_after_it(cluster: Any) -> None:
    del cluster
    double = ray.remote(lambda x: 2 * x)
    with treadle.attach_ray() as client:
        assert ray.get(double.remote(2)) == 4
        assert client.submit(sum, [1]).result() == 1
        client.detach()
    assert ray.get(double.remote(3)) == 6


def test_it_attaches_where_an_event_loop_runs(cluster: Any) -> None:
    del cluster

    async def cell() -> treadle.Client:
        return treadle.attach_ray()

    with asyncio.run(cell()) as client:
        assert client.submit(sum, [1, 2]).result() == 3


def test_objects_of_ray_are_read_without_a_copy(client: treadle.Client) -> None:
    array = np.arange(100_000)
    references = [ray.put(array), ray.put("text")]
    large, small = treadle.from_ray(client, references)

    def look(array: Any) -> tuple[int, bool]:
        return int(array.sum()), array.flags.owndata or array.flags.writeable

    assert client.submit(look, large).result() == (array.sum(), False)
    assert small.result() == "text"
    with pytest.raises(TypeError, match="not int"):
        treadle.from_ray(client, [1])


def test_values_become_objects_of_ray_that_outlive_treadle(cluster: Any) -> None:
    del cluster
    client = treadle.attach_ray()
    futures = [client.submit(np.ones, 100_000), client.submit(str, 7)]
    references = treadle.to_ray(futures)
    (pid,) = client.run(os.getpid).values()
    client.detach()
    until(lambda: not os.path.exists(f"/proc/{pid}"), "the worker's process ends")
    assert ray.get(references[0]).sum() == 100_000
    assert ray.get(references[1]) == "7"


def test_a_worker_that_is_killed_comes_back(client: treadle.Client) -> None:
    (pid,) = client.run(os.getpid).values()
    (before,) = client.scheduler_info(-1)["workers"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: before not in client.scheduler_info(-1)["workers"], "the loss")
    assert client.submit(os.getpid, pure=False).result(timeout=60) != pid


def test_a_worker_whose_actor_is_killed_is_started_anew(client: treadle.Client) -> None:
    assert client.submit(sum, [3]).result(timeout=60) == 3
    (before,) = client.scheduler_info(-1)["workers"]
    (actor,) = ray.get(client._host._scheduler.workers.remote()).values()
    ray.kill(actor)
    until(lambda: before not in client.scheduler_info(-1)["workers"], "the loss")
    assert client.submit(sum, [4]).result(timeout=60) == 4


def held(client: treadle.Client) -> int:
    """How many values are kept for Ray at the workers."""

    def count() -> int:
        from treadle.hosting import _ray

        return len(_ray._held)

    return sum(client.run(count).values())


def test_values_that_cannot_all_be_given_leave_nothing(client: treadle.Client) -> None:
    def fail() -> None:
        raise ValueError("not this one")

    futures = [client.submit(np.ones, 1000), client.submit(fail)]
    with pytest.raises(ValueError, match="not this one"):
        treadle.to_ray(futures)
    assert held(client) == 0


def test_nodes_that_come_and_go_are_followed(cluster: Any, client: treadle.Client) -> None:
    before = names(client)
    node = cluster.add_node(num_cpus=1, object_store_memory=100_000_000)
    until(lambda: len(names(client)) == 2, "a worker on the new node", 60)
    (new,) = names(client) - before
    assert client.submit(sum, [4], workers=[new]).result(timeout=60) == 4
    cluster.remove_node(node, allow_graceful=False)
    until(lambda: names(client) == before, "the loss of the node", 60)
    assert client.submit(sum, [5]).result(timeout=60) == 5


def requested() -> list[Any]:
    """What Ray's autoscaler is asked for."""
    from ray.experimental.internal_kv import _internal_kv_get

    found = _internal_kv_get(b"autoscaler_resource_request")
    return json.loads(found) if found else []


@pytest.mark.timeout(180, method="signal")
def test_the_autoscaler_of_ray_is_asked_for_nodes(cluster: Any, tmp_path: Path) -> None:
    del cluster
    gate = tmp_path / "open"

    def wait() -> None:
        while not gate.exists():
            time.sleep(0.05)

    with treadle.attach_ray(autoscale=True) as client:
        assert requested() == []
        futures = [client.submit(wait, pure=False) for _ in range(30)]
        # Their duration is not known: one node would take too long.
        until(lambda: len(requested()) > 1, "more nodes are wanted", 60)
        assert {one["CPU"] for one in requested()} == {1}
        gate.touch()
        client.gather(futures)
        until(lambda: len(requested()) <= 1, "they are not wanted any more", 60)
    assert requested() == []


def test_what_is_wrong_is_refused() -> None:
    with pytest.raises(ValueError, match="nthreads=-1"):
        treadle.attach_ray(nthreads=-1)
    with pytest.raises(TypeError, match="attach_ray returned"):
        treadle.from_ray(object(), [])  # type: ignore[arg-type]


def test_a_process_without_ray_is_told_what_to_do(cluster: Any) -> None:
    ray.shutdown()
    try:
        with pytest.raises(RuntimeError, match=r"call ray\.init\(\) first"):
            treadle.attach_ray()
    finally:
        ray.init(address=cluster.address, log_to_driver=False)
