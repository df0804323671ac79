"""A pytest plugin that writes the outcome of each test to a file, for run.py to compare.

`--outcomes FILE` writes a JSON object: test id -> "passed", "skipped", "xfailed", "xpassed",
"failed" or "error"; with `--collect-only`, test id -> "collected". A file that could not be
collected, or was skipped whole, has an entry under its own name.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

# A test that passed and whose teardown then failed has two reports: the last one listed counts.
CATEGORIES = ("collected", "passed", "skipped", "xfailed", "xpassed", "failed", "error")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", metavar="FILE", help="write the outcome of each test here")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    file = session.config.getoption("outcomes")
    if file is None or hasattr(session.config, "workerinput"):
        return
    outcomes: dict[str, str] = {}
    if session.config.getoption("collectonly"):
        outcomes = {item.nodeid: "collected" for item in session.items}
    stats = session.config.pluginmanager.get_plugin("terminalreporter").stats
    for category in CATEGORIES:
        for report in stats.get(category, ()):
            # A worker process that died is reported too, as an error without a test.
            if hasattr(report, "nodeid"):
                outcomes[report.nodeid] = category
    Path(file).write_text(json.dumps(outcomes, indent=0, sort_keys=True))
