"""The servers of an application are found in a real registry that is no master, and stay known while that is away."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import registries

from application_support import LONG, begun, told
from conftest import Place
from registry_processes import Etcd, RegistryProcess, ZooKeeper
from treadle import _core
from waiting import until

MAPS = 4
SERVERS = {"a", "b"}
etcd = pytest.mark.skipif(shutil.which("go") is None, reason="etcd is built with Go")


@pytest.fixture(params=[pytest.param(Etcd, marks=etcd), ZooKeeper])
def registry(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RegistryProcess]:
    registries.CACHE.mkdir(parents=True, exist_ok=True)
    place = registries.etcd() if request.param is Etcd else registries.zookeeper()
    monkeypatch.setenv(request.param.variable, str(place))
    process: RegistryProcess = request.param(tmp_path)
    yield process
    process.kill()


def test_servers_are_those_of_a_registry(
    registry: RegistryProcess, new_place: Callable[[], Place], gates: Path
) -> None:
    place = new_place()
    for name in SERVERS:
        named = ("--name", name, "--domain", name)
        place.start("shuffle-server", registry.url, *named, "--listen", "127.0.0.1:0")

    def known() -> bool:
        return {one["name"] for one in _core.list_registry(registry.url, 10)[0]} == SERVERS

    until(known, "both servers are registered", LONG)
    application = place.application({"spark.treadle.servers": registry.url})
    job = application.begin("gated", str(gates), MAPS, 3, False)
    begun(gates, application, "map", MAPS - 1)
    # What the driver knows stays, and executors connect to the driver alone.
    registry.kill()
    (gates / "maps").touch()
    assert application.answer(job)
    assert told(gates, "map") == dict.fromkeys(range(MAPS), 1)
    (record,) = place.records(application.run("setting", "spark.treadle.master"))
    assert record["servers"]
    assert set(record["servers"]) <= SERVERS
