"""What ``treadle worker`` is told on its command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["arguments_of"]


def arguments_of(
    scheduler: str,
    *more: str,
    name: str,
    nthreads: int,
    memory_limit: int,
    resources: Mapping[str, float],
    directory: str,
    secret_file: str,
    tls: str | None,
    insecure: bool,
) -> Sequence[str]:
    """Return the arguments of a worker that somebody looks after.

    Parameters
    ----------
    scheduler
        Its address.
    more
        Further arguments.
    name, nthreads, memory_limit, resources
        Of the worker; the limit in bytes.
    directory, secret_file, tls
        Where it spills, and where its secret and its certificates are (``--tls``; None: no TLS).
    insecure
        Whether other machines may have no TLS.
    """
    options = {
        "--name": name,
        "--nthreads": str(nthreads),
        # Without a unit, 1 would be a share.
        "--memory-limit": f"{memory_limit}B",
        "--local-directory": directory,
        "--secret-file": secret_file,
        "--resources": " ".join(f"{resource}={amount}" for resource, amount in resources.items()),
    }
    if tls is not None:
        options["--tls"] = tls
    given = [part for option in options.items() for part in option]
    return [scheduler, "--supervised", *given, *(["--insecure"] if insecure else []), *more]
