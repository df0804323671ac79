"""What each public name of distributed is in Treadle: the table of "Coming from distributed".

The names come from the installed release of distributed, the words from `reasons.toml`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import distributed
import tomllib

import treadle

REASONS = Path(__file__).parent / "reasons.toml"
MODULE = "The module"
KINDS = ("same", "better", "different", "absent")

# What Treadle has a class of its own for; all others are distributed's own classes.
OURS = {
    "Client": treadle.Client,
    "Future": treadle.Future,
    "LocalCluster": treadle.LocalCluster,
    "as_completed": treadle.as_completed,
}


@dataclass(frozen=True)
class Name:
    """A public name of distributed."""

    group: str
    name: str
    kind: str
    reason: str
    about: str


def reasons() -> dict[str, dict[str, tuple[str, str]]]:
    """By group and name: the kind, and the words. A name that is there twice is an error."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for group, kinds in tomllib.loads(REASONS.read_text(encoding="utf-8")).items():
        names = [(name, "same", "") for name in kinds.pop("same", "").split()]
        for kind, told in kinds.items():
            if kind not in KINDS:
                raise ValueError(f"{REASONS.name} has [{group}.{kind}]: no such kind")
            names += [(name, kind, why) for name, why in told.items()]
        found[group] = {name: (kind, why) for name, kind, why in names}
        if len(found[group]) != len(names):
            raise ValueError(f"{REASONS.name} has a name of {group} twice")
    return found


def public(group: str) -> set[str]:
    """The public names of a group in the installed release of distributed."""
    if group == MODULE:
        return set(distributed.__all__)
    return {name for name in dir(getattr(distributed, group)) if not name.startswith("_")}


def served(group: str, name: str) -> bool:
    """Whether Treadle's own class has the name; for a class of distributed nobody can tell."""
    return hasattr(OURS[group], name)


def names() -> Iterator[Name]:
    for group, told in reasons().items():
        here = public(group)
        for name in sorted(here & set(told), key=str.lower):
            kind, reason = told[name]
            yield Name(group, name, kind, reason, _about(group, name))


def _about(group: str, name: str) -> str:
    """The first sentence of distributed's docstring."""
    of = distributed if group == MODULE else getattr(distributed, group)
    value: Any = inspect.getattr_static(of, name, None)
    value = getattr(value, "__func__", value)
    text = inspect.getdoc(value) or ""
    if isinstance(value, (str, bool, int, list, tuple, dict)) or value is None:
        text = ""
    sentence = re.split(r"(?<=[.])\s|\n\n", text.strip(), maxsplit=1)[0]
    sentence = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", " ".join(sentence.split()))
    sentence = sentence.replace("``", "`").replace("|", "\\|").replace("<", "&lt;")
    return sentence if len(sentence) < 120 and "::" not in sentence else ""


def page() -> str:
    """The page, as Markdown in docs/generated."""
    every = list(names())
    counts = {kind: sum(name.kind == kind for name in every) for kind in KINDS}
    told = ", ".join(f"{count} are {kind}" for kind, count in counts.items())
    lines = [
        "# Names of distributed",
        "",
        (
            f"Every public name of `distributed` {distributed.__version__}: of the module, and of the classes that "
            f"you call. The list is made from the package. Of {len(every)} names, {told}."
        ),
        "",
        "- **same**: it does what distributed documents.",
        "- **better**: it does that, and more.",
        "- **different**: read the line before you rely on it.",
        "- **absent**: the line says what to use.",
        "",
    ]
    for group in dict.fromkeys(name.group for name in every):
        title = "`distributed`" if group == MODULE else f"`{group}`"
        lines += [f"## {title}", "", "| name | in Treadle | |", "| --- | --- | --- |"]
        for name in (name for name in every if name.group == group):
            words = re.sub(r"\]\((?!https?:)", "](/", name.reason) or name.about
            lines.append(f"| `{name.name}` | [{name.kind}]{{.{name.kind}}} | {words} |")
        lines.append("")
    return "\n".join(lines)
