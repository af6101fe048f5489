"""Pictures of the explorer for the documentation, from the pages in docs/gallery: `make screenshots`."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from browser.chromium import MISSING, find_chromium, running_chromium, show

DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A view of a page, and how large the window is."""

    name: str
    page: str
    hash: str
    width: int = 1280
    whole: bool = True  # the whole page, or what a window of `height` shows
    height: int = 900
    settings: dict[str, Any] = field(default_factory=dict)
    point: int | None = None  # the token that the pointer rests on


PICTURES = (
    Picture(name="readme", page="llada", hash="#step=30&heads=0.1", height=880, whole=False),
    Picture(name="explorer", page="llama-and-dream", hash="#step=20&heads=7.2&b.heads=7.2", width=1440),
    Picture(name="explorer-one", page="llada", hash="#step=20&heads=0.1", height=860, whole=False, point=73),
    Picture(
        name="explorer-dark",
        page="llada",
        hash="#step=30&heads=7.*&reading=difference&scope=mean",
        settings={"color_scheme": "dark"},
    ),
    Picture(name="explorer-phone", page="llada", hash="#step=20&heads=3.1", width=390, height=844, whole=False),
)


def main() -> None:
    if find_chromium() is None:
        sys.exit(MISSING)
    with running_chromium() as browser:
        for picture in PICTURES:
            print(shoot(browser, picture))


def shoot(browser: Any, picture: Picture) -> Path:
    viewport = {"width": picture.width, "height": picture.height}
    context = browser.new_context(viewport=viewport, reduced_motion="reduce", **picture.settings)
    shown = show(context, DOCS / "gallery" / f"{picture.page}.html", hash=picture.hash)
    shown.until("!document.querySelector('[data-part=grid-note]').textContent.startsWith('Reading')")
    if picture.point is not None:
        shown.part("ribbon").locator(".token").nth(picture.point).hover()
    shown.settle()
    path = DOCS / "images" / f"{picture.name}.png"
    shown.page.screenshot(path=path, full_page=picture.whole)
    context.close()
    if shown.problems:
        sys.exit("\n".join(shown.problems))
    return path


if __name__ == "__main__":
    main()
