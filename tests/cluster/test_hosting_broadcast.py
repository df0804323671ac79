"""`scatter(broadcast=...)` of Dask's client over Treadle's tree: each worker of Dask has the values."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import dask
import distributed
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import treadle
from client_support import AGAINST, SOON, Gate
from test_hosting import directories, names_of_threads, open_files
from waiting import until

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it is about both"),
    pytest.mark.timeout(4 * SOON, method="signal"),
]

LARGE = 400_000


@pytest.fixture(autouse=True)
def no_copies_are_dropped():
    """Dask drops copies that no task waits for, every two seconds."""
    with dask.config.set({"distributed.scheduler.active-memory-manager.start": False}):
        yield


@pytest.fixture
def there(dask_client):
    client = dask_client(n_workers=3)
    treadle.accelerate(client)
    forbid_copies(client)
    return client


def forbid_copies(client):
    """Have Dask refuse to copy values by itself."""

    def forbid(dask_scheduler):
        async def refuse(**_):
            raise AssertionError("Dask copies")

        dask_scheduler.replicate = refuse

    client.run_on_scheduler(forbid)


def held(client, futures):
    """The workers that have each value, by what Dask's scheduler says and by what they have."""
    keys = [future.key for future in futures]
    said = {key: set(client.who_has(futures)[key]) for key in keys}
    values = client.run(lambda dask_worker: {key for key in keys if key in dask_worker.data})
    assert said == {key: {one for one, has in values.items() if key in has} for key in keys}
    return list(said.values())


def place_of(key, dask_worker):
    """The file and the offset in it at which an array of a worker is."""
    array = dask_worker.data[key]
    address = array.__array_interface__["data"][0]
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, _, offset, _, inode = line.split()[:5]
            first, end = (int(one, 16) for one in span.split("-"))
            if first <= address < end:
                return inode, address - first + int(offset, 16)
    return None


def test_values_get_to_all_workers_and_stay(there, tmp_path):
    everyone = set(there.scheduler_info(n_workers=-1)["workers"])
    array = np.arange(LARGE)
    large, small = there.scatter([array, "small"], broadcast=True)
    assert held(there, [large, small]) == [everyone] * 2
    key = large.key
    places = there.run(place_of, key)
    assert len(set(places.values())) == 1, "the workers of a host have one copy"
    assert there.gather([large, small])[1] == "small"
    # Each worker may write to its own.
    add = there.submit(write, large, pure=False, workers=[next(iter(everyone))])
    assert add.result() == 7
    sums = there.run(lambda dask_worker: int(dask_worker.data[key][0]))
    assert sorted(sums.values()) == [0, 0, 7]
    # The same, and under a key of its own.
    again = there.scatter(array, broadcast=True)
    assert again.key == large.key
    other = there.scatter(array, broadcast=True, hash=False)
    assert other.key != large.key
    named = there.scatter({"many": list(range(1000)), ("a", 1): None}, broadcast=True)
    assert held(there, [again, other, *named.values()]) == [everyone] * 4
    assert there.submit(len, named["many"]).result() == 1000
    assert there.submit(str, named["a", 1]).result() == "None"
    many = there.scatter([np.full(1000, n) for n in range(300)], broadcast=True)
    assert held(there, many) == [everyone] * 300
    assert [int(one[0]) for one in there.gather(many)] == list(range(300))
    treadle.decelerate(there)
    assert held(there, [other, *many]) == [everyone] * 301
    assert_array_equal(there.submit(np.copy, other).result(), array)
    assert not any(there.run(names_of_threads).values())
    assert not directories(tmp_path)
    del large, small, add, again, other, named, many
    until(
        lambda: not any(there.run(lambda dask_worker: list(dask_worker.data)).values()),
        "the values are released",
    )
    until(lambda: not any(there.run(open_files).values()), "no segment and no file is left")


def write(array):
    array[0] = 7
    return int(array[0])


def test_some_workers_may_have_them(there):
    everyone = sorted(there.scheduler_info(n_workers=-1)["workers"])
    array = np.arange(LARGE)
    two = there.scatter(array, broadcast=True, workers=everyone[:2])
    assert held(there, [two]) == [set(everyone[:2])]
    few = there.scatter(array, broadcast=2, hash=False)
    assert [len(found) for found in held(there, [few])] == [2]
    with pytest.raises(ValueError, match="unknown"):
        there.scatter(array, broadcast=True, workers=["unknown"])


def test_it_is_awaited_with_an_asynchronous_client(dask_client):
    there = dask_client()
    treadle.accelerate(there)
    forbid_copies(there)

    async def run():
        address = there.scheduler.address
        async with distributed.Client(address, asynchronous=True) as client:
            array, text = await client.scatter((np.arange(LARGE), "text"), broadcast=True)
            found = await client.who_has([array, text])
            return [len(found[one.key]) for one in (array, text)], await client.submit(len, array)

    assert asyncio.run(run()) == ([2, 2], LARGE)


def test_connections_have_tls_where_the_cluster_has(dask_client):
    there = dask_client(security=distributed.Security.temporary(), protocol="tls://")
    treadle.accelerate(there)
    forbid_copies(there)
    future = there.scatter(np.arange(LARGE), broadcast=True)
    assert [len(found) for found in held(there, [future])] == [2]


def hold_values(gate):
    """Have workers of this process wait at a gate before they take values."""
    from treadle.common._loop import off_loop
    from treadle.hosting import _shared_values

    own = _shared_values.hand_over

    async def hand_over(objects, little, dask_worker):
        gate.arrive(os.getpid())
        await off_loop(gate.wait)
        return await own(objects, little, dask_worker)

    _shared_values.hand_over = hand_over


def scattered(client, data):
    """Scatter to all workers in a thread; return what waits for the future."""
    futures = []

    def scatter():
        futures.append(client.scatter(data, broadcast=True))

    thread = threading.Thread(target=scatter)
    thread.start()

    def finished():
        thread.join(SOON)
        return futures[0]

    return finished


def test_a_worker_dies_and_one_joins_meanwhile(dask_client, gate: Gate):
    there = dask_client(n_workers=3)
    treadle.accelerate(there)
    there.run(hold_values, gate)
    before = there.run(os.getpid)
    wait = scattered(there, np.arange(LARGE))
    until(lambda: gate.arrived(3), "all have the value")
    lost = next(iter(before))
    os.kill(before[lost], signal.SIGKILL)

    def others():
        return there.scheduler_info(n_workers=-1)["workers"].keys() - {lost}

    until(lambda: len(others()) == 3, "its nanny starts another one")
    gate.open()
    future = wait()
    assert held(there, [future]) == [before.keys() - {lost}]
    assert there.submit(len, future).result() == LARGE


def test_treadle_leaves_meanwhile(dask_client, gate: Gate):
    there = dask_client()
    treadle.accelerate(there)
    there.run(hold_values, gate)
    wait = scattered(there, np.arange(LARGE))
    until(lambda: gate.arrived(2), "all have the value")
    treadle.decelerate(there)
    future = wait()
    gate.open()
    assert [len(found) for found in held(there, [future])] == [2]
    assert there.submit(len, future).result() == LARGE


def test_what_treadle_refuses_dask_sends(dask_client):
    there = dask_client(memory_limit="400 MiB")
    # Two MiB for Treadle's worker.
    treadle.accelerate(there, memory_fraction=0.005)
    future = there.scatter(np.arange(LARGE), broadcast=True)
    assert [len(found) for found in held(there, [future])] == [2]
    assert there.submit(len, future).result() == LARGE
