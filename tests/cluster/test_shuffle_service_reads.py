"""What reads take of a shuffle server, and of whom they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from process_support import kill, send
from service_support import ROWS, Servers, Table
from treadle.shuffle import Service, Shuffle
from waiting import SOON, until

PARTITIONS = 24
# Of 1 KiB: a partition has 16 MiB.
WIDE = np.dtype([("map", "u8"), ("value", "u8", (127,))])
ROWS_OF_A_MAP = 4096 * PARTITIONS


def peak(pid: int) -> int:
    """The most memory that a process has had so far, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


def test_reads_at_once_wait_until_there_is_memory_for_them(
    new_servers: Callable[..., Servers],
) -> None:
    servers = new_servers("")
    limit = 256 << 20
    server = servers.begin("a", "--memory-limit", str(limit))
    servers.ready()
    with servers.service.shuffle(4, PARTITIONS, WIDE, copies=1) as shuffle:
        numbers = np.arange(ROWS_OF_A_MAP) % PARTITIONS
        receipts = []
        for number in range(4):
            rows = np.zeros(ROWS_OF_A_MAP, WIDE)
            rows["map"] = number
            receipts.append(shuffle.write(number, rows, numbers))
        shuffle.commit(receipts)
        reader = shuffle.reader()

        def read(partition: int) -> int:
            found = reader.read(partition)
            assert np.array_equal(found["map"], np.repeat(np.arange(4), 4096))
            return len(found)

        with ThreadPoolExecutor(PARTITIONS) as pool:
            assert list(pool.map(read, range(PARTITIONS))) == PARTITIONS * [4 * 4096]
        assert peak(server.pid) < limit


# A process of another application that reads with many threads for as long as it lives.
READER = """
import os, sys, threading
from treadle.shuffle import Service

address, application, number, generation = sys.argv[1], *map(int, sys.argv[2:])
service = Service(address, own_master=False, application=application, timeout=600)
shuffle = service.attach(number)
reader = shuffle.reader(generation)

def read(partition):
    while True:
        reader.read(partition)
        os.write(1, b"read\\n")

for partition in range(shuffle.partitions):
    threading.Thread(target=read, args=[partition]).start()
"""


@contextmanager
def stopped_reader(servers: Servers, shuffle: Shuffle, application: int) -> Iterator[None]:
    """A reader process stands still, and further reads of it wait at the server."""
    told = map(str, (application, shuffle.number, shuffle.generation))
    process = subprocess.Popen(
        [sys.executable, "-c", READER, servers.master.address, *told], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"read\n"
        send(process.pid, signal.SIGSTOP)

        def waiting() -> bool:
            (server,) = servers.service.state()["servers"]
            return bool(server["waiting_requests"])

        until(waiting, "its reads wait for those that it does not take")
        yield
    finally:
        kill(process.pid)
        process.wait()


@contextmanager
def wide_shuffle(servers: Servers) -> Iterator[Shuffle]:
    """A shuffle of which a server can return few partitions at once. Some rows are in files."""
    servers.begin("a", "--memory-limit", "192 MiB")
    servers.ready()
    with servers.service.shuffle(2, PARTITIONS, WIDE, copies=1) as shuffle:
        rows = np.zeros(ROWS_OF_A_MAP, WIDE)
        numbers = np.arange(ROWS_OF_A_MAP) % PARTITIONS
        shuffle.commit([shuffle.write(number, rows, numbers) for number in range(2)])
        yield shuffle


def test_a_reader_that_stands_still_holds_up_no_other_application(
    new_servers: Callable[..., Servers],
) -> None:
    # Neither the master nor a server drops it.
    servers = new_servers(timeout=600)
    with wide_shuffle(servers) as shuffle, stopped_reader(servers, shuffle, application=7):
        clients = servers.service.state()["clients"]
        with Service(servers.master.address, application=8, timeout=SOON) as other:
            reader = other.attach(shuffle.number).reader(shuffle.generation)
            for partition in range(4):
                assert len(reader.read(partition)) == 2 * 4096
        assert servers.service.state()["clients"] == clients
        assert servers.service.state()["servers"][0]["waiting_requests"]


def test_a_process_that_the_master_has_dropped_holds_up_not_even_its_own_application(
    new_servers: Callable[..., Servers],
) -> None:
    servers = new_servers(timeout=4)
    with (
        wide_shuffle(servers) as shuffle,
        stopped_reader(servers, shuffle, application=7),
        Service(servers.master.address, own_master=False, application=7, timeout=SOON) as other,
    ):
        reader = other.attach(shuffle.number).reader(shuffle.generation)
        # Less than a server waits for a connection by itself.
        for partition in range(4):
            assert len(reader.read(partition, timeout=25)) == 2 * 4096
        assert servers.service.state()["clients"] == 2


def test_a_forked_child_is_told_that_they_are_its_parents(
    new_servers: Callable[..., Servers],
) -> None:
    servers = new_servers("ab")
    service, table = servers.service, Table(maps=1, partitions=1, rows=10)
    with service.shuffle(1, 1, ROWS) as shuffle:
        shuffle.commit(table.write_all(shuffle))
        reader = shuffle.reader()
        acts = [
            service.state,
            lambda: service.shuffle(1, 1),
            lambda: table.write(shuffle, 0),
            lambda: reader.read(0),
        ]
        child = os.fork()
        if child == 0:
            answers = 0
            for act in acts:
                try:
                    act()
                except RuntimeError as error:
                    answers += "belongs to the parent process" in str(error)
            service.close()
            os._exit(answers)
        status = 0

        def has_ended() -> bool:
            nonlocal status
            pid, status = os.waitpid(child, os.WNOHANG)
            return pid == child

        until(has_ended)
        assert os.waitstatus_to_exitcode(status) == len(acts)
        # The parent's goes on.
        table.compare(shuffle)
