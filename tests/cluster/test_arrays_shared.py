"""Arrays of workers are in shared memory: workers of one host map them instead of copying them."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import treadle
from client_support import AGAINST, SOON

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="distributed copies"),
    pytest.mark.usefixtures("quiet"),
]

LENGTH = 1 << 18  # 2 MiB of them


def where(array: np.ndarray) -> str:
    """What is mapped where the array starts."""
    start = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, rest = line.partition(" ")
        first, last = (int(end, 16) for end in span.split("-"))
        if first <= start < last:
            return rest
    raise AssertionError("an array is somewhere")


def ramp() -> np.ndarray:
    return np.arange(LENGTH)


def is_shared(array: np.ndarray) -> bool:
    return "/memfd:" in where(array)


def overwrite(array: np.ndarray) -> tuple[bool, int]:
    shared = is_shared(array)
    if not array.flags.writeable:
        return shared, 0
    array[:] = -1
    return shared, int(array.sum())


@pytest.fixture
def client(new_client):
    return new_client(workers=2)


def test_what_a_task_makes_is_shared(client):
    assert client.submit(lambda: is_shared(ramp())).result(timeout=SOON)
    assert client.submit(lambda: is_shared(np.zeros(LENGTH))).result(timeout=SOON)
    # It is cheaper to copy.
    assert not client.submit(lambda: is_shared(np.arange(1000))).result(timeout=SOON)


def mapped_elsewhere(client, one: str, other: str):
    """An array of one worker that the other has mapped, and what it thought of it."""
    deadline = time.monotonic() + SOON
    # The first ones come as bytes, while the way for descriptors is being opened.
    while time.monotonic() < deadline:
        made = client.submit(ramp, workers=[one], pure=False)
        shared, written = client.submit(overwrite, made, workers=[other]).result(timeout=SOON)
        if shared:
            return made, written
    raise AssertionError("they never share")


def test_another_worker_maps_it_and_what_it_writes_there_is_its_own(client):
    one, other = sorted(client.scheduler_info(n_workers=-1)["workers"])
    made, written = mapped_elsewhere(client, one, other)
    assert written in (0, -LENGTH)
    total = client.submit(np.sum, made, workers=[one]).result(timeout=SOON)
    assert total == LENGTH * (LENGTH - 1) // 2


def test_it_outlives_the_worker_that_made_it(client):
    one, other = sorted(client.scheduler_info(n_workers=-1)["workers"])
    mapped_elsewhere(client, one, other)
    made = client.submit(ramp, workers=[one], pure=False)
    client.replicate([made], n=2)
    client.retire_workers([one])
    assert client.submit(is_shared, made, workers=[other]).result(timeout=SOON)
    np.testing.assert_array_equal(made.result(timeout=SOON), np.arange(LENGTH))


def test_threads_of_a_users_process_make_arrays_as_they_would_without(new_client):
    with treadle.Client(threads_per_worker=1, set_as_default=False) as client:
        assert not client.submit(lambda: is_shared(ramp())).result(timeout=SOON)
