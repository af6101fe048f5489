"""Using the explorer in a real browser: whatever is pressed or dragged, the page shows what the library computes."""

import csv
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser.chromium import Opener, Shown
from report.three_models import MappedTrace
from sinklens.sinks.arrays import LayerArrays
from sinklens.sinks.detect import detect_sinks

STEPS, KEYS, PROMPT = 24, 36, 12  # of llada
LAST = STEPS - 1


def head_of(trace: MappedTrace, layer: int, head: int, *, sample: int = 0, reading: str = "received") -> LayerArrays:
    return trace.layer(sample, layer, groups=True).reading(reading).one_head(head)


def sinks_of(trace: MappedTrace, layer: int, head: int, *, epsilon: float = 3.0, sample: int = 0) -> np.ndarray:
    """[step, key], as the library finds them."""
    one = head_of(trace, layer, head, sample=sample)
    found: np.ndarray = detect_sinks(one.received, one.expected, epsilon, viewers=one.viewers)[:, 0]
    return found


def strongest(trace: MappedTrace, layer: int, head: int, *, step: int, reading: str = "received") -> float:
    one = head_of(trace, layer, head, reading=reading)
    return float(np.nanmax(np.where(one.viewers >= 8, one.excess, np.nan)[step]))


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect as playwright_expect

    return playwright_expect(locator)


def test_the_slider_shows_what_stood_there(opened: Opener, llada: MappedTrace) -> None:
    shown = opened("llada", hash="#heads=1.1")
    canvases, sinks = llada.canvases(0), sinks_of(llada, 1, 1)
    assert sinks.any()
    for step in (0, 9, LAST):
        shown.part("slider").fill(str(step))
        masked, count = int(canvases.masked[step].sum()), int(sinks[step].sum())
        words = f"step {step} of {LAST} · {masked} masked · {count} sink{'' if count == 1 else 's'}"
        expect(shown.part("where")).to_have_text(words)
        assert shown.sinks() == np.flatnonzero(sinks[step]).tolist()
        assert shown.states() == states_of(canvases, step)


def states_of(canvases: Any, step: int) -> list[str]:
    def state(key: int) -> str:
        if canvases.masked[step, key]:
            return "masked"
        if key < PROMPT:
            return "prompt"
        return "new" if step and canvases.committed[step - 1, key] else "committed"

    return [state(key) for key in range(KEYS)]


def test_playing_goes_on_to_the_end_and_stops(opened: Opener) -> None:
    shown = opened("llada", hash=f"#step={STEPS - 6}")
    play = shown.part("play")
    play.click()
    expect(play).to_have_attribute("aria-label", "Pause")
    play.click()
    expect(play).to_have_attribute("aria-label", "Play")
    paused = shown.step()
    shown.settle()
    assert shown.step() == paused
    play.click()
    expect(shown.part("slider")).to_have_value(str(LAST))
    expect(play).to_have_attribute("aria-label", "Play")
    play.click()  # from the start again
    shown.until("[2, 3, 4, 5].includes(Number(document.querySelector('[data-part=slider]').value))")


def test_keys_move_everywhere_but_in_fields(opened: Opener) -> None:
    shown = opened("llada", hash="#step=5")
    press = shown.page.keyboard.press
    for key, step in [
        ("ArrowRight", 6), ("ArrowLeft", 5), ("Home", 0), ("ArrowLeft", 0), ("End", LAST), ("ArrowRight", LAST),
    ]:  # fmt: skip
        press(key)
        expect(shown.part("slider")).to_have_value(str(step))
    shown.part("heads").focus()
    press("ArrowLeft")
    press("Home")
    shown.settle()
    assert shown.step() == LAST
    shown.part("heads").blur()
    press("Space")
    expect(shown.part("play")).to_have_attribute("aria-label", "Pause")
    press("Space")
    expect(shown.part("play")).to_have_attribute("aria-label", "Play")


def test_clicks_and_keys_in_the_grid_choose_heads(opened: Opener, llada: MappedTrace) -> None:
    shown = opened("llada", hash="#heads=1.1&step=9")
    grid, heads = shown.part("grid"), shown.part("heads")
    grid.click(position=shown.cell_of_grid(2, 0))
    expect(heads).to_have_value("2.0")
    expect(shown.part("selection")).to_have_text("head 2.0")
    assert shown.sinks() == np.flatnonzero(sinks_of(llada, 2, 0)[9]).tolist()
    grid.click(position=shown.cell_of_grid(0, 3), modifiers=["Shift"])
    expect(heads).to_have_value("0.3, 2.0")
    expect(shown.part("selection")).to_have_text("mean of 2 heads")
    grid.press("ArrowDown")
    grid.press("ArrowLeft")
    grid.press("Enter")
    expect(heads).to_have_value("1.2")
    heads.fill("1.*, 0.0")
    heads.press("Enter")
    expect(heads).to_have_value("0.0, 1.*")
    heads.fill("nothing")
    heads.press("Enter")
    expect(heads).to_have_value("0.0, 1.*")
    expect(shown.part("live")).to_have_text("No head is called nothing; heads are written layer.head, as in 0.0")
    heads.fill("all")
    heads.press("Enter")
    expect(shown.part("selection")).to_have_text("mean of 12 heads")


@pytest.mark.parametrize("place", [(1, 1), (0, 2)], ids=["exact", "8 bits"])
def test_the_grid_tells_the_strongest_sink(opened: Opener, llada: MappedTrace, place: tuple[int, int]) -> None:
    shown = opened("llada", hash="#step=9")
    shown.settle()
    point = {"position": shown.cell_of_grid(*place)}
    shown.part("grid").hover(**point)
    title, lines = shown.tip()
    assert title == f"layer {place[0]}, head {place[1]}"
    assert float(lines["strongest now"]) == pytest.approx(strongest(llada, *place, step=9), rel=0.02, abs=0.02)
    every = [strongest(llada, *place, step=step) for step in range(STEPS)]
    assert float(lines["mean of steps"]) == pytest.approx(np.maximum(every, 0).mean(), rel=0.02, abs=0.02)
    assert lines["values"] == ("exact" if place == (1, 1) else "8 bits")
    shown.option("difference").click()
    shown.part("grid").hover(position={"x": 1, "y": 1})
    shown.part("grid").hover(**point)
    masked, unmasked = (strongest(llada, *place, step=9, reading=one) for one in ("masked", "unmasked"))
    rounding = 0.02 * (masked + unmasked)
    assert float(shown.tip()[1]["masked \N{MINUS SIGN} unmasked"]) == pytest.approx(masked - unmasked, abs=rounding)


def test_a_click_into_the_map_jumps(opened: Opener, llada: MappedTrace) -> None:
    """And a token tells everything about itself."""
    shown = opened("llada", hash="#heads=1.1&step=0")
    sinks = sinks_of(llada, 1, 1)
    step, key = (int(one) for one in np.argwhere(sinks)[len(np.argwhere(sinks)) // 2])
    box = shown.part("map").bounding_box()
    left, top, width, height = 38, 8, box["width"] - 48, box["height"] - 42
    place = {"x": left + (key + 0.5) / KEYS * width, "y": top + (step + 0.5) / STEPS * height}
    shown.part("map").click(position=place)
    expect(shown.part("slider")).to_have_value(str(step))
    expect(shown.part("ribbon").locator('[aria-selected="true"]')).to_have_attribute("data-position", str(key))
    _, lines = shown.tip()
    one = head_of(llada, 1, 1)
    share = one.fair_share[step, 0]
    assert lines["received"] == f"{share[key]:.{2 if share[key] < 10 else 1}f} fair shares"
    assert float(lines["excess"]) == pytest.approx(float(one.excess[step, 0, key]), abs=0.06)
    assert lines["rank"] == f"{1 + int((share > share[key]).sum())} of {KEYS}"
    assert lines["id"].startswith(f"{llada.canvases(0).ids[step, key]} (")
    assert lines["sink"] == "yes"
    assert lines["step"] == str(step)
    assert "steps" in lines["track"]
    shown.part("map").press("ArrowUp")
    expect(shown.part("slider")).to_have_value(str(step - 1))


def test_dragging_epsilon_finds_the_librarys_sinks(opened: Opener, llada: MappedTrace) -> None:
    shown = opened("llada", hash="#heads=2.0&step=9")
    box = shown.part("histogram").bounding_box()
    mouse = shown.page.mouse
    counts = set()
    mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    mouse.down()
    for part in (0.65, 0.4, 0.25):
        mouse.move(box["x"] + part * box["width"], box["y"] + 40, steps=3)
        shown.settle()
        counts.add(sinks_agree(shown, llada))
    mouse.up()
    assert len(counts) > 1
    for key in ("ArrowRight", "PageUp", "ArrowLeft"):
        before = float(shown.part("epsilon").input_value())
        shown.part("epsilon-line").press(key)
        moved = before + {"ArrowRight": 0.1, "PageUp": 1, "ArrowLeft": -0.1}[key]
        expect(shown.part("epsilon")).to_have_value(f"{moved:.2f}".rstrip("0").rstrip("."))
    shown.part("epsilon").fill("1.5")
    shown.part("epsilon").press("Enter")
    expect(shown.part("epsilon-line")).to_have_attribute("aria-valuenow", "1.50")
    sinks_agree(shown, llada)


def sinks_agree(shown: Shown, trace: MappedTrace) -> int:
    """Page and library, at the epsilon that is shown; how many there are."""
    epsilon = float(shown.part("epsilon").input_value())
    sinks = sinks_of(trace, 2, 0, epsilon=epsilon)
    assert shown.sinks() == np.flatnonzero(sinks[9]).tolist()
    total = int(sinks.sum())
    assert shown.part("sink-count").inner_text().split()[0].replace(",", "") == str(total)
    ids = trace.canvases(0).ids[sinks]
    rows = shown.part("sink-tokens").locator("tr").evaluate_all("rows => rows.map((row) => row.cells[2]?.innerText)")
    assert [int(one) for one in rows if one] == sorted(np.unique(ids, return_counts=True)[1].tolist(), reverse=True)[
        :10
    ]
    return total


def test_two_runs_move_together_until_they_are_parted(opened: Opener) -> None:
    shown = opened("both")
    shown.part("slider", "a").fill(str(LAST))
    expect(shown.part("slider", "b")).to_have_value("11")
    shown.part("slider", "b").fill("0")
    expect(shown.part("slider", "a")).to_have_value("0")
    shown.part("forward", "a").click(click_count=2)
    expect(shown.part("slider", "b")).to_have_value("1")
    shown.part("link").click()
    expect(shown.part("link")).to_have_attribute("aria-pressed", "false")
    shown.part("slider", "a").fill("20")
    shown.settle()
    assert (shown.step("a"), shown.step("b")) == (20, 1)
    shown.part("epsilon", "b").fill("5")
    shown.part("epsilon", "b").press("Enter")
    expect(shown.part("epsilon", "a")).to_have_value("5")


def test_a_link_shows_the_same_view(opened: Opener) -> None:
    first = opened("both")
    first.part("slider").fill("17")
    first.part("link").click()
    first.part("slider", "b").fill("3")
    first.part("grid", "b").click(position=first.cell_of_grid(2, 3, "b"))
    first.part("grid").click(position=first.cell_of_grid(0, 1))
    first.part("grid").click(position=first.cell_of_grid(2, 2), modifiers=["Control"])
    first.part("ribbon").locator(".token").nth(4).click()
    first.part("epsilon").fill("2.25")
    first.part("epsilon").press("Enter")
    for button in (first.option("excess"), first.part("tracks"), first.option("mean"), first.part("theme")):
        button.click()
    hash = first.address()
    second = opened("both", hash=hash)
    assert second.address() == hash
    for shown in (first, second):
        assert [shown.step(pane) for pane in "ab"] == [17, 3]
        assert [shown.part("heads", pane).input_value() for pane in "ab"] == ["0.1, 2.2", "2.3"]
        assert shown.part("epsilon").input_value() == "2.25"
        assert shown.page.locator('[aria-selected="true"]').get_attribute("data-position") == "4"
        assert shown.page.locator("#sinklens").get_attribute("data-theme") == "dark"
        pressed = {one: shown.part(one).get_attribute("aria-pressed") for one in ("tracks", "link")}
        assert pressed == {"tracks": "false", "link": "false"}
        for value in ("excess", "mean"):
            assert shown.option(value).get_attribute("aria-pressed") == "true"
    assert first.sinks() == second.sinks()
    second.page.evaluate("location.hash = '#step=8&heads=1.1'")  # as when an address is pasted into an open page
    expect(second.part("slider")).to_have_value("8")
    expect(second.part("heads")).to_have_value("1.1")


@pytest.mark.parametrize(
    "hash",
    [
        "#step=9999&heads=77.3&epsilon=-4&unit=none&token=x&sample=-1",
        "#%%%",
        "#step=&heads=&epsilon=NaN",
        "#__proto__=1",
    ],
)
def test_any_address_gives_a_view(opened: Opener, hash: str) -> None:
    shown = opened("llada", hash=hash)
    assert shown.part("heads").input_value() == "1.1"
    assert 0 <= shown.step() < STEPS
    assert 0.1 <= float(shown.part("epsilon").input_value()) <= 3


@pytest.mark.parametrize(
    ("hash", "heads", "said"),
    [
        ("#heads=9.9", "1.1", "no head 9.9 here · shown: head 1.1"),
        ("#l=9&h=9", "1.1", "no head 9.9 here · shown: head 1.1"),
        ("#l=2&h=3", "2.3", "head 2.3"),
        ("#l=2", "2.*", "mean of 4 heads"),
        ("#heads=0.2,7.1,9.*", "0.2", "no head 7.1 here, no head 9.* here · shown: head 0.2"),
    ],
)
def test_a_head_that_an_address_names_and_the_page_has_not_is_said(
    opened: Opener, hash: str, heads: str, said: str
) -> None:
    shown = opened("llada", hash=hash)
    expect(shown.part("heads")).to_have_value(heads)
    expect(shown.part("selection")).to_have_text(said)
    shown.part("grid").click(position=shown.cell_of_grid(2, 0))
    expect(shown.part("selection")).to_have_text("head 2.0")  # what is chosen in the page is there


def test_the_table_holds_the_librarys_numbers(opened: Opener, llada: MappedTrace, tmp_path: Path) -> None:
    shown = opened("llada", hash="#heads=1.1,2.0,0.2")
    with shown.saved("csv", tmp_path).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * STEPS * KEYS
    canvases = llada.canvases(0)
    for place, precision in {(0, 2): "quantised", (1, 1): "exact", (2, 0): "exact"}.items():
        own = [row for row in rows if (int(row["layer"]), int(row["head"])) == place]
        assert {row["precision"] for row in own} == {precision}
        at = np.array([(int(row["step"]), int(row["position"])) for row in own]).T
        assert [row["token"] for row in own] == [canvases.tokens[int(one)] for one in canvases.ids[at[0], at[1]]]
        one = head_of(llada, *place)
        share = np.array([row["fair_share"] for row in own], np.float32)
        expected = one.fair_share[at[0], 0, at[1]]
        if precision == "quantised":
            assert {row["received"] for row in own} == {""}
            np.testing.assert_allclose(share, expected, rtol=0.03, atol=0.03)
            continue
        np.testing.assert_array_equal(share, expected)
        for name in ("received", "expected"):
            numbers = np.array([row[name] for row in own], np.float32)
            np.testing.assert_array_equal(numbers, getattr(one, name)[at[0], 0, at[1]])


def test_the_picture_is_what_is_shown(opened: Opener, tmp_path: Path) -> None:
    from matplotlib.image import imread

    shown = opened("llada", hash="#step=9")
    shown.settle()
    path = shown.saved("png", tmp_path)
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    assert width >= 1200
    assert height >= 700
    picture = imread(path)[..., :3]
    page = imread(shown_picture(shown, tmp_path))[..., :3]
    rows, columns = min(len(picture), len(page)), min(picture.shape[1], page.shape[1])
    near = np.abs(picture[:rows, :columns] - page[:rows, :columns]).max(axis=-1) < 0.1
    assert near.mean() > 0.9
    assert (picture.std(axis=(0, 1)) > 0.05).all()


def shown_picture(shown: Shown, folder: Path) -> Path:
    shown.page.locator("#sinklens").screenshot(path=folder / "screen.png")
    return folder / "screen.png"


def test_another_sample_is_another_text(opened: Opener, llada: MappedTrace) -> None:
    shown = opened("llada", hash="#heads=1.1&step=9")
    shown.part("sample").select_option(label="sample 1")
    canvases = llada.canvases(1)
    for _ in range(2):  # there and back through the link
        expect(shown.part("ribbon").locator(".token").nth(1)).to_have_text(visible(canvases, 9, 1))
        assert shown.states() == states_of(canvases, 9)
        assert shown.sinks() == np.flatnonzero(sinks_of(llada, 1, 1, sample=1)[9]).tolist()
        shown = opened("llada", hash=shown.address())


def visible(canvases: Any, step: int, key: int) -> str:
    return str(canvases.tokens[int(canvases.ids[step, key])]).replace("\n", "⏎")


def test_a_trace_of_sinks_alone_has_no_weaker_ones(opened: Opener) -> None:
    shown = opened("sinks", hash="#epsilon=0.2")
    assert shown.part("epsilon").input_value() == "1"
    shown.part("epsilon").fill("0.5")
    shown.part("epsilon").press("Enter")
    expect(shown.part("epsilon")).to_have_value("1")
    assert "sinks only" in shown.part("loss").inner_text()


def test_a_long_text_is_drawn_where_it_is_looked_at(opened: Opener) -> None:
    shown = opened("long", hash="#step=0")
    tokens = shown.part("ribbon").locator(".token")
    assert tokens.count() == 2000
    expect(tokens.nth(3)).to_have_text("#3")
    assert shown.sinks() == []  # far below what is in sight
    tokens.first.focus()
    shown.page.keyboard.press("End")
    expect(tokens.last).to_be_in_viewport()
    expect(tokens.last).to_have_text("#1999")
    shown.until("document.querySelectorAll('[data-part=ribbon] .token.sink').length")
    assert shown.sinks() == [1994, 1995]
    shown.part("slider").fill("2")
    expect(shown.part("where")).to_have_text("step 2 of 2 · 0 masked · 2 sinks")
