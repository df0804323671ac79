"""Settings of Dask's configuration: those that are read, and those that nobody reads, which are named once."""

from __future__ import annotations

import copy
import os
import warnings

import dask
import pytest

import treadle
from client_support import AGAINST
from treadle.common import _settings

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


def test_names_from_the_environment_are_known(monkeypatch):
    # Dask takes them with underscores, unless it has seen its own before.
    config = copy.deepcopy(dask.config.config["distributed"])
    monkeypatch.setitem(dask.config.config, "distributed", config)
    scheduler = config["scheduler"]
    scheduler["allowed_failures"] = scheduler.pop("allowed-failures") + 2
    scheduler["worker_ttl"] = scheduler.pop("worker-ttl")
    assert warned() == ""
    scheduler["worker_ttl"] = "1 minute"
    assert "configuration: distributed.scheduler.worker-ttl (" in warned()


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


def test_a_lifetime_of_threads_is_warned_about():
    with (
        dask.config.set({"distributed.worker.lifetime.duration": "1h"}),
        pytest.warns(UserWarning, match=r"distributed\.worker\.lifetime has no effect"),
        treadle.LocalCluster(),
    ):
        pass


def test_commands_warn(start, monkeypatch):
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__VALIDATE", "True")
    scheduler = start("scheduler", "127.0.0.1:0")
    worker = start("worker", scheduler.address)
    assert worker.address
    for command in (scheduler, worker):
        assert "distributed.scheduler.validate" in command.output


def test_the_environment_of_workers(monkeypatch):
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TREADLE_TEST")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    with dask.config.set(
        {
            "distributed.nanny.pre-spawn-environ.MKL_NUM_THREADS": None,
            "distributed.nanny.environ.TREADLE_TEST": 7,
        }
    ):
        assert warned() == ""
        with treadle.Client(workers=1, set_as_default=False) as client:
            (found,) = client.run(lambda: [os.environ.get(name) for name in names]).values()
    assert found == ["1", None, "2", "7"]
    assert not set(names) - {"OPENBLAS_NUM_THREADS"} & set(os.environ)


def test_an_environment_that_is_none_is_refused():
    with (
        dask.config.set({"distributed.nanny.environ": "TREADLE_TEST=7"}),
        pytest.raises(TypeError, match=r"distributed\.nanny\.environ"),
    ):
        treadle.Client(workers=1, set_as_default=False)


@pytest.mark.parametrize("limit", [-5, "-1GiB", float("nan"), float("inf"), "many"])
def test_a_memory_limit_that_is_none_is_refused(limit):
    with pytest.raises(ValueError, match=r"memory_limit=.*: give bytes"):
        treadle.LocalCluster(n_workers=1, memory_limit=limit)
