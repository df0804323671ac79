"""Scheduler files: nobody else writes them, and nobody else reads what they hold."""

from __future__ import annotations

import json
import os
import signal
import stat
import threading

import pytest

import treadle
from client_support import AGAINST, SOON, inc
from treadle import _core
from treadle.common import _addresses, _scheduler_file
from waiting import until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the files are Treadle's")

VALUES = {"address": "treadle://127.0.0.1:1"}


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_it_is_this_users_alone(tmp_path):
    file = tmp_path / "scheduler.json"
    before = os.umask(0)
    try:
        _scheduler_file.write(file, VALUES)
    finally:
        os.umask(before)
    assert mode_of(file) == 0o600
    assert _scheduler_file.read(file) == _scheduler_file.SchedulerFile("treadle://127.0.0.1:1")
    assert os.listdir(tmp_path) == ["scheduler.json"]


def test_no_link_is_followed(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    directory = tmp_path / "shared"
    directory.mkdir()
    file = directory / "scheduler.json"
    file.symlink_to(victim)
    # The name that it was written under once.
    (directory / f"scheduler.json.{os.getpid()}").symlink_to(victim)
    _scheduler_file.write(file, VALUES)
    assert victim.read_text() == "precious"
    assert not file.is_symlink()
    assert _scheduler_file.read(file).address == VALUES["address"]


def test_a_client_writes_it_for_this_user_alone(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    file = tmp_path / "scheduler.json"
    file.symlink_to(victim)
    with treadle.Client(processes=False, set_as_default=False) as client:
        client.write_scheduler_file(str(file))
        assert victim.read_text() == "precious"
        assert mode_of(file) == 0o600
        with treadle.Client(scheduler_file=str(file), set_as_default=False) as other:
            assert other.submit(inc, 1).result(timeout=SOON) == 2


def test_the_command_writes_it_for_this_user_alone(start, tmp_path):
    _core.create_certs(str(tmp_path), ["node"], 10, False)
    file = tmp_path / "scheduler.json"
    prefix = str(tmp_path / "node")
    scheduler = start("scheduler", "--port", "0", "--tls", prefix, "--scheduler-file", str(file))
    assert scheduler.address.startswith("treadle+tls://")
    assert mode_of(file) == 0o600
    # It says where the certificates are: workers and clients need nothing else.
    worker = start("worker", "--scheduler-file", str(file), "--nthreads", "1")
    assert worker.address.startswith("treadle+tls://")
    with treadle.Client(scheduler_file=str(file)) as client:
        assert client.submit(inc, 1).result(timeout=SOON) == 2


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_what_others_can_write_is_refused(mode, tmp_path, start):
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps(VALUES))
    file.chmod(mode)
    with pytest.raises(PermissionError, match=f"chmod 600 {file}"):
        _addresses.of_file(file)
    with pytest.raises(PermissionError, match=f"chmod 600 {file}"):
        treadle.Client(scheduler_file=str(file), timeout=SOON)
    worker = start("worker", "--scheduler-file", str(file))
    assert worker.wait() == 1
    assert f"chmod 600 {file}" in worker.output


def test_what_holds_a_token_must_not_be_readable_by_others(tmp_path):
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps(VALUES))
    file.chmod(0o644)
    assert _scheduler_file.read(file).address == VALUES["address"]
    file.write_text(json.dumps({**VALUES, "http": "http://127.0.0.1:1/?token=abc"}))
    with pytest.raises(PermissionError, match=r"can be read by others .*chmod 600"):
        _scheduler_file.read(file)


def test_the_secret_that_it_names_must_be_this_users_alone(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("a secret of this test alone")
    secret.chmod(0o644)
    file = tmp_path / "scheduler.json"
    _scheduler_file.write(file, {**VALUES, "secret_file": str(secret)})
    with pytest.raises(OSError, match=f"chmod 600 {secret}"):
        treadle.Client(scheduler_file=str(file), timeout=SOON)
    secret.chmod(0o600)
    assert _addresses.of_file(file)[1].secret == secret


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_file_is_refused(tmp_path):
    file = tmp_path / "scheduler.json"
    _scheduler_file.write(file, VALUES)
    os.chown(file, 12345, -1)
    with pytest.raises(PermissionError, match="belongs to user id 12345"):
        _scheduler_file.read(file)


def test_what_is_no_file_is_refused_without_waiting(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in (pipe, tmp_path):
        with pytest.raises(PermissionError, match="no regular file"):
            _scheduler_file.read(path)


@pytest.mark.parametrize("text", ["[]", "{}", '{"address": 5}', "9" * (2 << 20)])
def test_what_is_no_scheduler_file_is_refused(text, tmp_path):
    file = tmp_path / "scheduler.json"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ValueError, match=f"{file} is no scheduler file") as caught:
        _scheduler_file.read(file)
    # Nobody waits for it to become one.
    assert type(caught.value) is ValueError


# What a file may hold while it is written.
UNFINISHED = [b"", b"{", b'{"address": "treadle', b'{"address": "\xe2\x82']


def unfinished(directory, text):
    file = directory / "scheduler.json"
    file.touch(mode=0o600)
    file.write_bytes(text)
    return file


@pytest.mark.parametrize("text", UNFINISHED)
def test_what_is_written_at_the_moment_is_no_scheduler_file_yet(text, tmp_path):
    file = unfinished(tmp_path, text)
    with pytest.raises(_scheduler_file.UnfinishedError, match=f"{file} .* none yet"):
        _scheduler_file.read(file)
    with pytest.raises(ValueError, match=f"{file} .* none yet"):
        treadle.Client(scheduler_file=str(file), timeout=0.1)


@pytest.mark.parametrize("text", [None, *UNFINISHED[:2]])
def test_a_client_waits_for_a_file_that_is_not_there_yet(text, tmp_path, monkeypatch):
    file = tmp_path / "scheduler.json" if text is None else unfinished(tmp_path, text)
    read, looked, made = _scheduler_file.read, [], []

    def look(path):
        looked.append(path)
        return read(path)

    monkeypatch.setattr(_scheduler_file, "read", look)
    making = threading.Thread(
        target=lambda: made.append(treadle.Client(scheduler_file=str(file), timeout=SOON))
    )
    with treadle.LocalCluster(processes=False) as cluster:
        making.start()
        until(lambda: looked, "the client looks for it")
        _scheduler_file.write(
            file, {"address": cluster.scheduler_address, "secret_file": cluster.secret_file}
        )
        making.join(SOON)
        (client,) = made
        with client:
            assert client.submit(inc, 1).result(timeout=SOON) == 2


@pytest.mark.parametrize("text", UNFINISHED[:2])
def test_a_worker_waits_for_a_file_that_is_not_written_yet(text, start, tmp_path):
    file = unfinished(tmp_path, text)
    worker = start("worker", "--nanny", "--scheduler-file", str(file))
    until(lambda: "Waiting for the scheduler: " in worker.output, lambda: worker.output)
    assert f"{file} is no scheduler file, or none yet" in worker.output
    scheduler = start("scheduler", "--port", "0", "--scheduler-file", str(file))
    assert scheduler.address
    assert worker.address


def test_a_worker_does_not_wait_for_ever_for_the_rest_of_a_file(start, tmp_path):
    file = unfinished(tmp_path, b"{")
    worker = start("worker", "--scheduler-file", str(file))
    assert worker.wait() == 1
    waiting, error = worker.lines
    assert waiting.startswith(f"Waiting for the scheduler: {file} is no scheduler file, or none")
    assert error.startswith(f"Error: {file} is no scheduler file, or none yet")


def test_a_scheduler_leaves_the_file_of_another_one(start, join, tmp_path):
    file = tmp_path / "scheduler.json"
    first = start("scheduler", "--port", "0", "--scheduler-file", file)
    assert first.address
    second = start("scheduler", "--port", "0", "--scheduler-file", file)
    assert second.address
    first.send(signal.SIGTERM)
    first.wait()
    assert _scheduler_file.read(file).address == second.address
    second.send(signal.SIGTERM)
    second.wait()
    assert not file.exists()


def test_paths_of_a_worker_are_kept_when_a_task_changes_its_directory(start, join, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "secret").write_text("a secret of this cluster")
    (tmp_path / "secret").chmod(0o600)
    options = ["--secret-file", "secret"]
    there = {"before": lambda: os.chdir(tmp_path)}
    scheduler = start("scheduler", "--port", "0", *options, **there)
    assert scheduler.address
    kept = [*options, "--nthreads", "1", "--local-directory", "here"]
    workers = [start("worker", scheduler.address, *kept, **there) for _ in range(2)]
    assert all(worker.address for worker in workers)
    with treadle.Client(scheduler.address, secret=tmp_path / "secret") as client:
        client.wait_for_workers(2, timeout=SOON)
        client.run(os.chdir, "/")
        places = client.run(lambda dask_worker: dask_worker.local_directory)
        assert all(place.startswith(str(tmp_path)) for place in places.values())
        one, other = places
        made = client.submit(bytes, 1_000_000, workers=[one])
        assert client.submit(len, made, workers=[other]).result(timeout=SOON) == 1_000_000
