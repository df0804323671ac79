"""The reference of the command line, from click."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from treadle.__main__ import main

# Started by Treadle itself.
HIDDEN = {"template"}
# What click calls the values of options that name none themselves.
TYPES = {"INTEGER RANGE": "N", "FLOAT RANGE": "NUMBER", "DIRECTORY": "PATH"}


def page() -> str:
    """The page, as Markdown in docs/generated."""
    lines = [
        "# All commands and options",
        "",
        "This page is what `treadle COMMAND --help` prints. [The command line](/cli.md) has examples.",
        "",
    ]
    for name, command, context in _commands():
        if isinstance(command, click.Group):
            continue
        lines += [
            f"## `{name}`",
            "",
            "```",
            f"{name} {' '.join(command.collect_usage_pieces(context))}",
            "```",
            "",
        ]
        lines += [*_paragraphs(command.help or ""), ""]
        options = [
            one for one in command.params if isinstance(one, click.Option) and not one.hidden
        ]
        if options:
            lines += ["| option | |", "| --- | --- |", *(_row(one, context) for one in options), ""]
    return "\n".join(lines)


def _commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    waiting: list[tuple[str, click.Command, click.Context | None]] = [("treadle", main, None)]
    while waiting:
        name, command, parent = waiting.pop(0)
        context = click.Context(command, info_name=name, parent=parent)
        yield name, command, context
        if isinstance(command, click.Group):
            for below in command.list_commands(context):
                found = command.get_command(context, below)
                if found is not None and not found.hidden and below not in HIDDEN:
                    waiting.append((f"{name} {below}", found, context))


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        yield _escaped(" ".join(paragraph.replace("\b", "").split()))
        yield ""


def _row(option: click.Option, context: click.Context) -> str:
    names, words = option.get_help_record(context) or ("", "")
    for typed, word in TYPES.items():
        names = names.replace(typed, word)
    return f"| {_code(names)} | {_escaped(' '.join(words.split()))} |"


def _code(names: str) -> str:
    return " / ".join(f"`{part.strip()}`" for part in names.replace("|", "\\|").split(" / "))


def _escaped(text: str) -> str:
    """Help as Markdown: options are code, and nothing else is markup but what is code already."""
    parts = text.replace("|", "\\|").split("`")
    for at in range(0, len(parts), 2):
        plain = re.sub(r"([<>*_\[\]])", r"\\\1", parts[at])
        parts[at] = re.sub(r"(?<![\w-])(--[a-z][a-z-]*)", r"`\1`", plain)
    return "`".join(parts)
