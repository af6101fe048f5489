"""Token maps as one HTML file with a slider for the budget: data and viewer, in a page that requests nothing."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinklens.files import written_whole
from sinklens.report.encode import pack
from sinklens.report.page import viewer_style
from sinklens.report.shell import html_page, refuse_other_file, source

if TYPE_CHECKING:
    from sinklens.evaluation.selection_maps import TokenMaps

START = (
    'mountSelection(document.getElementById("sinklens"), '
    'JSON.parse(document.getElementById("sinklens-data").textContent));\n'
)
BODY = """<div id="sinklens" class="sinklens"><p>Reading the images ...</p></div>
<noscript>This page draws images and needs JavaScript. It requests nothing from anywhere.</noscript>"""


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
    style = viewer_style() + source("selection_page.css")
    return html_page(payload, title=payload["model"], body=BODY, style=style, script=selection_script() + START)


def selection_script() -> str:
    """The explorer's reader of packed arrays, and the viewer."""
    return source("viewer", "decode.js") + source("selection_page.js")
