"""The command ``treadle probe``."""

from __future__ import annotations

import itertools
import statistics
from contextlib import ExitStack
from typing import Any

import click

import treadle
from treadle.cli._basics import (
    Output,
    clear_errors,
    connection_options,
    end_with_input,
    json_option,
    reason,
    serve,
    tell,
    told,
)
from treadle.cli._probe_agent import CONNECT_TIMEOUT, Agent
from treadle.cli._values import Seconds
from treadle.common._command_process import Child

__all__ = ["probe"]

_SLOW = 0.5  # of the median rate
_GAIN = 1.5  # of several sockets over one


@click.command()
@click.argument("hosts", nargs=-1, metavar="[HOST:PORT]...")
@click.option("--agent", metavar="HOST:PORT", help="Be the agent that the others connect to.")
@click.option(
    "--local", type=click.IntRange(min=2), metavar="N", help="Start N agents here, to try it."
)
@click.option(
    "--sockets",
    type=click.IntRange(2, 64),
    default=8,
    show_default=True,
    help="Measure with one socket, and with so many.",
)
@click.option(
    "--seconds",
    type=Seconds(0.01),
    default=1,
    show_default=True,
    help="How long to measure each pair, with one and with several sockets each.",
)
@connection_options
@json_option
@click.option("--until-eof", is_flag=True, hidden=True)
def probe(
    hosts: tuple[str, ...],
    agent: str | None,
    local: int | None,
    sockets: int,
    seconds: float,
    tls: str | None,
    insecure: bool,
    json_path: str | None,
    until_eof: bool,
) -> None:
    """Measure the network between every two hosts of a cluster, and name the slow pairs.

    Run `treadle probe --agent HOST:PORT` on each host, by the name that the others reach it by;
    then, anywhere, `treadle probe` with all of these addresses. One direction of one pair is
    measured at a time.

    The exit status is 1 if something could not be measured.
    """
    if (agent is not None) + (local is not None) + bool(hosts) != 1:
        raise click.UsageError(
            "Give the addresses of the agents, or --agent to be one, or --local to start some here."
        )
    options = {"tls": tls, "insecure": insecure}
    with clear_errors():
        if agent is not None:
            if json_path:
                raise click.UsageError("--json belongs to the command that gives the addresses.")
            if until_eof:
                end_with_input()
            serve(*Agent.start(agent, options))
            return
        with ExitStack() as stack:
            if local is not None:
                scheme, certificates = ("treadle+tls", ["--tls", tls]) if tls else ("treadle", [])
                arguments = ("probe", "--until-eof", "--agent", f"{scheme}://127.0.0.1:0")
                children = [
                    stack.enter_context(Child(*arguments, *certificates)) for _ in range(local)
                ]
                hosts = tuple(child.address for child in children)
            _check_hosts(hosts)
            output = Output(json_path)
            result = Coordinator(hosts, options, sockets, seconds).measure(output)
    show(result, output)
    output.result(result)
    if result["unreachable"] or any(pair["error"] for pair in result["pairs"]):
        raise click.exceptions.Exit(1)


def _check_hosts(hosts: tuple[str, ...]) -> None:
    if len(hosts) < 2:
        raise click.UsageError("Give the addresses of two agents at least.")
    for host in hosts:
        if hosts.count(host) > 1:
            raise click.UsageError(f"{host} is given twice.")


class Coordinator:
    """Tells one agent after the other to measure the way to each of the others."""

    def __init__(
        self, hosts: tuple[str, ...], options: dict[str, Any], sockets: int, seconds: float
    ) -> None:
        self.hosts = hosts
        self.options = options
        self.sockets = sockets
        self.seconds = seconds

    def measure(self, output: Output) -> dict[str, Any]:
        """Measure what can be reached."""
        from treadle.transfer import connect

        agents: dict[str, Any] = {}
        unreachable: dict[str, str] = {}
        with ExitStack() as stack:
            for host in self.hosts:
                try:
                    agent = connect(
                        host, connect_timeout=CONNECT_TIMEOUT, shared_memory=False, **self.options
                    )
                    agents[host] = stack.enter_context(agent)
                    tell(agent, do="greet")
                    told(agent, CONNECT_TIMEOUT)
                except OSError as error:
                    agents.pop(host, None)
                    unreachable[host] = reason(error)
            ways = list(itertools.permutations(agents, 2))
            pairs = []
            with output.progress("measuring") as progress:
                for number, (source, target) in enumerate(ways):
                    progress(number, len(ways))
                    pairs.append(self._pair(agents[source], source, target))
        judge(pairs)
        return {
            "version": treadle.__version__,
            "hosts": list(self.hosts),
            "sockets": self.sockets,
            "seconds": self.seconds,
            "unreachable": unreachable,
            "pairs": pairs,
        }

    def _pair(self, agent: Any, source: str, target: str) -> dict[str, Any]:
        pair: dict[str, Any] = {"from": source, "to": target, "error": None}
        try:
            for name, sockets in (("one", 1), ("several", self.sockets)):
                tell(agent, do="measure", to=target, sockets=sockets, seconds=self.seconds)
                answer = told(agent, 2 * self.seconds + 6 * CONNECT_TIMEOUT)
                if "error" in answer:
                    pair["error"] = answer["error"]
                    break
                pair[f"{name}_mb_per_second"] = answer["mb_per_second"]
                if name == "one":
                    # Of one socket: what limits it does not hide behind the others.
                    kept = ("round_trip_seconds", "cause", "evidence", "tcp")
                    pair |= {what: answer[what] for what in kept}
        except OSError as error:
            pair["error"] = f"the agent at {source} does not answer any more: {reason(error)}"
        return pair


def judge(pairs: list[dict[str, Any]]) -> None:
    """Mark pairs that are slow, and those where single sockets are."""
    best = {
        number: max(pair["one_mb_per_second"], pair["several_mb_per_second"])
        for number, pair in enumerate(pairs)
        if not pair["error"]
    }
    for number, pair in enumerate(pairs):
        if pair["error"]:
            continue
        pair["slow"] = best[number] < _SLOW * statistics.median(best.values())
        gain = pair["several_mb_per_second"] / pair["one_mb_per_second"]
        pair["single_sockets_are_slow"] = gain >= _GAIN


def show(result: dict[str, Any], output: Output) -> None:
    """Print the matrices and what is to be said about them."""
    reached = [host for host in result["hosts"] if host not in result["unreachable"]]
    pairs = {(pair["from"], pair["to"]): pair for pair in result["pairs"]}

    def matrix(title: str, name: str, scale: float, form: str) -> None:
        output.say(title)
        rows = []
        for number, source in enumerate(reached, 1):
            cells = []
            for target in reached:
                pair = pairs.get((source, target))
                if pair is None:
                    cells.append("–")
                else:
                    cells.append(form.format(pair[name] * scale) if name in pair else "failed")
            rows.append((f"{number}  {source}", *cells))
        output.table(("from", *(f"to {number}" for number in range(1, len(rows) + 1))), rows)

    if pairs:
        matrix("MB/s, one socket", "one_mb_per_second", 1, "{:,.0f}")
        matrix(f"MB/s, {result['sockets']} sockets", "several_mb_per_second", 1, "{:,.0f}")
        matrix("round trip, µs", "round_trip_seconds", 1e6, "{:,.0f}")
    for line in remarks(result):
        output.say(line)


def remarks(result: dict[str, Any]) -> list[str]:
    """Return a line for each thing that somebody should look at."""
    lines = []
    pairs = [pair for pair in result["pairs"] if not pair["error"]]
    several = result["sockets"]
    for pair in pairs:
        way = f"{pair['from']} → {pair['to']}"
        one, many = pair["one_mb_per_second"], pair["several_mb_per_second"]
        if pair["slow"]:
            lines.append(f"slow: {way}, {max(one, many):,.0f} MB/s, below half of the median")
        if pair["single_sockets_are_slow"]:
            lines.append(
                f"single sockets are slow: {way}, {several} carry {many / one:.1f} × as much as "
                "one; Treadle opens as many stripes as raise the rate, up to 16"
            )
    if pairs and not lines:
        lines.append("no pair is slow, and single sockets are enough")
    for pair in pairs:
        lines.append(
            f"{pair['from']} → {pair['to']}, one socket: {pair['cause']}: {pair['evidence']}"
        )
    for pair in result["pairs"]:
        if pair["error"]:
            lines.append(f"not measured: {pair['from']} → {pair['to']}: {pair['error']}")
    for host, why in result["unreachable"].items():
        lines.append(f"no agent at {host}: {why}")
        lines.append(f"  run there: treadle probe --agent {host}")
    if result["unreachable"]:
        lines.append("  with the same --tls or --insecure as here")
    return lines
