"""Run a part of the tests on the oldest and the newest Python that the package claims.

The oldest Python has the oldest Dask that is supported (requirements/oldest.lock), the newest has the
locked one. The interpreters are looked for on the path and in pyenv, and then among the packages of
Debian's next release; where one is nowhere, a line says so. Each has an environment of its own,
.venv-tests-VERSION, into which the package is copied with an extension of the debug profile: what
`cargo test` has compiled in target/debug is used again.

Arguments are versions of Python in place of these two: `tests/pythons.py 3.12`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import interpreters

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "requirements"
BACKENDS = "distributed.comm.backends"

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


def claimed() -> list[str]:
    """The versions in the classifiers of pyproject.toml, oldest first."""
    text = (ROOT / "pyproject.toml").read_text()
    found = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    return sorted(found, key=lambda version: int(version.split(".")[1]))


def find(version: str) -> Path | None:
    """The interpreter of a version, or None."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    installed = pyenv.glob(f"versions/{version}.*/bin/python")
    places = [shutil.which(f"python{version}"), *sorted(map(str, installed), reverse=True)]
    code = "import sys; print(sys.executable, '%d.%d' % sys.version_info[:2])"
    for place in filter(None, places):
        # pyenv's own command of that name fails where the version is not chosen.
        run = subprocess.run([place, "-c", code], capture_output=True, text=True, check=False)
        executable, _, own = run.stdout.strip().rpartition(" ")
        if run.returncode == 0 and own == version:
            return Path(executable)
    # What this machine's Debian has is found above; the next one has what is newer.
    return interpreters.unpacked(version) if version in interpreters.VERSIONS else None


def environment(version: str, interpreter: Path, locks: list[Path]) -> Path:
    """The interpreter of the environment, which is made if a lock file has changed since."""
    path = ROOT / f".venv-tests-{version}"
    python, stamp = path / "bin" / "python", path / "installed.stamp"
    if not stamp.exists() or stamp.stat().st_mtime < max(lock.stat().st_mtime for lock in locks):
        shutil.rmtree(path, ignore_errors=True)
        run(interpreter, "-m", "venv", "--without-pip", path)
        pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
        for lock in locks:
            run(
                *pip,
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


def install(python: Path) -> None:
    """Build the extension for the interpreter, and copy the package."""
    build = ("cargo", "build", "--locked", "-p", "treadle-python", "--features", "testing")
    # An extension has no need of libpython, which is a package of its own in Debian.
    run(*build, PYO3_PYTHON=str(python), PYO3_BUILD_EXTENSION_MODULE="1")
    code = (
        "import sysconfig as s; print(s.get_path('purelib')); print(s.get_config_var('EXT_SUFFIX'))"
    )
    output = subprocess.run([python, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    packages, suffix = output.stdout.splitlines()
    copy = Path(packages, "treadle")
    shutil.rmtree(copy, ignore_errors=True)
    hidden = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "python" / "treadle", copy, ignore=hidden)
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    shutil.copy(target / "debug" / "lib_core.so", copy / f"_core{suffix}")
    # distributed finds the scheme of our addresses among the entry points of what is installed.
    described = Path(packages, "treadle-0.dist-info")
    described.mkdir(exist_ok=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: treadle\nVersion: 0\n")
    (described / "entry_points.txt").write_text(f"[{BACKENDS}]\n{backends()}")


def backends() -> str:
    """The entry points of pyproject.toml by which distributed finds the scheme of our addresses."""
    text = (ROOT / "pyproject.toml").read_text()
    _, _, section = text.partition(f'[project.entry-points."{BACKENDS}"]')
    found = re.findall(
        r'^"?(treadle[-+\w]*)"? = "(.+)"$', section.partition("\n\n")[0], re.MULTILINE
    )
    return "".join(f"{name} = {place}\n" for name, place in found)


def run(*command: str | Path, **variables: str) -> None:
    subprocess.run(list(map(str, command)), check=True, cwd=ROOT, env={**os.environ, **variables})


def main() -> int:
    versions = claimed()
    chosen = sys.argv[1:] or [versions[0], versions[-1]]
    status = 0
    for version in chosen:
        interpreter = find(version)
        if interpreter is None:
            print(
                f"--- Python {version}: skipped, it is not on the path, in pyenv, or in Debian", flush=True
            )
            continue
        started = time.monotonic()
        locks = [LOCKS / "pythons.lock"]
        if version == versions[0]:
            locks.append(LOCKS / "oldest.lock")
        python = environment(version, interpreter, locks)
        installed = time.monotonic()
        install(python)
        built = time.monotonic()
        show = "import sys, dask; print(f'--- Python {sys.version.split()[0]}, Dask {dask.__version__}')"
        run(python, "-c", show)
        tests = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PART)
        failed = subprocess.run(list(map(str, tests)), cwd=ROOT, check=False).returncode
        status = status or failed
        print(
            f"--- Python {version}: environment {installed - started:.0f} s, "
            f"extension {built - installed:.0f} s, tests {time.monotonic() - built:.0f} s",
            flush=True,
        )
    return status


if __name__ == "__main__":
    sys.exit(main())
