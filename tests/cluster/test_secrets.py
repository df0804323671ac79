"""Which secrets are proved to whom: a cluster's own, beside certificates, and no other."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from client_support import AGAINST, SOON, add, client_class, has_no_workers, inc, refused
from treadle import LocalCluster, _core, transfer
from treadle.common import _addresses, _scheduler_file

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the handshake is Treadle's")


@pytest.fixture
def own(tmp_path):
    """The secret of a cluster of its own, in its file."""
    path = tmp_path / "own"
    path.touch(mode=0o600)
    path.write_text("a secret of one cluster")
    return path


@pytest.fixture
def certs(tmp_path):
    """What `--tls` and `certificates=` are told."""
    directory = tmp_path / "certs"
    _core.create_certs(str(directory), ["node"], 10, False)
    files = {"ca": "ca.pem", "certificate": "node.pem", "key": "node-key.pem"}
    return str(directory / "node"), {what: str(directory / name) for what, name in files.items()}


@pytest.mark.parametrize("given", ["a secret of one cluster\n", b"a secret of one cluster \n"])
def test_white_space_at_the_end_is_none_of_it(given, own):
    with LocalCluster(processes=False, secret=given) as cluster:
        for same in (given, own, "a secret of one cluster"):
            _addresses.forget(cluster.scheduler_address)
            with client_class()(cluster.scheduler_address, secret=same) as client:
                assert client.submit(inc, 1).result(timeout=SOON) == 2


def test_each_cluster_has_its_own(start, join, own):
    key = own.read_text()
    ours = start("scheduler", "--port", "0", "--secret-file", str(own))
    users = start("scheduler", "--port", "0")
    client = join(users)
    assert "its secret is another one" in refused(ours.address)
    assert "its secret is another one" in refused(users.address, secret=key)
    stranger = start("worker", ours.address)
    assert stranger.wait() == 1
    assert "its secret is another one" in stranger.output
    start("worker", ours.address, "--secret-file", str(own), "--nthreads", "1")

    def elsewhere(address):
        import treadle

        try:
            treadle.Client(address, timeout=20, set_as_default=False)
        except OSError as error:
            return str(error)

    with client_class()(ours.address, secret=own.read_text(), set_as_default=False) as member:
        assert member.submit(inc, 1).result(timeout=SOON) == 2
        # A task of this cluster does not prove the user's secret to another one.
        told = member.submit(elsewhere, users.address).result(timeout=SOON)
        assert "its secret is another one" in told
    assert has_no_workers(client)


@pytest.fixture
def here(own, monkeypatch):
    """Paths begin where the secret is."""
    monkeypatch.chdir(own.parent)
    monkeypatch.delenv("TREADLE_SECRET_FILE", raising=False)
    return monkeypatch


def test_a_cluster_keeps_the_place_of_its_secret(here, own):
    with LocalCluster(1, processes=True, threads_per_worker=1, secret=Path("own")) as cluster:
        here.chdir("/")
        assert cluster.secret_file == str(own)
        cluster.scale(2)
        with client_class()(cluster.scheduler_address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=SOON)


def test_a_client_keeps_the_place_of_its_secret(start, here, own):
    scheduler = start("scheduler", "--port", "0", "--secret-file", str(own))

    async def join():
        client = client_class()(scheduler.address, secret=Path("own"), asynchronous=True)
        here.chdir("/")
        async with client:
            assert client.status == "running"

    assert scheduler.address
    asyncio.run(join())


def test_a_scheduler_file_may_name_a_place_of_now(here, own):
    file = own.with_name("scheduler.json")
    _scheduler_file.write(file, {"address": "treadle://127.0.0.1:1", "secret_file": "own"})
    assert _addresses.of_file(file)[1].secret == own


def test_a_process_keeps_the_place_of_the_users_secret(start, here, own):
    here.setenv("TREADLE_SECRET_FILE", "own")
    scheduler = start("scheduler", "--port", "0", "--secret-file", str(own))
    for _ in range(2):
        with client_class()(scheduler.address) as client:
            here.chdir("/")
            assert client.status == "running"
    here.chdir(own.parent)
    here.setenv("TREADLE_SECRET_FILE", "own")
    with LocalCluster(processes=False) as cluster:
        here.chdir("/")
        assert cluster.secret_file == str(own)


def test_transfers_keep_the_place_of_the_users_secret(here, own):
    here.setenv("TREADLE_SECRET_FILE", "own")
    with transfer.listen("127.0.0.1:0") as listener:
        here.chdir("/")
        with transfer.connect(listener.address) as connection:
            assert connection.address


class TestBoth:
    """A secret beside certificates."""

    @pytest.fixture
    def scheduler(self, start, certs, own):
        prefix, _ = certs
        return start("scheduler", "treadle+tls://127.0.0.1:0", "--tls", prefix,
                     "--secret-file", str(own))  # fmt: skip

    def test_work_is_done(self, start, scheduler, certs, own):
        prefix, paths = certs
        for name in ("a", "b"):
            start("worker", scheduler.address, "--tls", prefix, "--secret-file", str(own),
                  "--name", name, "--nthreads", "1")  # fmt: skip

        def nested():
            from distributed import worker_client

            with worker_client() as inner:
                return inner.submit(add, 1, 2).result(timeout=SOON)

        with client_class()(
            scheduler.address, certificates=paths, secret=own.read_text()
        ) as client:
            big = client.scatter(os.urandom(3_000_000), workers=["a"])
            assert client.submit(len, big, workers=["b"]).result(timeout=SOON) == 3_000_000
            assert client.submit(nested).result(timeout=2 * SOON) == 3

    def test_a_certificate_alone_is_not_enough(self, start, scheduler, certs, own):
        prefix, paths = certs
        assert "only one side has a secret" in refused(scheduler.address, certificates=paths)
        wrong = refused(scheduler.address, certificates=paths, secret="another one, long enough")
        assert "its secret is another one" in wrong
        worker = start("worker", scheduler.address, "--tls", prefix)
        assert worker.wait() == 1
        assert "only one side has a secret" in worker.output
        with client_class()(
            scheduler.address, certificates=paths, secret=own.read_text()
        ) as client:
            assert has_no_workers(client)

    def test_nor_may_only_the_others_have_one(self, start, certs, own):
        prefix, paths = certs
        scheduler = start("scheduler", "treadle+tls://127.0.0.1:0", "--tls", prefix)
        assert "only one side" in refused(
            scheduler.address, certificates=paths, secret=own.read_text()
        )
        worker = start("worker", scheduler.address, "--tls", prefix, "--secret-file", str(own))
        assert worker.wait() == 1
        assert "only one side has a secret" in worker.output
        with client_class()(scheduler.address, certificates=paths) as client:
            assert has_no_workers(client)

    def test_a_worker_keeps_out_who_has_a_certificate_alone(self, start, scheduler, certs, own):
        from treadle import transfer

        prefix, _ = certs
        worker = start("worker", scheduler.address, "--tls", prefix, "--secret-file", str(own))
        with pytest.raises(transfer.HandshakeError, match="only one side has a secret"):
            transfer.connect(worker.address, tls=prefix)
