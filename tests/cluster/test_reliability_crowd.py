"""Two hundred clients that come, work and leave, one way or another: nothing of them is left."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from client_support import AGAINST, SOON, inc
from process_support import HERE, descriptors, resident, threads
from waiting import until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="it looks into Treadle's scheduler")

# Fifty in each process: five at a time, of which one never says goodbye.
SCRIPT = """
    import os, sys
    from concurrent.futures import ThreadPoolExecutor
    from client_support import add, inc
    from treadle import Client

    def visit(number):
        client = Client(sys.argv[1], set_as_default=False)
        futures = client.map(inc, range(number, number + 10), pure=False)
        value = client.submit(bytes, 100_000 + number, pure=False)
        assert client.gather(futures) == [n + 1 for n in range(number, number + 10)]
        assert len(client.submit(lambda b: b, value).result(timeout=30)) == 100_000 + number
        if number % 5:
            client.close()
        return client

    if __name__ == "__main__":
        with ThreadPoolExecutor(5) as pool:
            clients = list(pool.map(visit, range(int(sys.argv[2]))))
        print("done", flush=True)
        os._exit(0)
"""


def visit(scheduler, count, secret):
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SCRIPT), scheduler.address, str(count)],
            env={**os.environ, "PYTHONPATH": path, "TREADLE_SECRET_FILE": str(secret)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    try:
        for process in processes:
            assert process.communicate(timeout=90)[0] == "done\n"
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.timeout(180, method="signal")
def test_two_hundred_clients_leave_nothing_behind(start, join, secret):
    scheduler = start("scheduler", "--port", "0")
    worker = start("worker", scheduler.address, "--nthreads", "2")
    assert worker.address
    observer = join(scheduler)
    assert observer.submit(inc, 1).result(timeout=SOON) == 2

    def settled():
        state = scheduler.state()
        return len(state["clients"]) == 2 and sum(state["tasks"].values()) == 0

    def levels():
        return [(descriptors(p.pid), threads(p.pid)) for p in (scheduler, worker)]

    visit(scheduler, 5, secret)  # what is made once and kept
    until(settled, "the first visitors are forgotten")
    observer.run(inc, 1)
    before = levels()
    memory = resident(scheduler.pid)
    visit(scheduler, 50, secret)
    until(settled, "the visitors are forgotten")
    # Connections and threads are closed a little later than their clients are forgotten.
    until(
        lambda: all(
            now <= then + 4 for one, other in zip(levels(), before, strict=True)
            for now, then in zip(one, other, strict=True)
        ),
        f"descriptors and threads are as before: {before} and {levels()}",
    )  # fmt: skip
    grown = resident(scheduler.pid) - memory
    assert grown < 200 * 100_000, f"{grown} bytes for 200 clients that are gone"
    assert observer.submit(inc, 2).result(timeout=SOON) == 3
