"""The notebooks of the benchmarks run on what the benchmarks write, and draw all of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

# One workload of each group is enough.
SHOWN = ("tree", "array-elementwise", "frame-std")
BENCH = Path(__file__).parent.parent / "bench"


def execute(notebook: Path, result: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Run the cells in the notebook's folder; return all that they display."""
    monkeypatch.setenv("TREADLE_BENCH_RESULT", str(result))
    read = nbformat.read(notebook, as_version=4)
    resources = {"metadata": {"path": str(notebook.parent)}}
    ran = nbclient.NotebookClient(read, timeout=100, resources=resources).execute()
    return [output for cell in ran.cells for output in cell.get("outputs", [])]


def pictures(outputs: list[Any]) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs)


def texts(outputs: list[Any]) -> str:
    return "\n".join(output.get("data", {}).get("text/markdown", "") for output in outputs)


def test_scaling_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH / "scaling")
    from workloads import ALL

    points = [
        {
            "engine": engine,
            "expert": expert,
            "workload": name,
            "workers": 1 if expert else cores // 2,
            "cores": cores,
            "seconds": 10.0 if engine == "treadle" else 25.0,
            "rounds": 1,
            "amount": 1e9 * cores,
            "unit": workload.unit,
            "oversubscribed": workload.computes and cores > 2,
        }
        for name, workload in ALL.items()
        if name in SHOWN
        for engine in ("treadle", "distributed")
        for expert in (False, True)
        for cores in (2, 4)
    ]
    simulated = [
        {"workload": "tree", "workers": 1, "tasks": 255, "seconds": 13.0, "error": 0.02},
        {"workload": "tree", "workers": 2, "tasks": 511, "seconds": 13.1, "error": None},
    ]
    result = tmp_path / "scaling.json"
    result.write_text(json.dumps({"machine": "a machine", "points": points}))
    (tmp_path / "simulated.json").write_text(json.dumps({"points": simulated}))
    outputs = execute(BENCH / "scaling" / "report.ipynb", result, monkeypatch)
    assert pictures(outputs) == len(SHOWN) + 3
    shown = texts(outputs)
    assert f"1 workers: geometric mean of {len(SHOWN)} ratios 2.50 ×" in shown
    # A large point is beside the small one with as many cores.
    for cores in (2, 4):
        line = f"treadle | {cores} | {cores}00 | {cores}00 | MB/s |"
        assert f"| sin(x)**2 + cos(x)**2, {line}" in shown
    for module in ("workloads", "plots"):
        sys.modules.pop(module, None)


def test_broadcast_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def line(seconds: float) -> dict[str, Any]:
        pair = [seconds, seconds / 2]
        return {"call": pair, "push": dict.fromkeys(("16", "512"), pair)}

    curve = {what: {"direct": {"1": 0.1, "4": 0.2}} for what in ("call", "push")}
    result = tmp_path / "notebook.json"
    found = {
        "machine": "a machine",
        "engines": 4,
        "far": False,
        "notebook": {"treadle": line(0.01), "ipyparallel, depth 0": line(1.0)},
        "curves": {"treadle": curve},
    }
    result.write_text(json.dumps(found))
    outputs = execute(BENCH / "broadcast" / "report.ipynb", result, monkeypatch)
    assert pictures(outputs) == 3
    assert (
        "| ipyparallel, depth 0 | 512 | 1.000000 | 0.500000 | 2.000000 | 8.000000 | 100.0 × |"
        in texts(outputs)
    )
