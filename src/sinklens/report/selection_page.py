"""Token maps as one HTML file with a slider for the budget: data, viewer, and a policy that lets it request nothing.

In the manner of page.py: script and style are named by their hashes, no host is allowed, and names of images, classes
and models reach the page as text alone.
"""

import base64
import hashlib
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinklens import __version__
from sinklens.files import written_whole
from sinklens.report.encode import pack, script_json
from sinklens.report.page import GENERATOR, refuse_other_file, viewer_style

if TYPE_CHECKING:
    from sinklens.evaluation.selection_maps import TokenMaps

START = (
    'mountSelection(document.getElementById("sinklens"), '
    'JSON.parse(document.getElementById("sinklens-data").textContent));\n'
)
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
<div id="sinklens" class="sinklens"><p>Reading the images ...</p></div>
<noscript>This page draws images and needs JavaScript. It requests nothing from anywhere.</noscript>
<script type="application/json" id="sinklens-data">{payload}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def write_selection_page(maps: "TokenMaps", to: Path) -> Path:
    """Write the page of a `TokenMaps`."""
    refuse_other_file(to)
    with written_whole(to) as temporary:
        temporary.write_text(selection_page_text(selection_payload(maps)), "utf-8", newline="\n")
    return to


def selection_payload(maps: "TokenMaps") -> dict[str, Any]:
    """Names and packed arrays, as the viewer reads them."""
    return {
        "model": maps.model,
        "names": list(maps.names),
        "classes": list(maps.classes),
        "labels": list(maps.labels),
        "alphas": [round(alpha, 6) for alpha in maps.alphas],
        "gated": list(maps.gated),
        "channelGate": maps.channel_gate,
        "grid": list(maps.grid),
        "size": list(maps.pixels.shape[1:]),
        "pixels": pack(maps.pixels, "u1"),
        "kept": pack(maps.kept, "u1"),
        "chances": pack(maps.chances, "f4"),
        "macs": pack(maps.macs, "f4"),
        "sent": pack(maps.sent, "i4"),
    }


def selection_page_text(payload: dict[str, Any]) -> str:
    """The whole file."""
    script, style = selection_script() + START, viewer_style() + _source("selection_page.css")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return _PAGE.format(
        policy=policy,
        generator=GENERATOR,
        version=__version__,
        title=escape(f"{payload['model']} · sinklens"),
        style=style,
        payload=script_json(payload),
        script=script,
    )


def selection_script() -> str:
    """The explorer's reader of packed arrays, and the viewer."""
    return _source("viewer/decode.js") + _source("selection_page.js")


def _source(name: str) -> str:
    text = files("sinklens.report").joinpath(*name.split("/")).read_text("utf-8").replace("\r\n", "\n")
    assert not any(end in text.lower() for end in ("</script", "</style", "<!--")), f"{name} would end its own element"
    return text


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
