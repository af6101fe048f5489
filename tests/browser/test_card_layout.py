"""The card as a page: whatever its cells hold, nothing is cut off or scrolls sideways."""

from pathlib import Path
from typing import Any

import pytest

from report.test_card_page import card_of
from sinklens.report.card_figure import draw_card
from sinklens.report.card_formats import write_html

LONG = "a-name-without-a-place-to-break/" * 12
WIDER = """() => [document.documentElement, ...document.querySelectorAll("body *")]
    .filter((node) => node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).display !== "inline")
    .map((node) => node.tagName)"""

LINES = """() => [...document.querySelectorAll(".parts td:nth-child(2)")].map((cell) => {
    const inside = document.createRange();
    inside.selectNodeContents(cell);
    return new Set([...inside.getClientRects()].map((box) => Math.round(box.top))).size;
})"""


@pytest.mark.parametrize("width", [1280, 1000, 700])
def test_long_cells_wrap(chromium: Any, tmp_path: Path, width: int) -> None:
    card = card_of(("x" * 120, "\n", LONG))
    card["model"]["source"] = card["settings"]["command"] = LONG
    page = write_html(tmp_path / "card.html", card, picture=draw_card(card, tmp_path)[0])
    context = chromium.new_context(viewport={"width": width, "height": 800})
    try:
        shown = context.new_page()
        shown.goto(page.as_uri())
        assert shown.evaluate(WIDER) == []
        assert set(shown.evaluate(LINES)) == {1}  # a number and its interval stand on one line
    finally:
        context.close()
