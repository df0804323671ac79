"""``python -m treadle.mpi``: runs a script on the ranks of an MPI job."""

from __future__ import annotations

import os
import runpy
import sys

import click

from treadle import mpi

__all__ = ["main"]


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--nthreads", type=click.IntRange(1), help="Tasks at once in a worker.")
@click.option(
    "--memory-limit",
    default="auto",
    show_default=True,
    help="For the values of a worker: bytes, 2GiB, a share of the memory such as 0.5, 0 for no limit.",
)
@click.option("--interface", help="The network interface for more than one host, such as ib0.")
@click.option("--local-directory", type=click.Path(file_okay=False), help="For values on disk.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(
    script: str,
    arguments: tuple[str, ...],
    module: bool,
    nthreads: int | None,
    memory_limit: str,
    interface: str | None,
    local_directory: str | None,
) -> None:
    """Run SCRIPT on rank 1 of an MPI job, with workers on the ranks from 2 on.

    The scheduler is on rank 0. In the script, treadle.Client() connects to it.
    """
    mpi.initialize(
        nthreads=nthreads,
        memory_limit=memory_limit,
        interface=interface,
        local_directory=local_directory,
    )
    sys.argv = [script, *arguments]
    if module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(prog_name="python -m treadle.mpi")
