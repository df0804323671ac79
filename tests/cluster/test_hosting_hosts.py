"""The guide of docs/hosting-guides.md for several hosts with TLS: three network namespaces, of which one is
cut off in the middle of the work."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from client_support import AGAINST, SOON
from namespaces_support import hosts
from treadle import _core

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it is about both"),
    pytest.mark.timeout(6 * SOON, method="signal"),
]

HERE = Path(__file__).parent


@pytest.fixture
def network(tmp_path):
    with hosts(3, tmp_path) as made:
        if made is None:
            pytest.skip("this user may not have network namespaces")
        yield made


@pytest.fixture
def run_on(network, tmp_path):
    """Starts programs of this Python on hosts, and ends them."""
    path = os.pathsep.join(filter(None, [str(HERE), *sys.path]))
    environment = {**os.environ, "PYTHONPATH": path}
    with ExitStack() as stack:

        def start(host, *arguments):
            log = stack.enter_context((tmp_path / f"log-{len(logs)}").open("w"))
            logs.append(Path(log.name))
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env=environment,
                cwd=tmp_path,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=network.enter(host),
            )
            stack.callback(end, process)
            return process

        logs = start.logs = []
        yield start


def end(process):
    process.terminate()
    try:
        process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate(timeout=SOON)


def test_a_host_that_is_cut_off_in_the_middle(network, run_on, tmp_path):
    _core.create_certs(str(tmp_path), ["node"], 1, False)
    ca, node, key = (str(tmp_path / name) for name in ("ca.pem", "node.pem", "node-key.pem"))
    tls = ["--tls-ca-file", ca, "--tls-cert", node, "--tls-key", key]
    dask = ["-m", "dask"]
    where = ["--host", network.addresses[0], "--port", "8786"]
    run_on(0, *dask, "scheduler", *where, "--protocol", "tls", "--no-dashboard", *tls)
    scheduler = f"tls://{network.addresses[0]}:8786"
    for number in (1, 2):
        own = ["--host", network.addresses[number], "--nthreads", "1", "--no-dashboard"]
        run_on(number, *dask, "worker", scheduler, *own, *tls)
    script = run_on(0, str(HERE / "hosts_script.py"), scheduler, ca, node, key)

    def says(line):
        said = script.stdout.readline()
        assert said == f"{line}\n", (said, [path.read_text()[-3000:] for path in run_on.logs])

    def go_on():
        script.stdin.write("\n")
        script.stdin.flush()

    says("works")
    network.cut(2)
    go_on()
    says("is right")
    network.mend(2)
    go_on()
    says("is whole")
    script.communicate(timeout=SOON)
    assert script.returncode == 0, run_on.logs[-1].read_text()[-3000:]
