"""Rows of shuffle servers in a remote store: a directory here, and the stores of TREADLE_TEST_REMOTES.

``make test-remote`` names an S3-compatible server and HDFS there.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from process_support import Process
from service_support import ROWS, Servers, Table, commit_at_last
from treadle.shuffle import RowsLost, Service, Shuffle
from waiting import SOON, until

MAPS, PARTITIONS = 8, 16
NAMES = ("a", "b")
# Nothing of a run has room in directories with this limit.
FULL = ("--disk-limit", "1kB")
pytestmark = pytest.mark.usefixtures("few_rows_in_memory")


@pytest.fixture
def table() -> Table:
    return Table(MAPS, PARTITIONS, rows=60_000)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(params=["file", *os.environ.get("TREADLE_TEST_REMOTES", "").split()])
def remote(request: pytest.FixtureRequest, store: Path) -> str:
    return f"file://{store}" if request.param == "file" else request.param


def objects(store: Path, which: str = "*/*.shuffle") -> list[Path]:
    return sorted(store.glob(which))


def length(path: Path) -> int:
    """Bytes of an object; 0 if it has just been removed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def size(store: Path) -> int:
    return sum(map(length, objects(store)))


def written(table: Table, shuffle: Shuffle) -> None:
    shuffle.commit(table.write_all(shuffle))


def test_rows_that_full_disks_do_not_take_are_in_the_remote_store(
    new_servers: Callable[..., Servers], table: Table, remote: str
) -> None:
    servers = new_servers(NAMES, *FULL, "--remote", remote)
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
        written(table, shuffle)
        table.compare(shuffle)
        assert shuffle.lost() == []
        assert servers.copied(shuffle)["groups_with_fewer_copies"] == 0


def test_objects_go_with_their_shuffle_and_all_with_the_server(
    new_servers: Callable[..., Servers], table: Table, store: Path
) -> None:
    servers = new_servers(NAMES, "--remote", f"file://{store}", "--storage", "remote")
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
        written(table, shuffle)
        table.compare(shuffle)
        # In two copies, nearly all.
        until(lambda: size(store) > MAPS * 60_000 * ROWS.itemsize, lambda: str(size(store)))
        assert not any(list(servers.directory(name).rglob("*.shuffle")) for name in NAMES)
    until(lambda: not objects(store), lambda: str(objects(store)))
    servers.processes["a"].send(signal.SIGTERM)
    until(lambda: len(objects(store, "*")) == 1, lambda: str(objects(store, "*")))


def test_a_server_that_leaves_hands_over_what_it_has_in_the_remote_store(
    new_servers: Callable[..., Servers], table: Table, remote: str
) -> None:
    servers = new_servers(NAMES, *FULL, "--remote", remote)
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS, copies=1) as shuffle:
        written(table, shuffle)
        servers.service.drain("a")
        assert servers.processes.pop("a").wait() == 0
        table.compare(shuffle)
        assert shuffle.lost() == []


def test_a_store_that_returns_other_bytes_or_loses_some_is_noticed(
    new_servers: Callable[..., Servers], table: Table, store: Path
) -> None:
    stores = [store / name for name in NAMES]
    servers = new_servers()
    for name, place in zip(NAMES, stores, strict=True):
        servers.begin(name, *FULL, "--remote", f"file://{place}")
    servers.ready()
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
        written(table, shuffle)
        until(lambda: size(stores[0]) > MAPS * 60_000 * ROWS.itemsize // 2, "rows are there")
        for path in objects(stores[0])[::2]:
            content = bytearray(path.read_bytes())
            content[5_000::10_000] = bytes(byte ^ 1 for byte in content[5_000::10_000])
            path.write_bytes(content)
        for path in objects(stores[0])[1::2]:
            path.unlink()
        # The other copy is read.
        table.compare(shuffle)
        until(
            lambda: servers.copied(shuffle)["groups_with_fewer_copies"] > 0,
            lambda: str(servers.service.state()),
        )
        assert shuffle.lost() == []


def test_a_store_that_refuses_is_tried_again(
    new_servers: Callable[..., Servers], table: Table, store: Path
) -> None:
    servers = new_servers(NAMES, *FULL, "--remote", f"file://{store}")
    # Files are in the place of the directories in which objects are made.
    places = objects(store, "treadle-*")
    assert len(places) == len(NAMES)
    for place in places:
        shutil.rmtree(place)
        place.write_bytes(b"")
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS, copies=1) as shuffle:
        with ThreadPoolExecutor(1) as pool:
            receipts = pool.submit(table.write_all, shuffle)
            processes = [servers.processes[name] for name in NAMES]
            line = "cannot write rows of a shuffle: cannot write"
            until(lambda: any(line in one.output for one in processes), "it is refused")
            for place in places:
                place.unlink()
            shuffle.commit(receipts.result())
        table.compare(shuffle)


def test_what_a_killed_server_has_left_is_removed_by_others(
    start: Callable[..., Process],
    secret: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table: Table,
    store: Path,
) -> None:
    monkeypatch.setenv("TREADLE_SECRET_FILE", str(secret))
    servers = Servers(start, tmp_path, timeout=5.0, lease=5.0)
    for name in NAMES:
        servers.begin(name, *FULL, "--remote", f"file://{store}")
    servers.ready()
    with servers.service, servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
        written(table, shuffle)
        until(lambda: len(objects(store, "treadle-*")) == 2, "each has a directory")
        servers.kill("a")
        until(
            lambda: len(objects(store, "treadle-*")) == 1,
            lambda: str(objects(store, "*")),
            2 * SOON,
        )


def in_store(servers: Servers, shuffle: Shuffle) -> bool:
    """Whether each group has one copy, in the remote store."""
    found = servers.copied(shuffle)
    return bool(found["groups_in_remote_store"]) and (
        found["groups_in_remote_store"] == found["groups"]
        and found["groups_with_fewer_copies"] == 0
    )


def written_to_store(table: Table, servers: Servers, shuffle: Shuffle) -> None:
    """Write rows, and wait until each group has one copy, in the remote store."""
    written(table, shuffle)
    until(lambda: in_store(servers, shuffle), lambda: str(servers.service.state()))


def test_rows_in_the_remote_store_outlive_all_servers_that_wrote_them(
    start: Callable[..., Process],
    secret: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table: Table,
    store: Path,
    remote: str,
) -> None:
    monkeypatch.setenv("TREADLE_SECRET_FILE", str(secret))
    lease = 5.0
    servers = Servers(start, tmp_path, timeout=5.0, lease=lease)
    options = ("--remote", remote, "--storage", "remote")
    for name in NAMES:
        servers.begin(name, *options)
    servers.ready()
    with servers.service, servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
        written_to_store(table, servers, shuffle)
        # The room of the second copies is back.
        rows = MAPS * 60_000 * ROWS.itemsize
        until(lambda: size(store) < 1.5 * rows, lambda: str(objects(store)))
        servers.kill("a")
        table.compare(shuffle)
        servers.begin("c", *options)
        servers.ready()
        servers.kill("b")
        table.compare(shuffle)
        # Nobody who wrote the objects is there. Those who look for what dead servers have left find them.
        time.sleep(3 * lease)
        table.compare(shuffle)
        assert shuffle.lost() == []
        assert servers.copied(shuffle)["groups_with_fewer_copies"] == 0
    until(lambda: not objects(store), lambda: str(objects(store)))


def test_a_server_that_leaves_hands_over_its_objects_and_no_rows(
    new_servers: Callable[..., Servers], table: Table, remote: str
) -> None:
    options = ("--remote", remote, "--storage", "remote")
    servers = new_servers(NAMES, *options)
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
        written_to_store(table, servers, shuffle)
        servers.service.drain("a")
        assert servers.processes.pop("a").wait() == 0
        table.compare(shuffle)
        assert in_store(servers, shuffle)
        assert shuffle.lost() == []


def test_who_cannot_adopt_all_of_a_copy_removes_nothing_of_it(
    new_servers: Callable[..., Servers], table: Table, store: Path
) -> None:
    options = ("--remote", f"file://{store}", "--storage", "remote")
    servers = new_servers(NAMES, *options)
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
        a, b = (servers.processes[name] for name in NAMES)

        def runs_of_a() -> list[Path]:
            found = objects(store, f"treadle-{a.process.pid}-*/*.shuffle")
            return [path for path in found if length(path) > 20_000]

        receipts = []
        for number in range(MAPS):
            # A run for each, or more.
            receipts.append(table.write(shuffle, number))
            until(lambda number=number: len(runs_of_a()) > number, lambda: str(objects(store)))
        shuffle.commit(receipts)
        until(lambda: in_store(servers, shuffle), lambda: str(servers.service.state()))
        # The second copies are gone, with all of their runs.
        rows = MAPS * 60_000 * ROWS.itemsize
        until(lambda: size(store) < 1.02 * rows, lambda: f"{size(store) / rows}")
        runs = sorted(runs_of_a(), key=lambda path: int(path.stem))
        # Which copies stay is the masters' choice.
        assert len(runs) > 1
        # Inventories stay, and of the runs that they name the first one. The others cannot be opened now.
        hidden = {path: path.with_suffix(".away") for path in runs[1:]}
        for path, away in hidden.items():
            path.rename(away)
        servers.service.drain("a")
        until(lambda: "cannot adopt rows of a shuffle" in b.output, lambda: b.output)
        for path, away in hidden.items():
            away.rename(path)
        table.compare(shuffle)
        assert shuffle.lost() == []


def test_a_copy_in_the_remote_store_that_is_lost_or_altered_is_made_again(
    new_servers: Callable[..., Servers], table: Table, store: Path
) -> None:
    options = ("--remote", f"file://{store}", "--storage", "remote")
    servers = new_servers(NAMES, *options)
    with servers.service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
        written_to_store(table, servers, shuffle)
        for at, path in enumerate(objects(store)):
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            if at % 3 == 0:
                path.unlink()
            elif at % 3 == 1:
                path.write_bytes(content)
        servers.kill("a")
        for _ in range(20):
            try:
                table.compare(shuffle)
                break
            except RowsLost:
                receipts = [table.write(shuffle, at, again=True) for at in range(MAPS)]
                commit_at_last(shuffle, receipts, lambda at: table.write(shuffle, at, again=True))
        table.compare(shuffle)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--remote", "ftp://there/a"), "names no remote store"),
        (("--remote", "s3://me:hidden@rows/a"), "credentials"),
        (("--remote", "s3://rows/a?endpoint=http://127.0.0.1:1"), "cannot use the remote store"),
        (("--storage", "remote"), "--storage remote needs --remote"),
    ],
)
def test_what_cannot_be_used_is_refused_without_secrets(
    new_servers: Callable[..., Servers],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    reason: str,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "hidden")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    servers = new_servers()
    server = servers.begin("a", *options)
    assert server.wait() != 0
    until(lambda: reason in server.output, lambda: server.output)
    assert "hidden" not in server.output
    # No master had it meanwhile.
    del servers.processes["a"]
    servers.begin("b")
    servers.ready()
    until(lambda: "server b at" in servers.master.output, lambda: servers.master.output)
    assert "server a at" not in servers.master.output


def test_a_service_of_this_machine_takes_a_remote_store(
    table: Table, store: Path, tmp_path: Path
) -> None:
    with Service(
        memory_limit="512MB",
        local_directory=tmp_path / "files",
        remote=f"file://{store}",
        storage="remote",
    ) as service:
        assert len(objects(store, "treadle-*")) == 2
        with service.shuffle(MAPS, PARTITIONS, ROWS) as shuffle:
            written(table, shuffle)
            until(lambda: objects(store), "rows are there")
            table.compare(shuffle)
    assert not objects(store, "*")


def test_a_service_refuses_a_remote_store_that_it_cannot_have() -> None:
    with pytest.raises(ValueError, match="needs remote="):
        Service(storage="remote")
    with pytest.raises(ValueError, match="say 'local' or 'remote'"):
        Service(storage="disk")
    with pytest.raises(ValueError, match="give --remote to treadle shuffle-server"):
        Service("127.0.0.1:1", remote="file:///tmp/a")
