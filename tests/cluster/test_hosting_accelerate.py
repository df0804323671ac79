"""Dask's own scheduler and workers, whose P2P shuffles Treadle carries: all rows once, whoever is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter

import dask
import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest
from dask.dataframe.shuffle import partitioning_index
from distributed.shuffle._scheduler_plugin import ShuffleSchedulerPlugin
from numpy.testing import assert_array_equal
from pandas.testing import assert_frame_equal

import treadle
from client_support import AGAINST, SOON, Gate, pass_gate
from process_support import send
from shuffle_support import table
from test_hosting import directories, names_of_threads, open_files, pids
from treadle.hosting._p2p_run import HostedRun
from waiting import until

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it is about both"),
    pytest.mark.timeout(4 * SOON, method="signal"),
]

INPUTS, OUTPUTS = 8, 5


@pytest.fixture(autouse=True)
def p2p():
    with dask.config.set({"dataframe.shuffle.method": "p2p", "array.rechunk.method": "p2p"}):
        yield


@pytest.fixture
def there(dask_client):
    client = dask_client(n_workers=3)
    treadle.accelerate(client)
    return client


class Part:
    """An input for each number. The last one waits at a gate, and has no rows."""

    def __init__(self, frame, gate):
        self.frame, self.gate = frame, gate

    def __call__(self, number):
        if number == INPUTS - 1:
            return pass_gate(self.gate, self.frame.iloc[:0], str(os.getpid()))
        places = np.array_split(np.arange(len(self.frame)), INPUTS - 1)
        return self.frame.iloc[places[number]]


def started(client, frame, gate=None):
    """The outputs of a shuffle. An input waits at the gate."""
    if gate is None:
        parts = dd.from_pandas(frame, INPUTS, sort=False)
    else:
        parts = dd.from_map(Part(frame, gate), range(INPUTS), meta=frame.iloc[:0])
    shuffled = parts.shuffle("key", npartitions=OUTPUTS)
    return client.compute(shuffled.to_delayed())


def check(client, frame, futures):
    numbers = partitioning_index(frame[["key"]].astype("f8"), OUTPUTS)
    for number, output in enumerate(client.gather(futures)):
        assert_frame_equal(output, frame[numbers == number])


def stats(client, what):
    return client.run(lambda dask_worker: native(dask_worker).shuffle_stats()[what])


def native(dask_worker):
    return dask_worker.plugins["treadle-accelerate"].native


def address(dask_worker):
    found = native(dask_worker)
    return None if found is None else found.address


def runs(dask_scheduler):
    """How many runs each shuffle has had."""
    plugin = dask_scheduler.plugins["shuffle"]
    return [len(found) for found in plugin._shuffles.values()]


def wait_for_rows(client, gate):
    """Wait until all inputs but the one at the gate are transferred."""
    until(lambda: gate.arrived(), "an input waits")
    until(lambda: sum(stats(client, "transfers").values()) == INPUTS - 1, "others are transferred")


def other_pid(client, gate):
    """A process that has rows, and not the task at the gate."""
    return next(pid for pid in pids(client) if str(pid) not in gate.arrivals())


def barriers(dask_scheduler):
    tasks = dask_scheduler.tasks.items()
    return Counter(task.state for key, task in tasks if str(key).startswith("shuffle-barrier-"))


def plugin_of(dask_scheduler):
    plugin = dask_scheduler.plugins["shuffle"]
    assert dask_scheduler.extensions["shuffle"] is plugin
    assert dask_scheduler.handlers["shuffle_get_or_create"].__self__ is plugin
    return type(plugin).__name__, sorted(dask_scheduler.handlers), list(dask_scheduler.plugins)


def test_dask_shuffles_and_nothing_is_left(dask_client, tmp_path):
    there = dask_client()
    before = there.run_on_scheduler(plugin_of)
    assert before[0] == ShuffleSchedulerPlugin.__name__
    frame = table(1, 4000)
    with pytest.raises(RuntimeError, match="is not accelerated"):
        treadle.decelerate(there)
    treadle.accelerate(there)
    with pytest.raises(RuntimeError, match=r"accelerated already: call treadle\.decelerate"):
        treadle.accelerate(there)
    check(there, frame, started(there, frame))
    assert sum(stats(there, "transfers").values()) == INPUTS
    # Each output ran where its rows were.
    assert sum(stats(there, "reads").values()) == OUTPUTS
    other = frame.iloc[::20].rename(columns={"value": "more"})
    left, right = (dd.from_pandas(one, 4, sort=False) for one in (frame, other))
    merged = there.compute(left.merge(right, on="key", broadcast=False)).result()
    assert len(merged) == len(frame.merge(other, on="key"))
    assert sum(stats(there, "transfers").values()) == INPUTS + 2 * 4
    values = np.arange(2400).reshape(40, 60)
    chunks = (da.from_array(values, chunks=(40, 6)) + 1).rechunk((4, 60))
    assert_array_equal(there.compute(chunks).result(), values + 1)
    assert sum(stats(there, "transfers").values()) > INPUTS + 2 * 4
    until(lambda: not any(stats(there, "leftovers").values()), "no rows are left")
    # Both engines' tasks work side by side.
    with treadle.attach(there) as here:
        check(here, frame, started(here, frame))
        check(there, frame, started(there, frame))
    treadle.decelerate(there)
    assert there.run_on_scheduler(plugin_of) == before
    assert not any(there.run(names_of_threads).values())
    until(lambda: not any(there.run(open_files).values()), "no segment and no file is left")
    assert not directories(tmp_path)
    outputs = there.gather(started(there, frame))
    assert sorted(pd.concat(outputs)["value"]) == sorted(frame["value"])


def test_a_worker_is_killed_while_rows_are_transferred(there, gate: Gate):
    frame = table(1, 4000)
    futures = started(there, frame, gate)
    wait_for_rows(there, gate)
    os.kill(other_pid(there, gate), signal.SIGKILL)
    gate.open()
    check(there, frame, futures)


def test_a_worker_is_killed_in_the_barrier(there, gate: Gate):
    frame = table(1, 4000)
    futures = started(there, frame, gate)
    wait_for_rows(there, gate)
    # One that answers nobody: the barrier waits for what it says of its rows.
    pid = other_pid(there, gate)
    send(pid, signal.SIGSTOP)
    gate.open()
    until(lambda: there.run_on_scheduler(barriers)["processing"], "the barrier runs")
    os.kill(pid, signal.SIGKILL)
    check(there, frame, futures)


def hold_reads(gate):
    """Have tasks of this process that read an output wait at a gate first."""
    own = HostedRun.get_output_partition

    def read(*args, **kwargs):
        pass_gate(gate)
        return own(*args, **kwargs)

    HostedRun.get_output_partition = read


def test_a_worker_is_killed_while_outputs_are_read(there, gate: Gate):
    there.run(hold_reads, gate)
    frame = table(1, 4000)
    futures = started(there, frame)
    until(lambda: gate.arrived(3), "outputs are read")
    os.kill(pids(there)[0], signal.SIGKILL)
    until(lambda: there.run_on_scheduler(runs) == [2], "Dask begins another run")
    gate.open()
    check(there, frame, futures)


def test_treadles_worker_alone_is_lost(there, gate: Gate):
    frame = table(1, 4000)
    futures = started(there, frame, gate)
    wait_for_rows(there, gate)
    before = there.run(address)
    lost = next(iter(before))
    there.run(lambda dask_worker: native(dask_worker).close("the test ends it"), workers=[lost])
    until(lambda: there.run(address)[lost] not in (None, before[lost]), "it joins again")
    gate.open()
    check(there, frame, futures)
    assert there.run_on_scheduler(runs) == [2], "Dask begins another run"


def test_new_workers_take_part_and_retired_ones_go(there, gate: Gate):
    frame = table(1, 4000)
    futures = started(there, frame, gate)
    wait_for_rows(there, gate)
    there.cluster.scale(4)
    until(lambda: len(pids(there)) == 4, "a worker joins")
    names = [worker["name"] for worker in there.scheduler_info(n_workers=-1)["workers"].values()]
    there.retire_workers(names=names[:1])
    gate.open()
    check(there, frame, futures)


def test_it_begins_and_ends_in_the_middle_of_shuffles(dask_client, gate: Gate, tmp_path):
    there = dask_client()
    frame = table(1, 4000)
    futures = started(there, frame, gate)
    until(lambda: gate.arrived(), "an input waits")
    until(lambda: there.run_on_scheduler(runs) == [1], "Dask begins a run for the other inputs")
    treadle.accelerate(there)
    gate.open()
    assert sorted(pd.concat(there.gather(futures))["value"]) == sorted(frame["value"])
    assert not any(stats(there, "transfers").values()), "it ends as it began"
    del futures
    (tmp_path / "second").mkdir()
    second = Gate(tmp_path / "second")
    futures = started(there, frame, second)
    wait_for_rows(there, second)
    treadle.decelerate(there)
    second.open()
    assert sorted(pd.concat(there.gather(futures))["value"]) == sorted(frame["value"])
    assert not any(there.run(names_of_threads).values())


def hold_beginning(gate, dask_scheduler):
    """Have a shuffle wait at a gate while Treadle's scheduler begins it."""
    from treadle.common._loop import off_loop

    part = dask_scheduler.plugins["treadle-accelerate"]._part
    own = part.ask

    async def ask(operation, arguments):
        answer = await own(operation, arguments)
        await off_loop(pass_gate, gate)
        return answer

    part.ask = ask


def test_it_ends_while_a_shuffle_begins(there, gate: Gate):
    frame = table(1, 4000)
    there.run_on_scheduler(hold_beginning, gate)
    futures = started(there, frame)
    until(lambda: gate.arrived(), "a shuffle begins")
    treadle.decelerate(there)
    gate.open()
    assert sorted(pd.concat(there.gather(futures))["value"]) == sorted(frame["value"])


def test_connections_have_tls_where_the_cluster_has(dask_client):
    there = dask_client(security=distributed.Security.temporary(), protocol="tls://")
    treadle.accelerate(there)
    frame = table(1, 4000)
    check(there, frame, started(there, frame))
    assert all(one.startswith("treadle+tls://") for one in there.run(address).values())


def test_what_cannot_be_accelerated_is_refused_by_name(dask_client):
    with pytest.raises(TypeError, match=r"takes a distributed\.Client, not str"):
        treadle.accelerate("tcp://127.0.0.1:1")
    there = dask_client(n_workers=1)
    with pytest.raises(ValueError, match="memory_fraction=0"):
        treadle.accelerate(there, memory_fraction=0)
    with treadle.attach(there) as here, pytest.raises(TypeError, match="not Client"):
        treadle.accelerate(here)


def test_it_is_awaited_with_an_asynchronous_client(dask_client):
    scheduler = dask_client(n_workers=1).scheduler.address

    async def run():
        async with distributed.Client(scheduler, asynchronous=True) as client:
            await treadle.accelerate(client)
            frame = table(1, 4000)
            lazy = dd.from_pandas(frame, 3, sort=False).shuffle("key", npartitions=2)
            found = await client.compute(lazy)
            await treadle.decelerate(client)
            return len(found)

    assert asyncio.run(run()) == len(table(1, 4000))
