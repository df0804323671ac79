"""Workers that are forked from one process are as if each had been started by itself."""

from __future__ import annotations

import os
import random
import resource
import time
import uuid
from pathlib import Path

import dask.config
import numpy as np
import pytest

from client_support import AGAINST, SOON
from process_support import kill
from reliability_support import processes
from treadle.cluster import _template, _templates
from waiting import until

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it reaches into treadle's cluster"),
    pytest.mark.usefixtures("quiet"),
]


def chance():
    return random.random(), np.random.random(), uuid.uuid4().hex


def parents(client):
    return set(client.run(os.getppid).values())


def test_they_have_one_parent_and_random_numbers_of_their_own(new_client):
    client = new_client(workers=3, threads_per_worker=1)
    client.wait_for_workers(3, timeout=SOON)
    assert len(set(client.run(os.getppid).values())) == 1
    for drawn in zip(*client.run(chance).values(), strict=True):
        assert len(set(drawn)) == 3


def test_the_end_of_one_is_seen_and_its_replacement_has_the_same_parent(new_client):
    client = new_client(workers=2, threads_per_worker=1)
    client.wait_for_workers(2, timeout=SOON)
    (template,) = parents(client)
    assert template != os.getpid()
    name, pid = sorted(processes(client).items())[0]
    kill(pid)
    until(lambda: processes(client)[name] != pid, f"{name} is replaced")
    assert client.submit(os.getppid, workers=[name]).result(SOON) == template


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
    _templates.release()
    client = new_client(workers=1, threads_per_worker=1)
    assert client.submit(os.getppid).result(SOON) == os.getpid()


def test_the_next_cluster_is_forked_from_the_same_process(new_client, monkeypatch):
    _templates.release()
    monkeypatch.setattr(_template, "_IDLE", SOON)
    first = new_client(workers=2, threads_per_worker=1)
    first.wait_for_workers(2, timeout=SOON)
    (template,) = parents(first)
    # At the same time, and after it.
    second = new_client(workers=1, threads_per_worker=1)
    assert parents(second) == {template}
    for client in (first, second):
        client.cluster.close()
    third = new_client(workers=3, threads_per_worker=1)
    third.wait_for_workers(3, timeout=SOON)
    assert parents(third) == {template}


@pytest.mark.parametrize(
    "changed", ["variable", "configuration", "directory", "mask", "limit", "installed"]
)
def test_workers_are_as_this_process_is_now(new_client, changed, monkeypatch, tmp_path):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(packages)
    first = new_client(workers=2, threads_per_worker=1)
    first.wait_for_workers(2, timeout=SOON)
    (template,) = parents(first)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    mask = os.umask(0o22)
    try:
        if changed == "variable":
            monkeypatch.setenv("TREADLE_TEST_VARIABLE", "set")
        elif changed == "configuration":
            monkeypatch.setitem(dask.config.config, "treadle-test", "set")
        elif changed == "directory":
            monkeypatch.chdir(tmp_path)
        elif changed == "mask":
            os.umask(0o27)
        elif changed == "installed":
            (packages / "new").mkdir()
        else:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files[0] - 1, files[1]))
        second = new_client(workers=2, threads_per_worker=1)
        second.wait_for_workers(2, timeout=SOON)
    finally:
        os.umask(mask)
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
    assert template not in parents(second)


def test_one_that_has_no_worker_ends(new_client, monkeypatch):
    _templates.release()
    monkeypatch.setattr(_template, "_IDLE", 0.2)
    client = new_client(workers=2, threads_per_worker=1)
    client.wait_for_workers(2, timeout=SOON)
    (template,) = parents(client)
    time.sleep(0.5)
    assert parents(client) == {template}
    client.cluster.close()
    place = Path(f"/proc/{template}")
    until(lambda: not place.exists(), lambda: (place / "status").read_text(), 2 * SOON)
    client = new_client(workers=2, threads_per_worker=1)
    client.wait_for_workers(2, timeout=SOON)
    assert template not in parents(client)


def test_a_cluster_starts_though_that_process_was_killed(new_client):
    client = new_client(workers=2, threads_per_worker=1)
    client.wait_for_workers(2, timeout=SOON)
    (template,) = parents(client)
    kill(template)
    client = new_client(workers=2, threads_per_worker=1)
    client.wait_for_workers(2, timeout=SOON)
    assert template not in parents(client)
