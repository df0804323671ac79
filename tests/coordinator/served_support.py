"""A coordinator in this process, with clients of each role."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from treadle.coordinator import _tables
from treadle.coordinator._access import Access
from treadle.coordinator._admission import Room
from treadle.coordinator._app import app_of
from treadle.coordinator._pages import add_pages
from treadle.coordinator._service import Coordinator

JOB = {
    "cluster": "a",
    "queue": "etl",
    "user": "ann",
    "name": "daily 2026-11-30",
    "version": "3.5.9",
}
MANAGER = "spark.shuffle.manager"
GB = 10**9


class Served:
    """A coordinator with its clients of each role."""

    def __init__(self, url: str, **options) -> None:
        self.now = 1_000_000.0
        self.room: Room | None = None
        self.told: list = []
        self.coordinator = Coordinator(
            url, servers="etcd://e/t", room=lambda: self.room, notify=self.told.extend,
            clock=lambda: self.now, **options,
        )  # fmt: skip
        self.access = Access(
            {},
            proxy_header="X-User",
            proxies=["testclient"],
            operators=["olga"],
            hosts=["testserver"],
        )
        self.app = app_of(self.coordinator, self.access)
        add_pages(self.app)
        self.job, self.viewer, self.operator = (
            self.client(role) for role in ("job", "viewer", "operator")
        )

    def client(self, role: str) -> TestClient:
        token = self.access.new_token(f"the {role}", role)
        return TestClient(
            self.app, headers={"Authorization": f"Bearer {token}"}, raise_server_exceptions=False
        )

    def rule(self, **values) -> dict:
        told = self.operator.post(
            "/api/rules", json={"rule": {"name": "r", **values}, "note": "why"}
        )
        assert told.status_code == 200, told.text
        return told.json()

    def decide(self, identity: str | None = None, manager: str = "", names=(), **job) -> dict:
        body = {"id": identity, "job": {**JOB, **job}, "manager": manager, "names": list(names)}
        told = self.job.post("/api/decisions", json=body)
        assert told.status_code == 200, told.text
        return told.json()

    def decided(self, identity: str | None = None, manager: str = "", names=(), **job) -> dict:
        """As :meth:`decide`, however long the disk takes: over HTTP it is two seconds."""
        body = {"id": identity, "job": {**JOB, **job}, "manager": manager, "names": list(names)}
        return self.coordinator.decide(body).result(60)

    def end(self, identity: str, **values) -> dict:
        told = self.job.post(f"/api/jobs/{identity}/end", json=values)
        assert told.status_code == 200, told.text
        return told.json()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """TREADLE_COORDINATOR_DATABASE runs all tests on another database, which is emptied."""
    url = os.environ.get("TREADLE_COORDINATOR_DATABASE")
    if url:
        engine = sa.create_engine(url)
        _tables.metadata.drop_all(engine)
        engine.dispose()
    made = Served(url or f"sqlite:///{tmp_path}/c.db")
    yield made
    made.coordinator.close()


@contextmanager
def at_an_address(app: FastAPI) -> Iterator[str]:
    """Serve an application on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)


of_sqlite = pytest.mark.skipif("TREADLE_COORDINATOR_DATABASE" in os.environ, reason="is of SQLite")
