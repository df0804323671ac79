"""Clusters with certificates, and those whom they keep out."""

from __future__ import annotations

import os

import dask.array as da
import distributed
import numpy as np
import pytest

import casts_support
from casts_support import Caster
from client_support import AGAINST, SOON, add, client_class, double, inc, refused
from treadle import _core

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the certificates are Treadle's")


@pytest.fixture
def certs(tmp_path):
    """Makes a CA and a node's certificates; what `--tls` and `certificates=` are told."""

    def certs(name):
        directory = tmp_path / name
        _core.create_certs(str(directory), ["node"], 10, False)
        files = {"ca": "ca.pem", "certificate": "node.pem", "key": "node-key.pem"}
        paths = {what: str(directory / file) for what, file in files.items()}
        return str(directory / "node"), paths

    return certs


@pytest.fixture
def tls(start, certs):
    prefix, paths = certs("ours")
    scheduler = start("scheduler", "treadle+tls://127.0.0.1:0", "--tls", prefix)
    assert scheduler.address.startswith("treadle+tls://")
    return scheduler, prefix, paths


def test_work_is_done_with_certificates(tls, start):
    scheduler, prefix, paths = tls
    for name in ("a", "b"):
        worker = start("worker", scheduler.address, "--tls", prefix, "--name", name,
                       "--nthreads", "1")  # fmt: skip
        assert worker.address.startswith("treadle+tls://")
    with client_class()(scheduler.address, certificates=paths) as client:
        x = client.submit(bytes, 1_000_000, workers=["a"])
        y = client.submit(len, x, workers=["b"])  # from one worker to the other
        assert y.result(timeout=SOON) == 1_000_000
        assert x.result(timeout=SOON) == bytes(1_000_000)
        big = client.scatter(os.urandom(3_000_000), workers=["a"])
        assert client.submit(len, big, workers=["b"]).result(timeout=SOON) == 3_000_000
        assert client.gather(client.map(double, client.map(inc, range(50)))) == [
            2 * (i + 1) for i in range(50)
        ]
        array = da.ones((300, 300), chunks=100)
        assert (array + array.T).sum().compute() == 180_000
        assert set(client.run(inc, 1).values()) == {2}

        def nested():
            from distributed import worker_client

            with worker_client() as inner:
                return inner.submit(add, 1, 2).result(timeout=SOON)

        assert client.submit(nested).result(timeout=2 * SOON) == 3


def test_casts_with_certificates(tls, start):
    scheduler, prefix, paths = tls
    for name in ("a", "b", "c"):
        start("worker", scheduler.address, "--tls", prefix, "--name", name, "--nthreads", "1")
    with client_class()(scheduler.address, certificates=paths) as client:
        client.wait_for_workers(3, timeout=SOON)
        caster = Caster(client, 3)
        for size in (10, 3 << 20):
            results = caster.call(casts_support.add_up, np.ones(size, "u1"))
            assert list(results.values()) == [[str(size).encode()]] * 3


def test_certificates_of_another_authority_are_refused(tls, start, certs):
    scheduler, _prefix, paths = tls
    other_prefix, other_paths = certs("theirs")
    text = refused(scheduler.address, certificates=other_paths)
    assert "certificate" in text
    # It would not get in later either.
    assert "Timed out" not in text
    worker = start("worker", scheduler.address, "--tls", other_prefix)
    assert worker.wait() == 1
    assert "certificate" in worker.output
    assert "Traceback" not in worker.output
    with client_class()(scheduler.address, certificates=paths) as client:
        assert client.scheduler_info()["workers"] == {}


def test_a_scheduler_of_distributed_with_tls_is_no_scheduler_of_ours():
    security = distributed.Security.temporary()
    with distributed.LocalCluster(
        n_workers=0, security=security, dashboard_address=":0"
    ) as cluster:
        text = refused(cluster.scheduler_address, security=security)
    assert "treadle.attach" in text
    assert "Timed out" not in text


def test_plain_text_to_a_port_with_certificates_is_refused(tls, start):
    scheduler, _prefix, paths = tls
    plain = scheduler.address.replace("treadle+tls://", "treadle://")
    text = refused(plain)
    assert "TLS" in text or "tls" in text
    worker = start("worker", plain)
    assert worker.wait() == 1
    assert "tls" in worker.output.lower()
    with client_class()(scheduler.address, certificates=paths) as client:
        assert client.scheduler_info()["workers"] == {}


def test_certificates_on_a_port_without_are_refused(start, certs, join):
    prefix, paths = certs("ours")
    scheduler = start("scheduler", "--port", "0")
    tls = scheduler.address.replace("treadle://", "treadle+tls://")
    text = refused(tls, certificates=paths)
    assert "TLS" in text or "tls" in text
    worker = start("worker", tls, "--tls", prefix)
    assert worker.wait() == 1
    assert "tls" in worker.output.lower()
    assert join(scheduler).scheduler_info()["workers"] == {}


def test_a_wrong_secret_is_refused(start, join):
    scheduler = start("scheduler", "--port", "0")
    client = join(scheduler)
    assert "secret" in refused(scheduler.address, secret="another one, and long enough")
    assert client.scheduler_info()["workers"] == {}


def test_another_process_of_this_user_can_join_a_local_cluster(new_client, tmp_path):
    import subprocess
    import sys

    client = new_client(workers=1)
    script = (
        "import sys, treadle\n"
        "if __name__ == '__main__':\n"
        "    with treadle.Client(sys.argv[1]) as client:\n"
        "        print(client.submit(abs, -5).result(timeout=20))\n"
    )
    address = client.scheduler_info()["address"]
    done = subprocess.run(
        [sys.executable, "-c", script, address], capture_output=True, text=True, timeout=50
    )
    assert done.stdout == "5\n", done.stderr
