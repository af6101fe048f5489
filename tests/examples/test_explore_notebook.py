"""The example notebook runs in a real kernel, and its widgets hold what they should."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sinklens.report.page import viewer_script

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def notebook() -> Any:
    """After all cells have run, with the state of its widgets."""
    hint = "needs a notebook: pip install 'sinklens[notebook]' nbclient ipykernel"
    for name in ("anywidget", "nbclient", "ipykernel"):
        pytest.importorskip(name, reason=hint)
    import nbclient
    import nbformat

    found = nbformat.read(ROOT / "examples" / "explore.ipynb", as_version=4)
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    nbclient.NotebookClient(found, timeout=300, kernel_name="python3").execute(env=environment)
    return found


def outputs(notebook: Any, words: str) -> list[Any]:
    (cell,) = (cell for cell in notebook.cells if cell.cell_type == "code" and words in cell.source)
    return list(cell.outputs)


@pytest.mark.parametrize(
    ("words", "names"),
    [("sl.explore(diffusion)", ["tiny-llada"]), ("\nsl.explore(causal, diffusion)", ["tiny-llama", "tiny-llada"])],
    ids=["one", "two"],
)
def test_a_cell_shows_a_widget(notebook: Any, words: str, names: list[str]) -> None:
    shown = [one.data[VIEW]["model_id"] for one in outputs(notebook, words) if VIEW in one.get("data", {})]
    states = [notebook.metadata["widgets"][STATE]["state"][one]["state"] for one in shown]
    (state,) = (one for one in states if "payload" in one)  # progress bars are widgets too
    payload = json.loads(state["payload"])
    assert [run["name"] for run in payload["runs"]] == names
    assert payload["runs"][-1]["samples"][0]["steps"] == 16
    assert state["_esm"].startswith(viewer_script())


def test_a_file_is_written_where_it_is_asked_for(notebook: Any) -> None:
    text = "".join(one.text for one in outputs(notebook, 'to=folder / "page.html"') if one.get("name") == "stdout")
    assert text.startswith("page.html ")
    assert 100 < int(text.split()[1]) < 2000  # kB


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = json.loads((ROOT / "examples" / "explore.ipynb").read_text("utf-8"))["cells"]
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells)
