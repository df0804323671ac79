"""Disks of the shuffle service that break (EIO): the other copy is read, or an error says what is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from broken_disks_support import Disks
from process_support import Process
from service_support import ROWS, Servers, Table, commit_at_last
from treadle.shuffle import NoRoom, Receipt, RowsLost, Shuffle
from waiting import until

MAPS, PARTITIONS, COUNT = 6, 8, 60_000
pytestmark = pytest.mark.usefixtures("few_rows_in_memory")


@pytest.fixture
def table() -> Table:
    return Table(MAPS, PARTITIONS, COUNT)


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disks:
    wishes = tmp_path / "wishes"
    wishes.mkdir()
    return Disks(wishes, monkeypatch)


@pytest.fixture
def servers(disks: Disks, new_servers: Callable[..., Servers]) -> Servers:
    del disks  # Before the servers, which look at it.
    return new_servers("ab")


def written(servers: Servers, table: Table, shuffle: Shuffle) -> list[Receipt]:
    """Write all maps, commit, and wait until most rows are in files of both servers."""
    receipts = table.write_all(shuffle)
    shuffle.commit(receipts)
    half = MAPS * COUNT * ROWS.itemsize // 2

    def size(name: str) -> int:
        files = servers.directory(name).rglob("*.shuffle")
        return sum(path.stat().st_size for path in files)

    until(lambda: all(size(name) > half for name in servers.processes), "rows are in files")
    return receipts


def said(process: Process, what: str) -> None:
    def found() -> bool:
        return f"cannot {what} rows of a shuffle" in process.output

    until(found, lambda: process.output)
    assert "Input/output error" in process.output


def test_a_disk_that_cannot_be_read(servers: Servers, disks: Disks, table: Table) -> None:
    """The rows come from the other copy. When neither can be read, it is said which maps are lost."""
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS, name="torn") as shuffle:
        receipts = written(servers, table, shuffle)
        a, b = servers.processes["a"], servers.processes["b"]
        disks.breaks(a, "read")
        table.compare(shuffle)
        said(a, "read")
        until(
            lambda: servers.copied(shuffle)["groups_with_fewer_copies"] > 0,
            lambda: str(servers.service.state()),
        )
        table.compare(shuffle)
        assert shuffle.lost() == []
        disks.breaks(b, "read")
        with pytest.raises(RowsLost, match="shuffle torn") as lost:
            table.compare(shuffle)
        said(b, "read")
        assert lost.value.maps == shuffle.lost() == list(range(MAPS))
        # Two servers with disks that can be read are all that is missing.
        for name in ("c", "d"):
            servers.begin(name)
        servers.ready()
        for name in ("a", "b"):
            servers.kill(name)
        commit_at_last(shuffle, receipts, lambda number: table.write(shuffle, number, again=True))
        table.compare(shuffle)


def test_a_disk_that_cannot_be_written(servers: Servers, disks: Disks, table: Table) -> None:
    """Rows go on to other servers. When no server can write any more, it is said why."""
    servers.begin("c")
    servers.ready()
    a = servers.processes["a"]
    disks.breaks(a, "write")
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
        receipts = table.write_all(shuffle)
        said(a, "write")
        assert commit_at_last(shuffle, receipts, lambda number: table.write(shuffle, number)) == []
        table.compare(shuffle)
    for name in ("b", "c"):
        disks.breaks(servers.processes[name], "write")
    rows = np.zeros(16_000_000, ROWS)
    partitions = np.arange(len(rows)) % PARTITIONS
    with servers.service.shuffle(1, PARTITIONS, ROWS, name="stuck") as shuffle:

        def is_full() -> bool:
            # The master knows sooner or later that none has room.
            with pytest.raises((TimeoutError, NoRoom), match="shuffle stuck, map 0"):
                shuffle.write(0, rows, partitions, again=True, timeout=4)
            processes = servers.processes.values()
            return all("cannot write rows" in process.output for process in processes)

        until(is_full, "no server can write")
        for process in servers.processes.values():
            said(process, "write")
            assert process.process.poll() is None
    # What fits into memory can be moved all the same.
    small = Table(2, PARTITIONS, 100)
    with servers.service.shuffle(2, PARTITIONS, ROWS) as shuffle:
        shuffle.commit(small.write_all(shuffle))
        small.compare(shuffle)
