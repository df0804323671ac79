"""Run the tests of remote stores against real servers, or a benchmark with ``--bench``.

The S3-compatible server is ``s3s-fs``, built from crates.io with its own lock file. HDFS is a mini cluster of Hadoop,
from Maven Central with the digests of tests/remote/hdfs/SHA256SUMS. Both stay in ``.cache/remote``.

Arguments are names of tests of the crate ``treadle-shuffle-remote``.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from downloads import ROOT, jars, need

SOURCES = Path(__file__).with_suffix("")
CACHE = ROOT / ".cache" / "remote"
S3S_FS = "0.14.1"
# Seconds until a server listens, at most.
LISTENS = 120.0
BUCKET = "rows"


def s3_program() -> Path:
    """Return the S3-compatible server, which is built once."""
    folder = CACHE / f"s3s-fs-{S3S_FS}"
    program = folder / "bin" / "s3s-fs"
    if not program.exists():
        name = ("s3s-fs", "--version", S3S_FS, "--locked", "--features", "binary")
        # Not with the target folder of the tests: it is another workspace.
        environment = {key: value for key, value in os.environ.items() if key != "CARGO_TARGET_DIR"}
        command = ("cargo", "install", *name, "--root", folder)
        subprocess.run(command, check=True, env=environment)
    return program


def hdfs_jars() -> Path:
    """Return the folder of the jars."""
    need("javac", "default-jdk-headless")
    return jars(SOURCES / "hdfs", CACHE / "hdfs")


@contextmanager
def s3(folder: Path, credentials: dict[str, str]) -> Iterator[str]:
    """Run the S3-compatible server; give its URL."""
    (folder / BUCKET).mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = (
        s3_program(),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--access-key", credentials["AWS_ACCESS_KEY_ID"]),
        *("--secret-key", credentials["AWS_SECRET_ACCESS_KEY"]),
        folder,
    )
    with (folder.with_suffix(".log")).open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until = time.monotonic() + LISTENS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"s3s-fs does not listen: {log.name}") from None
                time.sleep(0.1)
        yield f"s3://{BUCKET}/tests?endpoint=http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@contextmanager
def hdfs(folder: Path) -> Iterator[tuple[str, str]]:
    """Run a mini cluster of HDFS; give its URL, and that of its HTTP interface."""
    classes = ("-cp", f"{hdfs_jars()}/*")
    command = ("java", *classes, SOURCES / "hdfs" / "Hdfs.java", folder)
    with folder.with_suffix(".log").open("wb") as log:
        cluster = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert cluster.stdout is not None
        # Other lines may come first.
        lines = (line.strip() for line in cluster.stdout)
        urls = [
            next((one for one in lines if one.startswith(f"{kind}://")), None)
            for kind in ("webhdfs", "hdfs")
        ]
        if None in urls:
            raise SystemExit(f"the mini cluster of HDFS did not start: {log.name}")
        yield f"{urls[1]}/tests", f"{urls[0]}/logs"
    finally:
        cluster.kill()
        cluster.wait()


def main() -> None:
    """Run the tests, or the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", action="store_true", help="print figures, and run no tests")
    parser.add_argument("tests", nargs="*")
    arguments = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    credentials = {
        "AWS_ACCESS_KEY_ID": secrets.token_hex(8),
        "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16),
        "AWS_EC2_METADATA_DISABLED": "true",
        "HADOOP_USER_NAME": os.environ.get("USER", "root"),
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        of_s3 = stack.enter_context(s3(folder / "s3", credentials))
        of_hdfs, of_web = stack.enter_context(hdfs(folder / "hdfs"))
        environment = {
            **os.environ,
            **credentials,
            "TREADLE_TEST_REMOTES": f"{of_s3} {of_hdfs}",
            "TREADLE_TEST_LOGS": f"{of_s3.replace('/tests?', '/logs?')} {of_web}",
            "TREADLE_TEST_HADOOP": f"{hdfs_jars()}/*:{SOURCES / 'hdfs'}",
        }
        if arguments.bench:
            commands = [[sys.executable, "bench/service/run.py", "--only", "remote"]]
        else:
            crate = ("-p", "treadle-shuffle-remote", "--features", "stores", "--test", "stores")
            chosen = ("--include-ignored", *arguments.tests)
            commands = [["cargo", "test", "--locked", *crate, "--", *chosen]]
            if not arguments.tests:
                tests = (
                    "cluster/test_shuffle_service_remote.py",
                    "coordinator/test_coordinator_log_stores.py",
                )
                commands += [
                    [sys.executable, "-m", "pytest", "-v", f"tests/{one}"] for one in tests
                ]
        for command in commands:
            done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
            if done.returncode:
                raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
