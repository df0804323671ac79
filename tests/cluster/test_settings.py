"""Settings of Dask's configuration that nobody reads are named, once."""

from __future__ import annotations

import warnings

import dask
import pytest

import treadle
from client_support import AGAINST
from treadle import _settings

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="distributed reads its settings")


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    monkeypatch.setattr(_settings, "_warned_of", set())


def warned() -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _settings.warn_of_unread()
    return "\n".join(str(one.message) for one in caught)


def test_what_is_unread_is_named_once():
    with dask.config.set(
        {"distributed.scheduler.worker-ttl": "1 minute", "distributed.worker.memory.target": 0.5}
    ):
        text = warned()
        assert "distributed.scheduler.worker-ttl" in text
        assert "distributed.worker.memory.target" in text
        assert warned() == ""
        with dask.config.set({"distributed.worker.memory.pause": 0.9}):
            text = warned()
        assert "distributed.worker.memory.pause" in text
        assert "worker-ttl" not in text


def test_what_is_read_or_not_set_is_not():
    with dask.config.set(
        {
            "distributed.scheduler.allowed-failures": 7,
            "distributed.comm.tls.client.cert": "cert.pem",
            "distributed.worker.memory.target": dask.config.get("distributed.worker.memory.target"),
        }
    ):
        assert warned() == ""


def test_a_client_warns():
    with (
        dask.config.set({"distributed.scheduler.validate": True}),
        pytest.warns(UserWarning, match=r"distributed\.scheduler\.validate"),
        treadle.Client(set_as_default=False),
    ):
        pass


def test_commands_warn(start, monkeypatch):
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__VALIDATE", "True")
    scheduler = start("scheduler", "127.0.0.1:0")
    worker = start("worker", scheduler.address)
    assert worker.address
    for command in (scheduler, worker):
        assert "distributed.scheduler.validate" in command.output
