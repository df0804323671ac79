"""The programs of a figure: in C, compiled, and in Python."""

from __future__ import annotations

import sys
from pathlib import Path

import program

HERE = Path(__file__).parent


def compiled(source: str, *flags: str) -> str:
    return program.compiled(HERE / source, *flags)


def python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, str(HERE / program), *arguments]
