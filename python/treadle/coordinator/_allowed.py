"""Settings that a coordinator may give. Many others of Spark name code that runs as whoever submits."""

from __future__ import annotations

import re
from collections.abc import Collection

__all__ = ["LIMITS", "is_allowed", "wrong_value"]

_MiB, _GiB = 2**20, 2**30

# Floor and ceiling of each parameter that tuning may change. Others are not changed.
LIMITS: dict[str, tuple[float, float]] = {
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": (_MiB, 2 * _GiB),
    "spark.sql.files.maxPartitionBytes": (_MiB, 64 * _GiB),
    "spark.sql.shuffle.partitions": (1, 100_000),
    "spark.sql.autoBroadcastJoinThreshold": (0, 512 * _MiB),
    "spark.default.parallelism": (1, 100_000),
    "spark.executor.cores": (1, 64),
    "spark.executor.memory": (512 * _MiB, 256 * _GiB),
    "spark.dynamicAllocation.maxExecutors": (1, 10_000),
    "spark.sql.adaptive.skewJoin.enabled": (0, 1),
    "spark.sql.adaptive.enabled": (0, 1),
}
_OTHERS = ("spark.shuffle.manager", "treadle.shuffle.servers")
# Whom a job trusts, and whose code it runs, is for whoever submits it.
_NEVER = (
    "spark.treadle.insecure", "spark.treadle.secretFile", "spark.treadle.tls.",
    "spark.treadle.coordinator", "spark.treadle.implementation",
)  # fmt: skip


def is_allowed(name: str, further: Collection[str] = ()) -> bool:
    """Return whether a coordinator may give a setting; ``further`` are those that whoever submits allows besides."""
    if name in LIMITS or name in _OTHERS or name in further:
        return True
    return name.startswith("spark.treadle.") and not name.startswith(_NEVER)


_MANAGERS = {"spark.shuffle.manager": "io.treadle.spark.TreadleShuffleManager"}
_SIZED = ("Bytes", "Threshold", "memory")


def wrong_value(name: str, text: str) -> str:
    """Return what a setting of a rule must be if it is not; Spark would find that out in each job."""
    if name in _MANAGERS and text != _MANAGERS[name]:
        return _MANAGERS[name]
    if name not in LIMITS:
        return ""
    if name.endswith(".enabled"):
        return "" if text in ("true", "false") else "true or false"
    if name.endswith(_SIZED):
        is_size = re.fullmatch(r"[0-9]{1,18}([bkmgt]|[kmgt]b)?", text.lower()) or text == "-1"
        return "" if is_size else "a size such as 64m"
    return "" if re.fullmatch("[0-9]{1,9}", text) else "a whole number"
