"""All that `bench` has of one of the four published reports, one program after the other, for a quiet machine.

``python bench/published.py scaling`` (or ``in-process``, ``transfer``, ``broadcast``): what it runs and how many minutes
that may take is printed first. What the programs print and their JSON go to ``--to``, a folder for each report, as do the
pictures of ``scaling`` and of ipyparallel's notebook; others stay in the ``out`` of their folders. A program that fails or takes too long is reported, and the others go on.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from report import machine

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Step:
    """A program with its options, the minutes that it may take, and the options that `--quick` has instead."""

    name: str
    command: tuple[str, ...]
    minutes: float
    quick: tuple[str, ...]
    quick_minutes: float = 15


def steps(to: Path) -> dict[str, tuple[Step, ...]]:
    def table(script: str, name: str, minutes: float, *modules: str) -> Step:
        told = ("--json", str(to / f"{name}.json"), "--markdown", str(to / f"{name}.md"))
        command = (script, "--only", *modules, *told)
        return Step(name, command, minutes, (*command, "--quick"))

    local = ("local/run.py", "--json", str(to / "local.json"))
    local += ("--only", "array_sum", "processes", "plots")
    points = ("--json", str(to / "scaling.json"))
    simulated = ("scaling/simulated.py", "--json", str(to / "simulated.json"))
    sparse = ("scaling/sparse_tasks.py", "--json", str(to / "sparse.json"))
    published = ("broadcast/published.py", "--to", str(to))
    return {
        "scaling": (
            Step("simulated", simulated, 60, (*simulated, "--quick")),
            Step("sparse", (*sparse, "--workers", "1", "16", "64", "128", "256"), 30, (*sparse, "--quick")),
            Step("workloads", ("scaling/run.py", "--minutes", "240", *points), 260,
                 ("scaling/run.py", "--quick", *points), 25),
            Step("expert", ("scaling/run.py", "--expert", "--workers", "1", "--minutes", "30", *points), 35,
                 ("scaling/run.py", "--expert", "--quick", "--workers", "1", *points)),
        ),
        "in-process": (Step("local", local, 20, (*local, "--quick")),),
        "transfer": (
            table("transfer/run.py", "peers", 20, "cpp", "tensorflow"),
            table("transfer/run.py", "link", 30, "nic"),
            table("transfer/run.py", "worker", 20, "table", "clients"),
            table("transfer/run.py", "probe", 60, "causes"),
        ),
        "broadcast": (
            Step("notebook", (*published, "--where", "near", "far"), 120,
                 (*published, "--engines", "4", "--rounds", "1", "--depths", "0")),
            table("broadcast/run.py", "trees", 60, "sweep", "sockets"),
        ),
    }  # fmt: skip


def run(step: Step, command: tuple[str, ...], minutes: float, log: Path) -> str:
    """Run a program, whose output goes to a file and to here; return what became of it."""
    start = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, str(HERE / command[0]), *command[1:]],
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(60 * minutes)
            ended = "done" if status == 0 else f"**ended with status {status}**"
        except subprocess.TimeoutExpired:
            # It ends what it has started.
            process.terminate()
            ended = f"**stopped after {minutes:g} min**"
        finally:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait(10)
    print(log.read_text(encoding="utf-8"))
    return f"{step.name}: {ended}, {(time.monotonic() - start) / 60:.1f} min"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", choices=steps(HERE))
    parser.add_argument("--quick", action="store_true", help="to try it")
    parser.add_argument("--only", nargs="+", metavar="STEP")
    parser.add_argument("--to", type=Path, metavar="DIR", help="bench/out/published/REPORT")
    args = parser.parse_args()
    to = args.to or HERE / "out" / "published" / args.report
    to.mkdir(parents=True, exist_ok=True)
    chosen = [step for step in steps(to)[args.report] if not args.only or step.name in args.only]
    todo = [
        (step, *((step.quick, step.quick_minutes) if args.quick else (step.command, step.minutes)))
        for step in chosen
    ]
    print(f"{machine()}; at most {sum(minutes for *_, minutes in todo):g} min:", flush=True)
    for _, command, minutes in todo:
        print(f"  {minutes:4g} min  {' '.join(command)}", flush=True)
    ends = []
    for step, command, minutes in todo:
        ends.append(run(step, command, minutes, to / f"{step.name}.txt"))
        print(ends[-1], flush=True)
    print(*ends, sep="\n")
    sys.exit(any("**" in end for end in ends))


if __name__ == "__main__":
    main()
