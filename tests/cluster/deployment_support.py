"""What the tests of packaging/service share: where it is, and commands of this checkout."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import click
import pytest

import treadle.__main__

SERVICE = Path(__file__).parents[2] / "packaging" / "service"


def from_make(variable: str, target: str = "test-deploy") -> Path:
    """What a target of make has built for the test, which is skipped without it."""
    found = os.environ.get(variable)
    if found is None:
        pytest.skip(f"`make {target}` builds it, and names it by {variable}")
    return Path(found)


def treadle_program(path: Path) -> Path:
    """Write a program that is `treadle` of this checkout."""
    paths = os.pathsep.join(filter(None, sys.path))
    command = f'"{sys.executable}" -m treadle "$@"'
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{paths}" exec {command}\n')
    path.chmod(0o755)
    return path


def check_options(words: list[str]) -> None:
    """Check that a command line of `treadle` has only options that this command has."""
    command = treadle.__main__.main.get_command(click.Context(treadle.__main__.main), words[0])
    assert command is not None, words
    known = {option for parameter in command.params for option in parameter.opts}
    used = {word for word in words[1:] if re.fullmatch(r"--[a-z][a-z-]*", word)}
    assert used <= known, (words[0], sorted(used - known))
