"""The Python blocks of a page, and how to run them: in order, in this process, as a reader would.

``blocks.py PAGE`` runs those of one page. A statement with a comment that is a literal has to have that
value: ``sum([1, 2])  # 3``. What a page takes for granted is in `pages`.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import linecache
import os
import re
import sys
import threading
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Pages about the inside, and what a program has written.
NOT_FOR_USERS = ("internals", "pictures", "_site", "_build", "generated")


@dataclass(frozen=True)
class Block:
    line: int
    text: str

    @property
    def first(self) -> str:
        """The first line, by which `pages` names a block."""
        return self.text.splitlines()[0].split("  #")[0].rstrip()


@dataclass
class Setting:
    """What a page takes for granted.

    Attributes
    ----------
    names
        What its blocks use and do not make.
    replaced
        Text of the blocks, such as an address, and what it is here.
    before
        What to do before the block that begins with this line.
    not_run
        Blocks that do not run, with the reason.
    beside
        Blocks that run beside those that follow: another program.
    """

    names: dict[str, Any] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)
    before: dict[str, Callable[[dict[str, Any]], None]] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    beside: set[str] = field(default_factory=set)


def user_pages() -> Iterator[Path]:
    """The pages for users that have Python blocks."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        inside = path.relative_to(ROOT).parts[1:2]
        if not set(inside) & set(NOT_FOR_USERS) and blocks(path):
            yield path


def blocks(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    return [Block(text.count("\n", 0, found.start(1)), found[1]) for found in BLOCK.finditer(text)]


def run(path: Path, setting: Setting) -> None:
    names = {"__name__": "__main__", **setting.names}
    every = blocks(path)
    told = {*setting.before, *setting.not_run, *setting.beside}
    unknown = told - {block.first for block in every}
    assert not unknown, f"{path} has no block that begins with {unknown}"
    used = set()
    beside = []
    for block in every:
        if block.first in setting.not_run:
            print(f"{path.name}:{block.line + 1}: not run: {setting.not_run[block.first]}")
            continue
        text = block.text
        for old, new in setting.replaced.items():
            used |= {old} if old in text else set()
            text = text.replace(old, new)
        setting.before.get(block.first, lambda _: None)(names)
        print(f"{path.name}:{block.line + 1}", flush=True)
        if block.first in setting.beside:
            beside.append(_Beside(path, block, text, names))
            continue
        _run(path, block.line, text, names)
    for other in beside:
        other.end()
    assert used == set(setting.replaced), f"{path} does not have {set(setting.replaced) - used}"


def _run(path: Path, line: int, text: str, names: dict[str, Any]) -> None:
    # With the page's own numbers in tracebacks.
    text = "\n" * line + text
    name = f"{path.name}"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    comments = _comments(text)
    for statement in ast.parse(text, name).body:
        value = _statement(statement, name, names)
        expected = comments.get(statement.end_lineno or 0)
        if isinstance(statement, ast.Expr) and expected is not None:
            told = f"{name}:{statement.lineno}: {value!r}, and not {expected}"
            assert _is(value, expected), told


def _is(value: Any, expected: str) -> bool:
    """Whether the comment tells the value; one that is no literal tells something else."""
    try:
        literal = ast.literal_eval(expected)
    except (SyntaxError, ValueError):
        return True
    if "…" in expected:
        pattern = re.escape(expected).replace("…", ".*")
        return re.fullmatch(pattern, repr(value)) is not None
    return bool(value == literal)


def _statement(statement: ast.stmt, name: str, names: dict[str, Any]) -> Any:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    if isinstance(statement, ast.Expr):
        code = compile(ast.Expression(statement.value), name, "eval", flags)
    else:
        code = compile(ast.Module([statement], []), name, "exec", flags)
    value = eval(code, names)
    if code.co_flags & inspect.CO_COROUTINE:
        value = asyncio.run(value)
    return value


def _comments(text: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {
        token.start[0]: token.string.lstrip("# ").split(";")[0]
        for token in tokens
        if token.type == tokenize.COMMENT
    }


class _Beside:
    """A block in a thread of its own."""

    def __init__(self, path: Path, block: Block, text: str, names: dict[str, Any]) -> None:
        self._error: BaseException | None = None

        def body() -> None:
            try:
                _run(path, block.line, text, dict(names))
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=body)
        self._thread.start()

    def end(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive(), "a block that runs beside the others does not end"
        if self._error is not None:
            raise self._error


if __name__ == "__main__":
    sys.path.append(str(ROOT / "tests/cluster"))
    import pages

    # Nothing of the user's own is read or written.
    for own in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        os.environ[own] = str(Path(own.lower()).resolve())
    chosen = Path(sys.argv[1]).resolve()
    with pages.setting(str(chosen.relative_to(ROOT))) as its_setting:
        run(chosen, its_setting)
