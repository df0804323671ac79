"""Servers of the shuffle service that are killed, at any moment: every row comes, or an error says which do not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from service_support import ROWS, Servers, Table, commit_at_last
from treadle.shuffle import Receipt, RowsLost, Shuffle, Superseded
from waiting import until

MAPS, PARTITIONS = 12, 16


@pytest.fixture
def servers(new_servers: Callable[..., Servers]) -> Servers:
    return new_servers("abc")


@pytest.fixture
def table() -> Table:
    return Table(MAPS, PARTITIONS, rows=20_000)


def never(number: int) -> None:
    raise AssertionError(f"map {number} runs again, and a copy of its rows is left")


def test_while_maps_are_written_committed_and_read(servers: Servers, table: Table) -> None:
    """One server after another is killed and replaced; no map runs again, since the other copy is there."""
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
        receipts = table.write_all(shuffle, 4, lambda: servers.processes["a"].process.kill())
        servers.kill("a")
        # Between writing and the commit. What `a` had is copied to `c` and `b` meanwhile.
        wait_for_copies(servers, shuffle)
        servers.begin("d")
        servers.kill("b")
        assert commit_at_last(shuffle, receipts, never) == []
        # Between the commit and reading.
        table.compare(shuffle, range(4))
        wait_for_copies(servers, shuffle)
        servers.begin("e")
        servers.ready()
        servers.kill("c")
        table.compare(shuffle)
        assert shuffle.lost() == []


def test_while_rows_are_read(servers: Servers, table: Table) -> None:
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
        shuffle.commit(table.write_all(shuffle))
        begun = threading.Barrier(5)

        def read(part: int) -> None:
            table.compare(shuffle, [part])
            begun.wait()
            for _ in range(5):
                table.compare(shuffle, range(part, PARTITIONS, 4))

        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(read, part) for part in range(4)]
            begun.wait()
            servers.processes["b"].process.kill()
            for one in running:
                one.result()
        servers.kill("b")
        table.compare(shuffle)
        assert shuffle.lost() == []


def test_a_server_that_is_back_at_its_address_is_another_one(
    servers: Servers, table: Table
) -> None:
    """The case in which Cloud Shuffle Service returned 7 of 16 partitions with rows missing."""
    servers.kill("c")
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
        receipts = [table.write(shuffle, number) for number in range(6)]
        address = servers.processes["a"].address
        servers.processes["a"].process.kill()
        servers.processes["a"].process.wait()
        servers.begin("a", listen=address.partition("://")[2])
        assert servers.processes["a"].address == address
        servers.ready()
        receipts += [table.write(shuffle, number) for number in range(6, MAPS)]
        assert commit_at_last(shuffle, receipts, never) == []
        table.compare(shuffle)
        wait_for_copies(servers, shuffle)
        # What came back has all rows again.
        servers.kill("b")
        table.compare(shuffle)


def test_when_both_copies_are_gone_the_maps_that_must_run_again_are_named(
    servers: Servers, table: Table
) -> None:
    servers.kill("c")
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS, name="twice") as shuffle:
        receipts = table.write_all(shuffle)
        lose_all(servers)
        with pytest.raises(RowsLost, match=r"shuffle twice: .*Write maps 0-11 again") as lost:
            shuffle.commit(receipts)
        assert lost.value.maps == list(range(MAPS))
        ran = commit_at_last(shuffle, receipts, lambda number: table.write(shuffle, number))
        assert sorted(ran) == list(range(MAPS))
        table.compare(shuffle)
        # Once more, when some of it was read.
        early = shuffle.reader()
        lose_all(servers)
        with pytest.raises(RowsLost) as lost:
            table.compare(shuffle)
        for number in lost.value.maps:
            receipts[number] = table.write(shuffle, number, again=True)
        assert commit_at_last(shuffle, receipts, never) == []
        table.compare(shuffle)
        with pytest.raises(Superseded, match=r"twice, partition 3: .*take a new reader"):
            early.read(3)


def test_other_rows_spoil_what_was_read_before_and_nothing_that_is_read_later(
    servers: Servers, table: Table
) -> None:
    servers.kill("c")
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
        receipts = table.write_all(shuffle)
        shuffle.commit(receipts)
        table.compare(shuffle)
        early = shuffle.reader()
        lose_all(servers)
        assert not lost_by(lambda: early.read(0)).read_again
        table.rows[3]["value"] += 1
        write_lost(table, shuffle, receipts)
        lost = lost_by(lambda: shuffle.commit(receipts))
        assert lost.read_again
        assert lost.maps == list(range(MAPS))
        write_lost(table, shuffle, receipts)
        assert commit_at_last(shuffle, receipts, never) == []
        table.compare(shuffle)
        # What is read from now on is as it will be, also when rows are lost once more.
        later = shuffle.reader()
        lose_all(servers)
        assert not lost_by(lambda: later.read(0)).read_again
        assert not lost_by(lambda: shuffle.commit(receipts)).read_again
        # Who reads what was committed before has rows that do not fit.
        assert lost_by(lambda: early.read(0)).read_again
        write_lost(table, shuffle, receipts)
        assert commit_at_last(shuffle, receipts, never) == []
        table.compare(shuffle)


def lost_by(call: Callable[[], object]) -> RowsLost:
    with pytest.raises(RowsLost) as lost:
        call()
    return lost.value


def write_lost(table: Table, shuffle: Shuffle, receipts: list[Receipt]) -> None:
    for number in shuffle.lost():
        receipts[number] = table.write(shuffle, number, again=True)


def lose_all(servers: Servers) -> None:
    """Kill the two servers, and start others."""
    for name in list(servers.processes):
        servers.processes.pop(name).end()
    servers.begin("x")
    servers.begin("y")
    servers.ready()


def wait_for_copies(servers: Servers, shuffle: Shuffle) -> None:
    """Wait until each row has two copies again."""
    until(
        lambda: servers.copied(shuffle)["groups_with_fewer_copies"] == 0,
        lambda: str(servers.service.state()),
    )
