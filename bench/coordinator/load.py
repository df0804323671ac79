"""Measure pages and decisions with a month of jobs in the database.

``python bench/coordinator/load.py [JOBS [DATABASE]]``: by default 3,000,000 jobs in SQLite, served by the real process'
parts over HTTP on loopback. A database that is there is used again.
"""

from __future__ import annotations

import http.client
import json
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import uvicorn

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "coordinator"))

from filled import fill
from treadle.coordinator import _store
from treadle.coordinator._access import Access
from treadle.coordinator._app import app_of
from treadle.coordinator._pages import add_pages
from treadle.coordinator._protocol import BoundedProtocol
from treadle.coordinator._rules import Rule
from treadle.coordinator._service import Coordinator

SECONDS = 10.0
HEAD = (
    b"POST /api/decisions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3_000_000
    with tempfile.TemporaryDirectory() as folder:
        url = sys.argv[2] if len(sys.argv) > 2 else f"sqlite:///{folder}/c.db"
        coordinator = Coordinator(url, servers="etcd://example/treadle")
        now = time.time()
        if not coordinator.database.read(lambda c: _store.recurring_page(c, 1)):
            fill(coordinator, now, count, 30, 20_000)
            for n in range(50):
                coordinator.keep_rule(
                    Rule(f"rule {n}", queues=("etl",), names=(f"{n} *",)), "bench"
                )
            coordinator.keep_rule(Rule("all", percent=50.0), "bench")
            print(f"{count:,} jobs written in {time.time() - now:.0f} s", flush=True)
        access = Access(None)
        token = access.new_token("bench", "operator")
        app = app_of(coordinator, access)
        add_pages(app)
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="warning", access_log=False, http=BoundedProtocol)
        server = uvicorn.Server(config)
        threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
        address = listener.getsockname()
        pages(coordinator, address, token)
        # The clients are another process, so that they do not share the interpreter's lock with what is measured.
        import subprocess

        for rate in (100, 500):
            spent = time.process_time()
            command = [sys.executable, __file__, "--ask", str(address[1]), str(rate)]
            subprocess.run(command, check=True)
            each = 1000 * (time.process_time() - spent) / (rate * SECONDS)
            print(f"    {each:.2f} ms of a processor each", flush=True)
        server.should_exit = True
        coordinator.close()


def pages(coordinator: Coordinator, address: tuple[str, int], token: str) -> None:
    row = coordinator.database.read(lambda c: _store.jobs_page(c, limit=1))[0]
    middle = row["number"] // 2
    begins = row["name"].rpartition(" ")[0].replace(" ", "%20")
    paths = [
        "/",
        "/jobs",
        f"/jobs?before={middle}",
        f"/jobs?name={begins}",
        "/jobs?name=weekly%20users%20xx",
        "/jobs?name=daily",
        "/jobs?user=ann",
        "/jobs?state=failed&verdict=stock",
        "/jobs?user=nobody",
        f"/jobs/{row['id']}",
        "/jobs?queue=etl&cluster=batch-a",
        "/jobs?queue=nothing",
        "/stories",
        "/stories?user=ann",
        "/stories?queue=reports&standing=kept",
        "/stories?name=daily",
        "/stories?name=hourly%20clicks%20c",
        f"/stories/{row['recurring']}",
        "/rules",
        "/rules/1",
        "/alerts",
        "/alerts?all=1",
        "/alerts?kind=slower&name=daily",
        "/audit",
    ]
    connection = http.client.HTTPConnection(*address)
    for path in paths:
        took = []
        for _ in range(5):
            begun = time.perf_counter()
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, (path, answer.status)
            took.append(1000 * (time.perf_counter() - begun))
        print(
            f"{path:46} first {took[0]:7.1f} ms   median {statistics.median(took):7.1f} ms",
            flush=True,
        )
    begun = time.perf_counter()
    body = json.dumps({"rule": {"name": "r", "users": ["ann"]}})
    connection.request(
        "POST",
        "/api/rules/try",
        body,
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    told = json.loads(connection.getresponse().read())
    print(
        f"{'a rule tried on a day':46}       {1000 * (time.perf_counter() - begun):7.1f} ms   {told['sentence']}",
        flush=True,
    )


def ask(port: int, rate: float) -> None:
    """Ask at a steady rate from 16 threads; latency counts from when a question was due."""
    took: list[float] = []
    begin = time.perf_counter() + 0.2
    lock = threading.Lock()
    due = iter(range(int(rate * SECONDS)))

    def work() -> None:
        # Not http.client, which takes as long as the coordinator, on the same processors.
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = connection.makefile("rb")
        while True:
            with lock:
                number = next(due, None)
            if number is None:
                return
            at = begin + number / rate
            time.sleep(max(0.0, at - time.perf_counter()))
            job = {
                "cluster": "batch-a",
                "queue": "etl",
                "user": "ann",
                "name": f"daily {number % 5000} orders",
                "version": "3.5.9",
            }
            body = json.dumps({"job": job}).encode()
            connection.sendall(HEAD % len(body) + body)
            status, length = answers.readline().split()[1], 0
            assert status == b"200", status
            while (line := answers.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            assert json.loads(answers.read(length))["id"]
            took.append(1000 * (time.perf_counter() - at))

    threads = [threading.Thread(target=work) for _ in range(16)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    spent = time.perf_counter() - begin
    took.sort()
    print(
        f"decisions at {rate:g} a second: {len(took) / spent:.0f} a second, median {took[len(took) // 2]:.1f} ms, "
        f"99th percentile {took[int(0.99 * len(took))]:.1f} ms, longest {took[-1]:.1f} ms", flush=True,
    )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        ask(int(sys.argv[2]), float(sys.argv[3]))
    else:
        main()
