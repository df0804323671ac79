"""What operators have said for all jobs: the rollout rules, the switch, and the times in which no setting is tried."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import sqlalchemy as sa

from treadle.coordinator import _store
from treadle.coordinator._allowed import is_allowed, wrong_value
from treadle.coordinator._database import Database
from treadle.coordinator._dry_run import DryRun, try_rule
from treadle.coordinator._jobs import LONGEST, Job
from treadle.coordinator._rules import Rule, Rules
from treadle.coordinator._tuning import Window

__all__ = ["Policy"]

_Value = TypeVar("_Value")

_MOST_TRIED = 200_000
_MOST_WINDOWS = 1000


class Policy:
    """Keeps it in a database, and remembers it for decisions, which do not ask the database.

    Each change has a line in the audit log.
    """

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self.database = database
        self._clock = clock
        # Read anew by each writing transaction that changes them. Readers take the whole tuple.
        self._lock = threading.Lock()
        self._rules: tuple[Rules, bool, tuple[Window, ...]]
        self._rules = self.database.read(_rules_of)

    @property
    def rules(self) -> Rules:
        """The present rules, in their order."""
        return self._rules[0]

    def refresh(self) -> None:
        """Read the rules anew: another coordinator of the same database may have changed them."""
        with self._lock:
            self._rules = self.database.read(_rules_of)

    @property
    def is_on(self) -> bool:
        """The switch for all."""
        return self._rules[1]

    @property
    def windows(self) -> tuple[Window, ...]:
        """Times in which no setting is tried."""
        return self._rules[2]

    def keep_rule(self, rule: Rule, who: str, text: str = "", place: int | None = None) -> Rule:
        """Write a rule, or a new version of one.

        Raises
        ------
        KeyError
            There is no rule of its id.
        ValueError
            It has a setting that no coordinator may give, or a value that a setting cannot have.
        Stale
            It is written over another version than the present one.
        """
        for name, value in rule.settings.items():
            if wanted := wrong_value(name, value):
                raise ValueError(f"settings of a rule have {name}={value}: it must be {wanted}")
            if not is_allowed(name):
                raise ValueError(
                    f"settings of a rule have {name}: a rule gives spark.treadle.*, spark.shuffle.manager and "
                    "what tuning changes"
                )

        def write(connection: sa.Connection) -> Rule:
            kept = _store.keep_rule(connection, rule, self._clock(), who, text[:LONGEST], place)
            what = "rule made" if rule.id == 0 else "rule changed"
            _store.note(connection, self._clock(), who, what, f"rule {kept.id}", kept.to_dict())
            return kept

        return self._changed(write)

    def delete_rule(self, rule: int, who: str) -> None:
        """Take a rule away; its versions stay."""

        def write(connection: sa.Connection) -> None:
            _store.delete_rule(connection, rule, self._clock(), who)
            _store.note(connection, self._clock(), who, "rule deleted", f"rule {rule}")

        self._changed(write)

    def switch(self, is_on: bool, who: str) -> None:
        """Switch the service on or off for all jobs that begin from now on."""

        def write(connection: sa.Connection) -> None:
            _store.keep_setting(connection, "is_on", is_on)
            what = "switched on" if is_on else "switched off"
            _store.note(connection, self._clock(), who, what, "all jobs")

        self._changed(write)

    def keep_windows(self, windows: Sequence[Window], who: str) -> None:
        """Write the times in which no setting is tried, in place of those that are there."""
        bodies = [_body_of(one) for one in windows]
        self._change_windows(lambda _: windows, who, "windows changed", bodies)

    def add_window(self, window: Window, who: str) -> None:
        """Add a time in which no setting is tried."""
        self._change_windows(lambda known: [*known, window], who, "window added", _body_of(window))

    def remove_window(self, window: Window, who: str) -> None:
        """Remove a time in which no setting is tried.

        Raises
        ------
        KeyError
            There is no such window.
        """

        def without(known: Sequence[Window]) -> Sequence[Window]:
            if window not in known:
                raise KeyError("there is no such window")
            return [one for one in known if one != window]

        self._change_windows(without, who, "window removed", _body_of(window))

    def _change_windows(
        self,
        change: Callable[[Sequence[Window]], Sequence[Window]],
        who: str,
        what: str,
        body: Any,
    ) -> None:
        def write(connection: sa.Connection) -> None:
            # Another coordinator may have changed them.
            found = sorted(set(change(_windows_of(connection))), key=_body_of)
            if len(found) > _MOST_WINDOWS:
                raise ValueError(f"there are at most {_MOST_WINDOWS:,} windows: remove some first")
            _store.keep_setting(connection, "windows", [_body_of(one) for one in found])
            _store.note(connection, self._clock(), who, what, "all jobs", body)

        self._changed(write)

    def try_rule(self, rule: Rule, begin: float, end: float) -> DryRun:
        """Try a rule on the jobs of a time."""

        def read(connection: sa.Connection) -> tuple[list[tuple[Job, int, float]], int]:
            return _store.past(connection, begin, end, _MOST_TRIED), _store.next_rule(connection)

        jobs, number = self.database.read(read)
        # The id chooses which jobs are in a share: a new rule is tried with the one that it will get.
        return try_rule(rule if rule.id else replace(rule, id=number), self.rules, jobs)

    def _changed(self, write: Callable[[sa.Connection], _Value]) -> _Value:
        """Write, and read the rules anew. One at a time, so that the newest are the last that are read."""
        with self._lock:
            kept = self.database.write_now(write)
            self._rules = self.database.read(_rules_of)
        return kept


def _rules_of(connection: sa.Connection) -> tuple[Rules, bool, tuple[Window, ...]]:
    is_on = bool(_store.setting(connection, "is_on", True))
    return Rules(_store.rules(connection)), is_on, _windows_of(connection)


def _windows_of(connection: sa.Connection) -> tuple[Window, ...]:
    return tuple(Window(*one) for one in _store.setting(connection, "windows", []))


def _body_of(window: Window) -> list[Any]:
    return [window.begins, window.ends, window.reason]
