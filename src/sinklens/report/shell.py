"""The HTML around a viewer and its data: one file, under a policy with which a browser requests nothing.

The content security policy names the two things that may run or style by their hashes; no host is allowed. The
payload is data: a browser never runs it, and what a model wrote reaches the page as text alone.
"""

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from sinklens import __version__
from sinklens.errors import UsageError
from sinklens.report.encode import script_json

GENERATOR = '<meta name="generator" content="sinklens'
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
{body}
<script type="application/json" id="sinklens-data">{payload}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def html_page(payload: dict[str, Any], *, title: str, body: str, style: str, script: str) -> str:
    """The whole file.

    title: plain text. body: HTML that is there before the script runs. script: a module, which finds the payload as the
    JSON text of the element "sinklens-data". Script and style come from `source`.
    """
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return _PAGE.format(
        policy=policy,
        generator=GENERATOR,
        version=__version__,
        title=escape(f"{title} · sinklens"),
        style=style,
        body=body,
        payload=script_json(payload),
        script=script,
    )


def source(*path: str, ends: Sequence[str] = ("</script", "</style", "<!--")) -> str:
    """A script or style of this package that can stand in a page: nothing in it ends its own element."""
    text = files("sinklens.report").joinpath(*path).read_text("utf-8").replace("\r\n", "\n")
    assert not any(end in text.lower() for end in ends), f"{path[-1]} would end its own element"
    return text if text.endswith("\n") else text + "\n"


def refuse_other_file(path: Path) -> None:
    """Before any work is done: an earlier page may be replaced, anything else not."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give a file, such as {path / 'page.html'}")
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            if GENERATOR not in file.read(4096):
                raise UsageError(f"{path} exists and is no page of sinklens; choose another name, or move it away")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
