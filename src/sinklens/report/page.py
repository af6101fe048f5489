"""The explorer as one HTML file: the payload and the viewer, in a page that requests nothing (shell.py)."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from sinklens.files import written_whole
from sinklens.report.payload import Progress, View, build_payload
from sinklens.report.shell import html_page, refuse_other_file, source
from sinklens.sinks.arrays import TraceLike

START = (
    'mount(document.getElementById("sinklens"), JSON.parse(document.getElementById("sinklens-data").textContent));\n'
)
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
BODY = """<div id="sinklens"><p>Reading the trace ...</p></div>
<noscript>This page draws a recorded generation and needs JavaScript. It requests nothing from anywhere.</noscript>"""


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
    title = " and ".join(run["name"] for run in payload["runs"])
    return html_page(payload, title=title, body=BODY, style=viewer_style(), script=viewer_script() + START)


def viewer_script() -> str:
    """The ES module that page and notebook share: viewer.js and all that it imports, each file once, as one text."""
    return _joined("viewer.js", set())


def _joined(name: str, done: set[str]) -> str:
    """What a file imports, then the file; a joined module needs no import, and names are unique over all files."""
    if name in done:
        return ""
    done.add(name)
    text = source("viewer", name, ends=("</script", "<!--"))
    return "".join(_joined(other, done) for other in _IMPORT.findall(text)) + _IMPORT.sub("", text)


def viewer_style() -> str:
    return source("viewer", "viewer.css", ends=("</style",))


def fresh_page() -> Path:
    """runs/explore-1.html, or the first number that is not taken."""
    return next(path for n in count(1) if not (path := Path("runs") / f"explore-{n}.html").exists())
