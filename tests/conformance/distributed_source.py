"""A pytest plugin for distributed's own test files, from a checkout without its `conftest.py`.

What that gives them: the fixtures of `distributed.utils_test`, and `--runslow`. Their schedulers follow
the steps of tasks from the start, as distributed's do. And a limit that holds: `--timeout` needs the
interpreter, which a thread that hangs in native code may keep for ever.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator

import dask
import distributed.utils_test
import pytest

# Tests get their fixtures by their names, from a plugin's namespace.
from distributed.utils_test import *  # noqa: F403

# Tests begin with one of these each.
for _config in (dask.config.config, distributed.utils_test.original_config):
    dask.config.update(_config, {"treadle": {"scheduler": {"steps": True}}})
    # `treadle_distributed.Client` is no user's code.
    dask.config.get("distributed.diagnostics.computations.ignore-modules", config=_config).append(
        "treadle_distributed"
    )

# Seconds that a test may take longer than its limit before its process is ended without Python.
GRACE = 30

# Standard error, before pytest captures it.
STDERR = os.dup(2)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runslow", action="store_true", help="run the tests that are marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("runslow"):
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs --runslow"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End the process, with all stacks printed, if the test does not end by its limit."""
    limit = float(item.config.getoption("timeout") or 0)
    if limit:
        faulthandler.dump_traceback_later(limit + GRACE, exit=True, file=STDERR)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
