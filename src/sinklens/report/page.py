"""The explorer as one HTML file: the payload, the viewer, and a policy under which a browser requests nothing.

The content security policy names the two things that may run or style by their hashes; no host is allowed. The
payload is data: a browser never runs it, and what a model wrote reaches the page as text alone.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

from sinklens import __version__
from sinklens.errors import UsageError
from sinklens.files import written_whole
from sinklens.report.encode import script_json
from sinklens.report.payload import Progress, View, build_payload
from sinklens.sinks.arrays import TraceLike

GENERATOR = '<meta name="generator" content="sinklens'
START = (
    'mount(document.getElementById("sinklens"), JSON.parse(document.getElementById("sinklens-data").textContent));\n'
)
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
{generator} {version}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div id="sinklens"><p>Reading the trace ...</p></div>
<noscript>This page draws a recorded generation and needs JavaScript. It requests nothing from anywhere.</noscript>
<script type="application/json" id="sinklens-data">{payload}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def write_page(
    traces: Sequence[TraceLike],
    to: Path,
    *,
    view: View | None = None,
    made: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the page of one trace, or of two side by side, and return the payload that is in it.

    made: an ISO date to show; None: the same traces give the same bytes.
    """
    view = view or View()
    refuse_other_file(to)
    room = view.budget - len(page_text(empty(traces)).encode())
    payload = build_payload(traces, replace(view, budget=max(1, room)), made=made, progress=progress)
    with written_whole(to) as temporary:
        temporary.write_text(page_text(payload), "utf-8", newline="\n")
    return payload


def empty(traces: Sequence[TraceLike]) -> dict[str, Any]:
    """A payload with names and nothing else, to know what the rest of the page takes."""
    return {"runs": [{"name": trace.name} for trace in traces]}


def page_text(payload: dict[str, Any]) -> str:
    """The whole file."""
    script, style = viewer_script() + START, viewer_style()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return _PAGE.format(
        policy=policy,
        generator=GENERATOR,
        version=__version__,
        title=escape(" and ".join(run["name"] for run in payload["runs"]) + " · sinklens"),
        style=style,
        payload=script_json(payload),
        script=script,
    )


def viewer_script() -> str:
    """The ES module that page and notebook share: viewer.js and all that it imports, each file once, as one text."""
    return _joined("viewer.js", set())


def _joined(name: str, done: set[str]) -> str:
    """What a file imports, then the file; a joined module needs no import, and names are unique over all files."""
    if name in done:
        return ""
    done.add(name)
    text = _source(name, ends=("</script", "<!--"))
    return "".join(_joined(other, done) for other in _IMPORT.findall(text)) + _IMPORT.sub("", text)


def viewer_style() -> str:
    return _source("viewer.css", ends=("</style",))


def _source(name: str, *, ends: Sequence[str]) -> str:
    text = files("sinklens.report").joinpath("viewer", name).read_text("utf-8").replace("\r\n", "\n")
    assert not any(end in text.lower() for end in ends), f"{name} would end its own element"
    return text if text.endswith("\n") else text + "\n"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def fresh_page() -> Path:
    """runs/explore-1.html, or the first number that is not taken."""
    return next(path for n in count(1) if not (path := Path("runs") / f"explore-{n}.html").exists())


def refuse_other_file(path: Path) -> None:
    """Before any work is done: an earlier page may be replaced, anything else not."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give a file, such as {path / 'page.html'}")
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            if GENERATOR not in file.read(4096):
                raise UsageError(f"{path} exists and is no page of sinklens; choose another name, or move it away")
