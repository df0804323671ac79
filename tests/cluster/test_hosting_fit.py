"""What does not fit is refused by one sentence that says what to do, and names who does not fit."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest
from distributed.diagnostics.plugin import WorkerPlugin

import treadle
from client_support import AGAINST, SOON
from treadle.hosting._dask import made_where_it_fits
from treadle.hosting._version_check import SCHEDULER, check_hosts, check_installed

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it is about both"),
    pytest.mark.timeout(4 * SOON, method="signal"),
]

OURS = treadle.__version__
A, B = "tcp://10.0.0.1:1", "tcp://10.0.0.2:1"
HERE = {"OS": "Linux", "machine": "x86_64", "python": "3.11.2.final.0"}


def versions(scheduler=None, **workers):
    """What Dask says of a client, a scheduler and two workers that are alike, but for what is given."""
    changes = {A: {}, B: {}} | {{"a": A, "b": B}[one]: host for one, host in workers.items()}
    return {
        "client": {"host": HERE},
        "scheduler": {"host": HERE | (scheduler or {})},
        "workers": {address: {"host": HERE | host} for address, host in changes.items()},
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"b": {"python": "3.12.1.final.0"}},
            (
                f"Python 3.12 runs on workers {B} of the cluster, and 3.11 here: start them with "
                "Python 3.11, or this client with 3.12"
            ),
        ),
        ({"scheduler": {"python": "3.10.0.final.0"}}, "Python 3.10 runs on the scheduler of"),
        (
            {key: {"OS": "Windows", "machine": "AMD64"} for key in "ab"},
            (
                f"Treadle has no build for Windows AMD64 of workers {A}, {B} of the cluster: start "
                "them on Linux (x86_64 or aarch64)"
            ),
        ),
        ({"a": {"machine": "riscv64"}}, f"no build for Linux riscv64 of workers {A} of"),
        (
            {"scheduler": {"machine": "ppc64le"}, "a": {"machine": "ppc64le"}},
            f"no build for Linux ppc64le of the scheduler and workers {A} of the cluster",
        ),
    ],
)
def test_another_python_or_platform_is_refused(changes, said):
    with pytest.raises(RuntimeError, match=re.escape(said)):
        check_hosts(versions(**changes), "the cluster")


def test_what_fits_is_not_refused():
    # Another patch release of Python, the other architecture, a worker that has gone.
    changes = {"a": {"python": "3.11.9.final.0"}, "b": {"machine": "aarch64"}}
    found = versions(**changes)
    found["workers"]["tcp://10.0.0.3:1"] = None
    check_hosts(found, "the cluster")
    check_installed({SCHEDULER: (OURS, ""), A: (OURS, "")}, "the cluster")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            {A: (None, ""), B: (None, "")},
            (
                f"Treadle is not installed on workers {A}, {B} of the cluster: pip install "
                f"treadle=={OURS} there, or client.register_plugin(distributed.PipInstall("
                f"['treadle=={OURS}'])) with Dask's client"
            ),
        ),
        ({SCHEDULER: (None, "")}, "not installed on the scheduler of the cluster: pip install"),
        (
            {SCHEDULER: ("0.0.1", ""), A: ("0.0.1", "")},
            (
                f"Treadle has the version 0.0.1 on the scheduler and workers {A} of the cluster, and "
                f"{OURS} here: pip install treadle=={OURS} there"
            ),
        ),
        (
            {A: (None, "it needs Dask {2025.11}")},
            (
                f"Treadle cannot be imported on workers {A} of the cluster (it needs Dask {{2025.11}}): "
                f"pip install treadle=={OURS} there"
            ),
        ),
    ],
)
def test_no_treadle_or_another_version_is_refused(found, said):
    everybody = {SCHEDULER: (OURS, ""), A: (OURS, ""), B: (OURS, "")} | found
    with pytest.raises(RuntimeError, match=re.escape(said)):
        check_installed(everybody, "the cluster")


def hide():
    """Have nothing find Treadle in this process."""
    import sys

    class Hidden:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "treadle":
                raise ModuleNotFoundError("No module named 'treadle'", name="treadle")

    sys.meta_path.insert(0, Hidden())
    for name in [name for name in sys.modules if name.split(".")[0] == "treadle"]:
        del sys.modules[name]


def become(**host):
    import distributed.versions

    real = distributed.versions.get_system_info
    distributed.versions.get_system_info = lambda: real() | host


def test_a_real_cluster_is_refused(dask_client):
    there = dask_client(n_workers=2)
    one, other = there.scheduler_info()["workers"]
    there.run(hide, workers=[one])
    with pytest.raises(RuntimeError, match=f"^Treadle is not installed on workers {one} of the"):
        treadle.attach(there)
    there.run(become, machine="riscv64", workers=[other])
    with pytest.raises(
        RuntimeError, match=f"^Treadle has no build for Linux riscv64 of .* {other}"
    ):
        treadle.attach(there)
    there.run(become, machine="x86_64", python="3.9.1.final.0", workers=[other])
    with pytest.raises(RuntimeError, match=f"^Python 3.9 runs on workers {other} of the Dask"):
        treadle.attach(there)
    assert there.submit(sum, [1, 2]).result() == 3


def test_a_worker_without_treadle_joins_dask_all_the_same(dask_client):
    there = dask_client(n_workers=1)
    with treadle.attach(there) as here:
        script = f"{inspect.getsource(hide)}\nhide()\nfrom dask.__main__ import main\nmain()"
        command = [sys.executable, "-c", script, "worker", there.scheduler.address, "--no-nanny"]
        joining = subprocess.Popen([*command, "--no-dashboard"], stderr=subprocess.PIPE, text=True)
        try:
            there.wait_for_workers(2, timeout=SOON)
            for line in joining.stderr:
                if "will not use this worker" in line:
                    break
            assert f"pip install treadle=={OURS} here" in line
            (without,) = {one["name"] for one in workers(there)} - {
                one["name"] for one in workers(here)
            }
            assert there.submit(sum, [1, 2], workers=[without]).result() == 3
            assert here.submit(sum, [1, 2]).result() == 3
        finally:
            # It has nothing of Treadle, and Dask's own worker may take 30 seconds to close.
            joining.kill()
            joining.communicate(timeout=SOON)


def test_a_worker_of_another_python_that_joins_later_works_for_dask_alone(caplog):
    plugin = made_where_it_fits(b"no pickle", OURS, [2, 7])
    assert type(plugin) is WorkerPlugin
    assert "and the client Python 2.7" in caplog.text


def workers(client):
    return client.scheduler_info(n_workers=-1)["workers"].values()
