"""What a client tells about its cluster: places, sizes, threads, versions, stories, events."""

from __future__ import annotations

import platform
import signal
import sys

import dask
import distributed
import numpy as np
import pytest
from distributed import wait
from distributed.exceptions import WorkerStartTimeoutError

from client_support import AGAINST, SOON, fail, identity, inc, pass_gate


def test_who_has_names_the_workers_of_each_key(client, workers):
    x = client.submit(inc, 1, workers=workers[:1])
    y = client.submit(inc, 2, workers=workers[1:])
    wait([x, y], timeout=SOON)
    found = client.who_has([x, y])
    assert {k: list(v) for k, v in found.items()} == {x.key: workers[:1], y.key: workers[1:]}


def test_who_has_of_everything(client):
    futures = client.map(inc, range(3))
    wait(futures, timeout=SOON)
    assert set(client.who_has()) == {f.key for f in futures}


def test_who_has_of_a_pending_task_is_nobody(client, gate, eventually):
    future = client.submit(pass_gate, gate)
    eventually(gate.arrived)
    assert list(client.who_has([future])[future.key]) == []
    gate.open()


def test_who_has_takes_collections(client):
    x = client.persist(dask.delayed(inc)(1))
    wait(x, timeout=SOON)
    [where] = client.who_has(x).values()
    assert len(where) == 1


def test_has_what_names_the_keys_of_each_worker(client, workers):
    x = client.submit(inc, 1, workers=workers[:1])
    y, z = client.map(inc, [2, 3], workers=workers[1:])
    wait([x, y, z], timeout=SOON)
    found = {a: set(keys) for a, keys in client.has_what().items()}
    assert found == {workers[0]: {x.key}, workers[1]: {y.key, z.key}}


def test_has_what_of_one_worker(client, workers):
    x = client.submit(inc, 1, workers=workers[:1])
    wait(x, timeout=SOON)
    assert {a: list(k) for a, k in client.has_what(workers[0]).items()} == {workers[0]: [x.key]}
    assert {a: list(k) for a, k in client.has_what([workers[1]]).items()} == {workers[1]: []}


def test_nbytes_are_summed_by_the_prefix_of_keys(client):
    futures = client.map(np.zeros, [1000, 2000], key="zeros")
    other = client.submit(np.ones, 500, key="ones-1")
    wait([*futures, other], timeout=SOON)
    assert client.nbytes(summary=True) == {"zeros": 24_000, "ones": 4_000}


def test_nbytes_of_each_key(client):
    x = client.submit(np.zeros, 1000)
    y = client.submit(np.zeros, 10)
    wait([x, y], timeout=SOON)
    assert client.nbytes(summary=False) == {x.key: 8000, y.key: 80}
    assert client.nbytes([y.key], summary=False) == {y.key: 80}


def test_nthreads_of_each_worker(client, workers):
    assert client.nthreads() == dict.fromkeys(workers, 1)
    assert client.ncores() == client.nthreads()
    assert client.nthreads(workers[0]) == {workers[0]: 1}
    assert client.nthreads([workers[1]]) == {workers[1]: 1}


def test_workers_have_the_threads_that_were_asked_for(new_client):
    client = new_client(workers=1, threads_per_worker=3)
    assert list(client.nthreads().values()) == [3]


def test_scheduler_info(client, workers):
    info = client.scheduler_info()
    assert info["type"] == "Scheduler"
    assert isinstance(info["address"], str)
    assert set(info["workers"]) == set(workers)
    assert info["n_workers"] == 2
    assert info["total_threads"] == 2
    assert info["total_memory"] > 0


def test_scheduler_info_of_a_worker(client):
    for address, info in client.scheduler_info()["workers"].items():
        assert info["type"] == "Worker"
        assert info["nthreads"] == 1
        assert info["memory_limit"] > 0
        assert info["status"] == "running"
        assert info["resources"] == {}
        assert info["local_directory"]
        assert info["host"] in address
        assert {"name", "id", "last_seen", "services", "metrics"} <= set(info)


def test_names_of_workers_differ(client):
    names = [info["name"] for info in client.scheduler_info()["workers"].values()]
    assert len(set(names)) == 2


def test_resources_of_workers_are_listed(new_client):
    client = new_client(workers=1, resources={"GPU": 2, "DB": 0.5})
    [info] = client.scheduler_info()["workers"].values()
    assert info["resources"] == {"GPU": 2, "DB": 0.5}


def test_scheduler_info_can_leave_the_workers_out(client):
    info = client.scheduler_info(n_workers=0)
    assert info["workers"] == {}
    assert info["n_workers"] == 2
    assert len(client.scheduler_info(n_workers=1)["workers"]) == 1


def test_processing_names_the_tasks_of_each_worker(client, workers, gate, eventually):
    future = client.submit(pass_gate, gate, workers=workers[:1])
    eventually(gate.arrived)
    found = {a: list(keys) for a, keys in client.processing().items()}
    assert found == {workers[0]: [future.key], workers[1]: []}
    gate.open()
    wait(future, timeout=SOON)


def test_wait_for_workers_that_are_there(client):
    client.wait_for_workers(2, timeout=SOON)
    client.wait_for_workers(1)


def test_wait_for_workers_times_out_with_what_is_there(client):
    with pytest.raises(distributed.TimeoutError, match="2/3 workers") as caught:
        client.wait_for_workers(3, timeout=0.2)
    error = caught.value
    assert isinstance(error, WorkerStartTimeoutError)
    assert error.available_workers == 2
    assert error.expected_workers == 3


@pytest.mark.parametrize("n", [0, -1, None, 1.5, "2"])
def test_wait_for_workers_needs_a_positive_number(client, n):
    with pytest.raises(ValueError, match="must be a positive integer"):
        client.wait_for_workers(n)


def test_versions_of_all_processes(client, workers):
    versions = client.get_versions()
    assert set(versions) == {"scheduler", "workers", "client"}
    assert set(versions["workers"]) == set(workers)
    python = platform.python_version()
    for info in (versions["client"], versions["scheduler"], *versions["workers"].values()):
        assert info["host"]["python"].startswith(python)
        assert info["packages"]["dask"] == dask.__version__
        assert info["packages"]["distributed"] == distributed.__version__


def test_equal_versions_pass_the_check(client):
    assert client.get_versions(check=True)["client"]["packages"]["numpy"] == np.__version__


def test_versions_of_more_packages(client):
    versions = client.get_versions(packages=["pytest"])
    assert versions["client"]["packages"]["pytest"] == pytest.__version__
    for info in versions["workers"].values():
        assert info["packages"]["pytest"] == pytest.__version__


def test_the_story_of_a_key_tells_what_became_of_it(client):
    future = client.submit(inc, 1, key="hero")
    wait(future, timeout=SOON)
    story = client.story("hero")
    assert story
    text = str(story)
    assert "hero" in text
    assert "memory" in text


def test_workers_tell_the_story_of_a_key_from_the_first_question_on(client):
    client.story("hero")
    first = client.submit(inc, 1, key="first")
    second = client.submit(inc, first, key="second")
    assert second.result(timeout=SOON) == 3
    workers = set(client.scheduler_info()["workers"])
    steps = [step for step in client.story("second") if step[0] in workers]
    assert {step[1] for step in steps} == {"second"}
    states = [step[3] for step in steps]
    assert states.index("executing") < states.index("memory")


def test_the_story_of_a_failure(client):
    future = client.submit(fail, key="villain")
    wait(future, timeout=SOON)
    assert "err" in str(client.story("villain"))


def test_the_story_of_an_unknown_key_is_empty(client):
    assert list(client.story("nobody")) == []


def test_events_can_be_logged_and_read(client):
    client.log_event("my-topic", {"n": 1})
    client.log_event("my-topic", "text")
    events = client.get_events("my-topic")
    assert [message for _, message in events] == [{"n": 1}, "text"]
    stamps = [stamp for stamp, _ in events]
    assert stamps == sorted(stamps)
    assert stamps[0] > 1e9


def test_one_event_under_several_topics(client):
    client.log_event(["first-topic", "second-topic"], 5)
    assert [m for _, m in client.get_events("first-topic")] == [5]
    assert [m for _, m in client.get_events("second-topic")] == [5]


def test_events_of_an_unknown_topic(client):
    assert list(client.get_events("no-such-topic")) == []


def test_events_of_all_topics(client):
    client.log_event("listed-topic", 1)
    assert "listed-topic" in client.get_events()


def test_events_must_be_plain_data(client):
    with pytest.raises(TypeError, match="msgpack"):
        client.log_event("my-topic", object())


def test_events_from_a_task(client, eventually):
    def log(x):
        distributed.get_worker().log_event("from-a-task", {"x": x})

    client.submit(log, 1, pure=False).result(timeout=SOON)
    eventually(lambda: [m["x"] for _, m in client.get_events("from-a-task")] == [1])


def test_a_handler_is_called_for_each_event_of_a_topic(client, eventually):
    seen = []
    client.subscribe_topic("watched", lambda event: seen.append(event[1]))
    client.submit(identity, 1).result(timeout=SOON)  # the scheduler knows of the subscription now
    for i in range(3):
        client.log_event("watched", i)
    eventually(lambda: seen == [0, 1, 2])
    client.unsubscribe_topic("watched")


def test_only_known_topics_can_be_unsubscribed(client):
    with pytest.raises(ValueError, match="No event handler known for topic"):
        client.unsubscribe_topic("never-subscribed")


def test_metadata(client):
    client.set_metadata("x", 1)
    assert client.get_metadata("x") == 1
    client.set_metadata("x", {"y": (1, 2)})  # distributed makes tuples of lists
    assert client.get_metadata("x") == {"y": (1, 2)}


def test_metadata_in_nested_dicts(client):
    client.set_metadata(["nested", "y"], 1)
    client.set_metadata(["nested", "w", "z"], 2)
    assert client.get_metadata("nested") == {"y": 1, "w": {"z": 2}}
    assert client.get_metadata(["nested", "w"]) == {"z": 2}
    assert client.get_metadata(["nested", "w", "z"]) == 2


def test_unknown_metadata(client):
    with pytest.raises(KeyError):
        client.get_metadata("unknown")
    assert client.get_metadata("unknown", None) is None
    assert client.get_metadata(["unknown", "deep"], 5) == 5


def test_metadata_from_two_clients(client, second_client):
    client.set_metadata("both", 1)
    assert second_client.get_metadata("both") == 1


def test_repr_names_the_cluster_and_its_size(client):
    text = repr(client)
    assert type(client).__name__ in text
    assert client.scheduler_info()["address"] in text
    assert "processes=2 " in text


def test_html_repr_is_html(client):
    client.scheduler_info()
    html = client._repr_html_()
    assert "<td" in html
    assert client.scheduler_info()["address"] in html


@pytest.mark.skipif(AGAINST != "treadle", reason="distributed asks its scheduler")
def test_a_notebook_shows_a_client_whose_scheduler_does_not_answer(start, join):
    scheduler = start("scheduler", "127.0.0.1:0")
    worker = start("worker", scheduler.address)
    assert worker.address
    client = join(scheduler)
    client.wait_for_workers(1, timeout=SOON)
    scheduler.send(signal.SIGSTOP)
    try:
        html = client._repr_html_()
    finally:
        scheduler.send(signal.SIGCONT)
    assert scheduler.address in html
    assert worker.address in html


def test_python_of_the_workers_is_this_one(client):
    def executable_version():
        return sys.version

    assert client.submit(executable_version).result(timeout=SOON) == sys.version
