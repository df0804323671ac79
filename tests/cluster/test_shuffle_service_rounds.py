"""Random rounds on one shuffle service: kills, pauses, maps that run twice. Every row is compared.

Servers have memory for all rows; or files and a remote store, with full disks and servers of the next release among
them.

TREADLE_ROUNDS is how many; the number of a round is its seed.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from process_support import Process
from service_support import ROWS, Servers, Table, commit_at_last
from treadle.shuffle import Receipt, RowsLost, Shuffle

ROUNDS = int(os.environ.get("TREADLE_ROUNDS", "4"))
FIRST = int(os.environ.get("TREADLE_ROUND", "0"))


class Round:
    """One shuffle, and what happens to its servers."""

    def __init__(
        self, servers: Servers, seed: int, options: Sequence[tuple[str, ...]] = ((),)
    ) -> None:
        self.servers = servers
        self.options = options
        self.random = random.Random(seed)
        self.seed = seed
        self.maps = self.random.randint(1, 20)
        partitions = self.random.randint(1, 40)
        self.table = Table(self.maps, partitions, self.random.randint(0, 20_000), seed)
        self.lock = threading.Lock()
        # After so many steps of the round (maps written, partitions read) something happens.
        steps = self.maps + partitions
        self.at = {self.random.randint(1, steps) for _ in range(self.random.randint(1, 2))}
        self.steps = 0
        self.paused: list[Process] = []

    def step(self) -> None:
        with self.lock:
            self.steps += 1
            if self.steps not in self.at:
                return
            name = self.random.choice(sorted(self.servers.processes))
            if self.random.random() < 0.3:
                server = self.servers.processes[name]
                server.send(signal.SIGSTOP)
                threading.Timer(1.0, server.send, [signal.SIGCONT]).start()
            else:
                self.servers.processes.pop(name).process.kill()
                new = f"{name[0]}-{self.seed}-{self.steps}"
                self.servers.begin(new, *self.random.choice(self.options))

    def write(self, shuffle: Shuffle, number: int, again: bool = False) -> Receipt:
        receipt = self.table.write(shuffle, number, again)
        self.step()
        if number % 3 == 0 and not again:
            # Which of two attempts counts is for the caller to say.
            other = self.table.write(shuffle, number)
            return self.random.choice([receipt, other])
        return receipt

    def read(self, shuffle: Shuffle, partition: int) -> int:
        reader, cut = shuffle.reader(), self.random.randint(0, self.maps)
        parts = [reader.read(partition, maps) for maps in ((0, cut), (cut, self.maps))]
        self.step()
        found = np.concatenate(parts)
        assert np.array_equal(found, self.table.expected(partition)), (self.seed, partition)
        return len(found)

    def run(self) -> None:
        with (
            self.servers.service.shuffle(self.maps, self.table.partitions, ROWS) as shuffle,
            ThreadPoolExecutor(3) as pool,
        ):
            receipts = list(pool.map(lambda at: self.write(shuffle, at), range(self.maps)))
            for _ in range(10):
                commit_at_last(shuffle, receipts, lambda at: self.write(shuffle, at, True))
                try:
                    counts = list(
                        pool.map(lambda at: self.read(shuffle, at), range(self.table.partitions))
                    )
                except RowsLost as lost:
                    for number in lost.maps:
                        receipts[number] = self.write(shuffle, number, True)
                else:
                    assert sum(counts) == sum(map(len, self.table.rows))
                    return
        raise AssertionError(f"round {self.seed} does not come to an end")


# It takes as long as there are rounds.
@pytest.mark.timeout(60 + 10 * ROUNDS, method="signal")
def test_random_rounds(new_servers: Callable[..., Servers]) -> None:
    servers = new_servers("abc")
    for seed in range(FIRST, FIRST + ROUNDS):
        servers.ready()
        Round(servers, seed).run()
    assert servers.service.state()["shuffles"] == []


# It takes as long as there are rounds.
@pytest.mark.timeout(60 + 15 * ROUNDS, method="signal")
@pytest.mark.usefixtures("few_rows_in_memory")
def test_random_rounds_with_disks_and_a_remote_store(
    new_servers: Callable[..., Servers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = ("--remote", f"file://{tmp_path / 'store'}")
    # All rows in the store; what files do not take; nothing has room in files.
    options = ((*remote, "--storage", "remote"), remote, (*remote, "--disk-limit", "1kB"))
    servers = new_servers()
    for name, some in zip("abc", options, strict=True):
        servers.begin(name, *some)
    # What replaces them is of the next release.
    servers.ready()
    monkeypatch.setenv("TREADLE_TESTING_SHUFFLE_PROTOCOL", "3")
    for seed in range(FIRST, FIRST + ROUNDS):
        servers.ready()
        Round(servers, seed, options).run()
    assert servers.service.state()["shuffles"] == []
