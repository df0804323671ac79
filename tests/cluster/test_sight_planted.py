"""More of what is wrong in real runs: causes of `bench/sight/faults.py`, which take longer to be seen.

Others, and a run without a fault, are in ``test_sight_verdicts.py``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import treadle
from client_support import AGAINST
from treadle.sight._pages import Pages
from waiting import until

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "sight"))

import faults

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the verdicts are Treadle's")

LONG = 90


@contextmanager
def running(
    work: Callable[[Any], None], options: dict[str, Any]
) -> Iterator[Callable[[], set[str]]]:
    """Run something in a cluster of processes; yields what tells the rules that speak."""
    given = {"n_workers": 2, "threads_per_worker": 2, "memory_limit": "2GB"} | options
    with (
        treadle.LocalCluster(processes=True, **given) as cluster,
        treadle.Client(cluster) as client,
    ):
        client.wait_for_workers(given["n_workers"])
        pages = Pages(cluster.pages_link)

        def run() -> None:
            # It is cancelled where the rule has spoken.
            try:
                work(client)
            except Exception:
                if not ended.is_set():
                    raise

        ended = threading.Event()
        thread = threading.Thread(target=run)
        thread.start()

        def spoken() -> set[str]:
            return {one["rule"] for one in pages.get("/sight/overview")["verdicts"]}

        try:
            yield spoken
        finally:
            ended.set()
            client.close()
            thread.join(LONG)


@pytest.mark.parametrize("name", ["client", "critical-path", "paused", "skew", "transfers"])
def test_a_planted_fault_is_named(name: str) -> None:
    work, rule, options = faults.FAULTS[name]
    with running(work, options) as spoken:
        until(lambda: rule in spoken(), lambda: f"only {spoken()}", LONG)
