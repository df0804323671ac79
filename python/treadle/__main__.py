"""The command line: ``python -m treadle``."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import click

# Each is imported when it is run: a worker needs nothing of the demo.
_COMMANDS = {
    "bench": "treadle.cli._bench_transfer",
    "certs": "treadle.cli._certs",
    "coordinator": "treadle.cli._coordinator",
    "demo": "treadle.demo.cli",
    "history": "treadle.cli._history",
    "observe": "treadle.cli._observe",
    "probe": "treadle.cli._probe",
    "scheduler": "treadle.cli._scheduler",
    "shuffle": "treadle.cli._shuffles",
    "shuffle-master": "treadle.cli._shuffle_service",
    "shuffle-registry": "treadle.cli._shuffle_registry",
    "shuffle-server": "treadle.cli._shuffle_service",
    "spark-submit": "treadle.cli._spark_submit",
    "template": "treadle.cli._template",
    "worker": "treadle.cli._worker",
}


class _Group(click.Group):
    def list_commands(self, _context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(_COMMANDS[name]), name.replace("-", "_"))
        return command

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except ModuleNotFoundError as error:
            if error.name != "distributed":
                raise
            raise click.ClickException(
                "Treadle needs distributed here, which is not installed: "
                "pip install 'distributed>=2025.11'"
            ) from None


@click.group(cls=_Group, invoke_without_command=True)
@click.version_option(package_name="treadle", message="treadle %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """Treadle: a native engine for Dask task graphs."""
    _open_standard_streams()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _open_standard_streams() -> None:
    """Open those that whoever started this process has closed.

    Otherwise the next file or socket is taken for them, and gets what is printed.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest one that is free is this one.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            stream = open(descriptor, mode, closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


if __name__ == "__main__":
    main(prog_name="python -m treadle")
