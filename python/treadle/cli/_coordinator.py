"""The command ``treadle coordinator``."""

from __future__ import annotations

from pathlib import Path

import click

from treadle.cli._basics import clear_errors
from treadle.cli._long_running import Credentials, security_options
from treadle.cli._values import Seconds

__all__ = ["coordinator"]


def _folder(option: click.Parameter, text: str) -> str:
    """Check a folder of event logs as far as that is possible without asking a store."""
    from treadle.coordinator._jobs import with_place

    folder, _ = with_place(text)
    if "://" not in folder and not Path(folder).is_dir():
        raise click.BadParameter(f"{folder} is no directory", param=option)
    return text


@click.command()
@click.option(
    "--database",
    default="sqlite:///treadle-coordinator.db",
    show_default=True,
    envvar="TREADLE_COORDINATOR_DATABASE",
    metavar="URL",
    help="As SQLAlchemy has them: sqlite:///FILE, or postgresql+psycopg://USER@HOST/NAME. One with a password "
    "belongs into the environment: TREADLE_COORDINATOR_DATABASE.",
)
@click.option(
    "--listen",
    default="127.0.0.1:7799",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to serve; port 0 takes a free one.",
)
@click.option(
    "--tokens",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Lines of ROLE NAME TOKEN; roles are job, viewer and operator. Needed to serve other machines, unless a proxy logs in.",
)
@click.option(
    "--certificate",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Serve https with it; needs --key.",
)
@click.option(
    "--key", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="Of --certificate."
)
@click.option(
    "--proxy-header",
    metavar="NAME",
    help="The header in which a reverse proxy names its user, such as X-Forwarded-User.",
)
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="Of the reverse proxy: the header is believed of it alone.",
)
@click.option(
    "--proxy-secret-file",
    "proxy_secret",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A word that the proxy sends as X-Treadle-Proxy-Secret. Needed if it runs on this machine, where all users "
    "have its address.",
)
@click.option(
    "--operator",
    "operators",
    multiple=True,
    metavar="NAME",
    help="A user of the proxy who may change things; the others may look.",
)
@click.option(
    "--name",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="By which browsers and jobs call this server, besides localhost.",
)
@click.option(
    "--servers",
    metavar="URL",
    help="Of the shuffle servers: a shuffle master, or another registry. Jobs get it, and their room counts.",
)
@click.option(
    "--event-logs",
    "logs",
    multiple=True,
    callback=lambda _context, option, given: tuple(_folder(option, one) for one in given),
    metavar="FOLDER",
    help="Read Spark's event logs there: a directory, s3://BUCKET/PREFIX?endpoint=URL&region=NAME, or "
    "webhdfs://HOST:PORT/PATH of HDFS. Credentials come from the environment. #cluster=NAME&queue=NAME at its end are "
    "those of applications that name none.",
)
@click.option(
    "--poll",
    type=Seconds(1),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How often servers and event logs are looked at.",
)
@click.option(
    "--keep-days",
    type=click.FloatRange(1),
    default=90.0,
    show_default=True,
    metavar="DAYS",
    help="For how long jobs and alerts are kept. Rules, their versions and the audit log stay.",
)
@click.option(
    "--webhook",
    envvar="TREADLE_COORDINATOR_WEBHOOK",
    metavar="URL",
    help="Post alerts there as JSON. One with a secret belongs into the environment: TREADLE_COORDINATOR_WEBHOOK.",
)
@click.option(
    "--mail", "mails", multiple=True, metavar="ADDRESS", help="Mail alerts to it; needs --smtp."
)
@click.option(
    "--smtp",
    metavar="URL",
    help="The server for mail: smtp://HOST[:PORT], by STARTTLS where that is offered, or smtps://HOST[:PORT].",
)
@click.option(
    "--smtp-login-file",
    "smtp_login",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A line of USER PASSWORD for --smtp. Or have TREADLE_COORDINATOR_SMTP_USER and "
    "TREADLE_COORDINATOR_SMTP_PASSWORD in the environment.",
)
@click.option(
    "--mail-from",
    "sender",
    default="treadle-coordinator@localhost",
    show_default=True,
    metavar="ADDRESS",
    help="Who mails.",
)
@security_options
def coordinator(
    database: str,
    listen: str,
    tokens: Path | None,
    certificate: str | None,
    key: str | None,
    proxy_header: str | None,
    proxies: tuple[str, ...],
    proxy_secret: Path | None,
    operators: tuple[str, ...],
    hosts: tuple[str, ...],
    servers: str | None,
    logs: tuple[str, ...],
    poll: float,
    keep_days: float,
    webhook: str | None,
    mails: tuple[str, ...],
    smtp: str | None,
    smtp_login: Path | None,
    sender: str,
    tls: str | None,
    insecure: bool,
    secret_file: str | None,
) -> None:
    """Decide which jobs use the shuffle service, watch them, and tune them from their history.

    It serves a page and an HTTP interface. Without --tokens it serves this machine alone, prints an address with a
    token for its page, and lets any job on this machine ask.
    """
    if bool(mails) != bool(smtp):
        raise click.UsageError("--mail and --smtp need each other")
    if smtp_login is not None and smtp is None:
        raise click.UsageError("--smtp-login-file needs --smtp")
    if (certificate is None) != (key is None):
        raise click.UsageError("--certificate and --key need each other")
    if proxy_secret is not None and not proxies:
        raise click.UsageError("--proxy-secret-file needs --proxy")
    if (proxy_header is None) != (not proxies):
        raise click.UsageError("--proxy-header and --proxy need each other")
    try:
        from treadle.coordinator import _serving
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"the coordinator needs {error.name}, which is not installed: pip install 'treadle[coordinator]'"
        ) from None
    with clear_errors():
        address = None
        credentials = {}
        if servers is not None:
            own = Credentials.of_options(tls, insecure, secret_file)
            address, credentials = own.address(servers), own.of_connections()
        _serving.serve(
            _serving.Options(
                database=database, listen=listen, tokens=tokens, certificate=certificate, key=key,
                proxy_header=proxy_header, proxies=proxies, proxy_secret=proxy_secret, operators=operators, hosts=hosts,
                servers=address, credentials=credentials, logs=logs, poll=poll, keep_days=keep_days, webhook=webhook,
                mails=mails, smtp=smtp, smtp_login=smtp_login, sender=sender, insecure=insecure,
            )
        )  # fmt: skip
