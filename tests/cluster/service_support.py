"""A shuffle service of real processes, and rows whose partitions are known."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ports import free_port
from process_support import Process
from treadle.shuffle import Receipt, RowsLost, Service, Shuffle
from waiting import SOON, until

ROWS = np.dtype([("map", "u4"), ("row", "u4"), ("value", "u8")])


class Servers:
    """A master, servers of it, and a connection of this process."""

    def __init__(
        self,
        start: Callable[..., Process],
        directory: Path,
        journal: str = "none",
        timeout: float = 10.0,
        lease: float = 60.0,
    ) -> None:
        self._start = start
        self._directory = directory
        limits = ("--timeout", f"{timeout:g}", "--lease", f"{lease:g}")
        self._options = ("--shuffle-journal", journal, *limits)
        self.master = start("shuffle-master", f"127.0.0.1:{free_port()}", *self._options)
        self.processes: dict[str, Process] = {}
        self.service = Service(self.master.address, timeout=SOON)

    def kill_master(self) -> None:
        """End the master by force: the registry of others. Its address stays known."""
        self._address = self.master.address
        self.master.end()

    def restart_master(self) -> None:
        """Start another one at its address."""
        where = self._address.rpartition("://")[2]
        self.master = self._start("shuffle-master", where, *self._options)

    def begin(self, name: str, *options: str, listen: str = "") -> Process:
        """Start a server; its name is its failure domain. Another one may come to its address."""
        listen = listen or f"127.0.0.1:{free_port()}"
        address = self.master.address
        arguments = ("--name", name, "--domain", name, "--http", "none", "--listen", listen)
        place = ("--local-directory", str(self.directory(name)))
        server = self._start("shuffle-server", address, *arguments, *place, *options)
        self.processes[name] = server
        return server

    def directory(self, name: str) -> Path:
        return self._directory / name

    def ready(self) -> None:
        """Wait until the master knows exactly the servers that there are."""

        def known() -> set[str]:
            return {server["name"] for server in self.service.state()["servers"]}

        wanted = set(self.processes)
        until(lambda: known() == wanted, lambda: f"servers {wanted}, there are {known()}")

    def kill(self, name: str) -> None:
        """End a server by force, and wait until the master knows it."""
        self.processes.pop(name).end()
        self.ready()

    def copied(self, shuffle: Shuffle) -> dict[str, Any]:
        (found,) = [
            one for one in self.service.state()["shuffles"] if one["shuffle"] == shuffle.number
        ]
        return found


class Table:
    """Maps with rows for every partition."""

    def __init__(self, maps: int, partitions: int, rows: int, seed: int = 0) -> None:
        self.maps, self.partitions = maps, partitions
        random = np.random.default_rng(seed)
        self.rows, self.numbers = [], []
        for number in range(maps):
            one = np.empty(rows, ROWS)
            one["map"], one["row"] = number, np.arange(rows)
            one["value"] = random.integers(0, 2**63, rows)
            self.rows.append(one)
            self.numbers.append(random.integers(0, partitions, rows))

    def write(self, shuffle: Shuffle, number: int, again: bool = False) -> Receipt:
        return shuffle.write(number, self.rows[number], self.numbers[number], again=again)

    def write_all(self, shuffle: Shuffle, after: int = -1, event: Any = None) -> list[Receipt]:
        """Write all maps, several at once; call ``event`` when so many are written."""
        done: list[int] = []
        lock = threading.Lock()

        def write(number: int) -> Receipt:
            receipt = self.write(shuffle, number)
            with lock:
                done.append(number)
                is_it = len(done) == after
            if is_it:
                event()
            return receipt

        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(write, range(self.maps)))

    def expected(self, partition: int, maps: Iterable[int] | None = None) -> Any:
        maps = range(self.maps) if maps is None else maps
        return np.concatenate([self.rows[at][self.numbers[at] == partition] for at in maps])

    def compare(self, shuffle: Shuffle, partitions: Iterable[int] | None = None) -> None:
        """Read partitions, and compare every row."""
        reader = shuffle.reader()
        count = 0
        for partition in range(self.partitions) if partitions is None else partitions:
            found, expected = reader.read(partition), self.expected(partition)
            assert np.array_equal(found, expected), difference(partition, found, expected)
            count += len(found)
        if partitions is None:
            assert count == sum(map(len, self.rows)) > 0


def difference(partition: int, found: Any, expected: Any) -> str:
    """Say in what rows differ: which are missing, which are too many, and where the order begins to differ."""
    came, wanted = Counter(found.tolist()), Counter(expected.tolist())
    missing, extra = list((wanted - came).elements()), list((came - wanted).elements())
    common = min(len(found), len(expected))
    first = next((at for at in range(common) if found[at] != expected[at]), common)
    return (
        f"partition {partition}: {len(found)} rows and not {len(expected)}, the first other one is {first}; "
        f"{len(missing)} missing {missing[:3]}, {len(extra)} too many {extra[:3]}; maps in the order "
        f"{[int(at) for at in dict.fromkeys(found['map'].tolist())]}"
    )


def commit_at_last(
    shuffle: Shuffle, receipts: list[Receipt], again: Callable[[int], Receipt]
) -> list[int]:
    """Commit; maps whose rows are lost run again. Returns which did."""
    ran: list[int] = []
    for _ in range(20):
        try:
            shuffle.commit(receipts)
        except RowsLost as lost:
            ran += lost.maps
            for number in lost.maps:
                receipts[number] = again(number)
        else:
            return ran
    raise AssertionError("it does not come to an end")
