"""Strangers on the ports of the shuffle service: they get nothing, cost little, and no job notices."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from process_support import Process, descriptors, resident
from service_support import ROWS, Servers, Table
from test_reliability_garbage import WORDS, port_of
from treadle.shuffle import Service, ShuffleError
from waiting import SOON, until

CROWD = 300
MAPS, PARTITIONS = 6, 5


@pytest.fixture
def servers(new_servers: Callable[..., Servers]) -> Servers:
    return new_servers("ab", "--http", "127.0.0.1:0")


def ports(servers: Servers) -> dict[str, tuple[tuple[str, int], Process]]:
    server = servers.processes["a"]
    return {
        "master": (port_of(servers.master.address), servers.master),
        "server": (port_of(server.address), server),
        "pages": (port_of(server.http), server),
        "pages of the master": (port_of(servers.master.http), servers.master),
    }


def whole_shuffle(servers: Servers) -> int | None:
    """Shuffle, compare all rows, and return the generation that was committed."""
    table = Table(MAPS, PARTITIONS, rows=20_000)
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
        shuffle.commit(table.write_all(shuffle))
        table.compare(shuffle)
        return shuffle.generation


def closed(process: Process, before: int) -> None:
    until(
        lambda: descriptors(process.pid) <= before + 3,
        lambda: f"{descriptors(process.pid)} descriptors, {before} before",
        2 * SOON,
    )


def test_garbage_in_the_middle_of_a_job(servers: Servers) -> None:
    """On all ports at once, between writing and the commit, and before and while it is read."""
    undisturbed = whole_shuffle(servers)
    chance = random.Random(0)
    words = list(WORDS.values()) + [chance.randbytes(chance.randrange(1, 5000)) for _ in range(60)]
    before = {
        name: (resident(process.pid), descriptors(process.pid))
        for name, (_, process) in ports(servers).items()
    }
    table = Table(MAPS, PARTITIONS, rows=20_000)
    with ExitStack() as strangers, servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:

        def say() -> None:
            for address, _ in ports(servers).values():
                for said in words:
                    # It may be thrown out before it has said all.
                    with suppress(OSError):
                        stranger = socket.create_connection(address, timeout=SOON)
                        strangers.enter_context(stranger)
                        stranger.sendall(said)
                        if chance.random() < 0.3:
                            stranger.shutdown(socket.SHUT_WR)

        receipts = table.write_all(shuffle, 3, say)
        say()
        shuffle.commit(receipts)
        say()
        table.compare(shuffle)
        assert shuffle.generation == undisturbed, "partitions were assigned anew"
    for name, (_, process) in ports(servers).items():
        memory, were_open = before[name]
        closed(process, were_open)
        grown = resident(process.pid) - memory
        assert grown < 64_000_000, f"{name}: {grown} bytes for strangers"
    whole_shuffle(servers)


def test_a_crowd_that_says_nothing_or_speaks_slowly(servers: Servers) -> None:
    """Neither takes the place of those who work."""
    whole_shuffle(servers)
    for name, (address, process) in ports(servers).items():
        memory, were_open = resident(process.pid), descriptors(process.pid)
        over = threading.Event()
        crowd: list[socket.socket] = []

        def speak_slowly(some: list[socket.socket] = crowd, over: threading.Event = over) -> None:
            # Requests that never end, and words that look like the beginning of Treadle's own.
            at = 0
            while not over.wait(0.05):
                for one in some:
                    with suppress(OSError):
                        one.send(b"GET / HTTP/1.1\r\nA: b"[at : at + 1] or b"c")
                at += 1

        with ExitStack() as stack:
            for number in range(CROWD):
                # One that is not let in has been refused, which is as well.
                with suppress(OSError):
                    one = socket.create_connection(address, timeout=SOON)
                    stack.enter_context(one)
                    if number % 10 == 0:
                        crowd.append(one)
            slow = threading.Thread(target=speak_slowly)
            slow.start()
            stack.callback(slow.join)
            stack.callback(over.set)
            whole_shuffle(servers)
            with Service(servers.master.address, timeout=SOON) as late:
                assert len(late.state()["servers"]) == 2
            grown = resident(process.pid) - memory
            assert grown < CROWD * 100_000 + 32_000_000, f"{name}: {grown} bytes for {CROWD}"
        closed(process, were_open)
    whole_shuffle(servers)


def test_without_the_secret_nobody_joins(
    servers: Servers, start: Callable[..., Process], tmp_path: Path
) -> None:
    """Neither as a client nor as a server, and it is no server for those who have the secret."""
    other = tmp_path / "other"
    other.touch(mode=0o600)
    other.write_text("the secret of somebody else")
    with pytest.raises(OSError, match="secret"):
        Service(servers.master.address, secret=other, timeout=5)
    options = ("--name", "c", "--domain", "c", "--http", "none", "--death-timeout", "0.5")
    stranger = start("shuffle-server", servers.master.address, *options, secret=other)
    assert stranger.wait() == 1
    assert "secret" in stranger.output
    assert other.read_text() not in stranger.output
    servers.ready()
    whole_shuffle(servers)
    secret = (tmp_path / "secret").read_text()
    for process in (servers.master, *servers.processes.values()):
        assert secret not in process.output


def test_what_is_too_large_or_of_others_is_refused(servers: Servers) -> None:
    table = Table(MAPS, PARTITIONS, rows=1_000)
    with (
        servers.service.shuffle(MAPS, PARTITIONS, ROWS, name="ours") as shuffle,
        Service(servers.master.address, timeout=SOON) as other,
    ):
        receipts = table.write_all(shuffle)
        # What Python refuses before, another program may say.
        for maps, partitions in ((1, 2**32 - 1), (2**32 - 1, 1), (1, 0)):
            with pytest.raises(ValueError, match="give an integer from 1 to"):
                other.shuffle(maps, partitions)
            with pytest.raises(ShuffleError):
                other._native.register("none", maps, partitions, 2, b"", SOON, [], None)
        with pytest.raises(ShuffleError, match="another application's"):
            other.attach(shuffle.number).close()
        shuffle.commit(receipts)
        table.compare(shuffle)
    whole_shuffle(servers)


def test_an_application_that_registers_too_much_harms_no_other(servers: Servers) -> None:
    with Service(servers.master.address, timeout=SOON) as greedy:
        registered = (greedy.shuffle(1, 2**20) for _ in range(100))
        with pytest.raises(ShuffleError, match="too many shuffles of this application"):
            list(registered)
        whole_shuffle(servers)
