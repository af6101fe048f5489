"""The notebooks with pictures run in a real kernel, and what is kept of them is small and without errors."""

import base64
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("masking", "key_norms")
PNG = b"\x89PNG\r\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name: str) -> None:
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package, reason="needs a notebook: pip install nbclient ipykernel")
    import nbclient
    import nbformat

    found = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    nbclient.NotebookClient(found, timeout=300, kernel_name="python3").execute(env=environment)
    check(json.loads(nbformat.writes(found)))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_of_a_notebook_is_whole_and_small(name: str) -> None:
    file = ROOT / "examples" / f"{name}.ipynb"
    assert file.stat().st_size < 60_000
    document = json.loads(file.read_text("utf-8"))
    check(document)
    counts = [cell["execution_count"] for cell in document["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))  # run once, from top to bottom
    assert "/work" not in file.read_text("utf-8") and "/tmp" not in file.read_text("utf-8")


def check(document: dict[str, Any]) -> None:
    """One picture, words that say what was found, and nothing on stderr."""
    outputs = [output for cell in document["cells"] for output in cell.get("outputs", [])]
    assert {output["output_type"] for output in outputs} == {"stream", "display_data"}
    assert {output["name"] for output in outputs if output["output_type"] == "stream"} == {"stdout"}
    (picture,) = (output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {}))
    assert base64.b64decode("".join(picture)).startswith(PNG)
    words = "".join("".join(output.get("text", "")) for output in outputs)
    counted = re.findall(r"(\d+) of (12|32)\b", words)
    assert len(counted) in (2, 5) and all(int(some) <= int(whole) for some, whole in counted)
