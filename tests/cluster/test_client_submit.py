"""`Client.submit`."""

from __future__ import annotations

import functools
import operator
import os
import time
import warnings

import dask
import distributed
import pytest
from dask import delayed
from dask.tokenize import tokenize
from dask.utils import funcname
from distributed import Future, get_worker, wait

from client_support import (
    AGAINST,
    SOON,
    add,
    attempts,
    double,
    fail_times,
    identity,
    inc,
    note,
    pass_gate,
    reach,
)

LARGE = "distributed.admin.large-graph-warning-threshold"


def here():
    return get_worker().address


def unique():
    return object()


class Callable:
    def __init__(self, n):
        self.n = n

    def __call__(self, x):
        return x + self.n


def test_result_of_a_function(client):
    assert client.submit(add, 1, 2).result(timeout=SOON) == 3


def test_keyword_arguments_reach_the_function(client):
    def f(a, b=0, *, c=0):
        return (a, b, c)

    assert client.submit(f, 1, c=3).result(timeout=SOON) == (1, 0, 3)


def test_a_future_is_a_future_of_distributed(client):
    future = client.submit(inc, 1)
    assert isinstance(future, Future)
    assert isinstance(client, distributed.Client)


def test_futures_as_arguments_are_replaced_by_their_results(client):
    x = client.submit(inc, 1)
    y = client.submit(add, x, x)
    assert client.submit(add, x, y=y).result(timeout=SOON) == 6


def test_futures_inside_nested_containers_are_replaced(client):
    x = client.submit(inc, 1)
    y = client.submit(inc, 2)
    nested = {"a": [x, (y, 5)], "b": {"c": x}}
    found = client.submit(identity, nested).result(timeout=SOON)
    assert found == {"a": [2, (3, 5)], "b": {"c": 2}}
    assert isinstance(found["a"][1], tuple)


def test_futures_inside_a_set_are_replaced(client):
    x = client.submit(inc, 1)
    assert client.submit(identity, {x, 7}).result(timeout=SOON) == {2, 7}


def test_futures_in_keyword_arguments_are_replaced_in_containers_too(client):
    x = client.submit(inc, 1)
    assert client.submit(sum, [x, x], start=x).result(timeout=SOON) == 6


def test_pure_calls_with_the_same_arguments_share_a_key(client):
    a = client.submit(inc, 10)
    b = client.submit(inc, 10)
    c = client.submit(inc, 11)
    assert a.key == b.key
    assert a.key != c.key
    assert a is not b
    wait([a, b, c], timeout=SOON)


def test_the_default_key_is_the_name_and_the_token(client):
    future = client.submit(inc, 1)
    assert future.key == f"{funcname(inc)}-{tokenize(inc, {}, 1)}"


def test_impure_calls_are_run_each_time(client):
    a, b = (client.submit(time.monotonic_ns, pure=False) for _ in range(2))
    assert a.key != b.key
    assert a.key.startswith("monotonic_ns-")
    assert a.result(timeout=SOON) != b.result(timeout=SOON)


def test_a_pure_call_that_is_known_is_not_run_again(client, gate):
    a = client.submit(note, gate, "x", 1)
    assert a.result(timeout=SOON) == 1
    b = client.submit(note, gate, "x", 1)
    assert b.done()
    assert b.result(timeout=SOON) == 1
    assert gate.arrivals() == ["x"]


def test_a_pure_call_is_run_again_once_nobody_holds_it(client, gate, eventually):
    future = client.submit(note, gate, "x", key="again")
    wait(future, timeout=SOON)
    future.release()
    eventually(lambda: not client.who_has())
    wait(client.submit(note, gate, "x", key="again"), timeout=SOON)
    assert gate.arrivals() == ["x", "x"]


def test_a_key_of_ones_own(client):
    future = client.submit(inc, 1, key="my-key")
    assert future.key == "my-key"
    assert future.result(timeout=SOON) == 2


@pytest.mark.skipif(AGAINST != "treadle", reason="distributed makes no task of such a key")
@pytest.mark.parametrize(
    "make",
    [
        lambda client, key: client.submit(inc, 1, key=key),
        lambda client, key: client.map(inc, [1], key=[key])[0],
        lambda client, key: client.scatter({key: 2})[key],
        lambda client, key: client.persist(
            delayed(inc)(1, dask_key_name=key), optimize_graph=False
        ),
    ],
    ids=["submit", "map", "scatter", "graph"],
)
def test_a_key_that_was_asked_for_before_is_made(client, make, request):
    key = f"asked-for-{request.node.callspec.id}"
    future = Future(key, client)
    # The scheduler has answered that it does not know it.
    assert client.submit(inc, 0, pure=False).result(timeout=SOON) == 1
    assert future.status == "pending"
    made = make(client, key)
    assert future.result(timeout=SOON) == 2
    del made


def test_a_known_key_wins_over_another_function(client):
    a = client.submit(inc, 1, key="shared")
    b = client.submit(double, 50, key="shared")
    assert (a.result(timeout=SOON), b.result(timeout=SOON)) == (2, 2)


@pytest.mark.parametrize(
    "key",
    [("x", 0), ("x", ("y", 1.5)), 7, 2.5, "with space/\\ü\n", "x" * 5000],
    ids=["tuple", "nested", "int", "float", "odd", "long"],
)
def test_keys_of_every_kind_that_dask_allows(client, key):
    future = client.submit(inc, 1, key=key)
    assert future.key == key
    assert client.submit(inc, future).result(timeout=SOON) == 3
    assert key in client.who_has([future])


@pytest.mark.parametrize("key", [["x"], b"x", {"x": 1}, ("x", ["y"]), object()])
def test_other_keys_are_refused(client, key):
    with pytest.raises(TypeError):
        client.submit(inc, 1, key=key)


def test_something_that_cannot_be_called_is_refused(client):
    with pytest.raises(TypeError, match="must be a callable"):
        client.submit(1, 2)


def test_functions_of_every_kind(client):
    n = 10
    calls = [
        (lambda x: x + n, 11),
        (functools.partial(add, 2), 3),
        (functools.partial(operator.mul, 5), 5),
        (Callable(4), 5),
        (Callable(4).__call__, 5),
        (operator.neg, -1),
        (str, "1"),
    ]
    futures = [client.submit(f, 1) for f, _ in calls]
    assert client.gather(futures) == [value for _, value in calls]


def test_a_coroutine_function_runs_on_the_loop_of_the_worker(client):
    async def f(x, y):
        import asyncio

        await asyncio.sleep(0)
        return x + y

    x = client.submit(inc, 1)
    assert client.submit(f, x, 1).result(timeout=SOON) == 3


def test_workers_pins_a_task(client, workers):
    for address in workers:
        future = client.submit(here, workers=[address], pure=False)
        assert future.result(timeout=SOON) == address


def test_workers_may_be_one_address(client, workers):
    assert client.submit(here, workers=workers[1], pure=False).result(timeout=SOON) == workers[1]


def test_workers_may_be_names(client):
    infos = client.scheduler_info()["workers"]
    for address, info in infos.items():
        future = client.submit(here, workers=[info["name"]], pure=False)
        assert future.result(timeout=SOON) == address


def test_a_task_waits_for_a_worker_that_is_not_there(client):
    future = client.submit(inc, 1, workers=["tcp://127.0.0.1:9"], key="nowhere")
    with pytest.raises(distributed.TimeoutError):
        future.result(timeout=0.3)
    assert future.status == "pending"


def test_allow_other_workers_runs_elsewhere_when_it_must(client):
    future = client.submit(inc, 1, workers=["tcp://127.0.0.1:9"], allow_other_workers=True)
    assert future.result(timeout=SOON) == 2


def test_allow_other_workers_needs_workers(client):
    with pytest.raises(ValueError, match="Only use allow_other_workers"):
        client.submit(inc, 1, allow_other_workers=True)


def test_allow_other_workers_is_a_bool(client, workers):
    with pytest.raises(TypeError, match="must be True or False"):
        client.submit(inc, 1, workers=workers, allow_other_workers="Hello!")


def test_retries_run_a_task_again(client, tmp_path):
    future = client.submit(fail_times, 2, str(tmp_path), "done", retries=2)
    assert future.result(timeout=SOON) == "done"
    assert attempts(tmp_path) == 3


def test_the_last_error_is_raised_when_the_retries_are_used_up(client, tmp_path):
    future = client.submit(fail_times, 5, str(tmp_path), retries=2)
    with pytest.raises(RuntimeError, match="not yet"):
        future.result(timeout=SOON)
    assert attempts(tmp_path) == 3


def test_without_retries_a_task_runs_once(client, tmp_path):
    future = client.submit(fail_times, 1, str(tmp_path))
    assert isinstance(future.exception(timeout=SOON), RuntimeError)
    assert attempts(tmp_path) == 1


@pytest.mark.parametrize(
    "submit",
    [
        lambda client, data: client.submit(len, data),
        lambda client, data: client.map(len, [data, b""]),
        lambda client, data: client.compute(dask.delayed(len)(data)),
    ],
    ids=["submit", "map", "compute"],
)
def test_large_arguments_are_warned_of(client, submit):
    with pytest.warns(UserWarning, match=r"Sending large graph of size 11\.\d\d MiB"):
        wait(submit(client, os.urandom(12_000_000)))
    with warnings.catch_warnings(), dask.config.set({LARGE: "100 MB"}):
        warnings.simplefilter("error")
        wait(submit(client, os.urandom(12_000_000)))


def test_tasks_of_high_priority_run_first(client, workers, gate, eventually):
    blocker = client.submit(pass_gate, gate, name="blocker", workers=workers[:1])
    futures = [
        client.submit(note, gate, p, blocker, priority=p, workers=workers[:1])
        for p in (0, -10, 10, 1.2, 5, -0.5, 1.9, -5)
    ]
    eventually(lambda: len(client.who_has()) == 9)
    gate.open()
    wait(futures, timeout=SOON)
    assert gate.arrivals() == ["blocker", "10", "5", "1.9", "1.2", "0", "-0.5", "-5", "-10"]


def test_tasks_of_high_priority_pass_those_that_a_worker_has_already(
    client, workers, gate, eventually
):
    (worker, *_) = workers
    client.submit(pass_gate, gate, name="blocker", workers=[worker])
    eventually(gate.arrived)
    futures = []
    for priority in (-1, 0, 1):
        key = f"p{priority}"
        futures.append(
            client.submit(note, gate, priority, priority=priority, workers=[worker], key=key)
        )
        # Those that are less urgent have been given back, or were not sent.
        reach(client)
    gate.open()
    wait(futures, timeout=SOON)
    assert gate.arrivals() == ["blocker", "1", "0", "-1"]


def test_later_tasks_run_later_when_they_do_not_count_as_simultaneous(
    client, workers, gate, eventually
):
    # By default the calls within 100 ms have one priority, and any order is right.
    blocker = client.submit(pass_gate, gate, name="blocker", workers=workers[:1])
    futures = [
        client.submit(note, gate, i, blocker, workers=workers[:1], fifo_timeout="0 ms")
        for i in range(5)
    ]
    eventually(lambda: len(client.who_has()) == 6)
    gate.open()
    wait(futures, timeout=SOON)
    assert gate.arrivals() == ["blocker", "0", "1", "2", "3", "4"]


@pytest.mark.skipif(AGAINST != "treadle", reason="it has an effect there")
def test_a_fifo_timeout_that_asks_for_something_warns(client):
    with pytest.warns(UserWarning, match=r"fifo_timeout='1 h' has no effect"):
        client.submit(inc, 1, fifo_timeout="1 h").result(timeout=SOON)
    with pytest.warns(UserWarning, match="fifo_timeout=5 has no effect"):
        client.map(inc, [1], fifo_timeout=5)


def test_resources_limit_how_many_run_at_once(new_client, gate, eventually):
    client = new_client(workers=1, threads_per_worker=2, resources={"LICENCE": 1})
    futures = [
        client.submit(pass_gate, gate, i, resources={"LICENCE": 1}, key=f"licensed-{i}")
        for i in range(2)
    ]
    eventually(gate.arrived)
    free = client.submit(inc, 1)  # the other thread is free, only the resource is not
    assert free.result(timeout=SOON) == 2
    assert len(gate.arrivals()) == 1
    gate.open()
    assert client.gather(futures) == [0, 1]


def test_a_resource_that_no_worker_has_keeps_a_task_waiting(client):
    future = client.submit(inc, 1, resources={"UNICORN": 1}, key="wants-a-unicorn")
    with pytest.raises(distributed.TimeoutError):
        future.result(timeout=0.3)
    assert future.status == "pending"


def test_none_is_a_result(client):
    future = client.submit(identity, None)
    assert future.result(timeout=SOON) is None
    assert future.status == "finished"


def test_a_string_that_looks_like_a_key_of_nothing_is_a_string(client):
    assert client.submit(identity, "no-such-key").result(timeout=SOON) == "no-such-key"


def test_arguments_that_tokenize_at_random_still_run(client):
    future = client.submit(type, unique())
    assert future.result(timeout=SOON) is object


def test_large_arguments_raise_no_warning_below_the_threshold(client, recwarn):
    future = client.submit(len, b"x" * 1_000_000)
    assert future.result(timeout=SOON) == 1_000_000
    assert not [w for w in recwarn if "large graph" in str(w.message)]


def test_a_function_that_returns_a_large_object(client):
    data = client.submit(bytes, 20_000_000).result(timeout=SOON)
    assert len(data) == 20_000_000


def test_a_chain_of_dependent_calls(client):
    future = client.submit(inc, 0)
    for _ in range(200):
        future = client.submit(inc, future)
    assert future.result(timeout=SOON) == 201


def test_a_dependency_that_was_released_by_the_client_is_still_used(client):
    x = client.submit(inc, 1, key="short-lived")
    y = client.submit(inc, x)
    x.release()
    del x
    assert y.result(timeout=SOON) == 3


def test_a_released_future_does_not_count_any_more(client):
    future = client.submit(inc, 1)
    again = client.submit(inc, 1)
    assert client.refcount[future.key] == 2
    again.release()
    assert client.refcount[future.key] == 1
    key = future.key
    future.release()
    assert client.refcount[key] == 0


def test_whether_others_may_run_it_is_yes_or_no(client, workers):
    for call in (client.submit, lambda f, x, **options: client.map(f, [x], **options)):
        with pytest.raises(TypeError, match="allow_other_workers"):
            call(inc, 1, workers=workers, allow_other_workers="yes")


def test_what_runs_a_task_is_a_worker_of_distributed(client):
    assert client.submit(lambda: isinstance(get_worker(), distributed.Worker)).result()
