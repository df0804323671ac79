"""All figures of the README and of docs/measured.md, from one run of this commit on a quiet machine.

``python bench/readme.py`` prints the programs and the minutes that they may take, runs them one after the other, and
writes ``docs/measured.json``, and from it the tables of the README and of docs/measured.md, between two comments.
``--only`` measures some programs again, after a run whose other figures are of the same code.
``--write`` only writes the tables again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from published import Step, run
from report import machine

ROOT = Path(__file__).parents[1]
OUT = ROOT / "bench" / "out" / "readme"
MEASURED = ROOT / "docs" / "measured.json"
PAGES = (ROOT / "README.md", ROOT / "docs" / "measured.md")
BEGIN, END = "<!-- figures of bench/readme.py -->", "<!-- end of figures -->"
# What is measured, and what measures.
PRODUCT = ("Cargo.lock", "Cargo.toml", "crates", "proto", "python", "requirements")
CODE = (*PRODUCT, "bench")
PEERS = ("dask", "distributed", "ray", "frisky", "ipyparallel", "grpcio", "numpy", "pandas")

# Folders of `bench`, their modules, and the minutes that these may take.
PROGRAMS = {
    "local": (("per_task", "pipelines"), 15),
    "cluster": (("throughput", "graphs", "latency", "workloads"), 30),
    "transfer": (("loopback", "tls", "same_host"), 15),
    "broadcast": (("notebook",), 20),
    "shuffle": (("table", "indexed", "keyed"), 30),
    "service": (("push",), 10),
}


@dataclass(frozen=True)
class Line:
    """A line of the README: its words, and the figure that it shows."""

    words: str
    program: str
    what: str
    peer: str


README = (
    Line("a task in process, 10,000 independent ones", "local", "flat, 10,000 tasks, threads beside", "Dask"),
    Line("the same over a bare Python loop", "local", "flat, 10,000 tasks, threads: a task", "a bare"),
    Line("three tables joined, in process", "local", "three tables joined", "Dask"),
    Line("anomalies of a climatology, in process", "local", "climatology", "Dask"),
    Line("`client.map(inc, range(10_000))` and `wait`", "cluster", "`client.map", "distributed"),
    Line("the same", "cluster", "`client.map", "frisky"),
    Line("the same", "cluster", "`client.map", "ray"),
    Line("a dependent step on one worker", "cluster", "a step of a chain of", "distributed"),
    Line("`submit(…).result()`", "cluster", "`submit(", "distributed"),
    Line("13 workloads, many small chunks, geometric mean", "cluster", "all of these but `create` (naive)", "distributed"),
    Line("13 workloads, few large chunks, geometric mean", "cluster", "all of these but `create` (expert)", "distributed"),
    Line("arrays of 100 MB between processes, with checksums", "transfer", "100 MB arrays, loopback, recv() of new", "C,"),
    Line("the same", "transfer", "100 MB arrays, loopback, recv() of new", "grpc"),
    Line("the same into a warm array", "transfer", "100 MB arrays, loopback, recv_into a warm", "iperf3, 1 MiB"),
    Line("the same through TLS", "transfer", "100 MB arrays through TLS", ""),
    Line("1 GB of shared memory to another process", "transfer", "1 GB array of treadle.empty", ""),
    Line("a call to 32 engines", "broadcast", "`apply_sync(lambda: None)`, broadcast", "ipyparallel"),
    Line("a push of 2 MB to each of 32 engines", "broadcast", "`push` of 512² doubles, broadcast", "ipyparallel"),
    Line("`df.shuffle` of 640 MB, 64 partitions", "shuffle", "`shuffle` of 640 MB to 64", "distributed"),
    Line("the same, 1,024 partitions", "shuffle", "`shuffle` of 640 MB to 1,024", "distributed"),
    Line("`set_index` of 640 MB", "shuffle", "`set_index`", "distributed"),
    Line("`merge` of 8 and 4 million rows", "shuffle", "`merge`", "distributed"),
    Line("`groupby.apply`, 10,000 groups", "shuffle", "`groupby.apply`", "distributed"),
)  # fmt: skip


def named(figures: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Give the lines that say "the same" the name of the line that they mean."""
    what = ""
    for figure in figures:
        if not figure["what"].startswith("the same"):
            what = figure["what"]
        yield {**figure, "of": what}


def found(line: Line, programs: Mapping[str, Any]) -> dict[str, Any]:
    for figure in named(programs[line.program]["figures"]):
        if figure["of"].startswith(line.what) and figure["peer"].startswith(line.peer):
            return figure
    raise LookupError(f"no figure of {line.program} begins with {line.what!r} beside {line.peer!r}")


def head(measured: dict[str, Any]) -> str:
    """When, of which commit and where. A program that was measured again, by changed benchmarks, has its own commit."""
    commits: dict[tuple[str, str], list[str]] = {}
    for name, program in measured["programs"].items():
        commits.setdefault((program["date"], program["commit"]), []).append(name)
    (when, commit), *later = commits
    again = "".join(
        f", `{'`, `'.join(commits[other])}` {other[0]}, commit {other[1]}" for other in later
    )
    minutes = sum(program["minutes"] for program in measured["programs"].values())
    return (
        f"`make bench-readme`, {when}, commit {commit}{again}, {minutes:.0f} minutes; "
        f"{measured['machine']}."
    )


def table_of_readme(measured: dict[str, Any]) -> str:
    rows = ["| | Treadle | beside | ratio |", "| --- | --- | --- | --- |"]
    for line in README:
        figure = found(line, measured["programs"])
        rows.append(
            f"| {line.words} | {figure['measured']} | {figure['peer']} | {figure['ratio']} |"
        )
    return "\n".join([head(measured), "", *rows])


def all_tables(measured: dict[str, Any]) -> str:
    peers = ", ".join(f"{name} {number}" for name, number in measured["versions"].items())
    parts = [head(measured), f"The peers: {peers}."]
    for program, what in measured["programs"].items():
        rows = ["| what | Treadle | beside | ratio | bar | | what limits it |", "|" + " --- |" * 7]
        for figure in named(what["figures"]):
            verdict = {None: "", True: "met", False: "**missed**"}[figure["passed"]]
            cells = (figure["what"], figure["measured"], figure["peer"], figure["ratio"])
            rows.append(f"| {' | '.join((*cells, figure['bar'], verdict, figure['limit']))} |")
        parts += [f"### `bench/{program}`", "\n".join(rows)]
    return "\n\n".join(parts)


def page(path: Path, measured: dict[str, Any]) -> str:
    """The text of a page with its figures."""
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    made = table_of_readme(measured) if path.name == "README.md" else all_tables(measured)
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def measure(chosen: list[str], quick: bool) -> dict[str, Any]:
    OUT.mkdir(parents=True, exist_ok=True)
    commit = git("rev-parse", "--short", "HEAD")
    programs = {}
    for name in chosen:
        modules, minutes = PROGRAMS[name]
        told = OUT / f"{name}.json"
        told.unlink(missing_ok=True)
        command = (f"{name}/run.py", "--json", str(told), "--only", *modules)
        step = Step(name, command, minutes, (*command, "--quick"))
        command = step.quick if quick else step.command
        start = time.monotonic()
        print(run(step, command, minutes, OUT / f"{name}.txt"), flush=True)
        if told.exists():
            programs[name] = {
                "date": time.strftime("%Y-%m-%d"),
                "commit": commit,
                "minutes": (time.monotonic() - start) / 60,
                "figures": json.loads(told.read_text(encoding="utf-8")),
            }
    return {"machine": machine(), "versions": dict(versions()), "programs": programs}


def with_those_before(measured: dict[str, Any], before: Path) -> dict[str, Any]:
    """Add what an earlier run has measured of the same code."""
    if not before.exists():
        return measured
    programs = json.loads(before.read_text(encoding="utf-8"))["programs"]
    same = {
        name: program
        for name, program in programs.items()
        if not git("diff", "--name-only", program["commit"], "HEAD", "--", *PRODUCT)
    }
    both = {**same, **measured["programs"]}
    return {**measured, "programs": {name: both[name] for name in PROGRAMS if name in both}}


def versions() -> Iterator[tuple[str, str]]:
    """The releases of the peers that are here."""
    for name in PEERS:
        with suppress(PackageNotFoundError):
            yield name, version(name)


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="to try it: pages are not written")
    parser.add_argument("--write", action="store_true", help="only write the tables of the JSON")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PROGRAMS,
        default=list(PROGRAMS),
        help="measure these again; the others are those of the last run, if its code is the same",
    )
    args = parser.parse_args()
    if not args.write:
        if not args.quick and git("status", "--porcelain", *CODE):
            sys.exit("Commit your changes first: the tables name the commit that was measured.")
        print(f"{machine()}; at most {sum(PROGRAMS[name][1] for name in args.only)} min:")
        measured = measure(args.only, args.quick)
        last = OUT / ("quick.json" if args.quick else "measured.json")
        if set(args.only) != set(PROGRAMS):
            measured = with_those_before(measured, last)
        text = json.dumps(measured, indent=1, ensure_ascii=False) + "\n"
        last.write_text(text, encoding="utf-8")
        missing = set(PROGRAMS) - set(measured["programs"])
        if args.quick or missing:
            print(all_tables(measured))
            sys.exit(f"not measured: {', '.join(sorted(missing))}" if missing else 0)
        MEASURED.write_text(text, encoding="utf-8")
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    for path in PAGES:
        path.write_text(page(path, measured), encoding="utf-8")
    print(table_of_readme(measured))


if __name__ == "__main__":
    main()
