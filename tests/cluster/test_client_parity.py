"""Small things in which every client of distributed is alike."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import distributed
import pytest
from distributed import Future, as_completed, get_client, get_task_metadata, get_task_stream, wait

from client_support import (
    AGAINST,
    SOON,
    Gate,
    addresses,
    client_class,
    connect,
    distributed_fails,
    div,
    identity,
    inc,
    make_in_process_client,
    pass_gate,
)
from waiting import until

# Futures


@distributed_fails("it does not tell the scheduler of such a future")
def test_a_future_may_come_before_its_submission(
    client: distributed.Client, second_client: distributed.Client
) -> None:
    early = Future("not-submitted-yet", client)
    assert early.status == "pending"
    late = second_client.submit(inc, 1, key="not-submitted-yet")
    assert early.result(timeout=SOON) == 2
    assert late.result() == 2


@distributed_fails("it does not tell the scheduler of such a future")
def test_a_future_may_come_before_its_data(
    client: distributed.Client, second_client: distributed.Client
) -> None:
    early = Future("not-scattered-yet", client)
    data = second_client.scatter({"not-scattered-yet": 5})
    assert early.result(timeout=SOON) == 5
    del data


def test_a_future_that_was_given_up_before_its_submission(
    client: distributed.Client, second_client: distributed.Client
) -> None:
    Future("given-up", client).release()
    late = second_client.submit(inc, 1, key="given-up")
    assert late.result() == 2


def test_a_cancellation_shows_nothing_but_its_class(client: distributed.Client) -> None:
    future = client.submit(inc, 1)
    future.cancel()
    assert repr(future._state.exception) == "FutureCancelledError()"


def test_a_short_task_does_not_stay_behind_one_that_waits_for_it(
    client: distributed.Client,
) -> None:
    def outer() -> int:
        # Waits without giving its thread away.
        futures = get_client().map(inc, range(20))
        return sum(future.result() for future in as_completed(futures))

    client.gather(client.map(inc, range(50)))
    assert client.submit(outer).result(timeout=SOON) == 210


# Calls


def test_any_collection_of_keys_names_the_calls_of_a_map(client: distributed.Client) -> None:
    futures = client.map(inc, [1, 2], key=("first", "second"))
    assert [future.key for future in futures] == ["first", "second"]
    assert client.gather(futures) == [2, 3]


def test_what_has_no_length_is_not_mapped(client: distributed.Client) -> None:
    with pytest.raises(TypeError):
        client.map(div, iter([1, 2]), [1, 2])
    with pytest.raises(TypeError):
        client.map(inc, 5)


@pytest.mark.parametrize("size", [1 << 10, 100 << 10, 3 << 20])
def test_functions_on_workers_take_large_arguments(size: int) -> None:
    with make_in_process_client(set_as_default=False) as client:
        # The first thing that is said to the workers: nothing that follows helps it along.
        assert set(client.run(len, b"0" * size).values()) == {size}


# What the scheduler knows


def test_holders_are_tuples(client: distributed.Client, workers: list[str]) -> None:
    future = client.submit(inc, 1, workers=workers[0])
    wait(future)
    assert client.who_has(future) == {future.key: (workers[0],)}
    assert client.has_what(workers[0]) == {workers[0]: (future.key,)}
    assert set(client.processing().values()) == {()}


def test_an_unknown_worker_has_nothing(client: distributed.Client) -> None:
    nobody = "tcp://127.0.0.1:1"
    assert client.has_what(nobody) == {nobody: ()}


def test_call_stacks_and_logs_are_tuples(client: distributed.Client, gate: Gate) -> None:
    future = client.submit(pass_gate, gate, 1)
    until(gate.arrived)
    (stacks,) = client.call_stack(future).values()
    assert isinstance(stacks[future.key], tuple)
    gate.open()
    future.result()
    assert isinstance(client.get_scheduler_logs(), tuple)
    assert {type(log) for log in client.get_worker_logs().values()} == {tuple}


def test_workers_have_numbers(client: distributed.Client) -> None:
    info = client.scheduler_info()
    assert {worker["name"] for worker in info["workers"].values()} == {0, 1}
    names = client.run(lambda dask_worker: dask_worker.name)
    assert set(names.values()) == {0, 1}


def test_the_scheduler_shows_itself_and_its_workers(client: distributed.Client) -> None:
    info = client.scheduler_info()
    shown = info._repr_html_()
    assert all(address in shown for address in addresses(client))
    assert "Scheduler" in client._repr_html_()


def test_the_link_follows_the_configuration(client: distributed.Client) -> None:
    import dask

    port = client.scheduler_info()["services"]["dashboard"]
    assert client.dashboard_link is not None
    link, _, token = client.dashboard_link.partition("?")
    assert link.endswith(f":{port}/status")
    with dask.config.set({"distributed.dashboard.link": "http://here/{port}/there"}):
        link, _, same = client.dashboard_link.partition("?")
        assert (link, same) == (f"http://here/{port}/there", token)


def test_events_of_workers_name_the_worker(client: distributed.Client, workers: list[str]) -> None:
    def log() -> None:
        distributed.get_worker().log_event("parity", {"x": 1})

    client.submit(log, workers=workers[0]).result()
    until(lambda: bool(client.get_events("parity")))
    ((_, message),) = client.get_events("parity")
    assert message == {"x": 1, "worker": workers[0]}


# Looking back


def test_a_task_stream(client: distributed.Client) -> None:
    with get_task_stream(client=client) as stream:
        futures = client.map(inc, range(5))
        wait(futures)
    assert {run["key"] for run in stream.data} == {future.key for future in futures}
    for run in stream.data:
        assert run["worker"] in addresses(client)
        assert run["status"] == "OK"
        (compute,) = [part for part in run["startstops"] if part["action"] == "compute"]
        assert compute["start"] <= compute["stop"]


def test_runs_at_the_same_time_are_in_two_threads_of_a_task_stream(gate: Gate) -> None:
    with make_in_process_client(set_as_default=False) as client:
        with get_task_stream(client=client) as stream:
            futures = [client.submit(pass_gate, gate, number) for number in range(2)]
            until(lambda: gate.arrived(2), "both run")
            gate.open()
            wait(futures)
            after = client.submit(inc, futures[0])
            wait(after)
        threads = {run["key"]: run["thread"] for run in stream.data}
        together = {threads[future.key] for future in futures}
        assert len(together) == 2
        assert threads[after.key] in together


def test_the_latest_of_a_task_stream(client: distributed.Client) -> None:
    client.get_task_stream()
    futures = client.map(inc, range(10, 15))
    wait(futures)
    assert len(client.get_task_stream(count=2)) == 2
    assert {run["key"] for run in client.get_task_stream()} >= {f.key for f in futures}


def test_metadata_of_tasks(client: distributed.Client) -> None:
    with get_task_metadata() as tasks:
        good = client.submit(inc, 1)
        bad = client.submit(div, 1, 0)
        wait([good, bad])
    assert tasks.state == {good.key: "memory", bad.key: "erred"}
    assert set(tasks.metadata) == {good.key, bad.key}
    assert bad.status == "error"
    del bad


async def test_task_metadata_in_a_coroutine(async_client: distributed.Client) -> None:
    async with get_task_metadata() as tasks:
        future = async_client.submit(inc, 1)
        await future
    assert tasks.state == {future.key: "memory"}


@pytest.mark.timeout(240, method="signal")
def test_the_hardware_is_measured(client: distributed.Client) -> None:
    measured = client.benchmark_hardware()
    assert set(measured) == {"disk", "memory", "network"}
    assert all(rate > 0 for rates in measured.values() for rate in rates.values())


def test_the_state_is_dumped(client: distributed.Client, tmp_path: Path) -> None:
    from distributed.cluster_dump import DumpArtefact

    future = client.submit(identity, b"x" * 5000, key="dumped")
    wait(future)
    client.dump_cluster_state(str(tmp_path / "dump"))
    dump = DumpArtefact.from_url(str(tmp_path / "dump.msgpack.gz"))
    assert set(dump.dump) == {"scheduler", "workers", "versions"}
    assert dump.dump["scheduler"]["tasks"]["dumped"]["state"] == "memory"
    assert set(dump.dump["workers"]) == set(addresses(client))


# Life


def test_a_scheduler_file_lets_clients_in(client: distributed.Client, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    with connect(client, set_as_default=False) as writer:
        writer.write_scheduler_file(str(file))
        with pytest.raises(ValueError, match="already set"):
            writer.write_scheduler_file(str(file))
    assert json.loads(file.read_text())["address"] == client.scheduler_info()["address"]
    with client_class()(scheduler_file=str(file), set_as_default=False) as reader:
        assert reader.submit(inc, 1).result() == 2


def test_a_client_that_wrote_a_scheduler_file_ends_its_cluster(tmp_path: Path) -> None:
    with make_in_process_client(set_as_default=False) as client:
        cluster = client.cluster
        client.write_scheduler_file(str(tmp_path / "scheduler.json"))
    assert cluster.status.name == "closed"
    with pytest.raises(RuntimeError, match="closed"):
        client_class()(cluster)


def test_a_local_cluster_is_scaled() -> None:
    with make_in_process_client(set_as_default=False) as client:
        client.cluster.scale(3)
        client.wait_for_workers(3, timeout=SOON)
        assert len(client.cluster.scheduler_info["workers"]) == 3
        future = client.submit(identity, b"x" * 5000)
        assert len(future.result()) == 5000
        client.cluster.scale(1)
        until(lambda: len(client.nthreads()) == 1)
        assert len(future.result()) == 5000


def test_a_local_cluster_gives_clients() -> None:
    with make_in_process_client(set_as_default=False) as client:
        with client.cluster.get_client() as other:
            assert other.submit(inc, 1).result() == 2
        assert client.submit(inc, 2).result() == 3


def test_many_clients_start_and_end_in_threads(client: distributed.Client) -> None:
    results: list[Any] = []

    def use(number: int) -> None:
        with connect(client, set_as_default=False) as own:
            results.append(own.submit(inc, number).result())

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert sorted(results) == list(range(1, 9))


@pytest.mark.skipif(AGAINST == "distributed", reason="what Treadle does not serve")
def test_calls_that_are_not_served_are_named(client: distributed.Client) -> None:
    with pytest.raises(NotImplementedError, match=r"profile\(scheduler=True\)"):
        client.profile(scheduler=True)
