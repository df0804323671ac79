"""Fixtures of the tests of the Python sides of scheduler and workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from python_sides import Hub, HubClient, HubWorker

from treadle.scheduler import Sidecar


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def sidecar(hub: Hub) -> Iterator[Sidecar]:
    with hub.add_sidecar() as sidecar:
        yield sidecar


@pytest.fixture
def alice(hub: Hub, sidecar: Sidecar) -> HubClient:
    return hub.add_client("Client-alice")


@pytest.fixture
def bob(hub: Hub, sidecar: Sidecar) -> HubClient:
    return hub.add_client("Client-bob")


@pytest.fixture
def worker(hub: Hub, tmp_path: Path) -> Iterator[HubWorker]:
    path = list(sys.path)
    worker = HubWorker(hub, "w", tmp_path / "local")
    yield worker
    worker.leave()
    sys.path[:] = path


@pytest.fixture
def caller(hub: Hub) -> HubClient:
    """A client of workers, in a cluster without a sidecar unless the test asks for one."""
    return hub.add_client("Client-c")
