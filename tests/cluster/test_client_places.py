"""Where data is: `replicate`, `rebalance`, `retire_workers`, and the loss of a worker."""

from __future__ import annotations

import os
import pickle
import signal

import dask
import distributed
import numpy as np
import pytest
from distributed import wait

from client_support import SOON, add, addresses, distributed_fails, inc, note, pass_gate


def holders(client, future):
    return set(client.who_has([future])[future.key])


def test_replicate_to_all(client, workers):
    x = client.submit(inc, 1, workers=workers[:1])
    y = client.submit(inc, 2, workers=workers[1:])
    client.replicate([x, y])
    assert holders(client, x) == holders(client, y) == set(workers)


def test_replicate_to_some(client, workers):
    x = client.submit(inc, 1, workers=workers[:1])
    wait(x, timeout=SOON)
    client.replicate([x], n=1)
    assert holders(client, x) == {workers[0]}
    client.replicate([x], workers=[workers[1]])
    assert holders(client, x) == set(workers)


def test_replicate_can_reduce_the_copies(client, workers):
    x = client.submit(inc, 1)
    client.replicate([x])
    assert holders(client, x) == set(workers)
    client.replicate([x], n=1)
    assert len(holders(client, x)) == 1
    assert x.result(timeout=SOON) == 2


def test_replicate_takes_more_copies_than_workers(client, workers):
    x = client.submit(inc, 1)
    client.replicate([x], n=10)
    assert holders(client, x) == set(workers)


def test_replicate_to_nobody_is_refused(client):
    x = client.submit(inc, 1)
    wait(x, timeout=SOON)
    with pytest.raises(ValueError, match="replicate"):
        client.replicate([x], n=0)


def test_replicate_waits_for_its_data(client, workers, gate, eventually):
    x = client.submit(pass_gate, gate, 5)
    eventually(gate.arrived)
    gate.open()
    client.replicate([x])
    assert holders(client, x) == set(workers)


def test_replicate_collections(client, workers):
    x = client.persist(dask.delayed(inc)(1))
    client.replicate(x)
    [where] = client.who_has(x).values()
    assert set(where) == set(workers)


def test_a_result_that_another_worker_fetched_has_two_holders(client, workers):
    x = client.submit(np.arange, 1000, workers=workers[:1])
    y = client.submit(np.sum, x, workers=workers[1:])
    assert y.result(timeout=SOON) == 499500
    assert workers[0] in holders(client, x)


def test_rebalance_moves_data(client, workers):
    futures = client.scatter([bytes(1_000_000) + bytes([i]) for i in range(20)],
                             workers=workers[:1], hash=False)  # fmt: skip
    client.rebalance(futures)
    assert client.gather([client.submit(len, f) for f in futures]) == [1_000_001] * 20


def test_rebalance_of_everything(client):
    futures = client.map(inc, range(10))
    wait(futures, timeout=SOON)
    client.rebalance()
    assert client.gather(futures) == list(range(1, 11))


def test_rebalance_spreads_small_values(client, workers):
    futures = client.scatter(list(range(10)), workers=workers[:1])
    client.rebalance(futures[:2], workers)
    assert {address: len(keys) for address, keys in client.has_what().items()} == {
        workers[0]: 8,
        workers[1]: 2,
    }
    client.rebalance()
    assert {len(keys) for keys in client.has_what().values()} == {5}
    assert client.gather(futures) == list(range(10))
    with pytest.raises(KeyError, match="nobody"):
        client.rebalance(futures, ["nobody"])


def test_rebalance_waits_for_its_data(client, gate, eventually):
    future = client.submit(pass_gate, gate, 5)
    eventually(gate.arrived)
    gate.open()
    client.rebalance([future])
    assert future.result(timeout=SOON) == 5


def test_a_retired_worker_hands_its_data_over(fresh_client, gate):
    client = fresh_client
    first, second = addresses(client)
    future = client.submit(note, gate, "ran", 5, workers=[first], allow_other_workers=True)
    wait(future, timeout=SOON)
    retired = client.retire_workers([first])
    assert set(retired) == {first}
    assert retired[first]["status"] == "closed"
    assert addresses(client) == [second]
    assert holders(client, future) == {second}
    assert future.result(timeout=SOON) == 5
    assert gate.arrivals() == ["ran"]
    assert client.submit(inc, 1).result(timeout=SOON) == 2


def test_workers_can_be_retired_by_name(fresh_client):
    client = fresh_client
    first, second = client.scheduler_info()["workers"].items()
    client.retire_workers(names=[first[1]["name"]])
    assert addresses(client) == [second[0]]


def test_retiring_nobody(client, workers):
    assert dict(client.retire_workers([])) == {}
    assert set(addresses(client)) == set(workers)


def test_data_of_a_killed_worker_is_computed_again(fresh_client, gate, eventually):
    client = fresh_client
    first, _ = addresses(client)
    x = client.submit(note, gate, "x", 5, workers=[first], allow_other_workers=True)
    y = client.submit(add, x, 1, workers=[first], allow_other_workers=True)
    wait(y, timeout=SOON)
    os.kill(client.run(os.getpid)[first], signal.SIGKILL)
    eventually(lambda: first not in addresses(client))
    assert client.submit(add, y, 1).result(timeout=SOON) == 7


def test_a_running_task_of_a_killed_worker_runs_again(fresh_client, gate, eventually):
    client = fresh_client
    future = client.submit(pass_gate, gate, "done")
    eventually(gate.arrived)
    [victim] = [a for a, keys in client.processing().items() if keys]
    os.kill(client.run(os.getpid)[victim], signal.SIGKILL)
    eventually(lambda: gate.arrived(2))
    gate.open()
    assert future.result(timeout=SOON) == "done"


def test_killed_workers_come_back(fresh_client, eventually):
    client = fresh_client
    before = client.run(os.getpid)
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not set(addresses(client)) & set(before))
    client.wait_for_workers(2, timeout=SOON)
    assert client.submit(inc, 1).result(timeout=SOON) == 2


def test_scattered_data_of_a_killed_worker_is_lost(fresh_client, eventually):
    # Nothing tells how to compute it again.
    client = fresh_client
    first, _ = addresses(client)
    future = client.scatter(np.arange(1000), workers=[first])
    os.kill(client.run(os.getpid)[first], signal.SIGKILL)
    eventually(lambda: first not in addresses(client))
    eventually(lambda: future.status in ("lost", "cancelled"))
    with pytest.raises(distributed.CancelledError):
        client.submit(len, future).result(timeout=SOON)


@distributed_fails("it has forgotten why")
def test_lost_data_says_which_worker_it_was_lost_with(fresh_client, eventually):
    client = fresh_client
    first, _ = addresses(client)
    future = client.scatter(np.arange(1000), workers=[first])
    os.kill(client.run(os.getpid)[first], signal.SIGKILL)
    eventually(lambda: future.status == "cancelled")
    with pytest.raises(distributed.CancelledError, match="SIGKILL") as caught:
        future.result(timeout=SOON)
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.worker.address == first
    assert client.gather([future], errors="skip") == []


def test_a_task_that_kills_its_workers_fails(new_client):
    # KilledWorker is what distributed raises; a subclass may say more.
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}):
        client = new_client()
    future = client.submit(os._exit, 1, key="murderer")
    with pytest.raises(distributed.KilledWorker, match="murderer"):
        future.result(timeout=SOON)
    client.wait_for_workers(2, timeout=SOON)
    assert client.submit(inc, 1).result(timeout=SOON) == 2
