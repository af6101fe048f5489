"""The explorer in a real browser: it loads, requests nothing, runs nothing a model wrote, and can be read by all."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from browser.chromium import Opener
from browser.hostile import NAME, TOKENS
from report.three_models import MappedTrace
from sinklens.report.encode import script_json
from sinklens.report.notebook import RENDER
from sinklens.report.page import viewer_script, viewer_style
from sinklens.report.payload import build_payload

TEXT = ".sinklens :is(h1, h2, h3, p, button, th, td, output, span, code, b, label, select, input)"


@pytest.mark.parametrize("name", ["llada", "both", "hostile", "sinks"])
def test_pages_load_without_errors_and_requests(opened: Opener, name: str) -> None:
    """What the fixture checks, after everything that can be pressed was pressed once."""
    shown = opened(name)
    for button in shown.page.locator("button:not([data-part=csv]):not([data-part=png])").all():
        button.click()
    shown.settle()
    assert shown.requests == [shown.page.url.split("#")[0]]
    assert shown.page.locator("canvas").count() >= 6


def test_the_policy_stops_what_a_page_could_ask_for(opened: Opener) -> None:
    shown = opened("llada")
    stopped = shown.page.evaluate(
        """async () => {
          const stopped = new Set();
          document.addEventListener("securitypolicyviolation", (event) => stopped.add(event.effectiveDirective));
          new Image().src = "http://127.0.0.1:9/image";
          await fetch("http://127.0.0.1:9/fetch").catch(() => null);
          const add = (tag, fields) => document.body.append(Object.assign(document.createElement(tag), fields));
          add("script", { textContent: "window.ran = true" });
          add("style", { textContent: "body { display: none }" });
          add("iframe", { src: "http://127.0.0.1:9/frame" });
          add("div", { innerHTML: "<b onclick='window.ran = true'></b>" });
          document.querySelector("div > b[onclick]").click();
          for (let wait = 0; wait < 100 && stopped.size < 6; wait++) await new Promise((done) => setTimeout(done, 50));
          return [[...stopped].sort(), window.ran ?? false, getComputedStyle(document.body).display];
        }"""
    )
    assert stopped == [
        ["connect-src", "frame-src", "img-src", "script-src-attr", "script-src-elem", "style-src-elem"],
        False,
        "block",
    ]
    assert all("Content Security Policy" in one for one in shown.problems)
    shown.problems.clear()
    shown.requests[:] = [one for one in shown.requests if one.startswith("file:")]


def test_hostile_text_stays_text(opened: Opener, tmp_path: Path) -> None:
    shown = opened("hostile", hash="#step=0")
    page = shown.page
    assert page.title() == f"{NAME} · sinklens"
    assert page.locator("h2").inner_text() == NAME
    ribbon = shown.part("ribbon").locator(".token")
    texts = ribbon.all_text_contents()
    assert texts[:6] == list(TOKENS[:6])
    assert texts[6:8] == ["\\u{202e}right to left", "\\u{2028}"]
    assert texts[-3:] == ["\\u{0}", "\\u{d800}", "plain"]
    table = shown.part("sink-tokens").locator("code")
    assert table.all_text_contents()[:2] == [one.replace(" ", "␣") for one in TOKENS[:2]]
    ribbon.nth(1).hover()
    title, lines = shown.tip()
    assert title == TOKENS[1]
    assert lines["id"] == "1 (<i>class</i>)"
    assert page.locator(".sinklens :is(img, i, script, style, iframe, [onclick], [onerror])").count() == 0
    with shown.saved("csv", tmp_path).open(encoding="utf-8", newline="") as file:
        tokens = [row["token"] for row in csv.DictReader(file) if row["step"] == "0"]
    assert [one for one in tokens if "\ufffd" not in one] == [one for one in TOKENS if one != "\ud800"]


@pytest.mark.parametrize("name", ["llada", "both", "hostile"])
def test_a_phone_needs_no_sideways_scrolling(opened: Opener, name: str) -> None:
    from playwright.sync_api import expect

    shown = opened(name, width=360, height=740, has_touch=True, is_mobile=True)
    shown.settle()
    wide = shown.page.evaluate(
        """() => [...document.querySelectorAll(".sinklens *:not(.unseen)")].filter((one) => {
          const box = one.getBoundingClientRect();
          return box.width && box.right > innerWidth + 1 && !one.closest(".ribbon, .grid");
        }).map((one) => one.outerHTML.slice(0, 90))"""
    )
    assert wide == []
    assert shown.page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]
    shown.part("forward").tap()
    shown.part("slider").fill("2")
    expect(shown.part("where")).to_contain_text("step 2 of")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_until_they_are_chosen(opened: Opener, scheme: str) -> None:
    from playwright.sync_api import expect

    shown = opened("llada", color_scheme=scheme)
    root = expect(shown.page.locator("#sinklens"))
    other = {"light": "dark", "dark": "light"}[scheme]
    root.to_have_attribute("data-theme", scheme)
    assert (luminance(shown) < 0.1) == (scheme == "dark")
    shown.page.emulate_media(color_scheme=other)
    root.to_have_attribute("data-theme", other)
    shown.part("theme").click()
    root.to_have_attribute("data-theme", scheme)
    assert f"theme={scheme}" in shown.address()
    shown.page.emulate_media(color_scheme=scheme)
    shown.page.emulate_media(color_scheme=other)
    shown.settle()
    root.to_have_attribute("data-theme", scheme)


def luminance(shown: Any) -> float:
    """Of what the screen shows in its upper left corner."""
    rgb = shown.page.locator("#sinklens").evaluate("(node) => getComputedStyle(node).backgroundColor.match(/\\d+/g)")
    return sum(w * (int(one) / 255) ** 2.2 for w, one in zip((0.21, 0.72, 0.07), rgb, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(opened: Opener, scheme: str) -> None:
    """4.5 to 1 (WCAG AA), 3 to 1 for large text; what a browser computes, on the first opaque ground behind it."""
    shown = opened("llada", color_scheme=scheme, reduced_motion="reduce")
    shown.settle()
    weak = shown.page.evaluate(
        """(selector) => {
          const parse = (text) => {
            const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
            return [r, g, b, a];
          };
          const light = (rgb) => rgb.slice(0, 3).map((one) => one / 255)
            .map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
            .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
          const ground = (node) => {
            for (let one = node; one; one = one.parentElement) {
              const colour = parse(getComputedStyle(one).backgroundColor);
              if (colour[3] === 1) return colour;
            }
            return [255, 255, 255, 1];
          };
          const weak = [];
          for (const node of document.querySelectorAll(selector)) {
            const own = [...node.childNodes].some((one) => one.nodeType === 3 && one.textContent.trim()) || node.value;
            if (!own || !node.getClientRects().length || node.type === "range") continue;
            const style = getComputedStyle(node);
            const [high, low] = [light(parse(style.color)), light(ground(node))].sort((a, b) => b - a);
            const ratio = (high + 0.05) / (low + 0.05);
            const size = parseFloat(style.fontSize);
            const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
            if (ratio < (large ? 3 : 4.5)) weak.push(`${ratio.toFixed(2)} ${node.outerHTML.slice(0, 120)}`);
          }
          return weak;
        }""",
        TEXT,
    )
    assert weak == []


@pytest.mark.parametrize("name", ["llada", "both"])
def test_everything_that_takes_the_focus_has_a_name(opened: Opener, name: str) -> None:
    """By the browser's own tree for screen readers."""
    shown = opened(name)
    session = shown.page.context.new_cdp_session(shown.page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    found = {}
    for node in nodes:
        if node.get("ignored"):
            continue
        focusable = any(one["name"] == "focusable" and one["value"]["value"] for one in node.get("properties", []))
        role = node["role"]["value"]
        if focusable and role != "RootWebArea":
            found.setdefault(role, []).append(node.get("name", {}).get("value", ""))
    assert {"button", "slider", "textbox", "spinbutton", "application", "option"} <= set(found)
    assert {role for role, names in found.items() if not all(one.strip() for one in names)} == set()
    assert sum("Step" in one for one in found["slider"]) == (2 if name == "both" else 1)


def test_the_keyboard_reaches_everything_and_leaves_again(opened: Opener) -> None:
    shown = opened("llada")
    reached = []
    for _ in range(40):
        shown.page.keyboard.press("Tab")
        where = shown.page.evaluate(
            """() => {
              const node = document.activeElement;
              const name = node.dataset.part ?? node.dataset.value ?? (node.dataset.position ? "token" : node.tagName);
              return [name, node === document.body || getComputedStyle(node).outlineStyle !== "none"];
            }"""
        )
        reached.append(where[0])
        assert where[1], f"nothing shows that {where[0]} has the focus"
        if where[0] == "BODY":
            break
    assert reached[-1] == "BODY"
    wanted = {"play", "slider", "token", "map", "grid", "heads", "epsilon", "epsilon-line", "csv", "png", "permalink"}
    assert wanted <= set(reached)
    assert len(reached) == len(set(reached))


def test_the_footer_says_what_8_bits_lose(opened: Opener, pages: dict[str, Path]) -> None:
    shown = opened("llada")
    data = shown.page.locator("#sinklens-data").text_content()
    loss = json.loads(data)["runs"][0]["samples"][0]["loss"]
    text = shown.part("loss").inner_text()
    assert f"within {100 * loss['max_relative']:.1f} % from {loss['relative_from']:.2f} fair shares on" in text
    assert "Exact: heads 1.1, 2.0." in text


def test_the_notebooks_module_draws_into_its_cell(chromium: Any, llada: MappedTrace) -> None:
    """As anywidget does it: the default export, a model with a payload, an element; the notebook's address stays."""
    context = chromium.new_context()
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_content('<input id="other"><div id="cell"></div>')
    page.add_style_tag(content=viewer_style())
    page.evaluate(
        """async ([source, payload]) => {
          const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
          const { default: widget } = await import(url);
          const asked = [];
          const model = { get: (name) => (asked.push(name), payload) };
          window.leave = await widget.render({ model, el: document.getElementById("cell") });
          window.asked = asked;
        }""",
        [viewer_script() + RENDER, script_json(build_payload([llada]))],
    )
    page.locator("#cell [data-part=where]:not(:empty)").wait_for()
    page.locator("#cell [data-part=slider]").fill("3")
    page.locator("#other").press("ArrowRight")
    page.wait_for_timeout(400)
    assert page.locator("[data-part=where]").inner_text().startswith("step 3 of 23")
    assert page.evaluate("[asked, location.hash]") == [["payload"], ""]
    page.evaluate("leave()")
    assert page.locator("#cell").inner_html() == ""
    context.close()
    assert errors == []
