"""A pytest plugin that runs Dask's own tests with P2P in place of its other shuffles, on one client.

With `-p treadle_distributed` before it, the client is Treadle's; otherwise it is distributed's. Wherever a
test names a local scheduler of Dask, or none, the client computes. Dask's settings ask for P2P, and the
fixture `shuffle_method` gives "p2p" where it would give "disk". Tests that name "tasks" keep it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask
import distributed
import pytest

import schedulers

P2P = {"dataframe.shuffle.method": "p2p", "array.rechunk.method": "p2p"}

_clients: list[Any] = []


def client() -> Any:
    """The client that all tests share."""
    if not _clients:
        _clients.append(
            distributed.Client(
                n_workers=2, threads_per_worker=1, dashboard_address=":0", set_as_default=False
            )
        )
    return _clients[0]


# Importable by name, because some tests pickle the scheduler that they use; named as in Dask, because
# pytest makes test ids of the names.
def get_sync(graph: Any, keys: Any, **_options: Any) -> Any:
    """Compute with the client."""
    return client().get(graph, keys)


def get(graph: Any, keys: Any, **_options: Any) -> Any:
    """Compute with the client."""
    return client().get(graph, keys)


schedulers.replace(get_sync, get)


@pytest.fixture(scope="session", autouse=True)
def shared_client() -> Iterator[None]:
    yield
    for one in _clients:
        one.close()
        if one.cluster is not None:
            one.cluster.close()


@pytest.fixture(autouse=True)
def forced_p2p() -> Iterator[None]:
    with dask.config.set(P2P):
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give "p2p" where the parameters of a test say "disk"."""
    for item in items:
        call = getattr(item, "callspec", None)
        for name in ("shuffle_method", "shuffle"):
            if call is not None and call.params.get(name) == "disk":
                call.params[name] = "p2p"
