"""What shuffles of a service leave behind: records at its master, in the journal, and in the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from service_support import ROWS, Servers, Table, commit_at_last
from treadle.shuffle import Service, ShuffleRecord
from treadle.shuffle._journal import read
from waiting import SOON, until

MAPS, PARTITIONS, COUNT = 4, 6, 5_000


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal" / "shuffles.sqlite"


@pytest.fixture
def servers(journal: Path, new_servers: Callable[..., Servers]) -> Servers:
    return new_servers("abc", journal=str(journal))


def ended(service: Service, count: int) -> list[ShuffleRecord]:
    def found() -> list[ShuffleRecord] | None:
        records = [one for one in service.records() if one.state != "running"]
        return records if len(records) >= count else None

    return until(found, lambda: f"{count} records are there: {service.records()}") or []


def run(*arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "treadle", "shuffle", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * SOON, check=False)


def test_records_of_one_that_is_read_and_of_one_that_is_given_up(
    servers: Servers, journal: Path
) -> None:
    service = servers.service
    table = Table(MAPS, PARTITIONS, COUNT)
    with service.shuffle(MAPS, PARTITIONS, ROWS, name="the whole table") as shuffle:
        receipts = table.write_all(shuffle)
        [running] = service.records().running
        assert (running.name, running.kind, running.transferred) == (
            "the whole table",
            "service",
            MAPS,
        )
        assert running.waits_for == "barrier"
        shuffle.commit(receipts)
        table.compare(shuffle)
    [record] = ended(service, 1)
    assert "the whole table" in record.row()
    assert (record.name, record.state, record.phase) == ("the whole table", "finished", "read")
    assert (record.inputs, record.outputs, record.copies) == (MAPS, PARTITIONS, 2)
    assert (record.rows, record.repeated) == (MAPS * COUNT, 0)
    assert record.bytes == MAPS * COUNT * ROWS.itemsize
    assert record.work["reads"] == PARTITIONS
    assert record.work["read_bytes"] == record.bytes
    assert record.work["stored_bytes"] >= 2 * record.bytes
    assert record.sizes is not None
    assert record.sizes.bytes == record.bytes
    assert set(record.servers) <= {"a", "b", "c"}
    assert len(record.servers) > 1
    # A busy machine may make one server slow.
    assert [one for one in record.troubles if "more slowly" not in one["what"]] == []

    with service.shuffle(MAPS, PARTITIONS, ROWS, name="harmed") as shuffle:
        receipts = table.write_all(shuffle)
        servers.kill("b")
        commit_at_last(shuffle, receipts, lambda number: table.write(shuffle, number, again=True))
        table.compare(shuffle)
    with service.shuffle(MAPS, PARTITIONS, ROWS, name="given up") as shuffle:
        table.write(shuffle, 0)
    _, harmed, given_up = ended(service, 3)
    assert (harmed.state, given_up.state, given_up.phase) == ("finished", "cancelled", "transfer")
    assert "b" in harmed.servers
    assert "server b was lost" in [trouble["what"] for trouble in harmed.troubles]

    until(lambda: journal.exists() and len(read(str(journal))) == 3, "the journal has them")
    assert [one.name for one in read(str(journal))] == ["the whole table", "harmed", "given up"]
    address = servers.master.address
    listed = run("list", "--service", address, "--json", "-")
    assert listed.returncode == 0, listed.stderr
    names = [one["name"] for one in json.loads(listed.stdout)["shuffles"]]
    assert names == ["the whole table", "harmed", "given up"]
    shown = run("show", "--service", "harmed", address)
    assert "server b was lost" in shown.stdout, shown.stderr
    missing = run("show", "--service", "nothing-like-it", address)
    assert missing.returncode == 1
    assert "the shuffle master knows no shuffle" in missing.stderr
    past = run("history", "the whole table", "--journal", journal)
    assert "20,000" in past.stdout, past.stderr
    assert run("list", "--service").returncode == 2


def test_a_service_of_this_process_has_the_configured_journal(journal: Path) -> None:
    with dask.config.set({"treadle.shuffle.journal": str(journal)}), Service() as service:
        with service.shuffle(1, 2, "i8", name="own") as shuffle:
            shuffle.commit([shuffle.write(0, np.arange(10), np.arange(10) % 2)])
            assert list(shuffle.reader().read(1)) == [1, 3, 5, 7, 9]
        ended(service, 1)
    [record] = read(str(journal))
    assert (record.name, record.state, record.rows) == ("own", "finished", 10)
