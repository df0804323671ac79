"""A value whose file is damaged is computed again, or lost by name: never wrong, and never awaited."""

from __future__ import annotations

from pathlib import Path

import distributed
import pytest

from client_support import AGAINST, SOON
from test_directories import below, on_disk
from treadle import DataLost
from waiting import until

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it reaches into treadle's files"),
    pytest.mark.usefixtures("quiet"),
]

# What a process needs beside its values is a part of its limit.
LIMIT = "200MB"
BLOCK = 15_000_000
COUNT = 16


def block(number: int) -> bytes:
    return bytes([number]) * BLOCK


def made(client) -> list:
    """Values, of which some are on disk."""
    futures = client.map(block, range(COUNT), pure=False)
    distributed.wait(futures, timeout=SOON)
    return futures


def damage(directory: Path) -> int:
    """Flip a byte in the middle of all files of values; return how many there were."""
    damaged = 0
    for path in below(directory):
        if path.is_file() and path.stat().st_size >= BLOCK:
            with path.open("r+b") as file:
                file.seek(BLOCK // 2)
                (byte,) = file.read(1)
                file.seek(BLOCK // 2)
                file.write(bytes([byte ^ 1]))
            damaged += 1
    return damaged


@pytest.fixture
def client(new_client, tmp_path):
    """A client of one worker with little memory."""
    client = new_client(
        workers=1, threads_per_worker=1, memory_limit=LIMIT, local_directory=str(tmp_path)
    )
    assert client.submit(int, 0).result(SOON) == 0
    return client


def test_values_are_computed_again_for_a_client(client, tmp_path) -> None:
    futures = made(client)
    assert damage(tmp_path) > 0
    for _ in range(2):
        gathered = client.gather(futures)
        assert gathered == [block(number) for number in range(COUNT)]
        del gathered


def test_values_are_computed_again_for_other_workers(client, tmp_path) -> None:
    (first,) = client.scheduler_info()["workers"]
    futures = made(client)
    client.cluster.scale(2)
    client.wait_for_workers(2, timeout=SOON)
    (other,) = set(client.scheduler_info()["workers"]) - {first}
    assert damage(tmp_path) > 0
    lengths = client.map(len, futures, workers=[other], pure=False)
    assert client.gather(lengths) == [BLOCK] * COUNT
    sums = client.map(set, futures, pure=False)
    assert client.gather(sums) == [{number} for number in range(COUNT)]


def test_values_that_a_client_brought_are_lost_by_name(client, tmp_path) -> None:
    futures = [client.scatter(block(number), hash=False) for number in range(COUNT)]
    until(lambda: on_disk(tmp_path) >= 2 * BLOCK, "some are on disk")
    damaged = damage(tmp_path)
    lost = 0
    for number, future in enumerate(futures):
        try:
            assert future.result(SOON) == block(number)
        except DataLost as error:
            assert future.key in str(error)  # noqa: PT017
            lost += 1
    assert 0 < lost <= damaged
    # What is left of a lost value is not kept.
    client.cancel(futures)
    until(lambda: on_disk(tmp_path) < BLOCK, "their files are gone")
    assert client.submit(len, block(1)).result(SOON) == BLOCK
