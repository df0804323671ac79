"""Disks of shuffle servers that several applications use, that are slow, or that fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from process_support import Process
from service_support import Table
from treadle.shuffle import Service
from waiting import SOON, until

pytestmark = pytest.mark.usefixtures("few_rows_in_memory")
# What the disk does in a second: so little that it is the limit on every machine.
RATE, OPERATIONS = 20_000_000, 200


class Limited:
    """A master, and a server whose directories do no more than they are told to."""

    def __init__(
        self,
        start: Callable[..., Process],
        monkeypatch: pytest.MonkeyPatch,
        limits: dict[Path, str],
    ) -> None:
        said = ";".join(f"{directory}={limit}" for directory, limit in limits.items())
        monkeypatch.setenv("TREADLE_TESTING_SHUFFLE_DISKS", said)
        self.master = start("shuffle-master", "127.0.0.1:0", "--shuffle-journal", "none")
        places = [text for path in limits for text in ("--local-directory", str(path))]
        self.server = start("shuffle-server", self.master.address, "--name", "a", *places)

    def devices(self) -> list[dict[str, Any]]:
        return self.server.state()["devices"]  # type: ignore[no-any-return]

    def given(self) -> dict[int, dict[str, int]]:
        """What applications were given of the first device."""
        # None before something is written to a file.
        devices = self.devices()[:1]
        return {one["application"]: one for device in devices for one in device["applications"]}


class Application:
    """A process of the service with a committed shuffle, whose rows are in files."""

    def __init__(
        self, address: str, maps: int, partitions: int, rows: int, priority: int = 1
    ) -> None:
        self.service = Service(address, priority=priority, timeout=SOON)
        self.partitions = partitions
        self.expected = rows // partitions * maps
        self.shuffle = self.service.shuffle(maps, partitions, "i8", copies=1)
        numbers = np.arange(rows) % partitions
        values = np.arange(rows, dtype=np.int64)
        self.shuffle.commit([self.shuffle.write(number, values, numbers) for number in range(maps)])
        self.reader = self.shuffle.reader()

    def reads(self, threads: int, over: threading.Event) -> list[threading.Thread]:
        """Threads that read all they can, and compare the number of rows."""
        self.errors: list[BaseException] = []

        def read(first: int) -> None:
            at = first
            try:
                while not over.is_set():
                    found = self.reader.read(at % self.partitions)
                    assert len(found) == self.expected
                    at += threads
            except BaseException as error:
                self.errors.append(error)

        return [threading.Thread(target=read, args=(number,)) for number in range(threads)]


@pytest.fixture
def together() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def shares(
    server: Limited, applications: list[Application], threads: list[int], requests: int
) -> tuple[list[int], list[int]]:
    """Let all read until the device has carried out so many requests of each; what they have cost, and their bytes."""
    over = threading.Event()
    numbers = [one.service.application for one in applications]
    started = [
        thread
        for one, count in zip(applications, threads, strict=True)
        for thread in one.reads(count, over)
    ]
    for thread in started:
        thread.start()
    try:

        def have(since: dict[int, dict[str, int]], count: int) -> bool:
            given = server.given()
            none = {"requests": 0}
            return all(
                given.get(n, none)["requests"] - since.get(n, none)["requests"] >= count
                for n in numbers
            )

        # The first requests do not count: not all have begun.
        first = server.given()
        until(lambda: have(first, 5), lambda: str(server.given()))
        before = server.given()
        until(lambda: have(before, requests), lambda: str(server.given()))
        after = server.given()
    finally:
        over.set()
        for thread in started:
            thread.join()
    for one in applications:
        assert not one.errors, one.errors

    def gained(what: str) -> list[int]:
        return [after[n][what] - before[n][what] for n in numbers]

    return gained("cost_microseconds"), gained("bytes")


@pytest.fixture
def begin(
    start: Callable[..., Process], secret: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Limited]:
    monkeypatch.setenv("TREADLE_SECRET_FILE", str(secret))

    def begin(**limits: str) -> Limited:
        return Limited(start, monkeypatch, {tmp_path / name: limits[name] for name in limits})

    return begin


def in_files(server: Limited, applications: list[Application]) -> None:
    numbers = [one.service.application for one in applications]

    def written() -> bool:
        given = server.given()
        return all(given.get(number, {}).get("bytes", 0) > 0 for number in numbers)

    until(written, lambda: str(server.devices()))


def test_many_small_reads_do_not_take_the_disk_from_long_ones(
    begin: Callable[..., Limited], together: ExitStack
) -> None:
    server = begin(disk=f"{RATE}:{OPERATIONS}")
    small = Application(server.master.address, maps=2, partitions=2_000, rows=200_000)
    together.callback(small.service.close)
    long = Application(server.master.address, maps=2, partitions=4, rows=1_000_000)
    together.callback(long.service.close)
    in_files(server, [small, long])
    cost, nbytes = shares(server, [small, long], [24, 16], requests=20)
    # Of equal shares each has a half.
    assert cost[1] >= 0.8 * sum(cost) / 2, (cost, nbytes)
    assert nbytes[1] > 10 * nbytes[0], "small reads are few bytes"


def test_high_priority_gets_more_of_a_disk(
    begin: Callable[..., Limited], together: ExitStack
) -> None:
    server = begin(disk=f"{RATE}:{OPERATIONS}")
    applications = [
        Application(server.master.address, 2, 500, 100_000, priority=priority)
        for priority in (1, 3)
    ]
    for one in applications:
        together.callback(one.service.close)
    in_files(server, applications)
    cost, _ = shares(server, applications, [16, 16], requests=60)
    assert cost[1] >= 1.8 * cost[0], cost


def test_who_reads_too_much_of_a_slow_disk_sleeps_and_gets_all_rows(
    begin: Callable[..., Limited], together: ExitStack
) -> None:
    server = begin(disk=f"{RATE}:100")
    greedy = Application(server.master.address, maps=2, partitions=200, rows=100_000)
    together.callback(greedy.service.close)
    modest = Application(server.master.address, maps=2, partitions=200, rows=100_000)
    together.callback(modest.service.close)
    in_files(server, [greedy, modest])
    over = threading.Event()
    threads = greedy.reads(64, over)
    for thread in threads:
        thread.start()
    try:
        # One read at a time, as somebody who wants little.
        def told() -> bool:
            modest.reader.read(0)
            return greedy.service.stats()["slept"] > 5

        until(told, lambda: str(server.devices()))
        assert modest.service.stats()["slept"] == 0
        page = server.server.page("/metrics")
        (line,) = [
            line
            for line in page.splitlines()
            if "throttled_reads_total " in line and line[0] != "#"
        ]
        assert int(line.split()[1]) > 0
        assert "treadle_shuffle_device_read_latency_seconds{directory=" in page
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not greedy.errors, greedy.errors
    for one in (greedy, modest):
        rows = np.concatenate([one.reader.read(at) for at in range(0, 200, 40)])
        assert len(rows) == 5 * one.expected


def test_a_slow_directory_is_given_fewer_files(
    begin: Callable[..., Limited], together: ExitStack
) -> None:
    server = begin(fast="400000000:4000", slow="10000000:100")
    table = Table(maps=6, partitions=4, rows=60_000)
    service = Service(server.master.address, timeout=SOON)
    together.callback(service.close)

    def rounds() -> bool:
        with service.shuffle(6, 4, table.rows[0].dtype, copies=1) as shuffle:
            shuffle.commit(table.write_all(shuffle))
            table.compare(shuffle)
        return len(server.devices()) == 2 and sum(written()) > 60_000_000

    def written() -> list[int]:
        devices = server.devices()
        return [sum(one["bytes"] for one in device["applications"]) for device in devices]

    until(rounds, lambda: str(server.devices()), seconds=120)
    fast, slow = written()
    assert slow < fast / 3, server.devices()


def test_a_disk_that_does_nothing_holds_up_no_other(
    start: Callable[..., Process],
    secret: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("TREADLE_SECRET_FILE", str(secret))
    hung, good = tmp_path / "hung", tmp_path / "good"
    # A write of a byte takes a second.
    server = Limited(start, monkeypatch, {hung: "1:1000000", good: f"{RATE}:{OPERATIONS}"})
    one = Application(server.master.address, 8, 16, 60_000)
    with one.service:
        until(lambda: len(list(good.rglob("*.shuffle"))) > 0, "rows are in files")
        for partition in range(one.partitions):
            assert len(one.reader.read(partition)) == one.expected
        assert list(hung.rglob("*.shuffle")), "nothing was written to the disk that hangs"
        assert one.shuffle.lost() == []
        one.shuffle.close()
        until(lambda: not list(good.rglob("*.shuffle")), lambda: str(list(good.rglob("*"))))
