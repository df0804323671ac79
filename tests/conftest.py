"""Fixtures that the tests of the engine share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

import treadle


@pytest.fixture(params=["sync", "threaded", "one-thread"])
def get(request: pytest.FixtureRequest) -> Callable:
    """Each way in which the engine runs a graph by itself."""
    if request.param == "sync":
        return treadle.sync.get
    if request.param == "threaded":
        return treadle.threaded.get
    return partial(treadle.threaded.get, num_workers=1)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Wait until something is so; what happens on other threads has no fixed moment."""

    def wait(condition: Callable[[], bool]) -> None:
        until = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < until, "it did not happen"
            time.sleep(0.001)

    return wait


@pytest.fixture
def no_new_threads(eventually: Callable) -> Iterator[None]:
    """No thread may be left behind, but for the engine's own idle ones."""

    def others() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if not t.name.startswith("treadle-")}

    before = others()
    yield
    eventually(lambda: others() <= before)
