"""What reads take of a shuffle server, and of whom they are."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from service_support import ROWS, Servers, Table
from waiting import until

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
    server = servers.begin("a", "--memory-limit", "64 MiB")
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
        assert peak(server.pid) < 300 << 20


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
