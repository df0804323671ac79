"""The arguments of ``spark-submit``, read as Spark 3.0 to 4.3 read them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["MANAGER", "Submission", "parse", "properties", "with_settings"]

MANAGER = "spark.shuffle.manager"

# Each with its other names (SparkSubmitOptionParser).
_WITH_VALUE: Mapping[str, str] = {
    name: names[0]
    for names in (
        ("--archives",), ("--class",), ("--conf", "-c"), ("--deploy-mode",),
        ("--driver-class-path",), ("--driver-cores",), ("--driver-java-options",),
        ("--driver-library-path",), ("--driver-memory",), ("--exclude-packages",),
        ("--executor-cores",), ("--executor-memory",), ("--files",), ("--jars",), ("--keytab",),
        ("--kill",), ("--master",), ("--name",), ("--num-executors",), ("--packages",),
        ("--principal",), ("--properties-file",), ("--proxy-user",), ("--py-files",),
        ("--queue",), ("--remote",), ("--repositories",), ("--status",),
        ("--total-executor-cores",),
    )
    for name in names
}  # fmt: skip
_SWITCHES = frozenset(
    ("--help", "-h", "--supervise", "--usage-error", "--verbose", "-v", "--version", "--load-spark-defaults")
)  # fmt: skip
# No job begins with these.
_NO_JOB = frozenset(("--help", "-h", "--version", "--kill", "--status", "--usage-error"))
_EQUALS = re.compile(r"(--[^=]+)=(.+)", re.DOTALL)
# Options that are settings under another name.
_MEANS = {
    "--name": "spark.app.name", "--queue": "spark.yarn.queue", "--executor-cores": "spark.executor.cores",
    "--executor-memory": "spark.executor.memory", "--driver-memory": "spark.driver.memory",
    "--driver-cores": "spark.driver.cores", "--num-executors": "spark.executor.instances",
    "--total-executor-cores": "spark.cores.max", "--master": "spark.master",
}  # fmt: skip


@dataclass
class Submission:
    """What a command line of ``spark-submit`` says."""

    options: dict[str, str] = field(default_factory=dict)
    conf: dict[str, str] = field(default_factory=dict)
    """Of ``--conf``; the last one of a name counts."""
    resource: str = ""
    """The application's file, or a name such as ``pyspark-shell``."""
    arguments: list[str] = field(default_factory=list)
    """Of the application."""
    is_job: bool = True
    """False: it asks for help, a version or a status, or cannot be read; then Spark is to say so."""
    loads_defaults: bool = True

    def given(self, home: Path | None, conf_dir: Path | None) -> dict[str, str]:
        """Return all settings that the user gives, with those of files.

        Raises
        ------
        OSError
            A file cannot be read.
        """
        found: dict[str, str] = {}
        file = self.options.get("--properties-file")
        if self.loads_defaults or file is None:
            folder = conf_dir or (home / "conf" if home else None)
            if folder is not None and (folder / "spark-defaults.conf").is_file():
                found |= properties((folder / "spark-defaults.conf").read_text("utf-8", "replace"))
        if file is not None:
            found |= properties(Path(file).read_text("utf-8", "replace"))
        found |= self.conf
        for option, name in _MEANS.items():
            if option in self.options:
                found[name] = self.options[option]
        return found

    def fixed(self) -> set[str]:
        """Return the settings that options of their own give: no ``--conf`` replaces them."""
        return {name for option, name in _MEANS.items() if option in self.options}

    def name(self, given: Mapping[str, str]) -> str:
        """Return the application's name, as Spark finds it before the application runs."""
        plain = self.resource.rsplit("/", 1)[-1]
        return given.get("spark.app.name") or self.options.get("--class") or plain


def parse(arguments: Sequence[str]) -> Submission:
    """Read the arguments of ``spark-submit``."""
    found = Submission(loads_defaults=False)
    at = 0
    while at < len(arguments):
        text = arguments[at]
        value: str | None = None
        if (equals := _EQUALS.fullmatch(text)) is not None:
            text, value = equals[1], equals[2]
        option = _WITH_VALUE.get(text)
        if option is not None:
            if value is None:
                at += 1
                if at >= len(arguments):
                    found.is_job = False
                    return found
                value = arguments[at]
            _take(found, option, value)
        elif text in _SWITCHES:
            found.is_job &= text not in _NO_JOB
            found.loads_defaults |= text == "--load-spark-defaults"
        elif text.startswith("-"):
            # Unknown here: Spark knows it, or says what is wrong.
            found.is_job = False
            return found
        else:
            found.resource = arguments[at]
            found.arguments = list(arguments[at + 1 :])
            return found
        at += 1
    # Without an application there is no job, but for those that a class names.
    found.is_job &= "--class" in found.options
    return found


def _take(found: Submission, option: str, value: str) -> None:
    found.is_job &= option not in _NO_JOB
    if option == "--conf":
        name, equals, text = value.partition("=")
        if equals:
            found.conf[name] = text
        else:
            found.is_job = False
    else:
        found.options[option] = value


def with_settings(
    arguments: Sequence[str], settings: Mapping[str, str], replaced: Mapping[str, str] | None = None
) -> list[str]:
    """Return the arguments with settings before them, and with those that replace the user's after the options.

    Of two of a name, Spark takes the last.
    """
    # The application's file and its arguments are the last; what only a class names has none.
    found = parse(arguments)
    end = len(arguments) - len(found.arguments) - bool(found.resource)
    return [*_conf(settings), *arguments[:end], *_conf(replaced or {}), *arguments[end:]]


def _conf(settings: Mapping[str, str]) -> list[str]:
    return [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]


_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def properties(text: str) -> dict[str, str]:
    """Read a properties file of Java: comments, continued lines, ``=``, ``:`` or blanks after names, escapes."""
    found = {}
    lines = iter(re.split(r"\r\n|\r|\n", text))
    for line in lines:
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        # An odd number of backslashes continues a line.
        while (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1] + next(lines, "").lstrip(" \t\f")
        key = re.match(r"(?:\\.|[^\\=: \t\f])*", line, re.DOTALL)
        assert key is not None
        rest = re.sub(r"^[ \t\f]*[=:]?[ \t\f]*", "", line[key.end() :], count=1)
        # Spark trims values.
        found[_unescaped(key[0])] = _unescaped(rest).strip()
    return found


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) == 5:
            return chr(int(code[1:], 16))
        return _ESCAPED.get(code, code)

    return _ESCAPE.sub(one, text)
