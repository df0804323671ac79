"""``attach_ray`` in this process, where Ray's actors are no matter: the scheduler is in this process.

What it does in a real Ray cluster is in ``test_hosting_ray.py``.
"""

from __future__ import annotations

import asyncio
import sys
import types

import pytest

import treadle
from client_support import AGAINST
from treadle.common._secret import new_secret
from treadle.hosting._host_base import Place
from treadle.hosting._ray import RayHost
from treadle.hosting._scheduler_part import SchedulerPart

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="it is about Treadle's own loop")


@pytest.fixture
def parts(monkeypatch):
    """What runs of a host that has a scheduler here and no workers."""
    ray = types.ModuleType("ray")
    ray.is_initialized = lambda: True
    ray.get_runtime_context = lambda: types.SimpleNamespace(gcs_address="nowhere:6379")
    monkeypatch.setitem(sys.modules, "ray", ray)
    parts = []

    async def start_scheduler(self):
        secret = new_secret()
        parts.append(await asyncio.to_thread(SchedulerPart, "127.0.0.1", secret, None, False))
        return Place(parts[0].address, secret, None, False)

    async def start_workers(self, place):
        pass

    async def stop(self):
        if parts:
            await asyncio.to_thread(parts.pop().close)

    monkeypatch.setattr(RayHost, "start_scheduler", start_scheduler)
    monkeypatch.setattr(RayHost, "start_workers", start_workers)
    monkeypatch.setattr(RayHost, "stop", stop)
    return parts


def test_it_attaches_where_an_event_loop_runs(parts):
    async def cell():
        return treadle.attach_ray(set_as_default=False)

    client = asyncio.run(cell())
    assert client.scheduler.address == parts[0].address
    assert client.ncores() == {}
    client.detach()
    assert not parts


def test_what_was_started_ends_when_the_client_cannot_connect(parts):
    with pytest.raises(ValueError, match="no_such_option"):
        treadle.attach_ray(set_as_default=False, no_such_option=1)
    assert not parts
