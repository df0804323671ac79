"""The programs of a figure: in C, compiled, and in Python."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
OUT = HERE / "out"


@functools.cache
def compiled(source: str, *flags: str) -> str:
    """The program or library made of ``source``, compiled anew when it changed."""
    made = OUT / (Path(source).stem + (".so" if "-shared" in flags else ""))
    if not made.exists() or made.stat().st_mtime < (HERE / source).stat().st_mtime:
        OUT.mkdir(exist_ok=True)
        command = ["gcc", "-Wall", "-Wextra", *flags, str(HERE / source), "-o", str(made), "-ldl"]
        subprocess.run(command, check=True, timeout=60)
    return str(made)


def python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, str(HERE / program), *arguments]
