"""A pytest plugin for distributed's own test files, from a checkout without its `conftest.py`.

What that gives them: the fixtures of `distributed.utils_test`, and `--runslow`.
"""

from __future__ import annotations

import pytest

# Tests get their fixtures by their names, from a plugin's namespace.
from distributed.utils_test import *  # noqa: F403


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runslow", action="store_true", help="run the tests that are marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("runslow"):
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs --runslow"))
