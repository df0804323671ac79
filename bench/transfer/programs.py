"""The programs of a figure: in C, compiled, and in Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import program

HERE = Path(__file__).parent


def compiled(source: str, *flags: str, libraries: tuple[str, ...] = ()) -> str:
    return program.compiled(HERE / source, *flags, libraries=libraries)


def grpc_cpp() -> str | None:
    """The program of gRPC in C++, or None where its library is not installed."""
    if shutil.which("pkg-config") is None:
        return None
    asked = subprocess.run(
        ["pkg-config", "--libs", "grpc++"], capture_output=True, text=True, timeout=30
    )
    if asked.returncode:
        return None
    return compiled("grpc_raw.cc", "-O2", libraries=tuple(asked.stdout.split()))


GRPC_CPP_MISSING = "gRPC in C++ is not here: `apt-get install libgrpc++-dev pkg-config g++`"


def python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, str(HERE / program), *arguments]
