"""Whether the processes of a Dask cluster fit: their platform, their Python, and Treadle's version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from treadle import _core

__all__ = ["SCHEDULER", "check_hosts", "check_installed"]

#: What stands for the scheduler, where workers stand by their addresses.
SCHEDULER = "the scheduler"

# What Treadle's cluster engine is built for.
_SYSTEM = "Linux"
_MACHINES = ("x86_64", "aarch64")


class _Problem(NamedTuple):
    """What is wrong with a process: one sentence, with the names of all who have it in the middle."""

    before: str
    after: str


def check_hosts(versions: Mapping[str, Any], cluster: str) -> None:
    """Refuse processes whose platform or Python does not fit.

    This comes before anything of ours runs there: another Python cannot read our functions.

    Parameters
    ----------
    versions
        What :meth:`distributed.Client.get_versions` returns.
    cluster
        The cluster, for people.

    Raises
    ------
    RuntimeError
        One does not fit, with what to do.
    """
    ours = _python_of(versions["client"]["host"])
    found = {SCHEDULER: versions["scheduler"], **versions["workers"]}
    # A worker without an answer has gone meanwhile.
    hosts = {where: one["host"] for where, one in found.items() if one}
    _refuse({where: _host_problem(host, ours) for where, host in hosts.items()}, cluster)


def check_installed(found: Mapping[str, tuple[str | None, str]], cluster: str) -> None:
    """Refuse processes that have no Treadle, or another version.

    Parameters
    ----------
    found
        The version in each process, and why it cannot be imported: ``(None, "")`` where it is not
        installed.
    cluster
        The cluster, for people.

    Raises
    ------
    RuntimeError
        One does not fit, with what to do.
    """
    _refuse({where: _version_problem(*one) for where, one in found.items()}, cluster)


def _host_problem(host: Mapping[str, Any], ours: str) -> _Problem | None:
    system, machine, python = host["OS"], host["machine"], _python_of(host)
    if system != _SYSTEM or machine not in _MACHINES:
        return _Problem(
            f"Treadle has no build for {system} {machine} of ",
            f": start them on {_SYSTEM} ({' or '.join(_MACHINES)})",
        )
    if python != ours:
        return _Problem(
            f"Python {python} runs on ",
            f", and {ours} here: start them with Python {ours}, or this client with {python}",
        )
    return None


def _version_problem(version: str | None, error: str) -> _Problem | None:
    ours = _core.__version__
    advice = (
        f": pip install treadle=={ours} there, or "
        f"client.register_plugin(distributed.PipInstall(['treadle=={ours}'])) with Dask's client"
    )
    if error:
        return _Problem("Treadle cannot be imported on ", f" ({error}){advice}")
    if version is None:
        return _Problem("Treadle is not installed on ", advice)
    if version != ours:
        return _Problem(f"Treadle has the version {version} on ", f", and {ours} here{advice}")
    return None


def _python_of(host: Mapping[str, Any]) -> str:
    return ".".join(host["python"].split(".")[:2])


def _refuse(problems: Mapping[str, _Problem | None], cluster: str) -> None:
    """Raise the first problem, with the names of all who have it."""
    first = next(filter(None, problems.values()), None)
    if first is None:
        return
    workers = [where for where, one in problems.items() if one == first and where != SCHEDULER]
    names = [SCHEDULER] if problems.get(SCHEDULER) == first else []
    if workers:
        names.append(f"workers {', '.join(sorted(workers))}")
    raise RuntimeError(f"{first.before}{' and '.join(names)} of {cluster}{first.after}")
