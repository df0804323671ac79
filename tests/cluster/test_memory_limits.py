"""Limits of memory and of disk mean the same wherever they are given."""

from __future__ import annotations

import json
import math
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from dask.system import CPU_COUNT
from distributed.system import MEMORY_LIMIT

import treadle
from process_support import Process
from treadle.__main__ import main
from treadle.common._memory_limit import HELP, disk_limit_of, memory_limit_of
from treadle.mpi.__main__ import _options as mpi
from treadle.shuffle import Service
from waiting import SOON

HALF = MEMORY_LIMIT // 2
ALL: list[tuple[Any, int]] = [
    (0, 0),
    (0.0, 0),
    ("0", 0),
    ("0.0", 0),
    ("0 GiB", 0),
    (None, 0),
    ("none", 0),
    (0.5, HALF),
    ("0.5", HALF),
    (1, MEMORY_LIMIT),
    (1.0, MEMORY_LIMIT),
    ("1", MEMORY_LIMIT),
    # The smallest share is no limit of 0, which is none.
    (1e-300, 1),
    ("1B", 1),
    (2, 2),
    ("1e6", 10**6),
    (123456789, 123456789),
    ("2MiB", 2 << 20),
    (MEMORY_LIMIT + 1, MEMORY_LIMIT),
    ("1e18", MEMORY_LIMIT),
]
NONE = [-1, "-1", -0.5, "-5GiB", math.nan, "nan", math.inf, "1e400", 10**400, "lots", "", True, [1]]


@pytest.mark.parametrize(("given", "found"), ALL)
def test_what_limits_of_memory_stand_for(given: Any, found: int) -> None:
    assert memory_limit_of(given, "memory_limit") == found


def test_auto_is_a_share() -> None:
    assert memory_limit_of("auto", "memory_limit", 0.5) == HALF
    assert memory_limit_of(" Auto ", "memory_limit", 3.0) == MEMORY_LIMIT


@pytest.mark.parametrize("given", NONE)
@pytest.mark.parametrize("read", [memory_limit_of, disk_limit_of])
def test_what_is_no_limit_is_named(read: Callable[..., int], given: Any) -> None:
    with pytest.raises(ValueError, match=r"^--limit=.*: give bytes, 2GiB, .*0 for no limit"):
        read(given, "--limit")


def test_a_share_of_the_memory_is_no_limit_of_disks() -> None:
    assert disk_limit_of("0", "--disk-limit") == disk_limit_of(None, "--disk-limit") == 0
    assert disk_limit_of("2 GiB", "--disk-limit") == 2 << 30
    assert disk_limit_of(10**18, "--disk-limit") == 10**18
    for share in ("0.5", 1, "1"):
        with pytest.raises(ValueError, match=f"^--disk-limit='?{share}'?: give bytes"):
            disk_limit_of(share, "--disk-limit")


@pytest.mark.parametrize("command", ["worker", "shuffle-server", "mpi"])
def test_each_command_says_the_same(command: str) -> None:
    called = (mpi, ["--help"]) if command == "mpi" else (main, [command, "--help"])
    shown = CliRunner().invoke(*called)
    assert HELP in " ".join(shown.output.split())


#: What is given, and what a worker's limit is then; for a server of shuffles "no limit" is all there is.
LIMITS = [("0", 0), ("1", MEMORY_LIMIT), ("0.5", HALF), ("1B", 1)]


def test_limits_of_workers(start: Callable[..., Process], secret: Path) -> None:
    scheduler = start("scheduler", "--port", "0", "--http", "none")
    limits = [*LIMITS, ("auto", int(MEMORY_LIMIT * min(1, 1 / CPU_COUNT)))]
    for text, _ in limits:
        options = ("--name", text, "--nthreads", "1", "--memory-limit", text)
        start("worker", scheduler.address, *options, "--no-nanny")
    with treadle.Client(scheduler.address, secret=secret) as client:
        client.wait_for_workers(len(limits), timeout=SOON)
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        assert {str(worker["name"]): worker["memory_limit"] for worker in workers} == dict(limits)


@pytest.mark.parametrize("processes", [False, True])
def test_limits_of_local_workers(processes: bool) -> None:
    for given, limit in [(0, 0), (None, 0), (1, MEMORY_LIMIT), ("0.5", HALF)]:
        with treadle.LocalCluster(
            1, processes=processes, memory_limit=given, dashboard_address=None
        ) as cluster:
            [worker] = cluster.scheduler_info["workers"].values()
            assert worker["memory_limit"] == limit
    for given in (-1, "lots"):
        with pytest.raises(ValueError, match=r"^memory_limit=.*: give bytes"):
            treadle.LocalCluster(1, processes=processes, memory_limit=given)


def test_limits_of_shuffle_servers(start: Callable[..., Process], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("0123456789abcdef0123456789abcdef")
    master = start("shuffle-master", "127.0.0.1:0")
    shown = ("--http-token-file", str(token))
    # The least is more than a byte.
    for text, limit in [*LIMITS[:-1], ("1GiB", 1 << 30)]:
        server = start(
            "shuffle-server", master.address, *shown, "--name", text, "--memory-limit", text
        )
        link = f"{server.http}/json/state?token={token.read_text()}"
        with urllib.request.urlopen(link, timeout=SOON) as page:
            assert json.loads(page.read())["memory_limit"] == (limit or MEMORY_LIMIT)
    for given in (-1, "lots"):
        with pytest.raises(ValueError, match=r"^memory_limit=.*: give bytes"):
            Service(memory_limit=given)
