"""Shuffles of random rounds, and a registry or masters that die meanwhile. Every row is compared."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from applications_support import Application
from service_support import ROWS, Table, commit_at_last
from treadle.shuffle import Receipt, RowsLost, Service, Shuffle

# How many rounds, and the number of the first one: that of a round is its seed.
ROUNDS = int(os.environ.get("TREADLE_ROUNDS", "4"))
FIRST = int(os.environ.get("TREADLE_ROUND", "0"))


class Job:
    """A shuffle of which maps run twice, and whose partitions are read in two parts.

    ``step`` is called when a map is written or a partition is read.
    """

    def __init__(
        self, service: Service, chance: random.Random, seed: int, step: Callable[[], None]
    ) -> None:
        self.service = service
        self.random = chance
        self.seed = seed
        self.step = step
        self.maps = chance.randint(1, 20)
        self.table = Table(self.maps, chance.randint(1, 40), chance.randint(0, 20_000), seed)

    @property
    def steps(self) -> int:
        return self.maps + self.table.partitions

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
            self.service.shuffle(self.maps, self.table.partitions, ROWS) as shuffle,
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


class MasterRound:
    """Shuffles of several applications at once, while programs with masters of their own are killed, and a server."""

    def __init__(
        self,
        services: Sequence[Service],
        victims: Sequence[Application],
        lose_server: Callable[[], None],
        seed: int,
    ) -> None:
        chance = random.Random(seed)
        self.jobs = [
            Job(service, chance, 1_000 * seed + at, self.step)
            for at, service in enumerate(services)
        ]
        steps = range(1, sum(job.steps for job in self.jobs) + 1)
        ends = [*(victim.kill for victim in victims), lose_server]
        self.ends = [(chance.choice(steps), end) for end in ends]
        self.lock = threading.Lock()
        self.steps = 0

    def step(self) -> None:
        with self.lock:
            self.steps += 1
            for at, end in self.ends:
                if at == self.steps:
                    end()

    def run(self) -> None:
        with ThreadPoolExecutor(len(self.jobs)) as pool:
            for done in [pool.submit(job.run) for job in self.jobs]:
                done.result()


class RegistryRound:
    """Shuffles of several applications at once, while their registry dies and comes back, and perhaps a server is lost.

    ``registry`` kills it, and starts it again at its place. Afterwards it is there.
    """

    def __init__(
        self,
        services: Sequence[Service],
        registry: tuple[Callable[[], None], Callable[[], None]],
        lose_server: Callable[[], None],
        seed: int,
    ) -> None:
        self.kill, self.restart = registry
        self.lose_server = lose_server
        chance = random.Random(seed)
        self.jobs = [
            Job(service, chance, 1_000 * seed + at, self.step)
            for at, service in enumerate(services)
        ]
        # After so many steps of all jobs together it dies, comes back, dies, …
        steps = range(1, sum(job.steps for job in self.jobs) + 1)
        turns = sorted(chance.sample(steps, min(len(steps), chance.randint(1, 4))))
        self.turns = set(turns)
        # While it is away for the first time.
        later = turns[1] if len(turns) > 1 else steps[-1]
        self.loss = chance.randint(turns[0], later) if chance.random() < 0.5 else None
        self.lock = threading.Lock()
        self.steps = 0
        self.is_away = False

    def step(self) -> None:
        with self.lock:
            self.steps += 1
            if self.steps in self.turns:
                self.turn()
            if self.steps == self.loss:
                self.lose_server()

    def turn(self) -> None:
        if self.is_away:
            self.restart()
        else:
            self.kill()
        self.is_away = not self.is_away

    def run(self) -> None:
        with ThreadPoolExecutor(len(self.jobs)) as pool:
            for done in [pool.submit(job.run) for job in self.jobs]:
                done.result()
        for job in self.jobs:
            assert job.service.state()["shuffles"] == []
        if self.is_away:
            self.turn()
