"""``python -m treadle.mpi``: runs a script on the ranks of an MPI job."""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any

import click

from treadle import mpi
from treadle.cli._worker_options import FLAGS, checked, worker_options
from treadle.common._memory_limit import HELP
from treadle.common._worker_options import OF_PROCESSES
from treadle.mpi import _job
from treadle.pickling import _script

__all__ = ["main"]


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@worker_options(
    without=OF_PROCESSES,
    nthreads="Tasks at once in a worker.",
    memory_limit=f"Of a worker's process: {HELP}; auto is what the host has, divided by the workers there.",
    local_directory="For values on disk.",
)
@click.option("--interface", help="The network interface for more than one host, such as ib0.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _options(**options: Any) -> dict[str, Any]:
    """Run SCRIPT on rank 1 of an MPI job, with workers on the ranks from 2 on.

    The scheduler is on rank 0. In the script, treadle.Client() connects to it.
    """
    return options


def main() -> None:
    """Run the command line of this process."""
    options = _parsed()
    script, arguments = options.pop("script"), options.pop("arguments")
    module = options.pop("module")
    where = script if module else os.path.abspath(script)
    # Tasks import what lies beside the script, on each rank.
    sys.path.insert(0, os.getcwd() if module else os.path.dirname(where))
    sys.argv = [script, *arguments]
    _script.install(_script.Script(**{"module" if module else "path": where}))
    mpi.initialize(**options)
    try:
        if module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        _job.ended(end.code)
        raise


def _parsed() -> dict[str, Any]:
    """Return the options. Only these are click's: it'd hide some errors of the script."""
    try:
        options = _options.main(prog_name="python -m treadle.mpi", standalone_mode=False)
        if isinstance(options, dict):
            # What can be seen to be wrong is said now, and not by each rank.
            checked({name: options[name] for name in FLAGS.keys() - OF_PROCESSES})
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    if not isinstance(options, dict):
        # It is the exit status, after `--help`.
        sys.exit(options)
    return options


if __name__ == "__main__":
    main()
