"""The plugin tells the coordinator how an application ended."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from application_support import LONG, all_copies_are_lost
from conftest import Place
from treadle.coordinator._event_log import read_application
from waiting import until


class Coordinator:
    """Takes what is reported."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str | None, dict[str, Any]]] = []
        told = self.told

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                told.append((self.path, self.headers["Authorization"], body))
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_arguments: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def settings(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.server.server_port}/"
        return {"spark.treadle.coordinator": url, "spark.treadle.decision": "a b"}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(LONG)


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    one = Coordinator()
    yield one
    one.close()


def test_an_end_is_reported(shared_place: Place, coordinator: Coordinator) -> None:
    token = shared_place.directory / "token"
    token.write_text("0123456789abcdef\n")
    told = {"spark.treadle.coordinator.tokenFile": str(token)}
    application = shared_place.application({**coordinator.settings, **told}, master="local[2]")
    assert application.run("reduced")
    events = application.stop()
    until(lambda: bool(coordinator.told), application.said, LONG)
    ((path, login, end),) = coordinator.told
    assert (path, login) == ("/api/jobs/a%20b/end", "Bearer 0123456789abcdef")
    tasks = [one for one in events if one["Event"] == "SparkListenerTaskEnd"]
    written = [one["Task Metrics"]["Shuffle Write Metrics"]["Shuffle Bytes Written"] for one in tasks]  # fmt: skip
    assert end["shuffle_bytes"] == sum(written) > 0
    assert (end["failed"], end["error"], end["fallbacks"]) == (False, "", 0)
    assert end["lost_servers"] == 0
    assert end["duration"] > 0


def test_shuffles_of_stock_are_counted(shared_place: Place, coordinator: Coordinator) -> None:
    nowhere = {"spark.treadle.servers": "127.0.0.1:1", "spark.treadle.connectTimeout": "1s"}
    application = shared_place.application({**coordinator.settings, **nowhere}, master="local[2]")
    assert application.run("reduced")
    application.stop()
    until(lambda: bool(coordinator.told), application.said, LONG)
    ((_, login, end),) = coordinator.told
    assert login is None
    assert end["fallbacks"] > 0


def test_an_application_ends_without_its_coordinator(shared_place: Place) -> None:
    gone = Coordinator()
    settings = gone.settings
    gone.close()
    application = shared_place.application(settings, master="local[2]")
    assert application.run("reduced")
    application.stop()
    assert application.process.returncode == 0
    assert "did not take the end of this application" in application.log.read_text()


def test_a_failure_of_the_service_while_it_writes_is_its_own(
    new_place: Callable[[], Place], tmp_path: Path, coordinator: Coordinator
) -> None:
    place = new_place()
    servers = place.serve("a", "b")
    told = {**coordinator.settings, "spark.treadle.timeout": "5s"}
    application = place.application(told, master="local[2]")
    job = application.begin("gated", str(tmp_path), 2, 2, False)
    # Its shuffle is at the service: a driver that finds no server would take stock's.
    until((tmp_path / "completed-1").exists, application.said, LONG)
    for name in ("a", "b"):
        servers.kill(name)
    (tmp_path / "maps").touch()
    until(lambda: len(application.answers) > job, application.said, LONG)
    kind, text = application.answers[job]
    assert kind == "error", text
    # No reader has begun: that rows could not be fetched was known before.
    assert not list(tmp_path.glob("reader-*"))
    application.stop()
    until(lambda: bool(coordinator.told), application.said, LONG)
    ((_, _, end),) = coordinator.told
    assert (end["failed"], end["cause"], end["fallbacks"]) == (True, "service", 0), end["error"]


def test_lost_servers_are_counted_and_a_loss_that_was_made_good_is_not_why_a_users_code_fails(
    new_place: Callable[[], Place], gates: Path, coordinator: Coordinator
) -> None:
    place = new_place()
    servers = place.serve("a", "b")
    application = place.application(coordinator.settings, master="local[2]")
    # Readers find that all rows are gone, and the maps run again.
    all_copies_are_lost(application, gates, servers, 4, 3)
    failing = application.begin("failing")
    until(lambda: len(application.answers) > failing, application.said, LONG)
    assert application.answers[failing][0] == "error"
    events = application.stop()
    until(lambda: bool(coordinator.told), application.said, LONG)
    ((_, _, end),) = coordinator.told
    assert (end["failed"], end["cause"], end["lost_servers"]) == (True, "job", 2), end["error"]
    # As the event log tells it.
    lines = map(json.dumps, events)
    told = read_application(lines)
    assert told.lost_shuffle
    found = told.end()
    assert found is not None
    assert (found.failed, found.cause) == (True, "job")
