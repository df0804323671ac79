"""What the tests with real processes share: a mixed workload whose results are known, and processes.

Functions for tasks are here, so that workers can import them.
"""

from __future__ import annotations

import random
import time
from typing import Any

import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd

from client_support import SOON
from treadle.client import DataLost
from waiting import until

WORDS = 40_000  # of eight bytes: too large to live at the scheduler


def nap(seconds: float) -> None:
    """Take a moment, as a task does that computes."""
    time.sleep(seconds)


def step(x: int, seconds: float = 0.0) -> int:
    nap(seconds)
    return x * 3 + 1


def combine(*xs: int) -> int:
    return sum(xs) % 1_000_003


def block(seed: int) -> np.ndarray:
    return np.arange(WORDS, dtype="i8") * (seed + 1)


def blend(*blocks: np.ndarray) -> np.ndarray:
    total = np.zeros(WORDS, "i8")
    for one in blocks:
        total = total * 31 + one
    return total


def checksum(values: np.ndarray) -> int:
    return int(np.bitwise_xor.reduce(values * np.arange(1, len(values) + 1)))


class Workload:
    """Tasks of all kinds, and what they must come to, computed here one after the other."""

    def __init__(self, client: distributed.Client, seed: int) -> None:
        self.client = client
        self.random = random.Random(seed)
        self.name = f"round-{seed}"
        #: Future, or future of scattered data's reader; the value; whether it reads scattered data.
        self.expected: list[tuple[distributed.Future, Any, bool]] = []

    def submit(self) -> None:
        parts = [self.chain, self.tree, self.blocks, self.scattered, self.cancelled, self.array]
        parts.append(self.frame)
        self.random.shuffle(parts)
        for part in parts:
            part()

    def expect(self, future: distributed.Future, value: Any, scattered: bool = False) -> None:
        self.expected.append((future, value, scattered))

    def key(self, *parts: object) -> str:
        return "-".join(map(str, (self.name, *parts)))

    def chain(self) -> None:
        value = self.random.randrange(1000)
        future = self.client.submit(step, value, 0.002, key=self.key("chain", 0))
        value = step(value)
        for number in range(1, 40):
            future = self.client.submit(step, future, 0.002, key=self.key("chain", number))
            value = step(value)
        self.expect(future, value)

    def tree(self) -> None:
        leaves = [self.random.randrange(1000) for _ in range(64)]
        futures = self.client.map(step, leaves, key=[self.key("leaf", i) for i in range(64)])
        values = [step(leaf) for leaf in leaves]
        level = 0
        while len(futures) > 1:
            futures = [
                self.client.submit(combine, *futures[i : i + 4], key=self.key("tree", level, i))
                for i in range(0, len(futures), 4)
            ]
            values = [combine(*values[i : i + 4]) for i in range(0, len(values), 4)]
            level += 1
        self.expect(futures[0], values[0])

    def blocks(self) -> None:
        """Large values that several tasks read, on whatever worker they are."""
        futures = [self.client.submit(block, i, key=self.key("block", i)) for i in range(8)]
        values = [block(i) for i in range(8)]
        for number in range(8):
            chosen = self.random.sample(range(8), 4)
            blended = self.client.submit(
                blend, *(futures[i] for i in chosen), key=self.key("blend", number)
            )
            summed = self.client.submit(checksum, blended, key=self.key("sum", number))
            self.expect(summed, checksum(blend(*(values[i] for i in chosen))))

    def scattered(self) -> None:
        value = block(self.random.randrange(1000))
        small = self.random.randrange(1000)
        data, little = self.client.scatter([value, small], hash=False)
        for number in range(3):
            future = self.client.submit(checksum, data, key=self.key("scattered", number))
            self.expect(future, checksum(value), scattered=True)
        # It lives at the scheduler: no worker can take it along.
        self.expect(self.client.submit(step, little, key=self.key("little")), step(small))

    def cancelled(self) -> None:
        """Tasks that are cancelled while they wait, run, or are done already; nobody reads them."""
        futures = self.client.map(
            step, range(12), seconds=0.01, key=[self.key("gone", i) for i in range(12)]
        )
        self.client.cancel(self.random.sample(futures, 6))

    def array(self) -> None:
        n = 60 + self.random.randrange(20)
        x = da.arange(n * n, chunks=(n * n) // 5).reshape((n, n)).rechunk((n // 3, n // 2))
        y = ((x + x.T) % 1009).sum(axis=0).max()
        whole = np.arange(n * n).reshape((n, n))
        self.expect(self.client.compute(y), ((whole + whole.T) % 1009).sum(axis=0).max())

    def frame(self) -> None:
        """A merge by tasks, and a groupby of what it gives."""
        n = 400 + self.random.randrange(200)
        left = pd.DataFrame({"id": np.arange(n) % 97, "x": np.arange(n)})
        right = pd.DataFrame({"id": np.arange(97), "group": np.arange(97) % 7})
        parts = dd.from_pandas(left, npartitions=4)
        others = dd.from_pandas(right, npartitions=3)
        merged = parts.merge(others, on="id", shuffle_method="tasks")
        sums = self.client.compute(merged.groupby("group").x.sum())
        whole = left.merge(right, on="id").groupby("group").x.sum()
        self.expect(self.client.submit(dict, sums, key=self.key("frame")), dict(whole))

    def check(self) -> int:
        """Compare everything with what it must be; how many values were lost with their worker."""
        lost = 0
        deadline = time.monotonic() + 2 * SOON
        for future, value, scattered in self.expected:
            try:
                found = future.result(timeout=max(deadline - time.monotonic(), 0.1))
            except DataLost:
                # What a client brought has no recipe: its only holder may have been killed.
                assert scattered, f"{future.key} is no reader of scattered data"
                lost += 1
                continue
            except TimeoutError:
                raise AssertionError(
                    f"{future.key} is {future.status}: {self.client.story(future.key)}"
                ) from None
            assert found == value, future.key
        return lost


def processes(client: distributed.Client) -> dict[str, int]:
    """The worker processes of a client's own cluster by name, without asking them."""
    return {name: worker.pid for name, worker in client.cluster.workers.items()}


def connected(client: distributed.Client) -> dict[str, int]:
    """Those of them that the scheduler has; all, where it has none yet."""
    workers = client.scheduler_info()["workers"].values()
    names = {str(worker["name"]) for worker in workers}
    return {name: pid for name, pid in processes(client).items() if name in names} or processes(
        client
    )


def until_replaced(client: distributed.Client, name: str, pid: int) -> None:
    until(lambda: processes(client)[name] != pid, f"worker {name} is replaced")
