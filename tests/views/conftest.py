"""Fixtures of the tests of views: clients of real worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("ipyparallel")

import treadle
from views_support import SOON
from waiting import until


@pytest.fixture(scope="module")
def module_client() -> Iterator[treadle.Client]:
    client = treadle.Client(workers=3, threads_per_worker=1, set_as_default=False)
    yield client
    client.close()


@pytest.fixture
def client(module_client: treadle.Client) -> treadle.Client:
    """A client of three engines, whose namespaces are empty."""
    until(lambda: len(module_client.ids) == 3, "a worker that died comes back", SOON)
    module_client.engines.clear(block=True)
    return module_client


@pytest.fixture
def view(client: treadle.Client) -> Any:
    """A direct view of its engines."""
    return client[:]


@pytest.fixture(params=["direct", "broadcast"])
def all_engines(request: pytest.FixtureRequest, client: treadle.Client) -> Any:
    """A view of all engines, of either kind."""
    return client.direct_view() if request.param == "direct" else client.broadcast_view()
