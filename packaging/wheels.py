"""Build wheels for Linux, and check them: ``python packaging/wheels.py [VERSION …]``.

Each is for one version of Python and one architecture, and runs wherever the C library is at least
as old as ``GLIBC``. Not ``abi3``: the extension reads dictionaries and slots in ways that the limited
interface of Python does not have. The linker is Zig's (``ziglang`` of PyPI), which has the symbols of
each release of the C library, for both architectures.

Without versions, those are built that ``pyproject.toml`` claims. ``--arch`` chooses the architectures.
Wheels, and the source distribution, are left in ``dist/``.

``--here`` builds for this machine alone, without Zig, with a chosen profile of Cargo and with what only
tests call; they are left in ``.cache/wheels``.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import interpreters
import licences

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
HERE = ROOT / ".cache" / "wheels"
GLIBC = "2_17"
ARCHITECTURES = ("x86_64", "aarch64")
PROGRAMS = Path(sys.executable).parent


def run(*command: str | Path, **variables: str) -> None:
    path = os.pathsep.join([str(PROGRAMS), os.environ["PATH"]])
    subprocess.run(
        list(map(str, command)),
        check=True,
        cwd=ROOT,
        env={**os.environ, "PATH": path, **variables},
    )


def build(version: str, architecture: str) -> Path:
    """Build the wheel that is published."""
    target = f"{architecture}-unknown-linux-gnu"
    found = interpreters.find(version) if architecture == platform.machine() else None
    options = ("--zig", "--target", target, "--compatibility", f"manylinux_{GLIBC}")
    # Of a version that is not here, maturin knows how its extensions are built.
    wheel = _built(str(found or f"python{version}"), version, target, DIST, *options)
    run(PROGRAMS / "auditwheel", "show", wheel)
    return wheel


def build_here(version: str, interpreter: Path, profile: str) -> Path:
    """Build a wheel for tests on this machine, unless it is there and newer than all sources."""
    target = f"{platform.machine()}-unknown-linux-gnu"
    for wheel in HERE.glob(_name(version, target)):
        if wheel.stat().st_mtime > _changed():
            print(f"{wheel.name} is there", flush=True)
            return wheel
    features = "simulated" if profile == "dev" else "testing"
    options = ("--profile", profile, "--features", features, "--compatibility", "linux")
    return _built(str(interpreter), version, target, HERE, *options)


def _built(interpreter: str, version: str, target: str, folder: Path, *options: str) -> Path:
    licences.collect(target)
    started = time.monotonic()
    run(
        *(PROGRAMS / "maturin", "build", "--locked", "--strip", "--out", folder),
        *("--interpreter", interpreter, *options),
    )
    (wheel,) = folder.glob(_name(version, target))
    size = wheel.stat().st_size / 1e6
    print(f"{wheel.name}: {size:.1f} MB in {time.monotonic() - started:.0f} s", flush=True)
    return wheel


def _name(version: str, target: str) -> str:
    return f"*-cp{version.replace('.', '')}-*{target.partition('-')[0]}.whl"


def _changed() -> float:
    """When a source of the wheels changed last."""
    known = subprocess.run(
        ["git", "ls-files", "-z", "crates", "proto", "python", "Cargo.*", "pyproject.toml"],
        check=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    paths = (ROOT / name for name in known.stdout.split("\0") if name)
    return max(path.stat().st_mtime for path in paths if path.exists())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="3.11; default: all")
    parser.add_argument("--arch", nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES)
    parser.add_argument(
        "--here", metavar="PROFILE", help="for this machine, with a profile of Cargo"
    )
    given = parser.parse_args()
    versions = given.versions or interpreters.claimed()
    if given.here:
        for version in versions:
            interpreter = interpreters.find(version)
            if interpreter is None:
                print(f"--- Python {version}: skipped, it cannot be had here", flush=True)
            else:
                build_here(version, interpreter, given.here)
        return
    DIST.mkdir(exist_ok=True)
    run(PROGRAMS / "maturin", "sdist", "--out", DIST)
    for architecture in given.arch:
        run("rustup", "target", "add", f"{architecture}-unknown-linux-gnu")
        for version in versions:
            build(version, architecture)


if __name__ == "__main__":
    main()
