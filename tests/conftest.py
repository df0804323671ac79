"""Fixtures that the tests of the engine share."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import _pytest.runner
import pytest

# Schedulers of tests leave nothing in this user's home. Dask reads it when it is imported.
os.environ.setdefault("DASK_TREADLE__SHUFFLE__JOURNAL", "none")

import treadle
from waiting import until

# A shell that runs the tests in the background has them ignore Ctrl-C: nothing would raise KeyboardInterrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A variable of each test's own would keep its workers from being forked from the template of the tests before.
_pytest.runner._update_current_test_var = lambda *_: None
os.environ.pop("PYTEST_CURRENT_TEST", None)


@pytest.fixture(params=["sync", "threaded", "one-thread"])
def get(request: pytest.FixtureRequest) -> Callable:
    """Each way in which the engine runs a graph by itself."""
    if request.param == "sync":
        return treadle.sync.get
    if request.param == "threaded":
        return treadle.threaded.get
    return partial(treadle.threaded.get, num_workers=1)


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Wait until something is so: :func:`waiting.until`."""
    return until


@pytest.fixture
def no_new_threads(eventually: Callable) -> Iterator[None]:
    """No thread may be left behind, but for the engine's own idle ones."""

    def others() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if not t.name.startswith("treadle-")}

    before = others()
    yield
    eventually(lambda: others() <= before)
