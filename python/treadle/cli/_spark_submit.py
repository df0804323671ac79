"""The command ``treadle spark-submit``: ``spark-submit``, with what a coordinator decides."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from treadle.cli._passing import run
from treadle.coordinator._allowed import LIMITS, is_allowed
from treadle.coordinator._asking import Answer, ask
from treadle.coordinator._kubernetes import ANNOTATION
from treadle.coordinator._settings import configured, user
from treadle.coordinator._spark_submit import MANAGER, Submission, parse, with_settings

__all__ = ["spark_submit"]

_MOST_NAMED = 10
_OWN_MANAGER = "TreadleShuffleManager"
_ATTEMPTS = "spark.treadle.attempts"
# What Spark's part reads (Attempts.java).
_ATTEMPT, _FAILURE = "TREADLE_SPARK_ATTEMPT", "TREADLE_SPARK_FAILURE"


class _AsItIs(click.Command):
    """All arguments are those of another program."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        context.params["arguments"] = tuple(args)
        return []

    def collect_usage_pieces(self, _context: click.Context) -> list[str]:
        return ["[ARGUMENTS OF SPARK-SUBMIT]..."]


@click.command("spark-submit", cls=_AsItIs, add_help_option=False)
def spark_submit(arguments: tuple[str, ...]) -> None:
    """Run spark-submit, with the settings that a coordinator decides about.

    Takes the arguments of spark-submit, all of them, and asks the coordinator of `treadle.coordinator.url` in
    Dask's configuration (DASK_TREADLE__COORDINATOR__URL). Settings that you give stay as they are. A shuffle manager
    that you name is used. Without an answer within two seconds, the job is submitted as it is, and a line says so.

    If the driver runs here, and the job fails because of the shuffle service, it is submitted once more with your own
    settings, and shuffles without the service. `spark.treadle.attempts=1` among them leaves that out.

    The program is that of SPARK_HOME, or the first spark-submit in PATH.
    """
    program = _program()
    decided = _decided(arguments)
    try:
        if not _may_run_again(decided):
            os.execv(program, [program, *decided])
        sys.exit(_run_again_without([program, *decided], [program, *arguments]))
    except OSError as error:
        raise click.ClickException(f"{program} cannot be run: {error.strerror}") from None


def _may_run_again(arguments: Sequence[str]) -> bool:
    """Whether a job uses the service, and its driver runs here."""
    submission = parse(arguments)
    if not submission.is_job:
        return False
    try:
        given = _given(submission)
    except (OSError, ValueError):
        # Spark is to say so.
        return False
    mode = submission.options.get("--deploy-mode") or given.get("spark.submit.deployMode", "client")
    is_ours = given.get(MANAGER, "").rpartition(".")[2] == _OWN_MANAGER
    return is_ours and mode == "client" and given.get(_ATTEMPTS, "2") != "1"


def _run_again_without(first: Sequence[str], second: Sequence[str]) -> int:
    """Run a job, and once more if a file says that the service was why it failed; returns its exit code."""
    with tempfile.TemporaryDirectory(prefix="treadle-spark-submit-") as folder:
        file = Path(folder, "failed")
        code, is_ended = run(first, {_ATTEMPT: "1", _FAILURE: str(file)})
        if code == 0 or is_ended or not file.exists():
            return code
        click.echo(
            f"treadle: the job failed because of the shuffle service, and is submitted again without it: "
            f"{file.read_text('utf-8', 'replace').strip()}",
            err=True,
        )
        return run(second, {_ATTEMPT: "2", _FAILURE: str(file)})[0]


def _given(submission: Submission) -> dict[str, str]:
    home, conf = os.environ.get("SPARK_HOME"), os.environ.get("SPARK_CONF_DIR")
    return submission.given(Path(home) if home else None, Path(conf) if conf else None)


def _program() -> str:
    home = os.environ.get("SPARK_HOME")
    found = f"{home}/bin/spark-submit" if home else shutil.which("spark-submit")
    if not found or not os.access(found, os.X_OK):
        raise click.ClickException("there is no spark-submit: set SPARK_HOME, or add it to PATH")
    return found


def _decided(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with what was decided; a line on standard error says what that is."""
    told = configured()
    submission = parse(arguments)
    if told is None or not submission.is_job:
        if told is None and submission.is_job:
            click.echo(
                "treadle: submitted as it is: treadle.coordinator.url is not configured", err=True
            )
        return list(arguments)
    try:
        given = _given(submission)
        job = _job(submission, given, told.cluster, told.queue)
        answer = ask(
            told.url,
            job,
            manager=given.get(MANAGER, ""),
            names=submission.fixed(),
            tunable=given.keys() - submission.fixed(),
            token_file=told.token_file,
        )
    except (OSError, ValueError) as error:
        answer = Answer(reason=f"the settings could not be read: {error}")
    if not answer.id:
        click.echo(f"treadle: submitted as it is: {answer.reason}", err=True)
        return list(arguments)
    where = "on the shuffle service" if answer.uses_service else "on stock shuffle"
    click.echo(f"treadle: {where}: {answer.reason} (decision {answer.id})", err=True)
    taken = {
        name: text for name, text in answer.settings.items() if is_allowed(name, told.settings)
    }
    if refused := sorted(answer.settings.keys() - taken.keys()):
        names = ", ".join(repr(name[:100]) for name in refused[:_MOST_NAMED])
        click.echo(
            f"treadle: refused of the coordinator: {names}: list what it may give in treadle.coordinator.settings",
            err=True,
        )
    added = {name: text for name, text in taken.items() if name not in given}
    # Tuning may replace what the user gives, which Spark would prefer otherwise.
    tunable = LIMITS.keys() - submission.fixed()
    replaced = {name: text for name, text in taken.items() if name in given and name in tunable}
    # What the plugin reports the end with.
    reports = {"spark.treadle.decision": answer.id}
    # Event logs have them then, so that their runs are of the same recurring job.
    for field in ("name", "cluster", "queue"):
        if job[field] and f"spark.treadle.{field}" not in given:
            reports[f"spark.treadle.{field}"] = job[field]
    if given.get("spark.master", "").startswith("k8s://"):
        # The webhook, which sees no settings of a driver's pod, does not ask again.
        reports[f"spark.kubernetes.driver.annotation.{ANNOTATION}"] = answer.id
    if answer.uses_service:
        reports["spark.treadle.coordinator"] = told.url
    if answer.uses_service and told.token_file:
        reports["spark.treadle.coordinator.tokenFile"] = os.path.expanduser(told.token_file)
    return with_settings(arguments, {**added, **reports}, replaced)


def _job(
    submission: Submission, given: Mapping[str, str], cluster: str, queue: str
) -> dict[str, str]:
    of_spark = given.get("spark.yarn.queue") or given.get("spark.kubernetes.namespace")
    found = {
        "cluster": given.get("spark.treadle.cluster", cluster),
        "queue": given.get("spark.treadle.queue") or of_spark or queue,
        "user": submission.options.get("--proxy-user")
        or os.environ.get("HADOOP_USER_NAME")
        or user(),
        "name": given.get("spark.treadle.name") or submission.name(given),
        "engine": "spark",
        "version": _version(),
    }
    return {name: text[:400] for name, text in found.items()}


def _version() -> str:
    """Return Spark's version, from what its distributions have; empty: nobody knows."""
    home = os.environ.get("SPARK_HOME")
    if home:
        try:
            words = Path(home, "RELEASE").read_text().split()
        except OSError:
            words = []
        if len(words) > 1 and words[0] == "Spark":
            return words[1]
        for jar in Path(home, "jars").glob("spark-core_*.jar"):
            return jar.stem.rpartition("-")[2]
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pyspark")
    except PackageNotFoundError:
        return ""
