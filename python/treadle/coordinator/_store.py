"""What the coordinator writes into its tables, and reads from them: one function a question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.expression import CompoundSelect

from treadle.coordinator._jobs import Job
from treadle.coordinator._rules import Rule
from treadle.coordinator._tables import (
    alerts,
    audit,
    hours,
    jobs,
    measures,
    recurring,
    rule_versions,
    settings,
)
from treadle.coordinator._tuning import Tuning
from treadle.coordinator._watching import Alert, History

__all__ = [
    "FAILED",
    "FINISHED",
    "LOGINS",
    "RUNNING",
    "SILENT",
    "STANDINGS",
    "Stale",
    "add_alerts",
    "alerts_page",
    "audit_page",
    "close_alert",
    "count_in_hour",
    "count_run",
    "count_runs",
    "count_without_end",
    "delete_rule",
    "forget",
    "forget_logins",
    "job_of",
    "jobs_of",
    "jobs_page",
    "keep_measures",
    "keep_recurring",
    "keep_rule",
    "keep_setting",
    "measured_job_of",
    "measures_of",
    "new_job",
    "new_jobs",
    "next_rule",
    "note",
    "overview",
    "past",
    "placed",
    "promised",
    "recurring_of",
    "recurring_of_all",
    "recurring_page",
    "rule_history",
    "rules",
    "runs_of",
    "setting",
    "silence",
    "standing_of",
    "update_job",
]

RUNNING, FINISHED, FAILED = "running", "finished", "failed"
# Of a run that nobody has reported the end of.
SILENT = "silent"
# What lines of the audit log about logins say.
LOGINS = ("logged in", "logged out", "refused")
# Of a recurring job, by what most needs to be known: all but the first are states of changes.
STANDINGS = ("taken off", "trying", "proposed", "kept")
# Names that begin in one way.
_MANY = 20_000
# A job that has not told its end for so many seconds takes no room any more.
_PROMISED_FOR = 24 * 3600.0
_JOB_FIELDS = ("cluster", "queue", "user", "name", "engine", "version")


def setting(connection: sa.Connection, name: str, default: Any = None) -> Any:
    """Return a setting of the coordinator, such as the switch for all."""
    row = connection.execute(sa.select(settings.c.value).where(settings.c.name == name)).first()
    return default if row is None else row[0]


def keep_setting(connection: sa.Connection, name: str, value: Any) -> None:
    """Write a setting."""
    same = settings.c.name == name
    if connection.execute(settings.update().where(same).values(value=value)).rowcount == 0:
        connection.execute(settings.insert().values(name=name, value=value))


def note(
    connection: sa.Connection, at: float, who: str, what: str, subject: str, body: Any = None
) -> None:
    """Write a line of the audit log. Each change does so in its own transaction."""
    connection.execute(
        audit.insert().values(at=at, who=who, what=what, subject=subject, body=body or {})
    )


def audit_page(
    connection: sa.Connection, before: int | None, limit: int, of: str = ""
) -> list[dict[str, Any]]:
    """Return lines of the audit log, the latest first: all, or those ``of`` ``logins``, or ``changes``."""
    query = sa.select(audit).order_by(audit.c.number.desc()).limit(limit)
    is_login = audit.c.what.in_(LOGINS)
    if of:
        query = query.where(is_login if of == "logins" else sa.not_(is_login))
    return _rows(connection, query if before is None else query.where(audit.c.number < before))


def forget_logins(connection: sa.Connection, kept: int) -> None:
    """Take away lines about logins but for the latest: whoever may not change anything can make them."""
    last = sa.select(audit.c.number).where(audit.c.what.in_(LOGINS))
    last = last.order_by(audit.c.number.desc()).offset(kept).limit(1)
    number = connection.execute(last).scalar()
    if number is not None:
        connection.execute(audit.delete().where(audit.c.what.in_(LOGINS), audit.c.number <= number))


# Rules


def rules(connection: sa.Connection) -> list[Rule]:
    """Return the present version of each rule, in their order."""
    newest = (
        sa.select(rule_versions.c.rule, sa.func.max(rule_versions.c.version).label("version"))
        .group_by(rule_versions.c.rule)
        .subquery()
    )
    query = (
        sa.select(rule_versions)
        .join(
            newest,
            sa.and_(
                rule_versions.c.rule == newest.c.rule, rule_versions.c.version == newest.c.version
            ),
        )
        .where(sa.not_(rule_versions.c.is_deleted))
        .order_by(rule_versions.c.place, rule_versions.c.rule)
    )
    return [_rule(row) for row in _rows(connection, query)]


def rule_history(connection: sa.Connection, rule: int) -> list[dict[str, Any]]:
    """Return all versions of a rule, the latest first."""
    query = sa.select(rule_versions).where(rule_versions.c.rule == rule)
    return _rows(connection, query.order_by(rule_versions.c.version.desc()))


class Stale(ValueError):
    """Somebody else has written a newer version of a rule."""


def keep_rule(
    connection: sa.Connection, rule: Rule, at: float, author: str, text: str, place: int | None
) -> Rule:
    """Write a new version of a rule, or a new rule if its id is 0; return it with its numbers.

    Raises
    ------
    KeyError
        There is no such rule.
    Stale
        ``rule.version`` is neither 0 nor the present one.
    """
    if rule.id == 0:
        number = next_rule(connection)
        kept = replace(rule, id=number, version=1)
        place = number if place is None else place
    else:
        row = _newest(connection, rule.id)
        if rule.version not in (0, row["version"]):
            raise Stale(
                f"rule {rule.id} has version {row['version']} by {row['author']}, and this is over {rule.version}: "
                "load it again"
            )
        kept = replace(rule, version=row["version"] + 1)
        place = row["place"] if place is None else place
    _insert_version(connection, kept, at, author, text, place, is_deleted=False)
    return kept


def next_rule(connection: sa.Connection) -> int:
    """Return the id that a new rule gets."""
    return (connection.execute(sa.select(sa.func.max(rule_versions.c.rule))).scalar() or 0) + 1


def delete_rule(connection: sa.Connection, rule: int, at: float, author: str) -> None:
    """Write that a rule is gone. Its versions stay.

    Raises
    ------
    KeyError
        There is no such rule.
    """
    row = _newest(connection, rule)
    kept = replace(_rule(row), version=row["version"] + 1)
    _insert_version(connection, kept, at, author, "deleted", row["place"], is_deleted=True)


def _newest(connection: sa.Connection, rule: int) -> Mapping[str, Any]:
    found = rule_history(connection, rule)
    if not found or found[0]["is_deleted"]:
        raise KeyError(f"there is no rule {rule}")
    return found[0]


def _insert_version(
    connection: sa.Connection, rule: Rule, at: float, author: str, text: str, place: int, *, is_deleted: bool
) -> None:  # fmt: skip
    connection.execute(
        rule_versions.insert().values(
            rule=rule.id, version=rule.version, at=at, author=author, note=text,
            is_deleted=is_deleted, place=place, body=rule.to_dict(),
        )
    )  # fmt: skip


def _rule(row: Mapping[str, Any]) -> Rule:
    return Rule.of({**row["body"], "id": row["rule"], "version": row["version"]})


# Jobs


# Statements of each decision are built once.
_INSERT_JOB = jobs.insert()
_JOB = sa.select(jobs).where(jobs.c.id == sa.bindparam("which"))
# What is read to be changed waits for another coordinator's transaction. On SQLite writers take turns anyway.
_JOB_TO_CHANGE = _JOB.with_for_update()
_RECURRING = (
    sa.select(recurring.c.history, recurring.c.tuning)
    .where(recurring.c.key == sa.bindparam("which"))
    .with_for_update()
)
_COUNT_RUN = (
    recurring.update()
    .where(recurring.c.key == sa.bindparam("which"))
    .values(last=sa.bindparam("at"), runs=recurring.c.runs + sa.bindparam("more"))
)
_JOBS = sa.select(jobs).where(jobs.c.id.in_(sa.bindparam("which", expanding=True)))
_RECURRINGS = (
    sa.select(recurring.c.key, recurring.c.history, recurring.c.tuning)
    .where(recurring.c.key.in_(sa.bindparam("which", expanding=True)))
    .order_by(recurring.c.key)
    .with_for_update()
)
_SUMS = ("jobs", "ended", "failed", "fell_back", "bytes")
_COUNT_HOUR = (
    hours.update()
    .where(hours.c.hour == sa.bindparam("at_hour"), hours.c.verdict == sa.bindparam("of_verdict"))
    .values({name: hours.c[name] + sa.bindparam(f"more_{name}") for name in _SUMS})
)


def new_job(connection: sa.Connection, values: Mapping[str, Any]) -> None:
    """Write a run of a job with its decision."""
    connection.execute(_INSERT_JOB, dict(values))


def new_jobs(connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write runs of jobs with their decisions."""
    if rows:
        connection.execute(_INSERT_JOB, [dict(row) for row in rows])


def jobs_of(connection: sa.Connection, identities: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return those of some runs that are known, by their ids."""
    found = connection.execute(_JOBS, {"which": list(identities)}).mappings()
    return {row["id"]: dict(row) for row in found}


def job_of(
    connection: sa.Connection, identity: str, *, to_change: bool = False
) -> dict[str, Any] | None:
    """Return a run by its id."""
    query = _JOB_TO_CHANGE if to_change else _JOB
    row = connection.execute(query, {"which": identity}).mappings().first()
    return None if row is None else dict(row)


def measured_job_of(connection: sa.Connection, identity: str) -> tuple[dict[str, Any], Any] | None:
    """Return a run by its id, with its measures, or None for these."""
    query = sa.select(jobs, measures.c.body).outerjoin(measures, measures.c.job == jobs.c.id)
    row = connection.execute(query.where(jobs.c.id == identity)).mappings().first()
    if row is None:
        return None
    found = dict(row)
    return found, found.pop("body")


def update_job(connection: sa.Connection, identity: str, values: Mapping[str, Any]) -> None:
    """Write what a run has come to."""
    connection.execute(jobs.update().where(jobs.c.id == identity).values(**values))


def count_in_hour(connection: sa.Connection, at: float, verdict: str, **counts: int) -> None:
    """Add to the sums of an hour."""
    hour = int(at // 3600)
    more = {f"more_{name}": counts.get(name, 0) for name in _SUMS}
    found = connection.execute(_COUNT_HOUR, {"at_hour": hour, "of_verdict": verdict, **more})
    if found.rowcount == 0:
        none = dict.fromkeys(_SUMS, 0)
        connection.execute(hours.insert(), {"hour": hour, "verdict": verdict, **none, **counts})


def overview(connection: sa.Connection, since: float) -> list[dict[str, Any]]:
    """Return the sums by hour and verdict since a time."""
    query = sa.select(hours).where(hours.c.hour >= int(since // 3600)).order_by(hours.c.hour)
    return _rows(connection, query)


def promised(connection: sa.Connection, now: float) -> int:
    """Return the bytes that running jobs were admitted with, all copies."""
    total = sa.func.coalesce(sa.func.sum(jobs.c.predicted_bytes * jobs.c.copies), 0)
    running = sa.and_(jobs.c.state == RUNNING, jobs.c.at > now - _PROMISED_FOR)
    return int(connection.execute(sa.select(total).where(running)).scalar() or 0)


def placed(connection: sa.Connection, now: float, least: int) -> list[tuple[dict[str, str], int]]:
    """Return the settings of running jobs that were admitted with so many bytes or more, all copies, and those bytes."""
    size = jobs.c.predicted_bytes * jobs.c.copies
    running = sa.and_(jobs.c.state == RUNNING, jobs.c.at > now - _PROMISED_FOR, size >= least)
    query = sa.select(jobs.c.settings, size).where(running)
    return [(row[0], int(row[1])) for row in connection.execute(query)]


def jobs_page(
    connection: sa.Connection,
    *,
    before: int | None = None,
    limit: int = 50,
    name: str = "",
    user: str = "",
    queue: str = "",
    cluster: str = "",
    state: str = "",
    verdict: str = "",
) -> list[dict[str, Any]]:
    """Return runs, the latest first. ``name`` is how the name begins: that is what an index can find."""
    wanted = {"user": user, "queue": queue, "cluster": cluster, "state": state, "verdict": verdict}
    where = [jobs.c[one] == value for one, value in wanted.items() if value]
    if before is not None:
        where.append(jobs.c.number < before)
    query = sa.select(jobs).where(*where).order_by(jobs.c.number.desc())
    return _rows(connection, _beginning(connection, query, jobs.c.name, name, limit))


def _beginning(
    connection: sa.Connection,
    query: sa.Select[Any],
    column: sa.Column[str],
    begins: str,
    limit: int,
) -> sa.Select[Any] | CompoundSelect[Any]:
    """Return the statement for the first rows of a query whose column begins so."""
    if not begins:
        return query.limit(limit)
    if connection.dialect.name != "sqlite":
        return query.where(column.startswith(begins, autoescape=True)).limit(limit)
    # Where very many begin so, the latest ones are found sooner without the column's index: SQLite does not know how
    # many there are. Of two ways, the one whose limit is 0 is not begun.
    end = begins + "\U0010ffff"
    found = sa.select(sa.literal(1)).select_from(column.table)
    some = found.where(column >= begins, column < end).limit(_MANY).subquery()
    count = sa.select(sa.func.count()).select_from(some).correlate(None).scalar_subquery()
    unindexed = column.concat("")
    ways = []
    for text, is_way in ((column, count < _MANY), (unindexed, count >= _MANY)):
        way = query.where(text >= begins, text < end)
        ways.append(sa.select(way.limit(sa.case((is_way, limit), else_=0)).subquery()))
    return sa.union_all(*ways)


def runs_of(connection: sa.Connection, key: str, limit: int) -> list[dict[str, Any]]:
    """Return the runs of a recurring job, the latest first."""
    query = sa.select(jobs).where(jobs.c.recurring == key)
    return _rows(connection, query.order_by(jobs.c.number.desc()).limit(limit))


def past(
    connection: sa.Connection, begin: float, end: float, limit: int
) -> list[tuple[Job, int, float]]:
    """Return jobs of a time with their bytes: what a rule is tried on."""
    columns = [*(jobs.c[name] for name in _JOB_FIELDS), jobs.c.shuffle_bytes, jobs.c.at]
    query = sa.select(*columns).where(jobs.c.at >= begin, jobs.c.at < end).limit(limit)
    return [(Job(*row[:6]), row[6] or 0, row[7]) for row in connection.execute(query)]


def keep_measures(connection: sa.Connection, identity: str, body: Any) -> None:
    """Write the measures of a run, in place of earlier ones."""
    same = measures.c.job == identity
    if connection.execute(measures.update().where(same).values(body=body)).rowcount == 0:
        connection.execute(measures.insert().values(job=identity, body=body))


def forget(connection: sa.Connection, before: float, limit: int) -> int:
    """Take away runs that began before a time, with their measures and alerts: at most so many. Return their number."""
    old = sa.select(jobs.c.id).where(jobs.c.at < before).order_by(jobs.c.at).limit(limit)
    gone = list(connection.execute(old).scalars())
    for at in range(0, len(gone), 500):
        some = gone[at : at + 500]
        connection.execute(measures.delete().where(measures.c.job.in_(some)))
        connection.execute(alerts.delete().where(alerts.c.job.in_(some)))
        connection.execute(jobs.delete().where(jobs.c.id.in_(some)))
    return len(gone)


def silence(connection: sa.Connection, before: float, limit: int) -> list[dict[str, Any]]:
    """Say of runs that began before a time, and that nobody has reported the end of, that they are silent.

    Return those: at most so many, the oldest first.
    """
    is_old = sa.and_(jobs.c.state == RUNNING, jobs.c.at < before)
    found = _rows(connection, sa.select(jobs).where(is_old).order_by(jobs.c.at).limit(limit))
    for at in range(0, len(found), 500):
        some = [row["number"] for row in found[at : at + 500]]
        connection.execute(jobs.update().where(jobs.c.number.in_(some)).values(state=SILENT))
    return found


def count_without_end(connection: sa.Connection, key: str, change: int, before: float) -> int:
    """Return how many runs with a change began before a time, and have no end yet."""
    query = sa.select(sa.func.count()).where(
        jobs.c.recurring == key, jobs.c.change == change, jobs.c.state == RUNNING, jobs.c.at < before
    )  # fmt: skip
    return int(connection.execute(query).scalar() or 0)


def measures_of(connection: sa.Connection, identity: str) -> Any:
    """Return the measures of a run, or None."""
    return connection.execute(sa.select(measures.c.body).where(measures.c.job == identity)).scalar()


# Recurring jobs


def recurring_of(connection: sa.Connection, key: str) -> tuple[History, Tuning] | None:
    """Return what is remembered of a recurring job, which nobody else changes until this transaction ends."""
    row = connection.execute(_RECURRING, {"which": key}).first()
    return None if row is None else (History.of(row[0]), Tuning.of(row[1]))


def keep_recurring(
    connection: sa.Connection, job: Job, history: History, tuning: Tuning, at: float, runs: int = 0
) -> None:
    """Write what is remembered of a recurring job, with as many runs more."""
    body = {
        "history": history.to_dict(),
        "tuning": tuning.to_dict(),
        "standing": standing_of(history, tuning),
    }
    added = {"last": at, "runs": recurring.c.runs + runs} if runs else {}
    same = recurring.c.key == job.recurring
    if connection.execute(recurring.update().where(same).values(**body, **added)).rowcount == 0:
        connection.execute(
            recurring.insert().values(
                key=job.recurring, cluster=job.cluster, queue=job.queue, user=job.user,
                pattern=job.pattern, engine=job.engine, last=at, runs=runs, **body,
            )
        )  # fmt: skip


def recurring_of_all(
    connection: sa.Connection, keys: Collection[str]
) -> dict[str, tuple[History, Tuning]]:
    """Return what is remembered of those of some recurring jobs that are known; see :func:`recurring_of`."""
    found = connection.execute(_RECURRINGS, {"which": sorted(keys)})
    return {row[0]: (History.of(row[1]), Tuning.of(row[2])) for row in found}


def count_run(connection: sa.Connection, job: Job, at: float) -> None:
    """Count a run of a recurring job, which is made when it is the first."""
    found = connection.execute(_COUNT_RUN, {"which": job.recurring, "at": at, "more": 1})
    if found.rowcount == 0:
        keep_recurring(connection, job, History(), Tuning(), at, 1)


def count_runs(
    connection: sa.Connection, of_jobs: Sequence[Job], known: Collection[str], at: float
) -> None:
    """Count runs of recurring jobs. Those that are not ``known`` are made."""
    more = Counter(job.recurring for job in of_jobs)
    some = [{"which": key, "at": at, "more": more[key]} for key in sorted(more) if key in known]
    if some:
        connection.execute(_COUNT_RUN, some)
    first = {job.recurring: job for job in of_jobs if job.recurring not in known}
    for key, job in sorted(first.items()):
        keep_recurring(connection, job, History(), Tuning(), at, more[key])


def standing_of(history: History, tuning: Tuning) -> str:
    """Return one of :data:`STANDINGS`, or an empty text: what most needs to be known of a recurring job."""
    if history.taken_off:
        return STANDINGS[0]
    states = {one.state for one in tuning.changes}
    return next((one for one in STANDINGS[1:] if one in states), "")


def recurring_page(
    connection: sa.Connection,
    limit: int,
    key: str | None = None,
    *,
    before: tuple[float, str] | None = None,
    name: str = "",
    user: str = "",
    queue: str = "",
    cluster: str = "",
    standing: str = "",
) -> list[dict[str, Any]]:
    """Return recurring jobs, those that ran last first; or one. ``before`` is when the last of a page ran, and its key."""
    columns = recurring.c
    wanted = {"key": key, "user": user, "queue": queue, "cluster": cluster, "standing": standing}
    where = [columns[one] == value for one, value in wanted.items() if value]
    if before is not None:
        where.append(sa.tuple_(columns.last, columns.key) < sa.tuple_(*before))
    query = sa.select(recurring).where(*where).order_by(columns.last.desc(), columns.key.desc())
    return _rows(connection, _beginning(connection, query, columns.pattern, name, limit))


# Alerts


def add_alerts(
    connection: sa.Connection, found: Sequence[Alert], at: float, job: str, key: str
) -> None:
    """Write alerts."""
    for one in found:
        connection.execute(
            alerts.insert().values(at=at, kind=one.kind, job=job, recurring=key, text=one.text)
        )


def alerts_page(
    connection: sa.Connection,
    *,
    only_open: bool,
    before: int | None,
    limit: int,
    kind: str = "",
    name: str = "",
) -> list[dict[str, Any]]:
    """Return alerts, the latest first. ``name`` is how the names of their recurring jobs begin."""
    query = sa.select(alerts).order_by(alerts.c.number.desc()).limit(limit)
    if only_open:
        query = query.where(alerts.c.closed.is_(None))
    if kind:
        query = query.where(alerts.c.kind == kind)
    if name:
        known = sa.select(recurring.c.key)
        keys = _beginning(connection, known, recurring.c.pattern, name, _MANY).subquery()
        query = query.where(alerts.c.recurring.in_(sa.select(keys.c.key)))
    return _rows(connection, query if before is None else query.where(alerts.c.number < before))


def close_alert(connection: sa.Connection, number: int, at: float, who: str) -> None:
    """Close an alert; one that is closed stays as it is.

    Raises
    ------
    KeyError
        There is no such alert.
    """
    same = alerts.c.number == number
    if connection.execute(sa.select(alerts.c.number).where(same)).first() is None:
        raise KeyError(f"there is no alert {number}")
    still_open = sa.and_(same, alerts.c.closed.is_(None))
    connection.execute(alerts.update().where(still_open).values(closed=at, closed_by=who))


def _rows(
    connection: sa.Connection, query: sa.Select[Any] | CompoundSelect[Any]
) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(query).mappings()]
