"""Selection for people: figures and tables from a document, token maps, and the page in a real browser."""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser.chromium import MISSING, PATIENCE, find_chromium, running_chromium
from sinklens.errors import UsageError
from sinklens.evaluation.selection_maps import TokenMaps
from sinklens.report.selection import FIGURES, draw, table_markdown, table_text
from sinklens.report.selection_figures import draw_accuracy, draw_choices
from sinklens.report.selection_maps import FADED, TINT, faded, write_maps
from sinklens.report.selection_page import selection_page_text, selection_payload, write_selection_page

NAME = "</script><img src=x onerror=alert(1)>"


def interval(value: float) -> dict[str, Any]:
    return {"value": value, "low": value - 0.05, "high": value + 0.05, "n": 40}


def cell(
    method: str, alpha: float, accuracy: float, *, channel: str = "wire", level: float | None = None
) -> dict[str, Any]:
    whole = alpha == 1
    ratio = {"value": None, "low": None, "high": None, "n": 0} if method == "norm" and alpha == 0.1 else interval(1.5)
    known = {"recall": [interval(0.5), interval(0.4)], "over_kept": [interval(1.6), ratio]}
    return {
        "method": method, "model": "half" if method == "fixed" else "", "alpha": alpha, "channel": channel,
        "level": level, "images": 40, "accuracy": interval(accuracy),
        "to_gate": None if method == "gate" else interval(-0.125),
        "kept": 1.0 if whole else alpha + 0.01, "kept_by_gate": [alpha + 0.02, alpha], "sent": 2 + 16 * alpha,
        "rate": 0.1 * alpha, "side_rate": 0.0123 if channel == "awgn" else None, "macs": 100.0,
        "macs_share": 0.2 + 0.8 * alpha, "foreground": known if channel == "wire" and method != "tome" else None,
    }  # fmt: skip


def a_result() -> dict[str, Any]:
    cells = [cell(method, alpha, 0.7) for alpha in (0.1, 0.5) for method in ("gate", "norm", "tome")]
    cells += [cell("gate", 1.0, 0.9), cell("fixed", 0.5, 0.8), cell("trained:norm", 0.5, 0.75)]
    cells += [cell("gate", a, 0.6, channel="awgn", level=level) for level in (-10.0, 0.0) for a in (0.1, 1.0)]
    cells += [cell("gate", 0.1, 0.5, channel="erasure", level=0.1)]
    speed = {"device": "cpu", "threads": 2, "batch": 64, "slowest": 90.0, "fastest": 120.0, "passes": 5}
    return {
        "model": "small", "command": None, "settings": None, "shape": {"gated": [1, 2], "patches": 16}, "images": 40,
        "cells": cells,
        "calibration": {
            "points": [{"alpha": 0.1, "kept": 0.11, "gap": 0.01}, {"alpha": 0.5, "kept": 0.51, "gap": 0.01}],
            "largest_gap": 0.01, "over": [0.1, 0.95],
        },
        "monotone": [
            {"block": 1, "pairs": 40, "falls": 0, "share": 0.0, "swapped": 0.0},
            {"block": 2, "pairs": 40, "falls": 1, "share": 0.025, "swapped": 0.01},
        ],
        "adaptivity": [
            {"alpha": a, "spread": 0.03, "least": 0.0, "most": 0.6, "with_difficulty": interval(0.25)}
            for a in (0.1, 0.5)
        ],
        "speed": [
            speed | {"alpha": 0.1, "kept": 0.1, "per_second": 100.0, "to_whole": 2.0},
            speed | {"alpha": 1.0, "kept": 1.0, "per_second": 50.0, "to_whole": 1.0},
        ],
    }  # fmt: skip


def test_figures_and_table_are_written(tmp_path: Path) -> None:
    written = draw(a_result(), tmp_path / "a")
    assert [path.name for path in written] == [*(f"{n}{end}" for n in FIGURES for end in (".png", ".svg")), "table.md"]


def test_models_trained_with_their_own_choice_have_the_first_figure() -> None:
    first, second = (
        {text.get_text() for legend in figure.legends for text in legend.get_texts()}
        for figure in (draw_accuracy(a_result()), draw_choices(a_result()))
    )
    assert first == {"learnt gates", "one model a budget", "norm, trained so"}
    assert second == {"learnt gates", "norm", "ToMe"}


def test_what_is_not_there_is_not_drawn(tmp_path: Path) -> None:
    empty = a_result() | {"cells": [], "adaptivity": [], "speed": [], "monotone": []}
    empty["calibration"] = {"points": [], "largest_gap": None, "over": [0.1, 0.95]}
    assert [path.name for path in draw(empty, tmp_path)] == ["table.md"]
    plain = a_result()
    plain["cells"] = [
        one | {"foreground": None}
        for one in plain["cells"]
        if one["channel"] == "wire" and one["method"] != "trained:norm"
    ]
    names = {path.stem for path in draw(plain, tmp_path)}
    assert names == {"figure_accuracy", "figure_kept", "figure_speed", "table"}


def test_the_table_says_what_was_found() -> None:
    text = table_markdown(a_result())
    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert ["0.1", "learnt gates", "0.110", "3.6", "28 %", "0.0100", "", "0.700 [0.650, 0.750]", "",
            "1.50 [1.45, 1.55]", "40"] in rows  # fmt: skip
    assert ["0.5", "one model a budget (half)", "0.510", "10.0", "60 %", "0.0500", "", "0.800 [0.750, 0.850]",
            "-0.125 [-0.175, -0.075]", "1.50 [1.45, 1.55]", "40"] in rows  # fmt: skip
    (ranked,) = [row for row in rows if row[:2] == ["0.1", "norm"]]
    assert ranked[-2] == ""  # undefined: nothing was kept
    assert "## Gaussian noise, SNR -10 dB" in text
    assert "## Each token lost with probability 0.1" in text
    assert ["2", "40", "1", "2.5 %", "1 %"] in rows
    assert ["cpu", "2", "64", "0.1", "0.10", "100 (90 to 120)", "2.00"] in rows
    assert "Kept shares follow alpha within 0.01, at 2 budgets from 0.1 to 0.5." in text
    assert (
        "Of 40 rises of the budget, 0 kept fewer patches at the first gate, and at worst 2.5 % at a later one." in text
    )
    shown = table_text(a_result())
    assert "nothing dropped" in shown and "|" not in shown


def some_maps(**changes: Any) -> TokenMaps:
    """Two images of 2 x 2 patches, two gates; at 0.5 the first image keeps its first patch, the second nothing."""
    kept = np.ones((3, 2, 2, 4), bool)
    kept[0] = False
    kept[1] = False
    kept[1, 0, :, 0] = True
    kept[1, 0, 0, 3] = True
    pixels = np.zeros((2, 1, 4, 4), np.uint8)
    pixels[:, :, :2, :2] = 200
    chances = np.array([[[0.25, 0.75], [0.5, 0.5]], [[0.9, 0.1], [0.2, 0.8]], [[1.0, 0.0], [0.0, 1.0]]])
    given: dict[str, Any] = {
        "model": "small", "names": ("one", NAME), "classes": ("shoe", "<b>bag</b>"), "labels": (0, None),
        "alphas": (0.0, 0.5, 1.0), "gated": (1, 2), "split": 2, "channel_gate": 0, "grid": (2, 2), "pixels": pixels,
        "kept": kept, "chances": chances, "macs": np.array([[0.1, 0.1], [0.4, 0.2], [1.0, 1.0]]),
        "sent": np.array([[2, 2], [4, 2], [5, 5]]),
    }  # fmt: skip
    return TokenMaps(**given | changes)


def test_dropped_patches_are_faded_and_kept_ones_as_they_are() -> None:
    pixels = np.full((1, 4, 4), 100, np.uint8)
    found = faded(pixels, np.array([True, False, False, True]), grid=(2, 2))
    assert found.shape == (4, 4, 3)
    np.testing.assert_allclose(found[:2, :2], 100 / 255)
    np.testing.assert_allclose(found[2:, 2:], 100 / 255)
    np.testing.assert_allclose(found[0, 3], FADED * 100 / 255 + (1 - FADED) * np.array(TINT))
    colour = np.stack([np.full((4, 4), value, np.uint8) for value in (10, 20, 30)])
    np.testing.assert_allclose(faded(colour, np.ones(4, bool), grid=(2, 2))[0, 0] * 255, [10, 20, 30])


def test_maps_are_pngs_with_plain_names(tmp_path: Path) -> None:
    written = write_maps(some_maps(), tmp_path)
    assert [path.name for path in written] == ["map-0-one.png", "map-1-script-img-src-x-onerror-alert-1-.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    assert write_maps(some_maps(), tmp_path / "b")[0].read_bytes() == written[0].read_bytes()
    colour = some_maps(pixels=np.zeros((2, 3, 4, 4), np.uint8))
    assert len(write_maps(colour, tmp_path / "c")) == 2


def unpacked(part: dict[str, Any]) -> bytes:
    return zlib.decompress(base64.b64decode(part["data"]), -zlib.MAX_WBITS)


def test_the_page_holds_the_maps_and_its_policy_names_its_parts(tmp_path: Path) -> None:
    maps = some_maps()
    text = write_selection_page(maps, tmp_path / "page.html").read_text("utf-8")
    (document,) = re.findall(r'<script type="application/json" id="sinklens-data">(.*?)</script>', text, re.DOTALL)
    payload = json.loads(document)
    assert payload["names"] == ["one", NAME]
    assert unpacked(payload["kept"]) == maps.kept.astype(np.uint8).tobytes()
    assert unpacked(payload["pixels"]) == maps.pixels.tobytes()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    (script,) = re.findall(r'<script type="module">(.*?)</script>', text, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    for part in (script, style):
        assert base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() in policy
    assert "unsafe" not in policy and "http" not in policy
    assert text == selection_page_text(selection_payload(maps))


def test_other_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("mine")
    with pytest.raises(UsageError, match="is no page of sinklens"):
        write_selection_page(some_maps(), tmp_path / "page.html")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    pytest.importorskip("playwright", reason="playwright is not installed; pip install 'sinklens[dev]'")
    if find_chromium() is None:
        pytest.skip(MISSING)
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def page(chromium: Any, tmp_path: Path) -> Iterator[Any]:
    """The page of `some_maps`. Afterwards: no error was reported, and nothing but the file was requested."""
    path = write_selection_page(some_maps(), tmp_path / "page.html")
    context = chromium.new_context(viewport={"width": 900, "height": 700})
    context.set_default_timeout(PATIENCE)
    shown = context.new_page()
    problems: list[str] = []
    requests: list[str] = []
    shown.on("console", lambda one: problems.append(one.text))
    shown.on("pageerror", lambda error: problems.append(str(error)))
    shown.on("dialog", lambda dialog: (problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
    shown.on("request", lambda request: requests.append(request.url))
    shown.goto(path.as_uri() + "#image=0&alpha=0.5")
    shown.wait_for_selector(".gate")
    yield shown
    context.close()
    assert [one for one in problems if "willReadFrequently" not in one] == []  # these tests read canvases, the page not
    assert requests == [path.as_uri()]


def captions(page: Any) -> list[str]:
    return list(page.locator("figcaption").all_text_contents())


def pixel(page: Any, gate: int | None, x: int, y: int) -> list[int]:
    """Of a map, or of the image itself."""
    part = "image" if gate is None else f"gate-{gate}"
    return list(
        page.locator(f"[data-part={part}]").evaluate(
            "(canvas, [x, y]) => [...canvas.getContext('2d').getImageData(x, y, 1, 1).data].slice(0, 3)", [x, y]
        )
    )


def test_the_slider_changes_what_is_kept(page: Any) -> None:
    assert captions(page) == ["the image", "block 1: 2 of 4 patches; these are sent", "block 2: 1 of 4 patches"]
    said = page.locator("[data-part=said]")
    told = "4 tokens are sent, those that are no patches included; 40 % of the multiply-accumulates."
    assert said.inner_text() == f"one: shoe, 90 %, which is right. {told}"
    assert pixel(page, 0, 0, 0) == pixel(page, 1, 0, 0) == [200, 200, 200]
    assert pixel(page, None, 3, 3) == pixel(page, 0, 3, 3) == [0, 0, 0] != pixel(page, 1, 3, 3)
    slider = page.locator("[data-part=slider]")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("[data-part=budget]").inner_text() == "1 (gates off)"
    assert captions(page)[2] == "block 2: 4 of 4 patches"
    assert page.evaluate("location.hash") == "#image=0&alpha=1&view=kept"
    page.keyboard.press("Home")
    assert captions(page)[1].startswith("block 1: 0 of 4 patches")
    assert "but it is shoe" in said.inner_text()


def test_images_and_views_can_be_chosen_and_names_stay_text(page: Any) -> None:
    page.locator(".thumb").nth(1).click()
    assert page.locator("[data-part=said]").inner_text().startswith(f"{NAME}: <b>bag</b>, 80 %. 2 tokens")
    assert page.locator(".sinklens :is(img, b, script)").count() == 0
    page.locator("[data-value=needed]").click()
    assert page.locator("[data-value=needed]").get_attribute("aria-pressed") == "true"
    page.locator(".thumb").nth(0).click()
    # Patch 0 stays from 0.5 on, patch 1 only at 1: more of the first is left.
    assert pixel(page, 0, 0, 0) != pixel(page, 0, 3, 0)
    assert "view=needed" in page.evaluate("location.hash")
    before = page.evaluate("getComputedStyle(document.querySelector('.sinklens')).backgroundColor")
    page.locator("[data-part=theme]").click()
    assert page.evaluate("getComputedStyle(document.querySelector('.sinklens')).backgroundColor") != before


def test_an_address_that_makes_no_sense_is_passed_over(page: Any) -> None:
    page.evaluate("location.hash = '#image=99&alpha=x&view=<b>'")
    page.wait_for_function("() => location.hash.includes('image=0')")
    assert page.evaluate("location.hash") == "#image=0&alpha=0.5&view=kept"


def test_nothing_is_laid_over_anything_else(page: Any) -> None:
    for width in (900, 380):
        page.set_viewport_size({"width": width, "height": 700})
        boxes = page.evaluate(
            """() => ["header", ".thumbs", ".budget-row", ".said", ".maps", ".chances"].map((one) => {
                 const box = document.querySelector(one).getBoundingClientRect();
                 const inside = [...document.querySelectorAll(`${one} *`)].map((n) => n.getBoundingClientRect());
                 return [box.top, Math.max(box.bottom, ...inside.map((n) => n.bottom))];
               })"""
        )
        assert all(upper[1] <= lower[0] + 1 for upper, lower in pairwise(boxes)), boxes
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
