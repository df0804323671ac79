"""What ``treadle worker`` is told on its command line."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.common._worker_options import WorkerOptions

__all__ = ["arguments_of"]


def arguments_of(
    scheduler: str,
    options: WorkerOptions,
    *more: str,
    name: str,
    secret_file: str,
    tls: str | None,
    insecure: bool,
) -> Sequence[str]:
    """Return the arguments of a worker that somebody looks after.

    Parameters
    ----------
    scheduler
        Its address.
    options
        Of the worker, which makes its own directory in ``local_directory``.
    more
        Further arguments.
    secret_file, tls
        Where its secret and its certificates are (``--tls``; None: no TLS).
    insecure
        Whether other machines may have no TLS.
    """
    given = {"--name": name, "--options": options.as_argument(), "--secret-file": secret_file}
    if tls is not None:
        given["--tls"] = tls
    flags = ("--insecure",) if insecure else ()
    return [
        *(scheduler, "--supervised"),
        *(part for option in given.items() for part in option),
        *flags,
        *more,
    ]
