"""What a job is, and which jobs are runs of the same recurring one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

__all__ = ["LONGEST", "Job", "is_text", "kept_text", "pattern_of", "with_place"]

# Characters of each field: longer ones are refused, so that a row has a bound.
LONGEST = 400

_SEPARATED = r"(?<![^\s_\-.,:;/#()\[\]=@+|])"
_SEPARATED_END = r"(?![^\s_\-.,:;/#()\[\]=@+|])"
# What differs between runs of one job: identifiers, dates and times, numbers.
_VARYING = re.compile(
    r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
    r"|\d{4}-\d\d-\d\d(?:[T _]\d\d[:_-]?\d\d(?:[:_-]?\d\d)?(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?)?"
    rf"|{_SEPARATED}\d{{8}}[TZ_]\d{{4,6}}Z?{_SEPARATED_END}"
    r"|\d{4,}"
    rf"|{_SEPARATED}(?=[0-9a-f]*\d)[0-9a-f]{{8,}}{_SEPARATED_END}"
    rf"|{_SEPARATED}\d+{_SEPARATED_END}"
)
_PLACE = re.compile(r"#(?:cluster|queue)=[^&#]*(?:&(?:cluster|queue)=[^&#]*)?\Z")
_UNKEPT = re.compile("[\0\ud800-\udfff]")
_REPEATED = re.compile(r"\*(?:[\s_\-.,:;/#=@+|]*\*)+")


def pattern_of(name: str) -> str:
    """Return a name with ``*`` where runs of one job differ: ``etl_v2 2026-11-30`` becomes ``etl_v2 *``."""
    while (found := _REPEATED.sub("*", _VARYING.sub("*", name))) != name:
        name = found
    return name


def with_place(text: str) -> tuple[str, dict[str, str]]:
    """Read ``FOLDER#cluster=a&queue=b``: a folder, and where its jobs ran that do not say so themselves."""
    found = _PLACE.search(text)
    return (text, {}) if found is None else (text[: found.start()], dict(parse_qsl(found[0][1:])))


def is_text(value: str) -> bool:
    """Return whether all databases can keep it: JSON can have halves of characters, and zeros."""
    return not _UNKEPT.search(value)


def kept_text(value: str) -> str:
    """Return a text as all databases can keep it, and as UTF-8 can have it."""
    return _UNKEPT.sub("?", value)


@dataclass(frozen=True)
class Job:
    """A job, as whoever starts it describes it. What is not known is empty."""

    cluster: str = ""
    queue: str = ""
    user: str = ""
    name: str = ""
    engine: str = "spark"
    version: str = ""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Job:
        """Return the job of a dictionary.

        Raises
        ------
        ValueError
            A value is no text, or is too long.
        """
        found = {}
        for name in _FIELDS:
            value = values.get(name)
            if value is None:
                continue
            if not isinstance(value, str) or len(value) > LONGEST or not is_text(value):
                raise ValueError(f"{name} of a job must be text of at most {LONGEST} characters")
            found[name] = value
        return cls(**found)

    @property
    def pattern(self) -> str:
        """The name that all runs of this job have in common."""
        return pattern_of(self.name)

    @cached_property
    def recurring(self) -> str:
        """What identifies the recurring job. The version is no part: an upgrade does not end its history."""
        same = (self.cluster, self.queue, self.user, self.engine, self.pattern)
        return hashlib.sha256("\0".join(same).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, str]:
        """Return its fields."""
        return {name: getattr(self, name) for name in _FIELDS}


_FIELDS = tuple(one.name for one in fields(Job))
