"""docs/configuration.md names the settings that the code reads, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from treadle.common import _settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
# Each distribution writes it: a user does not set it.
NOT_SET = {"version"}
# Dask's own processes read it, which warn of nothing.
IN_DASK = {"comm.timeouts.tcp"}


def told() -> Iterator[tuple[str, str]]:
    """The rows of the table of settings: what their names begin with, and a name."""
    table = PAGE.partition("Treadle reads these settings:")[2].partition("\n\nIf you set")[0]
    for row in table.splitlines():
        if not row.startswith("| ") or row.startswith("| |"):
            continue
        begin, names = row.strip("| ").split(" | ")
        begin = "".join(re.findall(r"`(\S+?)`", begin)) if "Dask's own" not in begin else ""
        # What is in brackets is an option.
        names = re.sub(r"\([^)]*\)", "", re.sub(r"\[[^]]*\]\([^)]*\)", "", names))
        for name in re.findall(r"`([a-z_.*-]+?)(?:: \w+)?`", names):
            yield begin, name.removesuffix(".*").removesuffix(".")


def constants() -> set[str]:
    """All strings of the package."""
    found = set()
    for path in (ROOT / "python" / "treadle").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def test_the_settings_of_distributed_are_those_of_which_nobody_is_warned() -> None:
    page = {(begin + name).removeprefix("distributed.") for begin, name in told() if begin.startswith("distributed.")}  # fmt: skip
    assert page - IN_DASK == {name.rstrip(".") for name in _settings._READ} - NOT_SET


def test_the_settings_of_treadle_are_those_of_the_code() -> None:
    page = {begin + name for begin, name in told() if begin.startswith("treadle.")}
    code = {text for text in constants() if re.fullmatch(r"treadle\.(sight|sight-memory|history-limit|(coordinator|rechunk|shuffle|scheduler|worker)\.[a-z-]+)", text)}  # fmt: skip
    assert page == code


def test_the_settings_of_dask_are_in_the_code() -> None:
    page = {name for begin, name in told() if not begin}
    assert page - constants() == set()
