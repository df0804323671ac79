"""Scheduler files: nobody else writes them, and nobody else reads what they hold."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

import treadle
from client_support import AGAINST, SOON, inc
from treadle import _core, _scheduler_file
from treadle.client import _addresses
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


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"address": 5}', "9" * (2 << 20)])
def test_what_is_no_scheduler_file_is_refused(text, tmp_path):
    file = tmp_path / "scheduler.json"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ValueError, match=r"."):
        _scheduler_file.read(file)


def test_a_file_that_does_not_appear_is_waited_for(tmp_path):
    import threading

    file = Path(tmp_path / "scheduler.json")
    made = []
    making = threading.Thread(
        target=lambda: made.append(treadle.Client(scheduler_file=str(file), timeout=SOON))
    )
    with treadle.LocalCluster(processes=False) as cluster:
        making.start()
        _scheduler_file.write(
            file, {"address": cluster.scheduler_address, "secret_file": cluster.secret_file}
        )
        until(lambda: made, "the client is connected")
        making.join(SOON)
        with made[0] as client:
            assert client.submit(inc, 1).result(timeout=SOON) == 2
