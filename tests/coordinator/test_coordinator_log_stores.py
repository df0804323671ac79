"""Event logs in stores: URLs everywhere, and reading them from the servers of TREADLE_TEST_LOGS.

``make test-remote`` names a folder of an S3-compatible server and one of HDFS there.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from planted import LOGS, lines_of
from test_coordinator_logs import lz4_blocks, same, snappy_blocks, zstd_frames
from treadle.coordinator._event_files import logs_in, read_log
from treadle.coordinator._log_stores import folder_of
from treadle.coordinator._polling import LogFolders
from treadle.coordinator._service import Coordinator

STORES = os.environ.get("TREADLE_TEST_LOGS", "").split()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://", "give s3://BUCKET/PREFIX"),
        ("gs://bucket/logs", "give s3://BUCKET/PREFIX"),
        ("s3://key:hidden@bucket/logs", "credentials belong into the environment"),
        ("webhdfs://user@host/logs", "credentials belong into the environment"),
        ("s3://bucket/logs?secret=x", "there is no secret"),
        ("webhdfs://host/logs?endpoint=x", "there is no endpoint"),
        ("s3://bucket/logs?endpoint=minio:9000", "must begin with http"),
    ],
)
def test_a_wrong_url_is_refused_and_no_secret_is_shown(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        folder_of(url)
    assert "hidden" not in str(caught.value)


def test_an_error_of_hdfs_has_no_token_in_it(monkeypatch) -> None:
    pytest.importorskip("requests")
    monkeypatch.setenv("HADOOP_TOKEN", "JAAEcm9v/dA=+")
    # Nobody listens there, and nobody else can.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"webhdfs://127.0.0.1:{taken.getsockname()[1]}/logs"
        with pytest.raises(OSError, match="op=LISTSTATUS") as caught:
            list(logs_in(folder_of(url)))
    assert "delegation=…" in str(caught.value)
    assert "JAAE" not in repr(caught.value)


def test_the_command_refuses_it_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "treadle", "coordinator", "--listen", "127.0.0.1:0"]
    for folder, reason in (("gs://bucket/logs", "give s3://"), ("nowhere", "no directory")):
        done = subprocess.run(
            [*command, "--event-logs", folder],
            cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode != 0
        assert reason in done.stderr
        assert "Traceback" not in done.stderr


def writer(url: str):
    """Return what writes a file of a store, by the client that reads it."""
    parts = urlsplit(url)
    if parts.scheme == "s3":
        from pyarrow import fs

        endpoint = urlsplit(parse_qs(parts.query)["endpoint"][0])
        files = fs.S3FileSystem(
            endpoint_override=endpoint.netloc, scheme=endpoint.scheme, region="us-east-1"
        )

        def write(name: str, data: bytes) -> None:
            path = f"{parts.netloc}{parts.path}/{name}"
            with files.open_output_stream(path, compression=None) as out:
                out.write(data)

        return write
    from fsspec.implementations.webhdfs import WebHDFS

    hdfs = WebHDFS(parts.hostname, parts.port, user=os.environ.get("HADOOP_USER_NAME"))
    hdfs.makedirs(parts.path, exist_ok=True)

    def write_hdfs(name: str, data: bytes) -> None:
        path = f"{parts.path}/{name}"
        hdfs.makedirs(path.rpartition("/")[0], exist_ok=True)
        with hdfs.open(path, "wb") as out:
            out.write(data)

    return write_hdfs


@pytest.mark.skipif(not STORES, reason="TREADLE_TEST_LOGS is not set: make test-remote")
@pytest.mark.parametrize("url", STORES)
def test_logs_of_a_store_are_those_of_files(url: str, tmp_path: Path) -> None:
    write = writer(url)
    data = "\n".join(lines_of("skew")).encode() + b"\n"
    for codec, pack in (("zstd", zstd_frames), ("lz4", lz4_blocks), ("snappy", snappy_blocks)):
        write(f"app-{codec}.{codec}", pack(data))
    write("app-plain", data)
    write("app-runs.zstd.inprogress", zstd_frames(data)[: len(zstd_frames(data)) * 9 // 10])
    write("app-damaged.zstd", b"x" * 1000)
    lines = data.splitlines(keepends=True)
    for part in range(12):
        some = lines[part * len(lines) // 12 : (part + 1) * len(lines) // 12]
        write(f"eventlog_v2_app-1/events_{part + 1}_app-1.zstd", zstd_frames(b"".join(some)))
    folder = folder_of(url)
    whole = read_log(LOGS / "skew.zstd")
    there = {one.name: one for one, _ in logs_in(folder)}
    assert len(there) == 7
    for name in (
        "app-zstd.zstd",
        "app-lz4.lz4",
        "app-snappy.snappy",
        "app-plain",
        "eventlog_v2_app-1",
    ):
        assert same(read_log(there[name]), whole), name
    running = read_log(there["app-runs.zstd.inprogress"])
    assert running.ended is None
    assert running.stages

    coordinator = Coordinator(f"sqlite:///{tmp_path}/c.db")
    read: list[str] = []
    coordinator.observed = lambda app: read.append(app.name)  # type: ignore[assignment]
    try:
        folders = LogFolders([folder], coordinator)
        folders.look()
        assert len(read) == 6
        # What has not changed is not read again; what has grown is.
        folders.look()
        assert len(read) == 6
        write("eventlog_v2_app-1/events_13_app-1.zstd", zstd_frames(lines[-1]))
        folders.look()
        assert len(read) == 7
    finally:
        coordinator.close()


@pytest.mark.skipif(not STORES, reason="TREADLE_TEST_LOGS is not set: make test-remote")
@pytest.mark.parametrize("url", STORES)
def test_a_store_without_the_folder_ends_nothing(url: str, tmp_path: Path, caplog) -> None:
    parts = urlsplit(url)
    missing = parts._replace(path="/nowhere/logs", netloc=parts.netloc).geturl()
    coordinator = Coordinator(f"sqlite:///{tmp_path}/c.db")
    try:
        LogFolders([folder_of(missing)], coordinator).look()
    finally:
        coordinator.close()
