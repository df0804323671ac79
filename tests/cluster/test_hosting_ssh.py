"""The guide of docs/hosting-guides.md for a cluster that is started by SSH, with a real `sshd`."""

from __future__ import annotations

import os
import sys

import distributed
import pytest

import treadle
from client_support import AGAINST, SOON
from sshd_support import sshd, sshd_program
from waiting import until

PROGRAM = sshd_program()

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it is about both"),
    pytest.mark.skipif(
        PROGRAM is None,
        reason="there is no sshd: install openssh-server, or name one, TREADLE_SSHD=PATH",
    ),
    pytest.mark.timeout(6 * SOON, method="signal"),
]


def test_a_cluster_started_by_ssh(tmp_path):
    pytest.importorskip("asyncssh", reason="`make test-guides` installs it")
    with (
        sshd(PROGRAM, tmp_path) as server,
        distributed.SSHCluster(
            ["127.0.0.1"] * 3,  # the first one is the scheduler's
            connect_options=server.options,
            scheduler_options={"port": 0, "dashboard": False},
            worker_options={"nthreads": 1},
            remote_python=sys.executable,
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as there,
    ):
        there.wait_for_workers(2, timeout=SOON)
        with treadle.attach(there) as here:
            ours = {"scheduler": there.run_on_scheduler(os.getpid), **there.run(os.getpid)}
            assert os.getpid() not in ours.values()
            assert sorted(here.run(os.getpid).values()) == sorted(there.run(os.getpid).values())
            assert here.gather(here.map(abs, range(-9, 0))) == list(range(9, 0, -1))
            # `cluster.scale` ends nothing where the server gives no signals on to commands.
            there.retire_workers(list(there.scheduler_info()["workers"])[:1])
            until(lambda: len(here.ncores()) == 1, "a worker that goes takes ours along")
            assert here.submit(sum, [1, 2]).result() == 3
        assert there.submit(sum, [2, 2]).result() == 4
