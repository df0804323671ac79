"""Rollout rules: which jobs come onto the service, and what settings they get."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase, translate
from functools import cached_property
from typing import Any

from treadle.coordinator._jobs import Job, is_text
from treadle.coordinator._tuning import MODES

__all__ = ["DEFAULT_SETTINGS", "Rule", "Rules", "Verdict", "decide", "in_share", "version_matches"]

# What a job of Spark needs; the servers' address is the coordinator's own option.
DEFAULT_SETTINGS = {"spark.shuffle.manager": "io.treadle.spark.TreadleShuffleManager"}

_MOST_PATTERNS = 1000
_LONGEST_PATTERN = 400
_MOST_SETTINGS = 200
_MOST_KINDS = 5000
_Check = Callable[[str], bool]
# A profile is on pages and in command lines: secrets are given as files.
_SECRET = re.compile(
    r"(secret|password|passwd|token|credential|access\.?key)(?!.*file)", re.IGNORECASE
)
_COMPARED = re.compile(r"(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)$")


@dataclass(frozen=True)
class Rule:
    """Takes jobs that match all its lists. Lists are globs; an empty one matches all.

    ``action`` is ``service``, or ``stock`` for jobs that never use the service.
    """

    name: str
    action: str = "service"
    clusters: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    """Globs (``3.5.*``), or comparisons that all hold (``>=3.4,<4.1``)."""
    except_users: tuple[str, ...] = ()
    except_names: tuple[str, ...] = ()
    percent: float = 100.0
    """Of the recurring jobs that match. Those of a smaller share are among those of a larger one."""
    begins: float | None = None
    """Seconds since 1970, as ``ends``."""
    ends: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """Added to the coordinator's own for jobs of this rule."""
    fewer_copies: bool = False
    """A job that does not fit may have one copy of each row."""
    tuning: str = ""
    """What tuning may do with the jobs that it takes, unless an operator has said so of one; empty: ``propose``."""
    is_on: bool = True
    id: int = 0
    version: int = 0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Rule:
        """Return the rule of a dictionary.

        Raises
        ------
        ValueError
            A field is unknown, or has a value that it cannot have: it is named.
        """
        known = {one.name for one in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ValueError(
                f"a rule has no {', '.join(unknown)}: it has {', '.join(sorted(known))}"
            )
        name = values.get("name")
        if not isinstance(name, str) or not 0 < len(name) <= 200 or not is_text(name):
            raise ValueError("name of a rule must be text of 1 to 200 characters")
        if values.get("action", "service") not in ("service", "stock"):
            raise ValueError("action of a rule must be 'service' or 'stock'")
        found: dict[str, Any] = {"name": name, "action": values.get("action", "service")}
        for lists in _LISTS:
            found[lists] = _patterns(lists, values.get(lists, ()))
        for text in found["versions"]:
            version_matches(text, "1.0")
        found["percent"] = _number("percent", values.get("percent", 100.0), 0.0, 100.0)
        for moment in ("begins", "ends"):
            if values.get(moment) is not None:
                found[moment] = _number(moment, values[moment], 0.0, 1e11)
        begin, end = found.get("begins"), found.get("ends")
        if begin is not None and end is not None and begin >= end:
            raise ValueError("ends of a rule must be after begins")
        found["settings"] = _settings(values.get("settings", {}))
        found["tuning"] = values.get("tuning", "")
        if found["tuning"] not in ("", *MODES):
            raise ValueError(f"tuning of a rule must be one of {', '.join(MODES)}, or empty")
        for flag in ("fewer_copies", "is_on"):
            if not isinstance(values.get(flag, True), bool):
                raise ValueError(f"{flag} of a rule must be true or false")
            if flag in values:
                found[flag] = values[flag]
        for number in ("id", "version"):
            found[number] = int(_number(number, values.get(number, 0), 0, 2**31 - 1))
        return cls(**found)

    def to_dict(self) -> dict[str, Any]:
        """Return its fields, as JSON has them."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }

    def is_current(self, now: float) -> bool:
        """Return whether it is on, and within its dates."""
        after_begin = self.begins is None or now >= self.begins
        return self.is_on and after_begin and (self.ends is None or now < self.ends)

    @cached_property
    def _checks(self) -> tuple[tuple[str, _Check], ...]:
        """The lists that are not empty, but those of names: of which field of a job, and whether it is among them."""
        return tuple(
            (field, _matcher(found)) for name, field in _FIELDS if (found := getattr(self, name))
        )

    @cached_property
    def _names(self) -> tuple[_Check | None, _Check | None]:
        named, left_out = self.names, self.except_names
        return _matcher(named) if named else None, _matcher(left_out) if left_out else None

    @cached_property
    def _left_out(self) -> _Check:
        return _matcher(self.except_users)

    def matches(self, job: Job) -> bool:
        """Return whether the lists take a job; its share is another question."""
        return self.matches_kind(job) and self.matches_name(job.name)

    def matches_kind(self, job: Job) -> bool:
        """Return whether the lists take jobs like this one, whatever their name."""
        if self.versions and not any(version_matches(one, job.version) for one in self.versions):
            return False
        return self._matches_any_version(job)

    def _matches_any_version(self, job: Job) -> bool:
        """Return whether the lists take jobs like this one, whatever their name and their version."""
        for name, is_among in self._checks:
            if not is_among(getattr(job, name)):
                return False
        return not self._left_out(job.user)

    def lacks_version(self, job: Job, now: float) -> bool:
        """Return whether it might take a job whose version nobody knows."""
        is_asked = bool(self.versions) and self.is_current(now) and self.action == "service"
        return is_asked and self._matches_any_version(job) and self.matches_name(job.name)

    def matches_name(self, name: str) -> bool:
        """Return whether the lists take a name."""
        takes, leaves_out = self._names
        return (takes is None or takes(name)) and not (leaves_out is not None and leaves_out(name))

    def takes(self, job: Job, now: float) -> bool:
        """Return whether it decides about a job at this time."""
        return self.is_current(now) and self.matches(job) and in_share(job, self.id, self.percent)


_FIELDS = (
    ("clusters", "cluster"), ("queues", "queue"), ("users", "user"), ("engines", "engine"),
)  # fmt: skip
_LISTS = ("clusters", "queues", "users", "names", "engines", "versions", "except_users", "except_names")  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What the rules say of a job."""

    uses_service: bool
    reason: str
    rule: Rule | None = None


class Rules(tuple[Rule, ...]):
    """Rules in their order. Which of them are about jobs of a kind is found once for each kind: many jobs are like it."""

    def __new__(cls, rules: Iterable[Rule] = ()) -> Rules:
        made = super().__new__(cls, rules)
        made._kinds = {}
        return made

    _kinds: dict[tuple[str, ...], tuple[Rule, ...]]

    def about(self, job: Job) -> tuple[Rule, ...]:
        """Return those that take jobs like this one, whatever their name."""
        kind = (job.cluster, job.queue, job.user, job.engine, job.version)
        found = self._kinds.get(kind)
        if found is None:
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            found = self._kinds[kind] = tuple(one for one in self if one.matches_kind(job))
        return found


def decide(job: Job, rules: Iterable[Rule], *, is_on: bool, now: float) -> Verdict:
    """Return what the rules say: one that refuses wins, else the first that takes the job.

    ``is_on`` is the switch for all.
    """
    if not is_on:
        return Verdict(False, "the service is switched off for all jobs")
    first: Rule | None = None
    outside: Rule | None = None
    rules = rules if isinstance(rules, Rules) else Rules(rules)
    for rule in rules.about(job):
        if not rule.is_current(now) or not rule.matches_name(job.name):
            continue
        if not in_share(job, rule.id, rule.percent):
            outside = outside or rule
        elif rule.action == "stock":
            return Verdict(False, f"rule {rule.name!r} keeps it on stock shuffle", rule)
        else:
            first = first or rule
    if first is not None:
        share = "" if first.percent >= 100 else f" ({first.percent:g} % of the recurring jobs)"
        return Verdict(True, f"rule {first.name!r} takes it{share}", first)
    if outside is not None and outside.action == "service":
        return Verdict(
            False, f"it is not among the {outside.percent:g} % that rule {outside.name!r} takes"
        )
    if not re.search(r"\d", job.version):
        unsure = next((one for one in rules if one.lacks_version(job, now)), None)
        if unsure is not None:
            wanted = " or ".join(unsure.versions)
            return Verdict(
                False,
                f"no rule takes it: rule {unsure.name!r} takes versions {wanted}, and whoever asks does not say "
                f"the version of {job.engine or 'its engine'}",
            )
    return Verdict(False, "no rule takes it")


def in_share(job: Job, rule: int, percent: float) -> bool:
    """Return whether a recurring job is in a share. It depends on nothing that changes between its runs."""
    digest = hashlib.sha256(f"{rule}\0{job.recurring}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < percent / 100 * 2**64


def version_matches(text: str, version: str) -> bool:
    """Return whether a version is what a rule asks for: a glob, or comparisons with commas between them.

    Raises
    ------
    ValueError
        The comparisons cannot be read.
    """
    if not re.search(r"[<>=!]", text):
        return fnmatchcase(version, text)
    have = [int(part) for part in re.findall(r"\d+", re.split(r"[-+]|rc", version)[0])]
    holds = bool(have)
    for comparison in text.split(","):
        found = _COMPARED.match(comparison.strip())
        if found is None:
            raise ValueError(f"versions has {text!r}: write 3.5.* or >=3.4,<4.1")
        want = [int(part) for part in found[2].split(".")]
        width = max(len(have), len(want))
        a, b = (part + [0] * (width - len(part)) for part in (have, want))
        holds &= {
            ">=": a >= b, "<=": a <= b, "==": a == b, "!=": a != b, ">": a > b, "<": a < b,
        }[found[1]]  # fmt: skip
    return holds


def _matcher(patterns: Sequence[str]) -> _Check:
    """Return whether a text is what any of some globs says: each is read once, and not for each job."""
    exact = frozenset(one for one in patterns if not re.search(r"[*?\[]", one))
    globs = [re.compile(translate(one)).match for one in patterns if one not in exact]
    return lambda text: text in exact or any(match(text) for match in globs)


def _patterns(name: str, values: Any) -> tuple[str, ...]:
    is_list = isinstance(values, Sequence) and not isinstance(values, (str, bytes))
    if not is_list or len(values) > _MOST_PATTERNS:
        raise ValueError(f"{name} of a rule must be a list of at most {_MOST_PATTERNS} patterns")
    for value in values:
        if (
            not isinstance(value, str)
            or not 0 < len(value) <= _LONGEST_PATTERN
            or not is_text(value)
        ):
            raise ValueError(
                f"{name} of a rule has {value!r}: patterns are text of 1 to {_LONGEST_PATTERN} characters"
            )
    return tuple(values)


def _number(name: str, value: Any, least: float, most: float) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # What is not a number is not within limits, either.
    if not is_number or not least <= value <= most:
        raise ValueError(f"{name} of a rule must be a number from {least:g} to {most:g}")
    return value  # type: ignore[no-any-return]


def _settings(values: Any) -> dict[str, str]:
    if not isinstance(values, Mapping) or len(values) > _MOST_SETTINGS:
        raise ValueError(f"settings of a rule must be a table of at most {_MOST_SETTINGS} names")
    for name, value in values.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise ValueError(f"settings of a rule have {name!r}: names and values are text")
        if (
            not re.fullmatch(r"[A-Za-z][\w.\-]{0,199}", name)
            or len(value) > 2000
            or "\n" in value
            or not is_text(value)
        ):
            raise ValueError(f"settings of a rule have {name!r}, which is no name of a setting")
        if _SECRET.search(name):
            raise ValueError(
                f"settings of a rule have {name}: rules are shown on pages. Name a file with the secret instead"
            )
    return dict(values)
