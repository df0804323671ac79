"""Dask's shuffles on stand-alone shuffle servers: rows stay when workers and servers are killed.

Each input leaves a mark when it is made, so that a test knows which transfers have run again.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections import Counter
from contextlib import suppress

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.dataframe.shuffle import partitioning_index
from numpy.testing import assert_array_equal
from pandas.testing import assert_frame_equal

import treadle
from client_support import AGAINST, SOON, connect, note, pass_gate
from process_support import kill
from reliability_support import connected
from service_support import Servers
from shuffle_support import table
from test_reliability_tls import certs  # noqa: F401
from treadle.shuffle import ShuffleRefusedError
from waiting import until

INPUTS, OUTPUTS = 8, 6

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it is Treadle's own"),
    pytest.mark.usefixtures("quiet"),
    pytest.mark.timeout(6 * SOON, method="signal"),
]


@pytest.fixture(autouse=True)
def p2p():
    with dask.config.set({"dataframe.shuffle.method": "p2p", "array.rechunk.method": "p2p"}):
        yield


@pytest.fixture
def servers(new_servers) -> Servers:
    return new_servers("abc")


@pytest.fixture
def client(servers, new_client):
    return new_client(
        workers=3,
        threads_per_worker=1,
        worker_timeout=6,
        shuffle_servers=servers.master.address,
    )


class part_of:
    """An input for each number, which leaves a mark."""

    def __init__(self, frame, marks, inputs=INPUTS):
        self.frame, self.marks, self.inputs = frame, marks, inputs

    def __call__(self, number):
        places = np.array_split(np.arange(len(self.frame)), self.inputs)
        return note(self.marks, number, self.frame.iloc[places[number]])


def hold_reads(gate, dask_worker):
    """Tasks of a worker wait at a gate before they read what was shuffled."""
    plugin = dask_worker.plugins["shuffle"]
    read = type(plugin).get_output_partition

    def held(*args, **kwargs):
        return read(plugin, *pass_gate(gate, args), **kwargs)

    plugin.get_output_partition = held


class Shuffle:
    """A shuffle of a table that is committed, and whose readers wait at a gate."""

    def __init__(self, client, gates):
        self.client = client
        self.frame, self.marks, self.gate = table(n=4000), gates(), gates()
        part = part_of(self.frame, self.marks)
        parts = dd.from_map(part, range(INPUTS), meta=self.frame.iloc[:0])
        shuffled = parts.shuffle("key", npartitions=OUTPUTS)
        client.run(hold_reads, self.gate)
        self.futures = client.compute(shuffled.to_delayed())
        until(lambda: self.gate.arrived(3), "each worker has a task that is to read")
        assert self.runs() == [1] * INPUTS

    def runs(self):
        """How often each input was made."""
        counts = Counter(self.marks.arrivals())
        return [counts[str(number)] for number in range(INPUTS)]

    def check(self, servers):
        """Every row came, once and in order; and nothing is left when nobody needs it."""
        self.gate.open()
        numbers = partitioning_index(self.frame[["key"]].astype("f8"), OUTPUTS)
        for number, output in enumerate(self.client.gather(self.futures)):
            assert_frame_equal(output, self.frame[numbers == number])
        del self.futures, output
        nothing_is_left(servers)


def at_servers(servers):
    """The bytes of rows at each server that has some."""
    known = servers.service.state()["servers"]
    return {server["name"]: server["held_bytes"] for server in known if server["held_bytes"]}


def of_scheduler(client):
    """The scheduler's connection to the service, which has the master."""
    (at,) = client.cluster._scheduler.sidecar._sidecar._services._services.values()
    return at._service


def nothing_is_left(servers):
    until(lambda: not at_servers(servers), lambda: f"servers have {at_servers(servers)}")


def at_workers(dask_worker):
    return dask_worker._native.shuffle_stats()["transfers"]


def knows_no_master(dask_worker):
    services = dask_worker.plugins["shuffle"]._services._services.values()
    return all(service._native.over for service in services)


def counted(dask_worker):
    services = dask_worker.plugins["shuffle"]._services._services.values()
    stats = [service.stats() for service in services]
    return [sum(one[name] for one in stats) for name in ("pushed", "uncompressed", "compressed")]


def test_rows_are_compressed_as_the_configuration_of_the_scheduler_says(client):
    frame = table(n=20_000)
    numbers = partitioning_index(frame[["key"]].astype("f8"), OUTPUTS)
    shuffled = dd.from_pandas(frame, 4, sort=False).shuffle("key", npartitions=OUTPUTS)
    # The scheduler is in this process.
    with dask.config.set({"treadle.shuffle.compression": "zstd"}):
        outputs = dask.compute(*shuffled.to_delayed())
    for number, output in enumerate(outputs):
        assert_frame_equal(output, frame[numbers == number])
    _, before, after = np.sum(list(client.run(counted).values()), axis=0)
    assert 0 < after < before * 3 // 4


def test_results_are_those_of_pandas_and_a_client_that_goes_leaves_nothing(client, servers, gates):
    left, right = table(1, 4000), table(2, 900)[["key", "value"]]
    lazy = dd.from_pandas(left, 5, sort=False), dd.from_pandas(right, 3, sort=False)
    by = ["key", "value_x", "value_y"]
    merged = lazy[0].merge(lazy[1], on="key").compute().sort_values(by)
    expected = left.merge(right, on="key").sort_values(by)
    assert_frame_equal(merged.reset_index(drop=True), expected.reset_index(drop=True))
    indexed = lazy[0].set_index("key").compute()
    assert indexed.index.is_monotonic_increasing
    assert_frame_equal(
        indexed.sort_values(["key", "value"]), left.set_index("key").sort_values(["key", "value"])
    )
    values = np.arange(60 * 60.0).reshape(60, 60)
    assert_array_equal(da.from_array(values, (10, 60)).rechunk((60, 7)).compute(), values)
    # Servers had the rows, and do not have them any more.
    assert not any(client.run(at_workers).values())
    nothing_is_left(servers)
    second = connect(client, shuffle_servers=client.shuffle_servers, set_as_default=False)
    shuffle = Shuffle(second, gates)
    until(lambda: at_servers(servers), "servers have rows")
    second.close()
    shuffle.gate.open()
    nothing_is_left(servers)


def test_workers_and_a_server_are_killed_and_no_transfer_runs_again(client, servers, gates):
    shuffle = Shuffle(client, gates)
    for pid in list(connected(client).values())[:2]:
        kill(pid)
    servers.kill("a")
    shuffle.check(servers)
    assert shuffle.runs() == [1] * INPUTS


def leave_services(dask_worker):
    for service in dask_worker.plugins["shuffle"]._services._services.values():
        service._native.close()


@pytest.mark.parametrize("whose", ["workers", "scheduler", "all"])
def test_connections_to_the_service_end_and_no_row_is_lost(client, servers, gates, whose):
    shuffle = Shuffle(client, gates)
    if whose != "scheduler":
        client.run(leave_services)
    if whose != "workers":
        of_scheduler(client)._native.close()
    shuffle.check(servers)
    assert shuffle.runs() == [1] * INPUTS


def test_all_copies_are_lost_then_the_registry(client, servers, gates):
    shuffle = Shuffle(client, gates)
    for name in "abc":
        servers.processes.pop(name).end()
    for name in "de":
        servers.begin(name)
    servers.ready()
    shuffle.check(servers)
    assert shuffle.runs() == [2] * INPUTS
    # The master is that of the cluster: what it has of the registry, it knows.
    shuffle = Shuffle(client, gates)
    servers.master.end()
    shuffle.check(servers)
    assert shuffle.runs() == [1] * INPUTS


def test_the_master_of_the_cluster_ends_and_another_one_begins(client, servers, gates):
    shuffle = Shuffle(client, gates)
    of_scheduler(client)._master.close()
    until(lambda: all(client.run(knows_no_master).values()), "workers know that it is gone")
    until(lambda: not at_servers(servers), lambda: f"servers have {at_servers(servers)}")
    shuffle.gate.open()
    with pytest.raises(RuntimeError, match="failed during unpack phase") as caught:
        client.gather(shuffle.futures)
    said = str(caught.value.__cause__)
    assert "is gone, and the rows with it" in said
    frame = table(n=900)
    lazy = dd.from_pandas(frame, 3, sort=False)
    assert len(lazy.shuffle("key", npartitions=3).compute()) == 900
    assert not any(client.run(at_workers).values())


def test_tasks_do_it_where_the_servers_cannot_be_reached(new_client):
    nowhere = "treadle://127.0.0.1:1"
    client = new_client(workers=1, shuffle_servers=nowhere)
    frame = table(n=4000)
    lazy = dd.from_pandas(frame, 5, sort=False).shuffle("key")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = lazy.compute()
    assert_frame_equal(found.sort_values("value"), frame.sort_values("value"))
    (said,) = [str(one.message) for one in caught if "P2P" in str(one.message)]
    assert "the shuffle servers cannot be reached" in said
    assert nowhere in said
    with (
        dask.config.set({"treadle.shuffle.fallback": False}),
        pytest.raises(ShuffleRefusedError, match="cannot be reached"),
    ):
        lazy.optimize()
    # Where nobody could choose, the task says so.
    chunks = da.ones((8, 8), chunks=(2, 8)).rechunk((8, 2), method="p2p")
    with pytest.raises(RuntimeError, match="failed during transfer phase") as caught:
        chunks.compute()
    cause = str(caught.value.__cause__)
    assert f"the shuffle master at {nowhere} cannot be reached from the scheduler" in cause
    assert client.submit(int, 5).result() == 5


def test_servers_of_a_local_cluster(new_client):
    client = new_client(workers=2, shuffle_servers=2)
    assert client.shuffle_servers == client.cluster.shuffle_servers
    frame = table(n=4000)
    found = dd.from_pandas(frame, 5, sort=False).shuffle("key").compute()
    assert_frame_equal(found.sort_values("value"), frame.sort_values("value"))
    assert not any(client.run(at_workers).values())


def test_links_are_encrypted_with_the_certificates_of_the_cluster(
    new_client,
    start,
    certs,  # noqa: F811
    secret,
    monkeypatch,
):
    monkeypatch.setenv("TREADLE_SECRET_FILE", str(secret))
    prefix, _ = certs("ours")
    # A local cluster proves the user's secret, too.
    tls = ("--tls", prefix, "--secret-file", str(secret))
    master = start("shuffle-master", "treadle+tls://127.0.0.1:0", "--shuffle-journal", "none", *tls)
    for name in "ab":
        options = ("--name", name, "--domain", name, "--http", "none", *tls)
        assert start("shuffle-server", master.address, *options).address.startswith("treadle+tls:")
    client = new_client(workers=2, certificates=prefix, shuffle_servers=master.address)
    frame = table(n=4000)
    lazy = dd.from_pandas(frame, 5, sort=False).shuffle("key")

    def is_taken():
        with dask.config.set({"treadle.shuffle.fallback": False}), suppress(ShuffleRefusedError):
            return lazy.optimize() is not None

    # Servers are known a moment after they listen.
    until(is_taken, "the service takes the shuffle")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = lazy.compute()
    assert_frame_equal(found.sort_values("value"), frame.sort_values("value"))
    assert not any(client.run(at_workers).values())
    pushed, *_ = np.sum(list(client.run(counted).values()), axis=0)
    assert pushed > 0


def test_records_have_what_the_service_knows(client, servers, gates):
    shuffle = Shuffle(client, gates)
    (running,) = client.shuffles().running
    assert (running.kind, running.waits_for) == ("shuffle", "readers")
    assert running.service == servers.master.address
    assert (running.rows, running.copies) == (len(shuffle.frame), 2)
    assert running.sizes.count == OUTPUTS
    assert set(running.servers) == set("abc")
    shuffle.check(servers)
    (ended,) = client.shuffles()
    assert (ended.state, ended.rows) == ("finished", len(shuffle.frame))
    assert (ended.number, ended.name, ended.client) == (running.number, running.name, client.id)
    assert ended.sizes == running.sizes
    assert dict(ended.lines())["service"] == servers.master.address


def test_a_trace_has_what_workers_do_with_rows(client):
    frame = dd.from_pandas(table(n=900), 3, sort=False)
    with treadle.trace() as trace:
        frame.shuffle("key", npartitions=2).compute()
    [record] = client.shuffles()
    events = [event for event in trace.events if event.get("cat") == "shuffle"]
    assert {event["args"]["shuffle"] for event in events} == {record.name}
    assert Counter(event["name"] for event in events) == {"gather": 3, "push": 3, "read": 2}
    gathered = sum(event["args"]["bytes"] for event in events if event["name"] == "gather")
    # Batches have headers and tables.
    assert record.bytes <= gathered < 2 * record.bytes


def test_rows_that_nobody_reads_are_not_pushed(client):
    frame = table(n=4000)
    numbers = partitioning_index(frame[["key"]].astype("f8"), OUTPUTS)
    shuffled = dd.from_pandas(frame, 4, sort=False).shuffle("key", npartitions=OUTPUTS)
    found = shuffled.partitions[[1, 4]].compute()
    wanted = [frame[numbers == number] for number in (1, 4)]
    assert_frame_equal(found, pd.concat(wanted))
    (record,) = client.shuffles()
    assert (record.outputs, record.moved_rows) == (2, len(found))


class fresh_part_of(part_of):
    """Its rows have other values each time."""

    def __call__(self, number):
        part = super().__call__(number).copy()
        part["value"] = np.random.default_rng().random(len(part))
        return part


def stop_the_loop(dask_scheduler):
    dask_scheduler.loop.stop()


def replace_sidecar(client):
    replaced = client.cluster._scheduler.sidecar.scheduler
    client.run_on_scheduler(stop_the_loop)
    until(lambda: client.cluster._scheduler.sidecar.scheduler is not replaced, "it is replaced")


@pytest.mark.parametrize("sidecar_goes", ["never", "before-the-end", "after-the-end"])
def test_what_was_read_before_it_ended_is_of_the_same_run_as_what_is_read_later(
    client, servers, gates, sidecar_goes
):
    frame, marks, gate = table(n=4000), gates(), gates()
    client.run(hold_reads, gate)
    part = fresh_part_of(frame, marks)
    parts = dd.from_map(part, range(INPUTS), meta=frame.iloc[:0])
    futures = client.compute(parts.shuffle("key", npartitions=OUTPUTS).to_delayed())
    until(lambda: gate.arrived(3), "each worker has a task that is to read")
    if sidecar_goes == "before-the-end":
        replace_sidecar(client)
    gate.open()
    before = client.gather(futures)
    nothing_is_left(servers)
    if sidecar_goes == "after-the-end":
        replace_sidecar(client)
    # An output is lost: all inputs are made anew, and they are others.
    victim, *_ = client.who_has(futures)[futures[0].key]
    kill(client.run(os.getpid)[victim])
    after = client.gather(futures)
    runs = Counter(marks.arrivals())
    assert min(runs[str(number)] for number in range(INPUTS)) >= 2
    # No output of the first run is left beside those of another one.
    for one, other in zip(before, after, strict=True):
        assert len(one) == len(other)
        assert not set(one["value"]) & set(other["value"])


def managed(dask_worker):
    return dask_worker._native.health()["managed"]


def test_rows_that_wait_for_servers_are_memory_of_their_workers(client, servers):
    frame = table(n=200_000)
    lazy = dd.from_pandas(frame, 3, sort=False).shuffle("key", npartitions=OUTPUTS)
    # Workers know the service.
    lazy.head(1)
    before = sum(client.run(managed).values())
    for server in servers.processes.values():
        server.send(signal.SIGSTOP)
    try:
        futures = client.compute(lazy.to_delayed())
        size = frame.memory_usage(index=False, deep=False).sum()
        until(
            lambda: sum(client.run(managed).values()) - before > size,
            lambda: f"more than {size:,} bytes are managed: {client.run(managed)}",
        )
    finally:
        for server in servers.processes.values():
            server.send(signal.SIGCONT)
    assert sum(map(len, client.gather(futures))) == len(frame)
