"""Disks of the shuffle service that lie or are full: the other copy is read, or an error says what is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from service_support import ROWS, Servers, Table, commit_at_last
from treadle.shuffle import DamagedRows, Receipt, RowsLost, Shuffle
from waiting import until

MAPS, PARTITIONS = 8, 16
pytestmark = pytest.mark.usefixtures("few_rows_in_memory")


@pytest.fixture
def table() -> Table:
    return Table(MAPS, PARTITIONS, rows=60_000)


@pytest.fixture
def servers(new_servers: Callable[..., Servers]) -> Servers:
    return new_servers()


def files(servers: Servers, name: str) -> list[Path]:
    return sorted(servers.directory(name).rglob("*.shuffle"))


def flip(servers: Servers, name: str) -> int:
    """Flip a bit in every 10,000th byte of all files of a server; return how many."""
    count = 0
    for path in files(servers, name):
        with path.open("r+b") as file:
            content = bytearray(file.read())
            for at in range(5_000, len(content), 10_000):
                content[at] ^= 1
                count += 1
            file.seek(0)
            file.write(content)
    return count


def written(servers: Servers, table: Table, shuffle: Shuffle) -> list[Receipt]:
    receipts = table.write_all(shuffle)
    shuffle.commit(receipts)
    half = MAPS * 60_000 * ROWS.itemsize // 2

    def size(name: str) -> int:
        return sum(path.stat().st_size for path in files(servers, name))

    until(lambda: all(size(name) > half for name in servers.processes), "rows are in files")
    return receipts


def test_bits_that_flipped_in_one_copy_are_noticed_and_the_other_one_is_read(
    servers: Servers, table: Table
) -> None:
    for name in ("a", "b"):
        servers.begin(name)
    servers.ready()
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
        written(servers, table, shuffle)
        assert flip(servers, "a") > PARTITIONS
        table.compare(shuffle)
        # It was noticed: what is damaged counts as no copy.
        until(
            lambda: servers.copied(shuffle)["groups_with_fewer_copies"] > 0,
            lambda: str(servers.service.state()),
        )
        table.compare(shuffle)
        assert shuffle.lost() == []


def test_bits_that_flipped_in_both_copies_are_an_error_and_the_maps_run_again(
    servers: Servers, table: Table
) -> None:
    for name in ("a", "b", "c"):
        servers.begin(name)
    servers.ready()
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS, name="torn") as shuffle:
        receipts = written(servers, table, shuffle)
        assert all(flip(servers, name) > PARTITIONS for name in servers.processes)
        with pytest.raises((RowsLost, DamagedRows), match="shuffle torn"):
            table.compare(shuffle)
        maps = shuffle.lost()
        assert maps == list(range(MAPS))
        for number in maps:
            receipts[number] = table.write(shuffle, number, again=True)
        for _ in range(PARTITIONS):
            commit_at_last(shuffle, receipts, lambda number: table.write(shuffle, number, True))
            try:
                table.compare(shuffle)
            except RowsLost as lost:
                # Another group of what is damaged was read.
                for number in lost.maps:
                    receipts[number] = table.write(shuffle, number, again=True)
            else:
                return
        raise AssertionError("it does not come to an end")


def test_a_server_whose_disk_is_full_is_passed_over(servers: Servers, table: Table) -> None:
    # With this factor it gets more than half of the partitions.
    little = ("--disk-limit", "1kB", "--weight", "100000")
    servers.begin("full", *little)
    for name in ("a", "b"):
        servers.begin(name)
    servers.ready()
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
        receipts = table.write_all(shuffle)
        full = servers.processes["full"]
        until(lambda: "cannot write rows of a shuffle" in full.output, lambda: full.output)
        assert commit_at_last(shuffle, receipts, lambda number: table.write(shuffle, number)) == []
        table.compare(shuffle)
