"""Build wheels for Linux, and check them: ``python packaging/wheels.py [VERSION …]``.

Each is for one version of Python and one architecture, and runs wherever the C library is at least
as old as ``GLIBC``. Not ``abi3``: the extension reads dictionaries and slots in ways that the limited
interface of Python does not have. The linker is Zig's (``ziglang`` of PyPI), which has the symbols of
each release of the C library, for both architectures.

Without versions, those are built that ``pyproject.toml`` claims. ``--arch`` chooses the architectures,
``--profile release`` builds in a third of the time, without link-time optimisation. Wheels, and the source
distribution, are left in ``dist/``.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import licences

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))

import pythons  # noqa: E402

DIST = ROOT / "dist"
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


def interpreter(version: str, architecture: str) -> str:
    """What maturin is told: a program, or a version of which it knows how its extensions are built."""
    if architecture == platform.machine():
        found = pythons.find(version)
        if found is not None:
            return str(found)
    return f"python{version}"


def build(version: str, architecture: str, profile: str) -> Path:
    target = f"{architecture}-unknown-linux-gnu"
    licences.collect(target)
    before = set(DIST.glob("*.whl"))
    started = time.monotonic()
    run(
        *(PROGRAMS / "maturin", "build", "--locked", "--strip", "--zig", "--profile", profile),
        *("--target", target, "--compatibility", f"manylinux_{GLIBC}", "--out", DIST),
        *("--interpreter", interpreter(version, architecture)),
    )
    (wheel,) = DIST.glob(f"*-cp{version.replace('.', '')}-*{architecture}.whl")
    run(PROGRAMS / "auditwheel", "show", wheel)
    size = wheel.stat().st_size / 1e6
    how = "again" if wheel in before else "new"
    print(f"{wheel.name} ({how}): {size:.1f} MB, {time.monotonic() - started:.0f} s", flush=True)
    return wheel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="3.11; default: all")
    parser.add_argument("--arch", nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES)
    parser.add_argument("--profile", default="dist", help="of Cargo (%(default)s)")
    given = parser.parse_args()
    DIST.mkdir(exist_ok=True)
    run(PROGRAMS / "maturin", "sdist", "--out", DIST)
    for architecture in given.arch:
        run("rustup", "target", "add", f"{architecture}-unknown-linux-gnu")
        for version in given.versions or pythons.claimed():
            build(version, architecture, given.profile)


if __name__ == "__main__":
    main()
