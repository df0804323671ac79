"""The process of a coordinator: what it prints and refuses, its end, and clients of Dask."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import dask
import pytest

from mailbox_support import Mailbox
from treadle.coordinator import _settings
from treadle.coordinator._asking import ask

JOB = {"name": "daily 1", "user": "ann"}
COMMAND = [sys.executable, "-m", "treadle", "coordinator", "--listen", "127.0.0.1:0"]


class Process:
    """A coordinator of its own process."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *options],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().rpartition(" ")[2].strip()
        found = re.search(r"#(\S+)", self.process.stdout.readline())
        assert found is not None
        self.token = found[1]

    def post(self, path: str, body: dict) -> dict:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def get(self, path: str) -> dict:
        headers = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(f"{self.url}{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def start(tmp_path: Path):
    made: list[Process] = []

    def make(*options: str) -> Process:
        made.append(Process(tmp_path, *options))
        return made[-1]

    yield make
    for one in made:
        one.end(signal.SIGKILL)


def test_a_head_without_an_end_is_refused(start) -> None:
    """Whoever connects needs no token for it: it must not be kept."""
    host, _, port = start().url.rpartition("/")[2].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " + 80_000 * b"x")
        # What follows may be lost: it is closed while more comes.
        assert connection.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 400"
    # What comes behind a body is kept as well.
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(
            b"POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "
        )
        # 65 MB: more than what is on its way.
        with pytest.raises(ConnectionError):
            connection.sendall(1_000 * 65_536 * b"x")
    # One that is long, and within the bound, is answered.
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        for _ in range(3):
            connection.sendall(
                b"GET /x HTTP/1.1\r\nHost: localhost\r\nX-Long: " + 40_000 * b"x" + b"\r\n\r\n"
            )
            assert connection.recv(12) == b"HTTP/1.1 404"
            while not connection.recv(65536).endswith(b"}"):
                pass


def test_what_was_decided_survives_a_kill_and_jobs_go_on_without_it(start) -> None:
    first = start()
    first.post("/api/rules", {"rule": {"name": "all"}})
    told = ask(first.url, JOB, seconds=30)
    assert told.uses_service
    # In the middle of many decisions.
    answered: list[str] = []

    def go_on() -> None:
        while (answer := ask(first.url, JOB, seconds=30)).id:
            answered.append(answer.id)

    threads = [threading.Thread(target=go_on) for _ in range(16)]
    for one in threads:
        one.start()
    while len(answered) < 200:
        time.sleep(0.01)
    first.end(signal.SIGKILL)
    for one in threads:
        one.join(60)
    assert not ask(first.url, JOB).id
    second = start()
    # Not by asking again: that would decide anew.
    for identity in [told.id, *answered]:
        assert second.get(f"/api/decisions/{identity}")["verdict"] == "service"
    for n in range(200):
        second.post("/api/decisions", {"id": f"new-{n}", "job": JOB})
    second.end()
    assert second.process.returncode in (0, -signal.SIGTERM)


def test_alerts_leave_by_the_webhook(start) -> None:
    told: list[dict] = []
    arrived = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            arrived.set()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        process = start("--webhook", f"http://127.0.0.1:{server.server_port}/hook")
        process.post("/api/rules", {"rule": {"name": "all"}})
        process.post("/api/decisions", {"id": "j", "job": JOB})
        process.post("/api/jobs/j/end", {"failed": True, "cause": "service", "error": "no room"})
        assert arrived.wait(60)
        server.shutdown()
    assert told[0]["alerts"] == [
        {"kind": "failed", "text": "daily * failed because of the service: no room"}
    ]


def test_alerts_leave_as_mail(start) -> None:
    with Mailbox() as box:
        options = ("--mail", "ops@example.com", "--mail-from", "t@example.com")
        process = start(*options, "--smtp", f"smtp://{box.address}")
        process.post("/api/rules", {"rule": {"name": "all"}})
        process.post("/api/decisions", {"id": "j", "job": JOB})
        process.post("/api/jobs/j/end", {"failed": True, "cause": "service", "error": "no room"})
        told = box.next()
    assert (told.sender, told.receivers) == ("t@example.com", ["ops@example.com"])
    assert told.lines == ["daily * failed because of the service: no room"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--listen", "0.0.0.0:0"], "give --tokens FILE"),
        (
            ["--listen", "0.0.0.0:0", "--proxy-header", "X-User", "--proxy", "127.0.0.1"],
            "--proxy-secret-file",
        ),
        (
            ["--listen", "0.0.0.0:0", "--proxy-header", "X-User", "--proxy", "192.0.2.1"],
            "--certificate",
        ),
        (["--proxy-header", "X-User", "--proxy", "::1"], "--proxy-secret-file"),
        (["--proxy-header", "X-User", "--proxy", "proxy.example"], "IP address"),
        (["--listen", "nonsense"], "HOST:PORT"),
        (["--mail", "a@example.com"], "need each other"),
        (["--mail", "a@example.com", "--smtp", "http://mail"], "smtps://HOST"),
        (["--mail", "a@example.com", "--smtp", "smtp://a:b@mail"], "--smtp-login-file"),
        (["--smtp-login-file", "/dev/null"], "needs --smtp"),
        (["--webhook", "file:///etc/passwd"], "http"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, options, words) -> None:
    done = subprocess.run(
        [*COMMAND, *options], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert words in done.stderr


def test_a_job_may_ask_and_not_look(start) -> None:
    process = start()
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(process.url + "/api/jobs", timeout=30)


def test_dasks_shuffles_use_the_servers_that_were_decided(start) -> None:
    process = start("--servers", "static:127.0.0.1:1")
    process.post("/api/rules", {"rule": {"name": "dask", "engines": ["dask"]}})
    with dask.config.set(
        {"treadle.coordinator.url": process.url, "treadle.coordinator.queue": "q"}
    ):
        # Of a static list nobody knows the room.
        assert _settings.servers_of(_settings.asked()) == "static:127.0.0.1:1"
        process.post("/api/switch", {"is_on": False})
        assert _settings.servers_of(_settings.asked()) is None
        process.end(signal.SIGKILL)
        assert _settings.servers_of(_settings.asked()) is None
    assert _settings.servers_of(_settings.asked()) is None


def test_a_client_asks_once_and_goes_on_without_an_answer(start) -> None:
    import treadle

    process = start("--servers", "static:127.0.0.1:1")
    process.post("/api/rules", {"rule": {"name": "all"}})
    with dask.config.set({"treadle.coordinator.url": process.url}):
        with treadle.Client(workers=1, set_as_default=False) as client:
            assert client.shuffle_servers == "static:127.0.0.1:1"
            process.end(signal.SIGKILL)
            assert client.shuffle_servers == "static:127.0.0.1:1"
        with treadle.Client(workers=1, set_as_default=False) as client:
            assert client.shuffle_servers is None
            assert client.submit(sum, [1, 2]).result(60) == 3
        with treadle.Client(workers=1, set_as_default=False, shuffle_servers=0) as client:
            assert client.shuffle_servers is None
