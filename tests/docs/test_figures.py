"""What `make bench-readme` writes into the README and into docs/measured.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import readme


@pytest.fixture
def measured() -> dict[str, Any]:
    """A run that has a figure for each line of the README, beside another peer and then beside the right one."""
    figures: dict[str, list[dict[str, Any]]] = {name: [] for name in readme.PROGRAMS}
    for number, line in enumerate(readme.README):
        empty = {"ratio": "", "bar": "", "passed": None, "limit": ""}
        figures[line.program] += [
            {**empty, "what": line.what, "measured": "another", "peer": "somebody else"},
            {**empty, "what": "the same", "measured": f"figure {number}", "peer": line.peer},
        ]
    run = {"date": "2026-01-01", "commit": "0123456", "minutes": 5.0}
    programs = {name: {**run, "figures": found} for name, found in figures.items()}
    return {"machine": "a machine", "versions": {"dask": "1.0"}, "programs": programs}


@pytest.mark.parametrize("path", readme.PAGES, ids=lambda path: path.name)
def test_a_page_has_a_place_for_its_tables(path: Path, measured: dict[str, Any]) -> None:
    before = path.read_text(encoding="utf-8")
    after = readme.page(path, measured)
    assert "commit 0123456" in after
    assert "figure 0" in after
    # What is not between the two comments stays, and it can be written again.
    assert after.startswith(before.partition(readme.BEGIN)[0])
    assert after.endswith(before.partition(readme.END)[2])
    assert after.count(readme.BEGIN) == after.count(readme.END) == 1


@pytest.mark.parametrize("path", readme.PAGES, ids=lambda path: path.name)
def test_a_page_has_the_tables_of_the_last_run(path: Path) -> None:
    measured = json.loads(readme.MEASURED.read_text(encoding="utf-8"))
    assert path.read_text(encoding="utf-8") == readme.page(path, measured)


def test_each_line_of_the_readme_has_its_figure(measured: dict[str, Any]) -> None:
    rows = readme.table_of_readme(measured).splitlines()[4:]
    assert len(rows) == len(readme.README)
    for line, row in zip(readme.README, rows, strict=True):
        wanted = "another" if line.peer == "" else "figure"
        assert row.startswith(f"| {line.words} | {wanted}"), row


def test_a_figure_that_is_not_there_is_named(measured: dict[str, Any]) -> None:
    measured["programs"]["shuffle"]["figures"] = []
    with pytest.raises(LookupError, match="no figure of shuffle"):
        readme.table_of_readme(measured)


def test_a_program_that_was_measured_again_has_its_own_commit(measured: dict[str, Any]) -> None:
    assert "commit 0123456, 30 minutes; a machine." in readme.head(measured)
    measured["programs"]["shuffle"].update(commit="89abcde", date="2026-01-02")
    said = "2026-01-01, commit 0123456, `shuffle` 2026-01-02, commit 89abcde, 30 minutes"
    assert said in readme.head(measured)


def test_figures_of_other_code_do_not_count(measured: dict[str, Any], tmp_path: Path) -> None:
    before = tmp_path / "measured.json"
    for program in measured["programs"].values():
        program["commit"] = readme.git("rev-parse", "HEAD")
    before.write_text(json.dumps(measured), encoding="utf-8")
    again = {**measured, "programs": {"shuffle": {"commit": "0123456", "figures": []}}}
    both = readme.with_those_before(again, before)
    assert list(both["programs"]) == list(readme.PROGRAMS)
    assert both["programs"]["shuffle"]["commit"] == "0123456"
    # The first commit had other code.
    (first, *_) = readme.git("rev-list", "--max-parents=0", "HEAD").split()
    measured["programs"]["local"]["commit"] = first
    before.write_text(json.dumps(measured), encoding="utf-8")
    assert "local" not in readme.with_those_before(again, before)["programs"]
