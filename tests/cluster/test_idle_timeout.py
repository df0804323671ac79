"""Clusters that end when they have nothing to do: `treadle scheduler --idle-timeout`."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

import treadle
from client_support import AGAINST, SOON
from treadle.common._loop import LoopThread
from treadle.scheduler._idle import IdleTime

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="of Treadle's commands"),
    pytest.mark.timeout(4 * SOON, method="signal"),
]


def test_an_idle_cluster_ends_with_its_workers(start, secret):
    scheduler = start("scheduler", "--port", "0", "--idle-timeout", "8 s")
    worker = start("worker", scheduler.address)
    with treadle.Client(scheduler.address, secret=secret, set_as_default=False) as client:
        # It is not idle meanwhile.
        client.submit(time.sleep, 10).result(timeout=SOON)
        assert client.submit(abs, -1).result(timeout=SOON) == 1
        assert scheduler.wait() == 0
        assert worker.wait() == 0
    assert "it had nothing to do for 8 s" in scheduler.output
    assert "Traceback" not in scheduler.output + worker.output


def test_the_configuration_has_it(start, monkeypatch):
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__IDLE_TIMEOUT", "1s")
    assert start("scheduler", "--port", "0").wait() == 0


@pytest.mark.parametrize("text", ["soon", "0", "-1h", "nan"])
def test_what_is_no_length_of_time_is_refused(start, text):
    refused = start("scheduler", "--port", "0", "--idle-timeout", text)
    assert refused.wait() == 1
    assert f"--idle-timeout is {text!r}" in refused.output
    assert "Traceback" not in refused.output


def test_a_python_side_that_is_being_replaced_is_not_idle():
    loop = LoopThread("ended", lambda *_: None)
    loop.close()

    async def is_active():
        return False

    ended = SimpleNamespace(loop_thread=loop, is_active=is_active)
    idle = IdleTime(SimpleNamespace(scheduler=ended))
    idle._looked = idle._since = time.monotonic() - 60
    assert idle.seconds() == 0
