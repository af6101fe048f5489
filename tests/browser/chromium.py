"""A real Chromium, and what tests and pictures do with a page of the explorer in it."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MISSING = "no Chromium here; apt install chromium"
NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 20_000  # milliseconds; for a machine that does much else
WATCH = """  // what canvases say must be numbers and words
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
  if (/undefined|NaN|null|Infinity/.test(text)) console.error(`a canvas says ${text}`);
  return write.call(this, text, ...place);
};
"""


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def running_chromium(*arguments: str) -> Iterator[Any]:
    """A browser without a window. Software drawing, so that pictures do not depend on the machine's graphics."""
    from playwright.sync_api import sync_playwright

    flags = ["--disable-gpu", "--font-render-hinting=none", "--hide-scrollbars", *arguments]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=flags)
        try:
            yield browser
        finally:
            browser.close()


@dataclass(frozen=True, kw_only=True, eq=False)
class Shown:
    """One open page, with everything that went wrong in it."""

    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def part(self, name: str, pane: str = "a") -> Any:
        """A control by its name; of a run if runs have it, else of the whole page."""
        inside = self.page.locator(f'[data-pane="{pane}"] [data-part="{name}"]')
        return inside if inside.count() else self.page.locator(f'[data-part="{name}"]')

    def option(self, value: str, pane: str = "a") -> Any:
        """A button of a choice; of a run if runs have it, else of the whole page."""
        inside = self.page.locator(f'[data-pane="{pane}"] [data-value="{value}"]')
        return inside if inside.count() else self.page.locator(f'[data-value="{value}"]')

    def step(self, pane: str = "a") -> int:
        return int(self.part("slider", pane).input_value())

    def sinks(self, pane: str = "a") -> list[int]:
        """The tokens that glow."""
        return self.page.eval_on_selector_all(
            f'[data-pane="{pane}"] [data-part="ribbon"] .token.sink',
            "nodes => nodes.map((one) => Number(one.dataset.position))",
        )

    def states(self, pane: str = "a") -> list[str]:
        return self.page.eval_on_selector_all(
            f'[data-pane="{pane}"] [data-part="ribbon"] .token', "nodes => nodes.map((one) => one.dataset.state)"
        )

    def tip(self) -> tuple[str, dict[str, str]]:
        """The title of the box beside the pointer, and its lines."""
        return tuple(  # type: ignore[return-value]
            self.page.eval_on_selector(
                '[data-part="tooltip"]:not([hidden])',
                """(box) => [box.querySelector("strong").textContent, Object.fromEntries(
                    [...box.querySelectorAll("dt")].map((one) => [one.textContent, one.nextSibling.textContent]))]""",
            )
        )

    def cell_of_grid(self, row: int, column: int, pane: str = "a") -> dict[str, float]:
        """Where a head stands inside the grid."""
        drawn = self.part("grid", pane).evaluate("(node) => ({...node.dataset})")
        left, top, cell = (float(drawn[name]) for name in ("left", "top", "cell"))
        return {"x": left + (column + 0.5) * cell, "y": top + (row + 0.5) * cell}

    def settle(self) -> None:
        """Until all is drawn, and the address says what is shown."""
        self.page.evaluate("() => new Promise((done) => setTimeout(() => requestAnimationFrame(() => done()), 320))")

    def until(self, condition: str) -> None:
        """Until a JavaScript expression holds; a function, because the page's policy forbids to evaluate text."""
        self.page.wait_for_function(f"() => {condition}")

    def address(self) -> str:
        """What the address says behind its #."""
        self.settle()
        return str(self.page.evaluate("location.hash"))

    def saved(self, part: str, to: Path) -> Path:
        """The file that a button gives."""
        with self.page.expect_download(timeout=PATIENCE) as download:
            self.part(part).click()
        download.value.save_as(to / download.value.suggested_filename)
        return to / download.value.suggested_filename


Opener = Callable[..., Shown]


def show(context: Any, path: Path, *, hash: str = "") -> Shown:
    """Open a page in a context of its own, and wait until it is drawn."""
    context.set_default_timeout(PATIENCE)
    context.add_init_script(WATCH)
    shown = Shown(page=context.new_page())
    shown.page.on("console", lambda one: shown.problems.append(one.text) if one.type in ("error", "warning") else None)
    shown.page.on("pageerror", lambda error: shown.problems.append(str(error)))
    shown.page.on("dialog", lambda dialog: (shown.problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
    shown.page.on("request", lambda request: shown.requests.append(request.url))
    shown.page.goto(path.as_uri() + hash)
    shown.until(
        "document.querySelector('.pane') && !document.querySelector('.pane:not(:has([data-part=where]:not(:empty)))')"
    )
    return shown
