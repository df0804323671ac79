"""Applications with masters of their own on the same shuffle servers: real processes that are killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from applications_support import Application, held
from process_support import Process
from service_support import ROWS, Servers, Table, commit_at_last
from treadle.shuffle import Service
from waiting import SOON, until

HERE = Path(__file__).parent
APPLICATIONS = 8


@pytest.fixture
def servers(new_servers: Callable[..., Servers]) -> Servers:
    return new_servers("ab")


@pytest.fixture
def applications(servers: Servers) -> Iterator[list[Application]]:
    """Eight programs that have written half of their rows."""
    address = servers.master.address
    running = [Application(address, seed) for seed in range(APPLICATIONS)]
    try:
        for application in running:
            application.says("half")
        yield running
    finally:
        for application in running:
            with suppress(OSError):
                application.kill()


@pytest.fixture
def watcher(servers: Servers) -> Iterator[Service]:
    """Who asks the registry, and has no master."""
    with Service(servers.master.address, own_master=False, timeout=SOON) as service:
        yield service


def test_the_end_of_one_master_ends_its_shuffles_and_no_others(
    applications: list[Application], watcher: Service
) -> None:
    until(lambda: all(held(watcher).values()), lambda: f"rows at all servers: {held(watcher)}")
    assert len(watcher.state()["masters"]) >= APPLICATIONS
    victim, *others = applications
    victim.kill()
    for application in others:
        application.goes_on()
    for application in others:
        # It has compared every row.
        application.says("read")
    for application in others:
        application.goes_on()
        assert application.process.wait(SOON) == 0
    until(lambda: not any(held(watcher).values()), lambda: f"nothing is held: {held(watcher)}")


def test_a_master_that_stands_still_loses_nothing_before_its_lease_ends(
    new_servers: Callable[..., Servers], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who has no more patience is lost at the servers after a second without a word.
    monkeypatch.setenv("TREADLE_TESTING_SHUFFLE_SILENCE", "1")
    servers = new_servers("ab")
    application = Application(servers.master.address, seed=1)
    try:
        application.says("half")
        application.process.send_signal(signal.SIGSTOP)
        time.sleep(4)
        application.process.send_signal(signal.SIGCONT)
        application.goes_on()
        # It has committed the receipts of before, and compared every row.
        application.says("read")
        application.goes_on()
        assert application.process.wait(SOON) == 0
    finally:
        application.kill()


def test_a_registry_that_is_killed_ends_no_shuffle_of_an_application_with_a_master(
    servers: Servers, applications: list[Application], start: Callable[..., Process]
) -> None:
    table = Table(maps=4, partitions=8, rows=3_000)
    address = servers.master.address
    with servers.service.shuffle(4, 8, ROWS) as shuffle:
        receipts = [table.write(shuffle, number) for number in range(2)]
        servers.master.end()
        receipts += [table.write(shuffle, number) for number in range(2, 4)]
        shuffle.commit(receipts)
        table.compare(shuffle)
        for application in applications:
            application.goes_on()
        for application in applications:
            application.says("read")
        # One begins while the registry is away, with the servers that are known.
        with servers.service.shuffle(4, 8, ROWS) as other:
            other.commit(table.write_all(other))
            table.compare(other)
        # A server that starts meanwhile waits for it.
        arguments = ("--name", "late", "--domain", "late", "--http", "none")
        late = start("shuffle-server", address, *arguments, "--listen", "127.0.0.1:0")
        until(lambda: "Waiting for the shuffle master" in late.output, lambda: late.output)
        servers.master = start("shuffle-master", address.rpartition("://")[2])

        def known() -> set[str]:
            return {server["name"] for server in servers.service.state()["servers"]}

        until(lambda: known() == {"a", "b", "late"}, lambda: f"all three, there are {known()}")
        table.compare(shuffle)
        assert shuffle.lost() == []
    with servers.service.shuffle(4, 8, ROWS) as shuffle:
        shuffle.commit(table.write_all(shuffle))
        table.compare(shuffle)
        (late_one,) = [one for one in servers.service.state()["servers"] if one["name"] == "late"]
        assert late_one["partitions"] > 0


def test_processes_of_one_application_use_one_master_and_others_find_a_shuffle_by_its_number(
    servers: Servers,
) -> None:
    address = servers.master.address
    table = Table(maps=2, partitions=4, rows=1_000)
    with (
        Service(address, application=7, timeout=SOON) as first,
        Service(address, application=7, timeout=SOON) as second,
        Service(address, timeout=SOON) as other,
        first.shuffle(2, 4, ROWS) as shuffle,
    ):
        assert first._master is not None
        assert second._master is None
        assert other._master is not None
        (told,) = second.state()["shuffles"]
        assert told["shuffle"] == shuffle.number
        receipts = [
            table.write(at.attach(shuffle.number), n) for n, at in enumerate((second, other))
        ]
        shuffle.commit(receipts)
        for service in (second, other):
            attached = service.attach(shuffle.number)
            attached.generation = shuffle.generation
            table.compare(attached)
        assert other.state()["shuffles"] == []


def test_a_server_that_leaves_asks_all_masters_to_copy_what_it_has(servers: Servers) -> None:
    servers.begin("c")
    servers.ready()
    table = Table(maps=2, partitions=6, rows=2_000)
    address = servers.master.address
    with (
        Service(address, timeout=SOON) as one,
        Service(address, own_master=False, timeout=SOON) as two,
        one.shuffle(2, 6, ROWS) as first,
        two.shuffle(2, 6, ROWS) as second,
    ):
        for shuffle in (first, second):
            shuffle.commit(table.write_all(shuffle))
        one.drain("a")
        assert servers.processes.pop("a").wait() == 0
        servers.kill("b")
        for shuffle in (first, second):
            table.compare(shuffle)
            assert shuffle.lost() == []


def test_a_server_that_leaves_hands_over_rows_of_which_there_is_one_copy(servers: Servers) -> None:
    table = Table(maps=4, partitions=8, rows=2_000)
    service = servers.service
    with (
        service.shuffle(4, 8, ROWS, copies=1) as whole,
        service.shuffle(4, 8, ROWS, copies=1) as half,
    ):
        whole.commit(table.write_all(whole))
        receipts = [table.write(half, number) for number in range(2)]
        until(lambda: all(held(service).values()), lambda: f"rows at all servers: {held(service)}")
        service.drain("a")
        assert servers.processes.pop("a").wait() == 0
        receipts += [table.write(half, number) for number in range(2, 4)]
        half.commit(receipts)
        for shuffle in (whole, half):
            table.compare(shuffle)
            assert shuffle.lost() == []


def test_a_server_that_is_killed_is_lost_for_all_masters(servers: Servers) -> None:
    table = Table(maps=3, partitions=6, rows=2_000)
    address = servers.master.address
    services = [Service(address, timeout=SOON) for _ in range(3)]
    try:
        shuffles = [service.shuffle(3, 6, ROWS) for service in services]
        receipts = [[table.write(shuffle, number) for number in range(3)] for shuffle in shuffles]
        servers.processes.pop("a").end()
        servers.begin("a")
        for shuffle, written in zip(shuffles, receipts, strict=True):
            commit_at_last(
                shuffle, written, lambda number, of=shuffle: table.write(of, number, True)
            )
            table.compare(shuffle)
    finally:
        for service in services:
            service.close()


def test_a_program_without_servers_is_told_what_is_missing(
    start: Callable[..., Process], secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_SECRET_FILE", str(secret))
    master = start("shuffle-master", "127.0.0.1:0")
    with Service(master.address, timeout=SOON) as service:
        assert service.state()["servers"] == []
        server = start("shuffle-server", master.address, "--http", "none")
        until(lambda: service.state()["servers"], "the server is known")
        with service.shuffle(1, 1, "i8", copies=1) as shuffle:
            shuffle.commit([shuffle.write(0, np.arange(3), 0)])
            assert list(shuffle.reader().read(0)) == [0, 1, 2]
        assert server.process.poll() is None
