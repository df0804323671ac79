"""Run what needs real registries: their conformance suite (crates/shuffle/registry/tests), then shuffles on servers that
are registered there (tests/cluster/test_shuffle_registries.py).

etcd is built from the Go module proxy, with the digests of tests/registries/etcd/go.sum. ZooKeeper comes from Maven
Central, with those of tests/registries/zookeeper/SHA256SUMS. Both stay in ``.cache/registries``.

Arguments are passed to the suite, such as the names of cases: ``tests/registries.py etcd``. Then nothing else runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from downloads import ROOT, digest, jars, need

SOURCES = Path(__file__).with_suffix("")
CACHE = ROOT / ".cache" / "registries"
# Each starts a server of its own: more at once only wait for the cores.
AT_ONCE = "2"


def etcd() -> Path:
    """Return the program, which is built if its sources have changed."""
    sources = SOURCES / "etcd"
    program = CACHE / f"etcd-{digest(*sorted(sources.iterdir()))[:16]}"
    if not program.exists():
        need("go", "golang")
        made = program.with_suffix(".new")
        command = ("go", "build", "-mod=readonly", "-trimpath", "-o", made, ".")
        subprocess.run(command, cwd=sources, check=True)
        made.rename(program)
    return program


def zookeeper() -> Path:
    """Return the folder of the jars."""
    need("java", "default-jre-headless")
    return jars(SOURCES / "zookeeper", CACHE / "zookeeper", "-DincludeScope=runtime")


def main() -> None:
    """Run the suite."""
    CACHE.mkdir(parents=True, exist_ok=True)
    servers = {"TREADLE_TEST_ETCD": etcd(), "TREADLE_TEST_ZOOKEEPER": zookeeper()}
    environment = os.environ | {name: str(place) for name, place in servers.items()}
    suite = ("--features", "etcd,zookeeper", "--test", "conformance")
    command = ("cargo", "test", "--locked", "-p", "treadle-shuffle-registry", *suite)
    arguments = ("--include-ignored", "--nocapture", "--test-threads", AT_ONCE, *sys.argv[1:])
    done = subprocess.run((*command, "--", *arguments), cwd=ROOT, env=environment, check=False)
    if done.returncode or sys.argv[1:]:
        raise SystemExit(done.returncode)
    shuffles = (sys.executable, "-m", "pytest", "tests/cluster/test_shuffle_registries.py")
    raise SystemExit(subprocess.run(shuffles, cwd=ROOT, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
