"""The command line: ``python -m treadle``."""

from __future__ import annotations

import click

from treadle.demo.cli import demo


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """Treadle: a native engine for Dask task graphs."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


main.add_command(demo)

if __name__ == "__main__":
    main(prog_name="python -m treadle")
