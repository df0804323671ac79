"""The command line: ``python -m treadle``."""

from __future__ import annotations

import click

from treadle._bench_transfer import bench
from treadle._certs import certs
from treadle._cli_scheduler import scheduler
from treadle._cli_template import template
from treadle._cli_worker import worker
from treadle._probe import probe
from treadle.demo.cli import demo


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """Treadle: a native engine for Dask task graphs."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


main.add_command(demo)
main.add_command(bench)
main.add_command(probe)
main.add_command(certs)
main.add_command(scheduler)
main.add_command(worker)
main.add_command(template)

if __name__ == "__main__":
    main(prog_name="python -m treadle")
