"""Run a part of the tests on the oldest and the newest Python that the package claims.

The oldest Python has the oldest Dask that is supported (requirements/oldest.lock), the newest has the
locked one. Where an interpreter cannot be had (packaging/interpreters.py), a line says so. Each has an
environment of its own, .venv-tests-VERSION, and a wheel of the debug profile: what `cargo test` has
compiled in target/debug is used again, and so is a wheel that `make test-wheels PROFILE=dev` has made.

The tests of one Python run while the next one is built. Their output comes at the end.

Arguments are versions of Python in place of these two: `tests/pythons.py 3.12`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "requirements"
sys.path.append(str(ROOT / "packaging"))

import interpreters  # noqa: E402
import wheels  # noqa: E402

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")

# What depends on the version of Python or Dask: keys and values of recipes, functions as code, graphs,
# the parts of Dask and distributed that are private, the classes that are subclassed here.
PART = (
    "tests/test_compat.py",
    "tests/test_fused.py",
    "tests/test_get.py",
    "tests/test_install.py",
    "tests/test_legacy.py",
    "tests/test_recipe_graphs.py",
    "tests/test_recipe_objects.py",
    "tests/test_recipe_values.py",
    "tests/test_shuffle_graph.py",
    "tests/test_shuffle_spec.py",
    "tests/views/test_views_calls.py",
    "tests/cluster/test_client_submit.py",
    "tests/cluster/test_collections_compute.py",
    "tests/cluster/test_futures_actors.py",
    "tests/cluster/test_in_tasks_nested.py",
)


def environment(version: str, interpreter: Path, locks: list[Path]) -> Path:
    """The interpreter of the environment, which is made if a lock file has changed since."""
    path = ROOT / f".venv-tests-{version}"
    python, stamp = path / "bin" / "python", path / "installed.stamp"
    if not stamp.exists() or stamp.stat().st_mtime < max(lock.stat().st_mtime for lock in locks):
        shutil.rmtree(path, ignore_errors=True)
        run(interpreter, "-m", "venv", "--without-pip", path)
        for lock in locks:
            run(
                *PIP,
                "--python",
                python,
                "install",
                "--quiet",
                "--no-compile",
                "--require-hashes",
                "--no-deps",
                "-r",
                lock,
            )
        stamp.touch()
    return python


def run(*command: str | Path) -> None:
    subprocess.run(list(map(str, command)), check=True, cwd=ROOT)


@dataclass
class Tests:
    """Tests that run, and how long it took until they did."""

    version: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    before: str
    began: float

    def end(self) -> int:
        """Waits for them, and prints what they printed. Returns their status."""
        status = self.process.wait()
        self.output.seek(0)
        print(self.output.read().decode(errors="replace"), end="")
        print(
            f"--- Python {self.version}: {self.before}, tests {time.monotonic() - self.began:.0f} s",
            flush=True,
        )
        return status


def start(version: str, interpreter: Path, locks: list[Path]) -> Tests:
    started = time.monotonic()
    python = environment(version, interpreter, locks)
    installed = time.monotonic()
    wheel = wheels.build_here(version, interpreter, "dev")
    run(*PIP, "--python", python, "install", "--quiet", "--no-deps", "--force-reinstall", wheel)
    built = time.monotonic()
    before = f"environment {installed - started:.0f} s, extension {built - installed:.0f} s"
    print(f"--- Python {version}: {before}, tests begin", flush=True)
    output = tempfile.TemporaryFile()  # noqa: SIM115
    show = (
        "import sys, dask; print(f'--- Python {sys.version.split()[0]}, Dask {dask.__version__}')"
    )
    run(python, "-c", show)
    tests = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PART)
    process = subprocess.Popen(
        list(map(str, tests)), cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
    )
    return Tests(version, process, output, before, built)


def main() -> int:
    versions = interpreters.claimed()
    chosen = sys.argv[1:] or [versions[0], versions[-1]]
    running = []
    try:
        for version in chosen:
            interpreter = interpreters.find(version)
            if interpreter is None:
                print(
                    f"--- Python {version}: skipped, it is not on the path, in pyenv, or in Debian",
                    flush=True,
                )
                continue
            locks = [LOCKS / "pythons.lock"]
            if version == versions[0]:
                locks.append(LOCKS / "oldest.lock")
            running.append(start(version, interpreter, locks))
    finally:
        statuses = [tests.end() for tests in running]
    return 1 if any(statuses) else 0


if __name__ == "__main__":
    sys.exit(main())
