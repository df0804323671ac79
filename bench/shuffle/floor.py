"""The least that a shuffle does: row blocks of NumPy, partitioned and concatenated over the cores.

As many processes as the cluster has workers; each partitions its share of the maps into memory that all
share, and concatenates its share of the partitions. No row is sent anywhere. Run as ``floor.py`` with
its arguments as JSON, it is one of these processes, and takes a line for each step.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from work import LARGEST, divisions

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """Sizes. With ``sort``, rows are partitioned by their first column, sorted by it and summed."""

    maps: int
    rows: int  # of a map
    columns: int  # of eight bytes; an index is one of them
    partitions: int
    sort: bool
    processes: int


def sorted_by(numbers: Array, partitions: int) -> tuple[Array, Array]:
    """The order of rows by partition, and the end of each partition in it."""
    # A stable sort of narrow integers counts digits.
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    return order, np.bincount(numbers, minlength=partitions).cumsum()


class Share:
    """What one process does."""

    def __init__(self, case: Case, number: int, folder: str) -> None:
        self.case = case
        self.maps = range(number, case.maps, case.processes)
        self.partitions = range(number, case.partitions, case.processes)
        self.divisions = divisions(case.partitions)
        self.inputs = {each: self._input(each) for each in self.maps}
        self.rows = np.memmap(
            Path(folder, "rows"), np.int64, "r+", shape=(case.maps, case.rows, case.columns)
        )
        self.ends = np.memmap(
            Path(folder, "ends"), np.int64, "r+", shape=(case.maps, case.partitions)
        )

    def _input(self, number: int) -> tuple[Array, Array]:
        random = np.random.default_rng(number)
        block = random.integers(0, LARGEST, (self.case.rows, self.case.columns))
        return block, random.integers(0, self.case.partitions, self.case.rows)

    def partition(self) -> None:
        for number, (block, partitions) in self.inputs.items():
            if self.case.sort:
                partitions = np.searchsorted(self.divisions[1:-1], block[:, 0], side="right")
            order, self.ends[number] = sorted_by(partitions, self.case.partitions)
            # Another mode than "raise" spares a copy.
            np.take(block, order, axis=0, out=self.rows[number], mode="clip")

    def concatenate(self) -> int:
        starts = self.ends - np.diff(self.ends, axis=1, prepend=0)
        found = 0
        for partition in self.partitions:
            spans = zip(starts[:, partition], self.ends[:, partition], strict=True)
            whole = np.concatenate(
                [self.rows[number, start:end] for number, (start, end) in enumerate(spans)]
            )
            if self.case.sort:
                whole = whole[np.argsort(whole[:, 0])]
                whole.sum(axis=0)
            found += len(whole)
        return found


class Floor:
    def __init__(self, case: Case, processes: list[Any]) -> None:
        self.case = case
        self.processes = processes

    def _step(self, name: str) -> int:
        for process in self.processes:
            process.tell(name)
        return sum(int(process.line(300)) for process in self.processes)

    def turn(self) -> float:
        """Seconds from the inputs to the last partition."""
        start = time.perf_counter()
        self._step("partition")
        found = self._step("concatenate")
        seconds = time.perf_counter() - start
        assert found == self.case.maps * self.case.rows, "the floor lost rows"
        return seconds


@contextmanager
def running(case: Case) -> Iterator[Floor]:
    """The processes, with their inputs made."""
    from program import Program

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        for name, words in (
            ("rows", case.maps * case.rows * case.columns),
            ("ends", case.maps * case.partitions),
        ):
            with Path(folder, name).open("wb") as file:
                file.truncate(words * 8)
        processes = []
        for number in range(case.processes):
            arguments = json.dumps({"number": number, "folder": folder, "case": asdict(case)})
            command = [sys.executable, __file__, arguments]
            processes.append(stack.enter_context(Program(command)))
        for process in processes:
            process.line(300)
        yield Floor(case, processes)


def main() -> None:
    given = json.loads(sys.argv[1])
    share = Share(Case(**given["case"]), given["number"], given["folder"])
    print("ready", flush=True)
    for line in sys.stdin:
        found = getattr(share, line.strip())()
        print(found or 0, flush=True)


if __name__ == "__main__":
    main()
