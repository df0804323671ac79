"""Trees of engines that the user has chosen: `depth=` and `degree=` of views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from client_support import AGAINST, make_client

pytestmark = pytest.mark.skipif(AGAINST == "distributed", reason="distributed has no engines")
pytest.importorskip("ipyparallel")

COUNT = 5


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with make_client(COUNT) as client:
        client.wait_for_engines(COUNT, timeout=60)
        yield client


def test_the_client_counts_its_engines(client: Any) -> None:
    assert len(client) == COUNT
    assert client
    with pytest.raises(TimeoutError, match=f"there are {COUNT} engines"):
        client.wait_for_engines(COUNT + 1, timeout=0)


@pytest.mark.parametrize(
    "tree",
    [{}, {"depth": 0}, {"depth": 1}, {"degree": 1}, {"depth": 3, "degree": 1}, {"degree": 100}],
)
def test_every_engine_is_reached_once(client: Any, tree: dict[str, int]) -> None:
    for make in (client.direct_view, client.broadcast_view):
        view = make(**tree)
        view.execute("count = globals().get('count', 0) + 1", block=True)
        assert view.pull("count", block=True) == [1] * COUNT
        view.execute("del count", block=True)


def test_a_tree_that_is_too_deep_is_refused(client: Any) -> None:
    view = client.broadcast_view(depth=2, degree=1)
    with pytest.raises(ValueError, match=r"depth=2 with degree=1: .* is 3 deep"):
        view.apply_sync(int)
    # A tree of fewer engines is not.
    assert client.broadcast_view([0, 1], depth=2, degree=1).apply_sync(int) == [0, 0]
    view.set_tree()
    assert view.apply_sync(int) == [0] * COUNT


@pytest.mark.parametrize("tree", [{"depth": -1}, {"depth": "deep"}, {"degree": 0}])
def test_numbers_that_are_none(client: Any, tree: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(tree))}="):
        client.broadcast_view(**tree)
