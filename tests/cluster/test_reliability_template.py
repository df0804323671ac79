"""Workers that are forked from one process are as if each had been started by itself."""

from __future__ import annotations

import os
import random
import uuid

import numpy as np
import pytest

from client_support import AGAINST, SOON
from process_support import kill
from reliability_support import processes
from waiting import until

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it reaches into treadle's cluster"),
    pytest.mark.usefixtures("quiet"),
]


def chance():
    return random.random(), np.random.random(), uuid.uuid4().hex


def test_they_have_one_parent_and_random_numbers_of_their_own(new_client):
    client = new_client(workers=3, threads_per_worker=1)
    client.wait_for_workers(3, timeout=SOON)
    assert len(set(client.run(os.getppid).values())) == 1
    for drawn in zip(*client.run(chance).values(), strict=True):
        assert len(set(drawn)) == 3


def test_the_end_of_one_is_seen_and_its_replacement_has_another_parent(new_client):
    client = new_client(workers=2, threads_per_worker=1)
    client.wait_for_workers(2, timeout=SOON)
    assert os.getpid() not in client.run(os.getppid).values()
    name, pid = sorted(processes(client).items())[0]
    kill(pid)
    until(lambda: processes(client)[name] != pid, f"{name} is replaced")
    assert client.submit(os.getppid, workers=[name]).result(SOON) == os.getpid()


def test_they_are_replaced_when_that_process_dies(new_client):
    client = new_client(workers=2, threads_per_worker=1)
    client.wait_for_workers(2, timeout=SOON)
    before = processes(client)
    (template,) = set(client.run(os.getppid).values())
    kill(template)
    for name, pid in before.items():
        until(lambda name=name, pid=pid: processes(client)[name] != pid, f"{name} is replaced")
        parent = client.submit(os.getppid, workers=[name], pure=False).result(SOON)
        assert parent == os.getpid()


def test_one_worker_is_started_by_itself(new_client):
    client = new_client(workers=1, threads_per_worker=1)
    assert client.submit(os.getppid).result(SOON) == os.getpid()
