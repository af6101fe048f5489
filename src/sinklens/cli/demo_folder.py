"""The folder of a demo: taken only where it is new, empty or an earlier demo's, and listed at the end."""

import json
import shutil
from pathlib import Path
from typing import Any

from sinklens.cli.output import prepare_folder
from sinklens.errors import UsageError
from sinklens.files import write_json
from sinklens.locks import refuse_strangers

PROGRAM = "sinklens demo"
RESULT, SINKS, MASKING = "demo.json", "sinks.json", "masking.jsonl"
TRACES, FIGURES, PAGE = "traces", "figures", "explorer.html"
# Worth a look, in this order.
SHOWN = {
    PAGE: "open it in a browser: scrub through a generation and watch the sinks",
    f"{FIGURES}/figure_1.png": "what every token received at every step; bright columns are sinks",
    f"{FIGURES}/figure_7.png": "where the main sink is at every step; level stays, steps move",
    f"{FIGURES}/figure_5.png": "which layers and heads have sinks, and how strong",
    f"{FIGURES}/figure_3.png": "how rare large scores are",
    f"{FIGURES}/figure_10.png": "how few tokens are sinks, whatever the threshold",
    f"{FIGURES}/table_2.csv": "the tokens most often under a sink",
    SINKS: "everything counted about the sinks, as `sinklens sinks --json` prints it",
    MASKING: "every answer under every mask, one a line",
    TRACES: "the traces: Parquet files that any reader opens",
    RESULT: "this demo as one document",
}


def claim_folder(folder: Path, *, traces: tuple[str, ...], marker: dict[str, Any]) -> None:
    """Make the folder ours. Of an earlier demo in it, what it wrote is removed; what others put there stays."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--to {folder} is a file; give a folder")
    if not _is_demo(folder):
        refuse_strangers(folder, what="demo")
    prepare_folder(folder)
    for name in traces:
        shutil.rmtree(folder / TRACES / name, ignore_errors=True)
    drawn = [path for pattern in ("figure_*", "table_*") for path in (folder / FIGURES).glob(pattern)]
    for path in (folder / SINKS, folder / MASKING, folder / PAGE, *drawn):
        path.unlink(missing_ok=True)
    write_json(folder / RESULT, {"program": PROGRAM, "complete": False, **marker})


def _is_demo(folder: Path) -> bool:
    try:
        said = json.loads((folder / RESULT).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(said, dict) and said.get("program") == PROGRAM


def written_files(folder: Path) -> list[dict[str, str]]:
    """What is there, what to look at first coming first."""
    return [{"file": str(folder / name), "what": what} for name, what in SHOWN.items() if (folder / name).exists()]
