"""What shuffles leave behind: records at the scheduler, in the journal, and in the command line."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import treadle
from client_support import AGAINST, SOON, Gate, pass_gate
from treadle.shuffle import ShuffleRecord, _journal
from treadle.shuffle._journal import Journal, read
from waiting import until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="records are Treadle's own")


@pytest.fixture(autouse=True)
def p2p():
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        yield


def frame(count=4000, npartitions=4):
    """Every tenth row is of one key."""
    keys = np.where(np.arange(count) % 10 == 0, 0, np.arange(count))
    return dd.from_pandas(pd.DataFrame({"key": keys, "value": 1.0}), npartitions, sort=False)


def ended(client, count):
    def found():
        records = [one for one in client.shuffles() if one.state != "running"]
        return records if len(records) >= count else None

    return until(found, lambda: f"{count} records are there: {client.shuffles()}")


def fail(part):
    raise ZeroDivisionError("an input of the shuffle")


def held(part, gate):
    return pass_gate(gate, part)


class part_of:
    """An input for each number. The last one waits at a gate."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def __call__(self, number: int) -> pd.DataFrame:
        part = pd.DataFrame({"key": np.arange(100), "value": 1.0})
        return pass_gate(self.gate, part) if number == 3 else part


def test_records_of_one_that_is_read_that_fails_and_that_is_cancelled(tmp_path, gate: Gate):
    journal = tmp_path / "deep" / "shuffles.sqlite"
    configured = dask.config.set({"treadle.shuffle.journal": str(journal)})
    with configured, treadle.Client(workers=2, threads_per_worker=1) as client:
        lazy = frame()
        assert len(lazy.shuffle("key", npartitions=6).compute()) == 4000
        [record] = ended(client, 1)
        assert (record.kind, record.state, record.phase) == ("shuffle", "finished", "read")
        assert (record.inputs, record.outputs, record.partitions) == (4, 6, 6)
        assert (record.rows, record.moved_rows, record.repeated) == (4000, 4000, 0)
        assert record.work["reads"] == 6
        assert record.work["read_bytes"] == record.bytes == record.moved_bytes > 4000 * 16
        assert record.sizes.count == 6
        assert record.sizes.bytes == record.bytes == sum(record.sizes.bars)
        assert record.sizes.largest[0][1] == max(record.sizes.bars)
        assert record.sizes.skew > 1
        assert set(record.servers) == set(client.scheduler_info()["workers"])
        assert record.client == client.id
        assert "p2pshuffle" in record.key
        assert record.began <= record.ended
        assert min(record.seconds[phase] for phase in ("transfer", "barrier", "read")) > 0
        assert "finished" in repr(record)
        assert record.key[:19] in client.shuffles()._repr_html_()

        broken = lazy.map_partitions(fail, meta=lazy._meta).shuffle("key")
        with pytest.raises(ZeroDivisionError):
            broken.compute()
        _, failed = ended(client, 2)
        assert failed.state == "failed"
        assert "ZeroDivisionError('an input of the shuffle')" in failed.failure

        parts = dd.from_map(part_of(gate), range(4), meta=lazy._meta)
        futures = client.compute(parts.shuffle("key").to_delayed())

        def begun():
            return [one.transferred for one in client.shuffles().running] == [3]

        until(begun, "all inputs but one are transferred")
        [running] = client.shuffles().running
        assert (running.waits_for, running.sizes, running.ended) == ("inputs", None, None)
        client.cancel(futures)
        gate.open()
        del futures
        *_, cancelled = ended(client, 3)
        assert (cancelled.state, cancelled.phase, cancelled.transfers) == (
            *("cancelled", "transfer"),
            3,
        )
    kept = read(str(journal))
    assert [one.state for one in kept] == ["finished", "failed", "cancelled"]
    assert kept[0].to_dict() == {**record.to_dict(), "cluster": kept[0].cluster}
    assert [one.number for one in read(str(journal), state="failed")] == [failed.number]
    assert [one.number for one in read(str(journal), name=record.name[:6])] == [record.number]
    assert journal.stat().st_mode & 0o077 == 0


def test_a_record_says_which_worker_was_lost_and_what_ran_again(gate: Gate):
    with treadle.Client(workers=2, threads_per_worker=1) as client:
        shuffled = frame().shuffle("key", npartitions=4)
        futures = client.compute(
            shuffled.map_partitions(held, gate, meta=shuffled._meta).to_delayed()
        )
        until(gate.arrived, "an output was read")
        lost = next(iter(client.scheduler_info()["workers"]))
        client.restart_workers([lost])
        gate.open()
        assert sum(map(len, client.gather(futures))) == 4000
        del futures
        record = ended(client, 1)[-1]
        assert record.state == "finished"
        assert record.repeated > 0
        assert record.moved_bytes > record.bytes
        assert record.generation > 1
        assert f"worker {lost} was lost: " in record.troubles[0]["what"]


def test_a_journal_that_cannot_be_written_is_no_failure(tmp_path, caplog):
    path = tmp_path / "file" / "shuffles.sqlite"
    path.parent.write_text("no directory")
    configured = dask.config.set({"treadle.shuffle.journal": str(path)})
    warnings = caplog.at_level(logging.WARNING, "treadle.shuffle")
    with configured, warnings, treadle.Client(workers=1, threads_per_worker=1) as client:
        for _ in range(2):
            assert len(frame().shuffle("key").compute()) == 4000
        ended(client, 2)
    [warning] = [one for one in caplog.records if one.name == "treadle.shuffle"]
    assert str(path) in warning.getMessage()


def of_number(number):
    told = dict.fromkeys(ShuffleRecord.__dataclass_fields__)
    told.update(number=number, name=f"name-{number}", kind="shuffle", state="finished")
    told.update(began=float(number), ended=float(number), rows=1, bytes=1)
    return told


def test_a_journal_that_is_being_made_is_empty(tmp_path):
    path = tmp_path / "shuffles.sqlite"
    path.touch()
    assert read(str(path)) == []


def test_a_journal_is_bounded_and_another_file_is_left_alone(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(_journal, "MOST", 3)
    path = tmp_path / "shuffles.sqlite"
    journal = Journal(str(path), "cluster")
    for number in range(10):
        journal.write(of_number(number))
    # It may be told twice.
    journal.write(of_number(9))
    journal.close()
    assert [one.number for one in read(str(path))] == [7, 8, 9]
    other = tmp_path / "notes.txt"
    other.write_text("these are the notes of somebody. " * 100)
    before = other.read_bytes()
    journal = Journal(str(other), "cluster")
    journal.write(of_number(1))
    journal.close()
    assert other.read_bytes() == before
    assert "cannot be written" in caplog.text
    with pytest.raises(ValueError, match="is no journal"):
        read(str(other))
    with pytest.raises(FileNotFoundError, match="no journal of shuffles at"):
        read(str(tmp_path / "absent"))


def run(*arguments):
    command = [sys.executable, "-m", "treadle", "shuffle", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * SOON, check=False)


def test_the_commands(start, tmp_path):
    file, journal = tmp_path / "scheduler.json", tmp_path / "shuffles.sqlite"
    options = ("--scheduler-file", str(file), "--shuffle-journal", str(journal))
    # The file is there: a worker waits for half a second only.
    assert start("scheduler", "--port", "0", *options).address
    start("worker", "--scheduler-file", str(file), "--nthreads", "1")
    with treadle.Client(scheduler_file=str(file)) as client:
        assert len(frame().shuffle("key", npartitions=3).compute()) == 4000
        [record] = ended(client, 1)
        listed = run("list", "--scheduler-file", file, "--json", "-")
        assert json.loads(listed.stdout)["shuffles"] == [json.loads(json.dumps(record.to_dict()))]
        assert record.key[:19] in listed.stderr
        shown = run("show", record.number, "--scheduler-file", file)
        assert shown.returncode == 0, shown.stderr
        for part in ("4,000", "█", "finished", record.name):
            assert part in shown.stdout
        missing = run("show", "nothing-like-it", "--scheduler-file", file)
        assert missing.returncode == 1
        assert "knows no shuffle 'nothing-like-it'" in missing.stderr
        until(journal.exists, "it is in the journal")
        until(lambda: len(read(str(journal))) == 1, "it is in the journal")
    past = run("history", "--journal", journal)
    assert record.key[:19] in past.stdout
    one = run("history", record.name[:8], "--journal", journal, "--json", "-")
    assert json.loads(one.stdout)["bytes"] == record.bytes
    assert run("history", "--journal", tmp_path / "absent").returncode == 1
    assert run("list").returncode == 2
