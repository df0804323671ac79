"""The tables of the coordinator's database."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

__all__ = [
    "SCHEMA",
    "alerts",
    "audit",
    "hours",
    "jobs",
    "measures",
    "metadata",
    "recurring",
    "rule_versions",
    "settings",
]

# Raised when a table changes: a database of another schema is refused. Not for an index, nor for a column with a default
# of the server's: they are added.
SCHEMA = 1

metadata = MetaData()

# A number that grows, on SQLite, too, whose only such type is INTEGER.
_Number = BigInteger().with_variant(Integer, "sqlite")

settings = Table(
    "settings", metadata, Column("name", String(64), primary_key=True), Column("value", JSON)
)

# Each version of each rule; the newest one counts, unless it was deleted.
rule_versions = Table(
    "rule_versions",
    metadata,
    Column("rule", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("at", Float, nullable=False),
    Column("author", String(200), nullable=False),
    Column("note", Text, nullable=False),
    Column("is_deleted", Boolean, nullable=False),
    Column("place", Integer, nullable=False),
    Column("body", JSON, nullable=False),
)

# A decision, what was predicted, and what happened: one row a run of a job.
jobs = Table(
    "jobs",
    metadata,
    Column("number", _Number, primary_key=True),
    Column("id", String(100), nullable=False, unique=True),
    Column("at", Float, nullable=False),
    *(
        Column(name, String(400), nullable=False)
        for name in ("cluster", "queue", "user", "name", "engine", "version")
    ),
    Column("recurring", String(16), nullable=False),
    Column("verdict", String(8), nullable=False),
    Column("reason", Text, nullable=False),
    Column("rule", Integer),
    Column("rule_version", Integer),
    Column("settings", JSON, nullable=False),
    Column("copies", Integer, nullable=False),
    Column("change", Integer, nullable=False),
    Column("predicted_bytes", BigInteger),
    Column("state", String(8), nullable=False),
    Column("ended", Float),
    Column("cause", String(8)),
    Column("error", Text),
    Column("duration", Float),
    Column("shuffle_bytes", BigInteger),
    Column("input_bytes", BigInteger),
    Column("blocked", Float),
    Column("retries", Integer),
    Column("fallbacks", Integer),
    Column("lost_servers", Integer),
    Index("jobs_of_recurring", "recurring", "number"),
    Index("jobs_by_time", "at"),
    Index("jobs_by_state", "state", "number"),
    Index("jobs_by_name", "name", "number", postgresql_ops={"name": "text_pattern_ops"}),
    Index("jobs_by_user", "user", "number"),
    Index("jobs_by_queue", "queue", "number"),
    Index("jobs_by_cluster", "cluster", "number"),
)

measures = Table(
    "measures",
    metadata,
    Column("job", String(100), primary_key=True),
    Column("body", JSON, nullable=False),
)

recurring = Table(
    "recurring",
    metadata,
    Column("key", String(16), primary_key=True),
    *(
        Column(name, String(400), nullable=False)
        for name in ("cluster", "queue", "user", "pattern", "engine")
    ),
    Column("last", Float, nullable=False),
    Column("runs", Integer, nullable=False),
    Column("history", JSON, nullable=False),
    Column("tuning", JSON, nullable=False),
    # What an operator looks for: see `_store.standing_of`.
    Column("standing", String(12), nullable=False, server_default=""),
    Index("recurring_by_last", "last", "key"),
    Index("recurring_by_user", "user", "last", "key"),
    Index("recurring_by_queue", "queue", "last", "key"),
    Index("recurring_by_cluster", "cluster", "last", "key"),
    Index("recurring_by_standing", "standing", "last", "key"),
    Index("recurring_by_pattern", "pattern", postgresql_ops={"pattern": "text_pattern_ops"}),
)

# Sums by hour and verdict, so that an overview reads no jobs.
hours = Table(
    "hours",
    metadata,
    Column("hour", Integer, primary_key=True, autoincrement=False),
    Column("verdict", String(8), primary_key=True),
    *(
        Column(name, BigInteger, nullable=False)
        for name in ("jobs", "ended", "failed", "fell_back", "bytes")
    ),
)

alerts = Table(
    "alerts",
    metadata,
    Column("number", _Number, primary_key=True),
    Column("at", Float, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("job", String(100), nullable=False),
    Column("recurring", String(16), nullable=False),
    Column("text", Text, nullable=False),
    Column("closed", Float),
    Column("closed_by", String(200)),
    Index("alerts_by_state", "closed", "number"),
    Index("alerts_by_kind", "kind", "number"),
    Index("alerts_of_recurring", "recurring", "number"),
    Index("alerts_of_job", "job"),
)

audit = Table(
    "audit",
    metadata,
    Column("number", _Number, primary_key=True),
    Column("at", Float, nullable=False),
    Column("who", String(200), nullable=False),
    Column("what", String(64), nullable=False),
    Column("subject", String(200), nullable=False),
    Column("body", JSON, nullable=False),
    Index("audit_by_what", "what", "number"),
)
