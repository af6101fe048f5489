"""How large the explorer's page is and how fast it draws, in headless Chromium and by its own clock.

    python benchmarks/explorer.py [--quick]

Two synthetic traces: an 8B model's shape (32 layers x 32 heads, 128 steps, 192 tokens, as benchmarks/summary.py writes
it), and a long text (4096 tokens, 64 steps, 8 heads). Of each page:

    file          bytes of HTML
    first paint   from the start of navigation to the first contentful paint
    drawn         the same to the first frame with text, map and panels
    grid          the same until the strongest sink of every head is known
    slider        frames a second while the slider moves one step a frame, and the slowest of 20 frames
    work          milliseconds of processor time that one step takes of the main thread

Nothing is drawn by a GPU, and a browser shows 60 frames a second at most. Times by the clock need a machine that does
nothing else; `work` does not.
--quick: the long text alone.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from sinklens.report.page import write_page
from sinklens.sinks.arrays import from_arrays
from sinklens.traces.read import open_trace

LOADS = 3
FRAMES = 240
WATCH = """
const seen = (window.seen = {});
const look = () => {
  const pane = document.querySelector('[data-part="where"]');
  if (pane?.textContent) seen.drawn ??= performance.now();
  const note = document.querySelector('[data-part="grid-note"]')?.textContent;
  if (note && !note.startsWith("Reading")) seen.grid ??= performance.now();
  requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
LOADED = """() => ({
  paint: performance.getEntriesByName("first-contentful-paint")[0].startTime,
  ...window.seen,
})"""
SLIDE = """async (frames) => {
  const slider = document.querySelector('[data-part="slider"]');
  const where = document.querySelector('[data-part="where"]');
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const gaps = [];
  let last = await frame();
  let said = where.textContent;
  let changes = 0;
  for (let at = 0; at < frames; at++) {
    slider.value = String((Number(slider.value) + 1) % (Number(slider.max) + 1));
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    const now = await frame();
    gaps.push(now - last);
    last = now;
    changes += where.textContent !== said;
    said = where.textContent;
  }
  return { gaps, changes };
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("no Chromium here; apt install chromium")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        pages = [("4096 tokens x 64 steps, 8 heads", long_page(folder))]
        if not chosen.quick:
            pages.insert(0, ("32 x 32 heads, 128 steps, 192 tokens", wide_page(folder)))
        for name, path in pages:
            report(name, path, chromium=chromium)


def wide_page(folder: Path) -> Path:
    from summary import write

    write(folder / "trace", detail="full", norms=False)
    return written(open_trace(folder / "trace"), folder / "wide.html")


def long_page(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    steps, heads, keys = 64, 8, 4096
    raw = rng.lognormal(0, 0.5, (steps, 1, heads, keys)).astype(np.float32)
    for head in range(heads):
        raw[:, 0, head, rng.integers(0, keys, 6)] += rng.uniform(20, 400, 6).astype(np.float32)
    masked = np.arange(keys) >= 2048 + 32 * np.arange(steps)[:, None]
    trace = from_arrays(raw * (keys / raw.sum(-1, keepdims=True)), masked=masked)
    return written(trace, folder / "long.html")


def written(trace: Any, path: Path) -> Path:
    began = time.perf_counter()
    write_page([trace], path)
    print(f"{path.name}: written in {time.perf_counter() - began:.1f} s", file=sys.stderr)
    return path


def report(name: str, path: Path, *, chromium: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--disable-gpu"])
        loads = [load(browser, path) for _ in range(LOADS)]
        moved = slide(browser, path)
        version = browser.version
        browser.close()
    gaps = np.array(moved["gaps"])
    assert moved["changes"] >= 0.95 * FRAMES, f"only {moved['changes']} of {FRAMES} frames showed another step"
    print(f"{name} (Chromium {version})")
    print(f"  file         {path.stat().st_size / 1e6:.2f} MB")
    for part, title in (("paint", "first paint"), ("drawn", "drawn"), ("grid", "grid")):
        times = [one[part] for one in loads]
        print(f"  {title:11}  {np.median(times):.0f} ms ({min(times):.0f} to {max(times):.0f})")
    slow = np.quantile(gaps, 0.95)
    print(f"  slider       {1000 / gaps.mean():.0f} frames a second, one in 20 slower than {slow:.0f} ms")
    print(f"  work         {moved['work']:.1f} ms a step")


def load(browser: Any, path: Path) -> dict[str, float]:
    """One load in a profile of its own, in milliseconds."""
    context, page = opened(browser, path)
    times: dict[str, float] = page.evaluate(LOADED)
    context.close()
    return times


def opened(browser: Any, path: Path) -> tuple[Any, Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(120_000)
    context.add_init_script(WATCH)
    page = context.new_page()
    page.goto(path.as_uri(), wait_until="commit")
    page.wait_for_function("() => window.seen?.grid && performance.getEntriesByName('first-contentful-paint').length")
    return context, page


def slide(browser: Any, path: Path) -> dict[str, Any]:
    context, page = opened(browser, path)
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = busy(session)
    moved: dict[str, Any] = page.evaluate(SLIDE, FRAMES)
    moved["work"] = 1000 * (busy(session) - before) / FRAMES
    context.close()
    return moved


def busy(session: Any) -> float:
    """Processor time of the page's main thread so far, in seconds."""
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"])


if __name__ == "__main__":
    main()
