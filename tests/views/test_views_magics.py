"""The magics, in a real IPython and in a notebook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

START = "import treadle\nclient = treadle.Client(workers=2, threads_per_worker=1)\n"

SCRIPT = f"""
{START}
%load_ext treadle
%px a = 5
%px print("engine says", a)
%pxconfig --noblock
result = get_ipython().run_line_magic("px", "a + 1")
result.get(60)
%pxresult
get_ipython().run_cell_magic("px", "--targets 0 --block", "b = 7\\nb")
client[:].execute("%colors nocolor", block=True)
try:
    get_ipython().run_cell_magic("px", "--block", "1 / 0")
except Exception as error:
    print("raised", type(error).__name__)
%pxconfig --block
%autopx
%autopx
print("pulled", client[:]["a"], client[0]["b"])
second = treadle.Client(workers=1, threads_per_worker=1)
%pxconfig --noblock
%px where = "the second"
get_ipython().run_line_magic("pxresult", "")
print("later", second[0]["where"])
second.close()
%pxconfig --block
%px print("back", a)
client[:1].activate()
%px c = 4
print("activated", client[0]["c"], client[1].apply_sync(lambda: "c" in globals()))
client.close()
"""


def test_in_ipython(tmp_path: Path) -> None:
    script = tmp_path / "script.ipy"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "IPython", "--no-banner", "--colors=nocolor"]
    done = subprocess.run(
        [*command, f"--ipython-dir={tmp_path}", str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert said.count("engine says 5") == 2
    assert "[stdout:0]" in said
    assert said.count("Out[0:") + said.count("Out[1:") >= 3, said
    assert "raised" in said
    assert "ZeroDivisionError" in said
    assert "%autopx enabled" in said
    assert "%autopx disabled" in said
    assert "pulled [5, 5] 7" in said
    assert "later the second" in said
    assert said.count("back 5") == 2
    assert "activated 4 False" in said


def test_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    cells = [
        START + "%load_ext treadle",
        "%%px\nimport os\nprint('here', 1 + 1)\n6 * 7",
        "%px from IPython.display import HTML, display; display(HTML('<i>shown</i>'))",
        "%autopx",
        "c = 3\nprint('auto', c)",
        "%autopx",
        "client[:]['c']",
        "ar = client[:].apply_async(lambda: 1); ar.wait_interactive(); ar.get()",
        "client.close()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
    outputs = ["\n".join(map(text_of, cell.outputs)) for cell in notebook.cells]
    assert outputs[1].count("here 2") >= 2
    assert outputs[1].count("42") >= 2
    assert outputs[2].count("shown") == 2
    assert "auto 3" in outputs[4]
    assert "[3, 3]" in outputs[6]
    assert "[1, 1]" in outputs[7]


def text_of(output: nbformat.NotebookNode) -> str:
    if output.output_type == "stream":
        return str(output.text)
    if output.output_type == "error":
        return "\n".join(output.traceback)
    return "\n".join(map(str, output.data.values()))


def test_without_a_client() -> None:
    code = "get_ipython().run_line_magic('load_ext', 'treadle'); get_ipython().run_line_magic('px', '1')"
    command = [sys.executable, "-m", "IPython", "--no-banner", "--colors=nocolor", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert "make a treadle.Client first" in done.stdout + done.stderr
