"""The pages that are made from code: no name is missing, and what they say of a name is so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("tomllib", reason="the group docs needs Python 3.11")
sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_site"))

import commands
import distributed_names
import interfaces

GROUPS = distributed_names.reasons()


@pytest.mark.parametrize("group", GROUPS)
def test_each_public_name_of_distributed_is_told(group: str) -> None:
    """A new name is to be tried, and then told in docs/_site/reasons.toml."""
    missing = distributed_names.public(group) - set(GROUPS[group])
    assert missing == set()
    gone = set(GROUPS[group]) - distributed_names.public(group)
    assert gone == set()


@pytest.mark.parametrize("group", distributed_names.OURS)
def test_a_name_is_absent_where_the_page_says_so(group: str) -> None:
    said = {name for name, (kind, _) in GROUPS[group].items() if kind == "absent"}
    assert {name for name in GROUPS[group] if not distributed_names.served(group, name)} == said


def test_what_is_not_the_same_has_words() -> None:
    bare = [name for name in distributed_names.names() if name.kind != "same" and not name.reason]
    assert bare == []


def test_the_groups_are_what_users_call() -> None:
    """A class that users make or are given has its own table, unless the module's table says all."""
    called = {"Client", "LocalCluster", "Future", "as_completed", "Lock", "Event", "Queue"}
    assert called | {"Variable", "Semaphore", "MultiLock"} <= set(GROUPS)


def test_each_command_is_on_its_page() -> None:
    import treadle.__main__ as command_line

    page = commands.page()
    for name in set(command_line._COMMANDS) - commands.HIDDEN:
        assert f"## `treadle {name}" in page, name


def test_each_public_name_of_treadle_is_on_a_page() -> None:
    import treadle

    page = interfaces.pages()["api/treadle.rst"]
    without = interfaces.MODULES["treadle"][1]
    lines = {line.rpartition(" ")[2] for line in page.splitlines()}
    assert {f"treadle.{name}" for name in set(treadle.__all__) - without} <= lines
