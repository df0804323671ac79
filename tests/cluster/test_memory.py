"""What workers do not use any more goes back to the system, and copies with their readers."""

from __future__ import annotations

from pathlib import Path

import distributed
import numpy as np

from waiting import until

MB = 10**6
COUNT = 300


def _used(client: distributed.Client) -> int:
    """The memory of all workers, in bytes; what several of them share counts once."""

    def resident() -> int:
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
            name, _, size = line.partition(":")
            if name == "Pss":
                return int(size.split()[0]) * 1024
        raise AssertionError("Linux says how much it is")

    return sum(client.run(resident).values())


def _ones(index: int, nbytes: int) -> np.ndarray:
    return np.full(nbytes // 8, index)


def _total(*arrays: np.ndarray) -> int:
    return int(sum(array.sum() for array in arrays))


def test_released_values_return_their_memory(fresh_client: distributed.Client) -> None:
    client = fresh_client
    distributed.wait(client.map(_ones, range(4), nbytes=1000, pure=False))
    before = _used(client)
    for nbytes in (2 * MB, MB // 5):  # in shared memory, and from the allocator's heaps
        futures = client.map(_ones, range(COUNT), nbytes=nbytes, pure=False)
        distributed.wait(futures)
        assert _used(client) > before + COUNT * nbytes * 9 // 10
        del futures
        until(lambda: _used(client) < before + 50 * MB, lambda: str(_used(client) - before))


def test_what_was_fetched_returns_its_memory(fresh_client: distributed.Client) -> None:
    client = fresh_client
    one, other = (worker["name"] for worker in client.scheduler_info()["workers"].values())
    distributed.wait(client.map(_total, [np.ones(1)] * 4, workers=[other], pure=False))
    values = client.map(_ones, range(100), nbytes=MB, workers=[one], pure=False)
    distributed.wait(values)
    before = _used(client)
    total = client.submit(_total, *values, workers=[other])
    assert total.result() == sum(index * (MB // 8) for index in range(100))
    until(lambda: _used(client) < before + 50 * MB, lambda: str(_used(client) - before))


def test_a_copy_goes_with_its_last_reader(fresh_client: distributed.Client) -> None:
    client = fresh_client
    one, other = (worker["name"] for worker in client.scheduler_info()["workers"].values())
    value = client.submit(_ones, 1, MB, workers=[one], pure=False)
    assert client.submit(_total, value, workers=[other], pure=False).result() == MB // 8
    until(lambda: len(client.who_has([value])[value.key]) == 1)
    # A value that is read again stays where it was read, too.
    assert client.submit(_total, value, workers=[other], pure=False).result() == MB // 8
    assert len(client.who_has([value])[value.key]) == 2
