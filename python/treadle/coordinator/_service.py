"""The coordinator's work: the pure parts and the database, brought together."""

from __future__ import annotations

import math
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from treadle.coordinator import _store
from treadle.coordinator._admission import Admission, Forecast, Room, admit, forecast
from treadle.coordinator._database import Busy, Database
from treadle.coordinator._diagnosis import Finding, diagnose
from treadle.coordinator._jobs import LONGEST, Job, is_text, kept_text
from treadle.coordinator._measures import Application
from treadle.coordinator._placement import PLACE, is_large, part_of, place
from treadle.coordinator._policy import Policy
from treadle.coordinator._rules import DEFAULT_SETTINGS, Rule, decide
from treadle.coordinator._tuning import Change, Proposal, Tuning
from treadle.coordinator._watching import Alert, End, History, judge

__all__ = ["Coordinator"]

_ID = re.compile(r"[\w.:\-]{1,100}\Z")
_MOST_NAMES = 2000
_LOGINS_KEPT = 10_000
_SUMMED_FOR = 1.0
_SILENT_AFTER = 24 * 3600.0
# Nobody is told of what ended longer ago: a folder of logs may have years.
_TOLD_FOR = 24 * 3600.0
_FORGOTTEN_AT_ONCE = 20
# Runs that are found silent in one transaction.
_SILENCED = 200
# While so many runs of a trial have had no end for so many times the usual duration, no more of them begin.
_MOST_LATE = 2
_LATE = 3.0
_MANAGER = "spark.shuffle.manager"
_SERVICE, _STOCK, _UNASKED = "service", "stock", "unasked"


@dataclass(frozen=True)
class _Question:
    """What is asked about a job, when it is checked."""

    identity: str
    job: Job
    manager: str
    taken: frozenset[str]
    tunable: frozenset[str]


class Coordinator(Policy):
    """Decides about jobs, and remembers what came of it.

    Parameters
    ----------
    url
        Of the database, as SQLAlchemy has them.
    servers
        The address that jobs are given; None: the rules' settings have it.
    room
        Returns what the servers report, or None. It must not wait.
    notify
        Is called with alerts, in the writer's thread. It must not wait.
    """

    def __init__(
        self,
        url: str,
        *,
        servers: str | None = None,
        room: Callable[[], Room | None] = lambda: None,
        notify: Callable[[Sequence[Alert]], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(Database(url), clock)
        self._servers = servers
        self._room = room
        self._notify = notify
        # Of the writer's thread alone.
        self._promised, self._summed = 0, -math.inf
        self._placed: Counter[str] = Counter()

    def close(self) -> None:
        """Write what waits, and end."""
        self.database.close()

    # Decisions

    def decide(self, values: Mapping[str, Any]) -> Future[dict[str, Any]]:
        """Decide about a job; the future has the decision when it is kept.

        ``values`` has ``job`` (see :class:`Job`), and may have ``id``, by which the same question has the same answer,
        ``manager``, the shuffle manager that the user names, and ``names`` of settings that the user gives. They stay as
        they are. Those of ``tunable`` do, too, but that tuning may replace them.

        Raises
        ------
        ValueError
            A value is malformed.
        """
        identity = values.get("id") or uuid.uuid4().hex
        if not isinstance(identity, str) or not _ID.match(identity):
            raise ValueError("id must be text of at most 100 letters, digits and ._:-")
        job_values = values.get("job")
        if not isinstance(job_values, Mapping):
            raise ValueError(
                "job must be a table with cluster, queue, user, name, engine and version"
            )
        job = Job.of(job_values)
        manager = values.get("manager") or ""
        if not isinstance(manager, str) or len(manager) > LONGEST or not is_text(manager):
            raise ValueError(f"manager must be text of at most {LONGEST} characters")
        taken = _names(values, "names")
        tunable = _names(values, "tunable")
        question = _Question(identity, job, manager, taken, tunable)
        return self.database.write_together(self._decided, question)

    def _decided(
        self, connection: sa.Connection, questions: list[_Question]
    ) -> list[dict[str, Any]]:
        """Answer what has come in the same few milliseconds: a handful of statements for all of it."""
        now = self._clock()
        known = _store.jobs_of(connection, [one.identity for one in questions])
        asked = [one for one in questions if one.identity not in known]
        memory = _store.recurring_of_all(connection, {one.job.recurring for one in asked})
        there = set(memory)
        rows: dict[str, dict[str, Any]] = {}
        following: dict[str, Job] = {}
        # Large jobs of this transaction, by their parts of the servers.
        self._placed.clear()
        for one in asked:
            if one.identity not in rows:
                history, tuning = memory.setdefault(one.job.recurring, (History(), Tuning()))
                before = (tuning.rule, tuning.mode)
                rows[one.identity] = self._row(connection, one, history, tuning, now)
                if before != (tuning.rule, tuning.mode):
                    following[one.job.recurring] = one.job
        jobs = {one.identity: one.job for one in asked}
        _store.new_jobs(connection, list(rows.values()))
        _store.count_runs(connection, list(jobs.values()), there, now)
        for key, job in sorted(following.items()):
            history, tuning = memory[key]
            _store.keep_recurring(connection, job, history, tuning, now)
            if key in there:
                what = f"mode {tuning.mode}"
                _store.note(connection, now, "coordinator", what, key, {"rule": tuning.rule})
        for verdict, count in sorted(Counter(row["verdict"] for row in rows.values()).items()):
            _store.count_in_hour(connection, now, verdict, jobs=count)
        found = {**known, **rows}
        for one in questions:
            if _job(found[one.identity]) != one.job:
                raise ValueError(f"id {one.identity} is that of a decision about another job")
        return [_decision(found[one.identity]) for one in questions]

    def _row(
        self,
        connection: sa.Connection,
        question: _Question,
        history: History,
        tuning: Tuning,
        now: float,
    ) -> dict[str, Any]:
        job, taken = question.job, question.taken
        verdict, admission, expected = self._verdict(
            connection, job, question.manager, history, tuning, now
        )
        uses_service = verdict[0] and admission.copies > 0
        rule = verdict[2]
        found: dict[str, str] = {}
        if uses_service:
            found = self._settings_of_service(connection, job, rule, admission, expected, now)
        if self.is_on and not _is_other(question.manager):
            # Otherwise no rule was asked, and what one has said stays.
            mode = rule.tuning if rule else ""
            tuning.follow(rule.id if rule and mode else 0, mode, now)
        tuned, change = self._tuned(connection, job, history, tuning, taken, now)
        given = taken | question.tunable
        found = {name: text for name, text in found.items() if name not in given}
        found |= {name: text for name, text in tuned.items() if name not in taken}
        reason = verdict[1] if admission.copies else f"{verdict[1]}, but {admission.reason}"
        row: dict[str, Any] = {
            **job.to_dict(), "id": question.identity, "at": now, "recurring": job.recurring,
            "verdict": _SERVICE if uses_service else _STOCK, "reason": reason,
            "rule": rule.id if rule else None, "rule_version": rule.version if rule else None,
            "settings": found, "copies": admission.copies if uses_service else 0,
            "change": change, "predicted_bytes": expected.bytes, "state": _store.RUNNING,
        }  # fmt: skip
        self._promised += (expected.bytes or 0) * row["copies"]
        return row

    def _tuned(
        self,
        connection: sa.Connection,
        job: Job,
        history: History,
        tuning: Tuning,
        taken: frozenset[str],
        now: float,
    ) -> tuple[dict[str, str], int]:
        """Return the settings of tuning for a run, and the change that it tries."""
        _, is_on, windows = self._rules
        if not is_on:
            return {}, 0
        trying = tuning.trying
        if trying is None:
            return tuning.settings(now, windows)
        if trying.parameter in taken:
            # What the user gives stays, so that a trial of it would never end.
            self._end_trial(connection, job, history, tuning, "the user gives it", now)
            return tuning.settings(now, windows)
        late = now - (_LATE * trying.usual or _SILENT_AFTER)
        without_end = _store.count_without_end(connection, job.recurring, trying.number, late)
        return tuning.settings(now, windows, is_paused=without_end >= _MOST_LATE)

    def _end_trial(
        self,
        connection: sa.Connection,
        job: Job,
        history: History,
        tuning: Tuning,
        reason: str,
        now: float,
    ) -> None:
        ended = tuning.end_trial(reason, now)
        if ended is not None:
            _store.keep_recurring(connection, job, history, tuning, now)
            what = f"change {ended.state}"
            _store.note(connection, now, "coordinator", what, job.recurring, _told(ended))

    def _verdict(
        self,
        connection: sa.Connection,
        job: Job,
        manager: str,
        history: History,
        tuning: Tuning,
        now: float,
    ) -> tuple[tuple[bool, str, Rule | None], Admission, Forecast]:
        expected = forecast([one.shuffle_bytes for one in tuning.like_the_next(history.runs)])
        anyhow = Admission(1, "")
        if _is_other(manager):
            return (False, f"the user's own settings name {manager}", None), anyhow, expected
        rules, is_on, _ = self._rules
        found = decide(job, rules, is_on=is_on, now=now)
        if not found.uses_service:
            return (False, found.reason, found.rule), anyhow, expected
        if history.taken_off:
            return (False, history.taken_off, found.rule), anyhow, expected
        room = self._room()
        load = 0 if room is None else self._load(connection, now)
        fewer = found.rule is not None and found.rule.fewer_copies
        admission = admit(expected, room, load, fewer_copies=fewer)
        return (True, found.reason, found.rule), admission, expected

    def _load(self, connection: sa.Connection, now: float) -> int:
        """Return what running jobs were promised. The sum over all of them is taken once a second."""
        if time.monotonic() > self._summed + _SUMMED_FOR:
            self._promised, self._summed = _store.promised(connection, now), time.monotonic()
        return self._promised

    def _settings_of_service(
        self,
        connection: sa.Connection,
        job: Job,
        rule: Rule | None,
        admission: Admission,
        expected: Forecast,
        now: float,
    ) -> dict[str, str]:
        found = {} if job.engine != "spark" else dict(DEFAULT_SETTINGS)
        if self._servers is not None:
            name = "spark.treadle.servers" if job.engine == "spark" else "treadle.shuffle.servers"
            found[name] = self._servers
        if (
            admission.copies == 1
            and job.engine == "spark"
            and rule is not None
            and rule.fewer_copies
        ):
            found["spark.treadle.copies"] = "1"
        if job.engine == "spark" and expected.bytes is not None:
            # Servers place a shuffle by what all of the job's may have.
            found["spark.treadle.expectedBytes"] = str(expected.bytes)
            size = expected.bytes * admission.copies
            if part := self._part(connection, size, now):
                found[PLACE] = part
                self._placed[part] += size
        return {**found, **(rule.settings if rule else {})}

    def _part(self, connection: sa.Connection, size: int, now: float) -> str:
        """Return the part of the servers for a job of so many bytes: one where no other large one is."""
        room = self._room()
        if room is None or not is_large(size, room.servers):
            return ""
        beside = Counter(self._placed)
        for settings, other in _store.placed(connection, now, size // 8):
            if part := part_of(settings):
                beside[part] += other
        return place(size, room.servers, room.free_bytes, beside)

    # Ends

    def ended(self, identity: str, end: End, plan: str = "") -> Future[dict[str, Any]]:
        """Take the end of a run. The future raises ``KeyError`` if nobody knows it; a second end changes nothing.

        ``plan`` is the fingerprint of its plans, if that is known already.
        """
        return self.database.write(lambda c: self._ended(c, identity, end, plan))

    def _ended(
        self, connection: sa.Connection, identity: str, end: End, plan: str
    ) -> dict[str, Any]:
        row = _store.job_of(connection, identity, to_change=True)
        if row is None:
            raise KeyError(f"there is no job {identity}")
        if row["state"] not in (_store.RUNNING, _store.SILENT):
            return {"id": identity, "state": row["state"], "alerts": []}
        now = self._clock()
        at = now if end.at is None else end.at
        # The clock may have been set back since.
        duration = max(0.0, at - row["at"]) if end.duration is None else end.duration
        end = replace(end, duration=duration, at=at)
        job = _job(row)
        history, tuning = _store.recurring_of(connection, job.recurring) or (History(), Tuning())
        on_service = row["verdict"] == _SERVICE
        is_late = on_service and row["state"] == _store.SILENT
        if is_late and history.was_only_silent(end):
            _store.note(connection, now, "coordinator", "put back", job.recurring)
        if history.runs and history.runs[-1].on_service != on_service:
            # Runs on the service and without it are not compared with each other.
            tuning.end_trial("the job has changed between the service and stock shuffle", now)
            tuning.recent = []
        trying = tuning.trying.number if tuning.trying else 0
        did_less = not end.failed and history.did_less(end, on_service, trying)
        if not end.failed and not did_less and history.has_changed(plan, at):
            self._job_changed(connection, identity, job, history, tuning, now)
        found = judge(job.pattern, end, on_service, history, row["change"])
        decided = None
        if end.failed or not (on_service and end.fallbacks):
            # One on stock shuffle after all says nothing of runs on the service.
            decided = tuning.ended(
                duration, row["change"], now, failed=end.failed, did_less=did_less
            )
        if decided is not None:
            decided.decided_by = identity
            _store.note(
                connection,
                now,
                "coordinator",
                f"change {decided.state}",
                job.recurring,
                _told(decided),
            )
        values = {
            name: value
            for name, value in end.to_dict().items()
            if name not in ("at", "failed", "stages", "input_rows")
        }
        state = _store.FAILED if end.failed else _store.FINISHED
        _store.update_job(connection, identity, {**values, "state": state, "ended": at})
        self._promised -= (row["predicted_bytes"] or 0) * row["copies"]
        _store.keep_recurring(connection, job, history, tuning, now)
        _store.add_alerts(connection, found, now, identity, job.recurring)
        _store.count_in_hour(
            connection, now, row["verdict"], ended=1, failed=int(end.failed),
            fell_back=int(end.fallbacks > 0), bytes=end.shuffle_bytes or 0,
        )  # fmt: skip
        if found and at > now - _TOLD_FOR:
            self._notify(found)
        return {"id": identity, "state": state, "alerts": [one.text for one in found]}

    def measured(self, identity: str, application: Application) -> Future[list[Finding]]:
        """Take the measures of a run: diagnose it, and propose a change where the mode of its job permits that."""
        found = diagnose(application)
        proposals = [
            Proposal(
                one.rule, one.parameter, one.old, one.new, one.evidence, one.expected, one.weight
            )
            for one in found
            if one.parameter is not None and one.new is not None
        ]

        def write(connection: sa.Connection) -> list[Finding]:
            row = _store.job_of(connection, identity)
            if row is None:
                raise KeyError(f"there is no job {identity}")
            body = {
                "application": application.to_dict(),
                "findings": [one.to_dict() for one in found],
            }
            _store.keep_measures(connection, identity, _kept(body))
            known = _store.recurring_of(connection, row["recurring"])
            if known is None:
                return found
            history, tuning = known
            now = self._clock()
            is_changed = self._take_plan(connection, row, application, history, tuning, now)
            change = tuning.proposed(proposals, now, self._rules[2])
            if is_changed or change is not None:
                _store.keep_recurring(connection, _job(row), history, tuning, now)
            if change is not None:
                _store.note(
                    connection,
                    now,
                    "coordinator",
                    f"change {change.state}",
                    row["recurring"],
                    _told(change),
                )
            return found

        return self.database.write(write, 30.0)

    def _take_plan(
        self,
        connection: sa.Connection,
        row: Mapping[str, Any],
        application: Application,
        history: History,
        tuning: Tuning,
        now: float,
    ) -> bool:
        """Take the plan of a run whose end was told before its event log was read; return whether it is news."""
        plan, end = application.whole_plan, application.end()
        if not plan or end is None or row["ended"] is None:
            return False
        trying = tuning.trying.number if tuning.trying else 0
        if plan in history.plans.current or history.did_less(
            end, row["verdict"] == _SERVICE, trying
        ):
            return False
        if history.has_changed(plan, row["ended"]):
            self._job_changed(connection, row["id"], _job(row), history, tuning, now)
        return True

    def _job_changed(
        self,
        connection: sa.Connection,
        identity: str,
        job: Job,
        history: History,
        tuning: Tuning,
        now: float,
    ) -> None:
        durations = [one.duration for one in history.runs if one.change == 0]
        ended = tuning.job_changed(identity, durations, now)
        body = {"run": identity, "change": ended.number if ended else 0}
        _store.note(connection, now, "coordinator", "job changed", job.recurring, body)

    def observed(self, application: Application) -> str:
        """Take an application that an event log tells of, with or without a decision; return the id of its run.

        One that still runs is known, and has no end yet.
        """
        identity = application.decision or application.id
        if not _ID.match(identity):
            raise ValueError(f"{identity!r} is no id of an application")

        def write(connection: sa.Connection) -> bool:
            if _store.job_of(connection, identity) is not None:
                # A restart reads all logs again. What one of them told of its end was taken then.
                known = _store.measures_of(connection, identity)
                return bool(known) and known["application"]["ended"] is not None
            job = application.job()
            row: dict[str, Any] = {
                **job.to_dict(), "id": identity, "at": application.began, "recurring": job.recurring,
                "verdict": _UNASKED, "reason": "nobody asked; its event log was read", "rule": None,
                "rule_version": None, "settings": {}, "copies": 0, "change": 0,
                "predicted_bytes": None, "state": _store.RUNNING,
            }  # fmt: skip
            _store.new_job(connection, row)
            _store.count_run(connection, job, application.began)
            _store.count_in_hour(connection, application.began, _UNASKED, jobs=1)
            return False

        if self.database.write_now(write):
            return identity
        end = application.end()
        if end is not None:
            self.ended(identity, end, application.whole_plan).result(15)
        self.measured(identity, application).result(45)
        return identity

    def forget(self, days: float) -> None:
        """Take away what began so many days ago. A run without an end for a day is silent: its end still counts."""
        now = self._clock()

        self.database.write_now(lambda c: _store.forget_logins(c, _LOGINS_KEPT))
        for _ in range(_FORGOTTEN_AT_ONCE):
            gone = self.database.write_now(lambda c: self._silence(c, now))
            if gone < _SILENCED:
                break
        for _ in range(_FORGOTTEN_AT_ONCE):
            # In parts, so that decisions come between them.
            gone = self.database.write_now(
                lambda c: _store.forget(c, now - days * 24 * 3600.0, 2000)
            )
            if gone < 2000:
                break

    def _silence(self, connection: sa.Connection, now: float) -> int:
        """Take runs without an end for failures of an unknown cause: a job that dies early reports nothing."""
        silent = _store.silence(connection, now - _SILENT_AFTER, _SILENCED)
        for row in silent:
            job = _job(row)
            known = _store.recurring_of(connection, job.recurring)
            if known is None:
                continue
            history, tuning = known
            if tuning.trying is not None and tuning.trying.number == row["change"]:
                reason = "nobody reported the end of a run with it"
                self._end_trial(connection, job, history, tuning, reason, now)
            # A long job may still run: its end counts as any other one.
            on_service = row["verdict"] == _SERVICE
            end = End(failed=True, cause="unknown", at=now)
            found = judge(job.pattern, end, on_service, history)
            if on_service:
                history.silent += 1
                _store.keep_recurring(connection, job, history, tuning, now)
            _store.add_alerts(connection, found, now, row["id"], job.recurring)
            if found:
                self._notify(found)
        return len(silent)

    # Recurring jobs and alerts

    def put_back(self, key: str, who: str) -> None:
        """Let a recurring job that was taken off come onto the service again."""

        def change(history: History, _tuning: Tuning) -> None:
            history.taken_off, history.failures, history.silent = "", 0, 0

        self._change_recurring(key, who, "put back", change)

    def set_mode(self, key: str, mode: str, who: str) -> None:
        """Say what tuning may do with a recurring job: ``watch``, ``propose`` or ``apply``; ``rule``: what its rule says."""

        def change(_history: History, tuning: Tuning) -> None:
            now = self._clock()
            if mode != "rule":
                tuning.set_mode(mode, now)
                return
            said = {one.id: one.tuning for one in self.rules}
            tuning.is_own = False
            tuning.follow(tuning.rule, said.get(tuning.rule, ""), now)

        self._change_recurring(key, who, f"mode {mode}", change)

    def begin_change(self, key: str, number: int, who: str) -> None:
        """Try a change that was proposed."""

        def change(_history: History, tuning: Tuning) -> None:
            for one in tuning.changes:
                if one.number == number:
                    tuning.begin(one, self._clock())
                    return
            raise KeyError(f"there is no change {number} of {key}")

        self._change_recurring(key, who, f"change {number} begun", change)

    def end_change(self, key: str, who: str, number: int | None = None) -> None:
        """Roll back the change that is tried, or the one of a number, which may have been kept."""

        def change(_history: History, tuning: Tuning) -> None:
            if number is None:
                tuning.end_trial(f"{who} ended it", self._clock())
            else:
                tuning.undo(number, f"{who} ended it", self._clock())

        what = "change ended" if number is None else f"change {number} ended"
        self._change_recurring(key, who, what, change)

    def _change_recurring(
        self, key: str, who: str, what: str, change: Callable[[History, Tuning], None]
    ) -> None:
        def write(connection: sa.Connection) -> None:
            known = _store.recurring_of(connection, key)
            runs = _store.runs_of(connection, key, 1)
            if known is None or not runs:
                raise KeyError(f"there is no recurring job {key}")
            change(*known)
            _store.keep_recurring(connection, _job(runs[0]), *known, self._clock())
            _store.note(connection, self._clock(), who, what, key)

        self.database.write_now(write)

    def note(self, who: str, what: str, subject: str) -> None:
        """Write a line of the audit log about what was done elsewhere."""
        now = self._clock()
        self.database.write_now(lambda c: _store.note(c, now, who, what, subject[:200]))

    def note_later(self, who: str, what: str, subject: str, body: Any) -> None:
        """Write a line of the audit log without waiting for it. While the database is busy, it is left out."""
        now = self._clock()
        with suppress(Busy):
            self.database.write(lambda c: _store.note(c, now, who[:200], what, subject[:200], body))

    def close_alert(self, number: int, who: str) -> None:
        """Close an alert."""

        def write(connection: sa.Connection) -> None:
            _store.close_alert(connection, number, self._clock(), who)
            _store.note(connection, self._clock(), who, "alert closed", f"alert {number}")

        self.database.write_now(write)


def _kept(value: Any) -> Any:
    """Return what JSON can have, with texts that all databases can keep."""
    if isinstance(value, str):
        return kept_text(value)
    if isinstance(value, Mapping):
        return {_kept(name): _kept(one) for name, one in value.items()}
    return [_kept(one) for one in value] if isinstance(value, (list, tuple)) else value


def _names(values: Mapping[str, Any], field: str) -> frozenset[str]:
    names = values.get(field) or []
    is_list = isinstance(names, Sequence) and not isinstance(names, str)
    if not is_list or len(names) > _MOST_NAMES or not all(isinstance(n, str) for n in names):
        raise ValueError(f"{field} must be a list of at most {_MOST_NAMES} names of settings")
    return frozenset(names)


def _is_other(manager: str) -> bool:
    """Return whether a user names another shuffle manager than the service's."""
    return manager not in ("", DEFAULT_SETTINGS[_MANAGER])


def _job(row: Mapping[str, Any]) -> Job:
    return Job.of({name: row[name] for name in Job().to_dict()})


def _decision(row: Mapping[str, Any]) -> dict[str, Any]:
    names = (
        "id",
        "reason",
        "settings",
        "rule",
        "rule_version",
        "copies",
        "change",
        "predicted_bytes",
    )
    return {"uses_service": row["verdict"] == _SERVICE, **{name: row[name] for name in names}}


def _told(change: Change) -> dict[str, Any]:
    names = ("number", "rule", "parameter", "old", "new", "state", "reason", "ratio")
    return {name: getattr(change, name) for name in names}
