"""Counts what reached Treadle, across the processes of pytest-xdist, and fails a run with too little.

With fewer calls than `--treadle-calls N`, or fewer P2P shuffles than `--treadle-shuffles N`, the exit
status is 16, whatever became of the tests.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

# The exit status of a run in which something else than Treadle did the work.
TOO_FEW_CALLS = 16


def add_option(parser: pytest.Parser) -> None:
    """Add `--treadle-calls` and `--treadle-shuffles`."""
    for what, least in (("calls", 1), ("shuffles", 0)):
        parser.addoption(
            f"--treadle-{what}",
            type=int,
            default=least,
            metavar="N",
            help=f"fail unless N {what} at least reach Treadle",
        )


class Counts:
    """Sums the counts of the worker processes of pytest-xdist (or takes this process's own)."""

    def __init__(self, config: pytest.Config, counters: Mapping[str, itertools.count[int]]) -> None:
        self.config = config
        self.counters = counters
        self.counts = dict.fromkeys(counters, 0)

    @property
    def enough(self) -> bool:
        shuffles = self.counts.get("shuffles", 0)
        return sum(self.counts.values()) - shuffles >= self.config.getoption(
            "treadle_calls"
        ) and shuffles >= self.config.getoption("treadle_shuffles")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        # A worker that died took its counts along.
        for what, count in getattr(node, "workeroutput", {}).get("treadle_counts", {}).items():
            self.counts[what] += count

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        for what, counter in self.counters.items():
            self.counts[what] += next(counter)
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["treadle_counts"] = self.counts
        elif not self.enough and not self.config.getoption("collectonly"):
            session.exitstatus = TOO_FEW_CALLS

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        counts = ", ".join(f"{count} {what}" for what, count in self.counts.items())
        terminalreporter.write_line(f"What reached Treadle: {counts}")
        if not self.enough:
            terminalreporter.write_line(
                f"That is fewer than these tests must bring (calls: "
                f"{self.config.getoption('treadle_calls')}, shuffles: "
                f"{self.config.getoption('treadle_shuffles')}): something else did their work.",
                red=True,
            )
